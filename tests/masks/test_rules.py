"""What the masks of packed and long sequences mean: values, gradients, any length, any device, compiled code."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.cases.tools import ON_EDGES, assert_same, formula, inputs, weights
from unified_attn import (
    ALiBi,
    BigBird,
    Causal,
    Dilated,
    Documents,
    GlobalTokens,
    Graph,
    Longformer,
    Mask,
    Padding,
    Window,
    attention,
    explain,
)

every_backend = pytest.mark.parametrize("backend", ON_EDGES)
ROOT = Path(__file__).resolve().parents[2]


# --- packed documents

LENGTHS = torch.tensor([2, 3, 0, 4])


@every_backend
@pytest.mark.parametrize("options", [{}, {"mask": Causal(), "bias": ALiBi(2)}, {"mask": Window(1, 0)}], ids=str)
def test_packed_documents_are_single_runs(backend: str, options: dict) -> None:
    """Packed documents saw each other: huggingface/transformers #46634; ragged ones leaked: pytorch #177378."""
    q, k, v = inputs(9)
    rule, bias = options.get("mask"), options.get("bias")
    mask = Documents.from_lengths(LENGTHS)
    packed = attention(q, k, v, mask=mask if rule is None else mask & rule, bias=bias, backend=backend)
    parts = [
        attention(*(x[:, :, a : a + n] for x in (q, k, v)), mask=rule, bias=bias, backend="reference")
        for a, n in zip((0, 2, 5, 5), LENGTHS.tolist(), strict=True)
    ]
    assert_same(packed, torch.cat(parts, 2), q, k, v)


@every_backend
def test_nothing_flows_from_another_document(backend: str) -> None:
    q, k, v = inputs(5)
    out = attention(q, k, v, mask=Documents(torch.tensor([0, 0, 0, 1, 1])), backend=backend)
    for gradient in torch.autograd.grad(out[:, :, 4].sum(), (k, v)):
        assert not bool(gradient[:, :, :3].any())
    assert bool(
        torch.autograd.grad(attention(q, k, v, mask=Documents(torch.zeros(5).long()))[:, :, 4].sum(), v)[0].all()
    )


@every_backend
def test_positions_that_start_anew_change_nothing(backend: str) -> None:
    """Resetting positions does not block attention, and must not move the ids either."""
    q, k, v = inputs(5)
    mask = Documents(torch.tensor([0, 0, 0, 1, 1]))
    at = torch.tensor([0, 1, 2, 0, 1])
    out = attention(q, k, v, mask=mask & Causal(), q_positions=at, k_positions=at, backend=backend)
    assert_same(out, attention(q, k, v, mask=mask & Causal(), backend="reference"), q, k, v)


@every_backend
def test_a_batch_of_graphs_is_its_documents(backend: str) -> None:
    """torch-geometric's `batch` vector, whose graphs lie in any order."""
    q, k, v = inputs(6)
    batch = torch.tensor([1, 0, 2, 0, 1, 1])
    together = (batch[:, None] == batch).nonzero().t()
    assert_same(
        attention(q, k, v, mask=Documents(batch), backend=backend),
        attention(q, k, v, mask=Graph(together.flip(0)), backend="reference"),
        q, k, v,
    )  # fmt: skip


def test_ids_are_copied() -> None:
    ids = torch.tensor([0, 0, 1])
    mask = Documents(ids)
    first = mask.draw(3, 3)
    ids.zero_()
    assert mask.draw(3, 3) == first
    flags = torch.tensor([[True, False, False]])
    tokens = GlobalTokens(flags)
    flags.zero_()
    assert tokens.draw(3, 3) == "###\n#..\n#.."


def test_ids_of_any_strides() -> None:
    q = torch.randn(2, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[0, 1], [0, 1], [1, 0], [1, 0], [1, 1]]).t()
    got, want = (attention(q, q, q, mask=Documents(x), backend="csr") for x in (ids, ids.contiguous()))
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize("mask", [Window(2**62 - 1, 2**62 - 1), Longformer(2**62 - 1, []), Dilated(2**62 - 1, 1)])
def test_the_greatest_reach_sees_everything(mask: Mask) -> None:
    q = torch.randn(1, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(attention(q[:, :, 3:], q, q, mask=mask, backend="csr"), attention(q[:, :, 3:], q, q))


def test_documents_from_offsets_and_lengths() -> None:
    assert Documents.from_lengths(LENGTHS).ids.tolist() == [0, 0, 1, 1, 1, 3, 3, 3, 3]
    assert Documents.from_cu_seqlens(torch.tensor([0, 2, 5, 5, 9], dtype=torch.int32)).ids.tolist() == [
        0, 0, 1, 1, 1, 3, 3, 3, 3,
    ]  # fmt: skip
    for nothing in (Documents.from_lengths(LENGTHS[:0]), Documents.from_cu_seqlens(torch.tensor([0]))):
        assert nothing.ids.shape == (0,)


# --- reach


@every_backend
def test_reach_is_counted_as_documented(backend: str) -> None:
    """Windows were one off, or reached W to each side where W in all was meant: huggingface/transformers #39408."""
    middle = {
        Dilated(1, 2): [0, 0, 1, 0, 1, 0, 1, 0, 0],
        Dilated(2, 2) & Causal(): [1, 0, 1, 0, 1, 0, 0, 0, 0],
        Longformer(1, []): [0, 0, 0, 1, 1, 1, 0, 0, 0],
        Longformer(1, [0, 7]): [1, 0, 0, 1, 1, 1, 0, 1, 0],
        BigBird(2, 0, 3, 0, 0): [0, 0, 1, 1, 1, 1, 1, 1, 0],
        BigBird(2, 1, 1, 0, 0): [1, 1, 0, 0, 1, 1, 0, 0, 0],
        GlobalTokens([8]): [0, 0, 0, 0, 0, 0, 0, 0, 1],
    }
    for mask, row in middle.items():
        want = torch.tensor(row, dtype=torch.float32)
        zero, v = torch.zeros(1, 1, 9, 4), torch.eye(9, 16)[None, None]
        got = attention(zero, zero, v, mask=mask, backend=backend)[0, 0, 4, :9]
        torch.testing.assert_close(got, want / want.sum())


@pytest.mark.parametrize(
    "mask",
    [Dilated(2, 3), BigBird(2, 1, 3, 1, seed=0), Longformer(1, [0]), GlobalTokens([1]), BigBird(1, 0, 1, 4, seed=7)],
    ids=repr,
)
@every_backend
def test_one_rule_serves_every_length(mask: Mask, backend: str) -> None:
    """A mask made for one length was used for another: pytorch/pytorch #141625."""
    for length in (3, 8, 5, 8):
        q, k, v = inputs(length)
        table = torch.tensor([[c == "#" for c in row] for row in mask.draw(8, 8).split("\n")])[:length, :length]
        assert_same(attention(q, k, v, mask=mask, backend=backend), formula(q, k, v, table), q, k, v)


@pytest.mark.parametrize(
    "mask",
    [Dilated(2, 2), BigBird(2, 1, 1, 1, seed=1), Longformer(1, [0])],
    ids=repr,
)
@every_backend
def test_a_step_sees_what_the_whole_run_sees(mask: Mask, backend: str) -> None:
    q, k, v = inputs(12)
    mask = mask & Causal()
    whole = attention(q, k, v, mask=mask, backend=backend)
    steps = [attention(q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1], mask=mask, backend=backend)
             for n in range(12)]  # fmt: skip
    assert_same(torch.cat(steps, 2), whole, q, k, v)


def test_random_blocks_are_spread_evenly_and_depend_on_the_seed() -> None:
    row = torch.full((4000,), 13)
    drawn = torch.cat([BigBird(1, 0, 1, 1, seed=seed)._draw(row[:1], 0) for seed in range(4000)])
    assert (int(drawn.min()), int(drawn.max())) == (0, 15)
    counts = drawn.bincount(minlength=16).double()
    assert float(((counts - 250) ** 2 / 250).sum()) < 38  # chi-squared, 15 degrees of freedom: 0.1 %
    at = torch.arange(512, 1024)
    one, other = (BigBird(1, 0, 1, 2, seed=0)._draw(at, n) for n in range(2))
    assert float((one == other).double().mean()) < 0.02
    assert len(one.unique()) > 250
    assert bool((BigBird(1, 0, 1, 1, seed=0)._draw(torch.tensor([0, -3]), 0) == 0).all())


def test_far_positions_are_fine() -> None:
    i = torch.tensor([[2**40], [2**62]])
    assert BigBird(64, 1, 3, 2, seed=0).allow(i, i, i, i).all()
    assert Dilated(1, 2).allow(i, i, i, i - 2).all()


# --- objects

MASKS: dict[str, Callable[[], Mask]] = {
    "Documents([4] int64)": lambda: Documents(torch.tensor([0, 0, 1, 1])),
    "GlobalTokens([0, 2])": lambda: GlobalTokens(torch.tensor([2, 0, 2])),
    "GlobalTokens([1, 4] bool)": lambda: GlobalTokens(torch.tensor([[True, False, False, False]])),
    "Longformer(window=1, global_tokens=[0])": lambda: Longformer(1, range(1)),
    "Longformer(window=1, global_tokens=[1, 4] bool)": lambda: Longformer(1, torch.ones(1, 4).bool()),
    "BigBird(block_size=2, global_blocks=1, window_blocks=1, random_blocks=1, seed=4)": lambda: BigBird(2, 1, 1, 1, 4),
    "Dilated(size=2, dilation=3)": lambda: Dilated(2, 3),
}


@pytest.mark.parametrize("text", MASKS)
def test_masks_read_like_their_constructor_call(text: str) -> None:
    assert repr(MASKS[text]()) == text
    assert repr(MASKS[text]() & Causal()) == f"{text} & Causal()"
    assert repr(~MASKS[text]()) == f"~{text}"


@pytest.mark.parametrize("text", MASKS)
def test_masks_are_copied_moved_and_never_saved(text: str) -> None:
    mask = MASKS[text]()
    drawn = mask.draw(4, 4)
    x = torch.zeros(1, 1, 4, 4)
    attention(x, x, x, mask=mask, backend="csr")  # what was listed is no part of a copy
    assert copy.deepcopy(mask).draw(4, 4) == drawn
    assert pickle.loads(pickle.dumps(mask)).draw(4, 4) == drawn
    assert mask.state_dict() == {}
    assert mask.to(torch.bfloat16).draw(4, 4) == drawn  # integers and bools keep their kind
    mask.to("meta")
    assert all(x.device.type == "meta" for x in mask.buffers())


def test_lists_count_for_the_default_back_end() -> None:
    q = torch.zeros(1, 1, 256, 4)
    sparse = [Documents(torch.arange(256) // 8), GlobalTokens([0]), Longformer(4, [0]), BigBird(4, 1, 3, 1, 0)]
    for mask in [*sparse, Dilated(4, 3), Dilated(2, 3) | Window(2, 2), Longformer(4, [0]) & Causal()]:
        assert explain(q, q, q, mask=mask).backend == "csr"
    assert explain(q, q, q, mask=Documents(torch.zeros(256).long())).backend == "sdpa"
    assert explain(q, q, q, mask=BigBird(64, 1, 3, 1, 0)).backend == "sdpa"


@every_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_beside_them(backend: str, dtype: torch.dtype) -> None:
    q, k, v = inputs(8, dtype=dtype)
    keep = torch.arange(8) < torch.tensor([[6], [8]])
    for mask in (Longformer(1, [0]), BigBird(2, 1, 1, 1, 0), Dilated(1, 2), Documents(torch.arange(8) // 3)):
        table = torch.tensor([[c == "#" for c in row] for row in mask.draw(8, 8).split("\n")])
        want = formula(q, k, v, table & keep[:, None, None, :])
        assert_same(attention(q, k, v, mask=mask & Padding(keep), backend=backend), want, q, k, v)


@every_backend
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_nobody_sees_may_hold_anything(backend: str, poison: float) -> None:
    """NaN in unwritten memory reached every output: pytorch/pytorch #101967."""
    keep = torch.tensor([[True, True, True, False, True, True, True, False]])
    for mask in (Longformer(1, [0]), BigBird(2, 1, 1, 1, 0), Dilated(1, 2), Documents(torch.arange(8) // 3)):
        results = []
        for filling in (0.0, poison):
            q, k, v = (x.detach() for x in inputs(8))
            k, v = (x.masked_fill(~keep[:, None, :, None], filling) for x in (k, v))
            leaves = [x.requires_grad_() for x in (q, k, v)]
            out = attention(*leaves, mask=mask & Padding(keep), backend=backend)
            results.append([out, *torch.autograd.grad(out.cos().sum(), leaves)])
        assert all(map(torch.equal, *results))


def test_weights_are_even_over_what_is_seen() -> None:
    got = weights("reference", 2, 4, Longformer(0, [0]))[0, 0]
    assert got.tolist() == [[0.5, 0.0, 0.5, 0.0], [0.5, 0.0, 0.0, 0.5]]


# --- compiled


@pytest.fixture
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


IN_CODE: dict[str, Callable[[Tensor], Mask]] = {
    "documents": Documents,
    "documents & window": lambda ids: Documents(ids) & Window(2, 1),
    "documents & causal": lambda ids: Documents(ids) & Causal(),
    "documents [B,N]": lambda ids: Documents(torch.stack([ids, ids.flip(0)])),
    "global": lambda ids: GlobalTokens([0, 2]),
    "global [B,N]": lambda ids: GlobalTokens(torch.stack([ids == 0, ids == 1])),
    "longformer": lambda ids: Longformer(1, [0]),
    "longformer [B,N] & causal": lambda ids: Longformer(1, torch.stack([ids == 0, ids == 1])) & Causal(),
    "bigbird": lambda ids: BigBird(2, 1, 1, 1, seed=0),
    "dilated": lambda ids: Dilated(1, 2),
    "dilated | documents": lambda ids: Dilated(1, 2) | Documents(ids),
    "window & padding": lambda ids: Window(2, 1) & Padding(torch.stack([ids != 0, ids != 1])),
}
QUICK = {"documents & window", "longformer [B,N] & causal", "bigbird"}


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize("backend", ["csr", pytest.param("scatter", marks=pytest.mark.slow),
                                     pytest.param(None, marks=pytest.mark.slow)])  # fmt: skip
@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
                                  for name in IN_CODE])  # fmt: skip
def test_lists_are_made_in_compiled_code(name: str, backend: str | None) -> None:
    """Whole, and once for all lengths."""

    def layer(q: Tensor, k: Tensor, v: Tensor, ids: Tensor) -> Tensor:
        return attention(q, k, v, mask=IN_CODE[name](ids), backend=backend)

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=True)
    for length in (7, 9, 16):
        q, k, v = inputs(length)
        ids = torch.arange(length) % 3
        wave = torch.linspace(-1.0, 2.0, q.numel(), dtype=q.dtype).reshape(q.shape)
        results = []
        for function in (compiled, layer):
            out = function(q, k, v, ids)
            results.append([out, *torch.autograd.grad((out * wave).sum(), (q, k, v))])
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)
    assert len(torch._dynamo.eval_frame._debug_get_cache_entry_list(layer.__code__)) <= 2


@pytest.mark.usefixtures("_fresh")
def test_documents_made_outside_are_read_anew() -> None:
    """Other documents of the same size must not be taken for constants."""
    compiled = torch.compile(
        lambda q, mask: attention(q, q, q, mask=mask, backend="csr"), backend="eager", fullgraph=True
    )
    q = inputs(4)[0]
    for ids in ([0, 0, 1, 1], [0, 1, 1, 1]):
        mask = Documents(torch.tensor(ids))
        torch.testing.assert_close(compiled(q, mask), attention(q, q, q, mask=mask, backend="reference"))


# --- modules that draw themselves

MODULES = ["bigbird", "causal", "dense", "dilated", "documents", "full", "global_tokens", "graph", "longformer",
           "padding", "where", "window"]  # fmt: skip


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", [n if n in ("longformer", "graph") else pytest.param(n, marks=pytest.mark.slow)
                                  for n in MODULES])  # fmt: skip
def test_a_module_draws_itself(name: str) -> None:
    first, *rows = run("-m", f"unified_attn.masks.{name}").splitlines()
    assert first.startswith(("".join(part.title() for part in name.split("_")), "BigBird", "DenseMask"))
    assert len(rows) >= 12
    assert set("".join(rows)) <= set("#.")
    assert any("#" in row for row in rows)


def test_every_mask_has_such_a_module() -> None:
    files = {file.stem for file in (ROOT / "unified_attn" / "masks").glob("*.py") if "__main__" in file.read_text()}
    assert files == set(MODULES)


def test_importing_them_prints_nothing_and_leaves_warnings_alone() -> None:
    names = ", ".join(f"unified_attn.masks.{name}" for name in MODULES)
    code = (
        f"import warnings, torch; before = len(warnings.filters); import {names}; print(len(warnings.filters) - before)"
    )
    assert run("-c", code) == "0\n"
