"""Dense steps into large pages: torch's own numbers, gradients and hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from unified_attn.kernels import large, pages
from unified_attn.nn import GATConv, GATv2Conv, TransformerConv
from unified_attn.nn.linear import Linear, project


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small results count, too."""
    monkeypatch.setattr(large, "LARGE", 1)


def operands(dtype: torch.dtype = torch.float64) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    return normal(9, 5), [normal(3, 5), normal(4, 5), normal(2, 5)], [normal(3), None, normal(2)]


@pytest.mark.parametrize("used", [(0, 1, 2), (1,), (2, 0)])
def test_linears_are_torchs(used: tuple[int, ...]) -> None:
    x, weights, biases = operands()
    leaves = [x, *weights, *(b for b in biases if b is not None)]
    found = large.linears(x, weights, biases)
    assert type(found) is tuple  # not torch's own
    wanted = [nn.functional.linear(x, w, b) for w, b in zip(weights, biases, strict=True)]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)

    def gradients(outs: list[Tensor], create_graph: bool) -> tuple[Tensor | None, ...]:
        total = sum(outs[n].sin().sum() for n in used)
        return torch.autograd.grad(total, leaves, allow_unused=True, create_graph=create_graph)

    for create_graph in (False, True):
        pairs = list(zip(gradients(list(found), True), gradients(wanted, True), strict=True))
        for a, b in pairs:
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)
        if create_graph:
            both = [[p[side].square().sum() for p in pairs if p[side] is not None] for side in (0, 1)]
            seconds = [torch.autograd.grad(sum(terms), [x, weights[used[0]]]) for terms in both]
            for a, b in zip(*seconds, strict=True):
                torch.testing.assert_close(a, b)


def test_without_a_gradient_by_x() -> None:
    x, weights, biases = operands(torch.float32)
    outs = large.linears(x.detach(), weights, biases)
    found = torch.autograd.grad(sum(out.sum() for out in outs), weights)
    for weight, grad in zip(weights, found, strict=True):
        torch.testing.assert_close(grad, x.detach().sum(0).expand_as(weight))
    with torch.no_grad():
        assert not any(out.requires_grad for out in large.linears(x, weights, biases))


def test_what_no_gradient_asks_for_may_change() -> None:
    """As with torch's own: weights where x has no gradient, x where weights have none."""
    x, weights, biases = operands()
    wanted = x.detach().sum(0).expand(3, -1)
    out = large.linears(x.detach(), weights, biases)[0]
    with torch.no_grad():
        weights[0].zero_()
    out.sum().backward()
    torch.testing.assert_close(weights[0].grad, wanted)

    x, weights, biases = operands()
    frozen = [w.detach() for w in weights]
    given = x * 1
    out = large.linears(given, frozen, biases)[0]
    given.mul_(2)
    out.sum().backward()
    torch.testing.assert_close(x.grad, frozen[0].sum(0).expand(9, -1))


@pytest.mark.parametrize("row", [True, False])
def test_add_is_torchs(row: bool) -> None:
    a = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    b = torch.randn(*((3,) if row else (6, 3)), dtype=torch.float64, requires_grad=True)
    out = large.add(a, b)
    torch.testing.assert_close(out, a + b)
    g = torch.randn(6, 3, dtype=torch.float64)
    for found, wanted in zip(torch.autograd.grad(out, (a, b), g), torch.autograd.grad(a + b, (a, b), g), strict=True):
        torch.testing.assert_close(found, wanted)
    assert torch.autograd.gradcheck(large.add, (a, b))
    mixed = large.add(a.detach().float(), b.detach())  # promoted as torch does
    assert mixed.dtype == torch.float64


def test_compiled_and_transformed_code_is_torchs() -> None:
    x, weights, biases = operands()

    def run(x: Tensor) -> Tensor:
        first, second, _ = large.linears(x, weights, biases)
        return large.add(first, first) @ second[:, :3].t()

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), run(x))
    torch.testing.assert_close(torch.func.vmap(run)(x[None])[0], run(x))
    _, tangent = torch.func.jvp(run, (x.detach(),), (torch.ones_like(x),))
    near = (run(x + 1e-6) - run(x - 1e-6)) / 2e-6
    torch.testing.assert_close(tangent, near, rtol=1e-6, atol=1e-6)


def test_project_calls_modules_that_somebody_looks_at() -> None:
    x = torch.randn(7, 5)
    first, second = Linear(5, 3), Linear(5, 2)
    plain = project(x, first, None, second)
    assert plain[1] is None
    torch.testing.assert_close([plain[0], plain[2]], [first(x), second(x)])

    seen: list[Tensor] = []
    handle = second.register_forward_hook(lambda module, args, out: seen.append(out))
    project(x, first, second)
    assert len(seen) == 1
    handle.remove()
    second.register_full_backward_hook(lambda module, before, after: seen.append(after[0]))
    project(x.requires_grad_(), first, second)[1].sum().backward()
    assert len(seen) == 2

    replaced = Linear(5, 3)
    replaced.forward = lambda x: x[:, :3] * 2  # type: ignore[method-assign]
    torch.testing.assert_close(project(x, first, replaced)[1], x[:, :3] * 2)

    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    parametrized = Linear(5, 3, bias=False)
    wanted = 2 * parametrized(x)
    parametrize.register_parametrization(parametrized, "weight", Twice())
    torch.testing.assert_close(project(x, first, parametrized)[1], wanted)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "GATConv": lambda: GATConv(6, 4, heads=2, residual=True),
    "GATConv over two sets": lambda: GATConv((6, 6), 4, heads=2, residual=True, add_self_loops=False),
    "GATv2Conv": lambda: GATv2Conv(6, 4, heads=2, residual=True),
    "GATv2Conv, shared": lambda: GATv2Conv(6, 4, heads=2, share_weights=True),
    "TransformerConv": lambda: TransformerConv(6, 4, heads=2),
    "TransformerConv, gated": lambda: TransformerConv(6, 4, heads=2, beta=True),
    "TransformerConv without a root": lambda: TransformerConv(6, 4, heads=2, root_weight=False),
}


@pytest.mark.parametrize("form", ["one set", "first rows", "two sets"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_the_same_map_by_map(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook on each map makes them run one after the other."""
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    if form == "two sets" and getattr(layer, "add_self_loops", False):
        layer.add_self_loops = False
    x = torch.randn(8, 6, dtype=torch.float64, requires_grad=True)
    sets = {"one set": x, "first rows": (x, x[:5]), "two sets": (x, x[:5] + 1)}[form]
    edges = torch.randint(0, 5, (2, 20))
    leaves = [x, *layer.parameters()]

    def results() -> list[Tensor]:
        out = layer(sets, edges)
        return [out, *torch.autograd.grad(out.sin().sum(), leaves, retain_graph=True, materialize_grads=True)]

    found = results()
    calls = []
    for module in layer.modules():
        if isinstance(module, Linear):
            module.register_forward_hook(lambda module, args, out: calls.append(1))
    monkeypatch.setattr(large, "LARGE", 2**40)
    for a, b in zip(found, results(), strict=True):
        torch.testing.assert_close(a, b)
    assert calls


def _flags(address: int) -> list[str]:
    """What the system knows of the memory at an address."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if "-" in name and not name.endswith(":"):
            begin, end = (int(x, 16) for x in name.split("-"))
            here = begin <= address < end
        elif here and name == "VmFlags:":
            return rest
    return []


@pytest.fixture
def nothing_kept() -> Iterator[None]:
    pages.release()
    yield
    pages.release()


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system knows no large pages")
def test_large_pages_are_asked_for(nothing_kept: None) -> None:
    size = 2**25
    plain, x = torch.empty(size), pages.empty(torch.empty(0), size)
    middle = 4 * (size // 2)
    assert "hg" in _flags(x.data_ptr() + middle)
    assert "hg" not in _flags(plain.data_ptr() + middle)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_is_used_again(nothing_kept: None, dtype: torch.dtype) -> None:
    like = torch.empty(0, dtype=dtype)
    x = pages.empty(like, 5, 2**20)
    assert x.is_contiguous()
    assert (x.shape, x.dtype) == ((5, 2**20), dtype)
    first, view = x.fill_(3.0).data_ptr(), x[2:].t()
    assert pages.empty(like, 5, 2**20).data_ptr() != first
    del x
    other = pages.empty(like, 5, 2**20).fill_(4.0)
    assert other.data_ptr() != first  # a view holds it
    assert bool((view == 3.0).all())
    del view
    turned = pages.empty_strided(like, (2**20, 5), (1, 2**20))
    assert turned.data_ptr() == first  # the same size
    assert turned.stride() == (1, 2**20)


def test_sizes_serve_what_is_a_little_smaller(nothing_kept: None) -> None:
    like = torch.empty(0)
    first = pages.empty(like, 2**22).data_ptr()
    assert pages.empty(like, 2**22 - 2**16).data_ptr() == first
    assert pages.release() == 2**24
    pages.empty(like, 2**22)
    pages.empty(like, 2**21)  # half of it: before new memory is asked for, what is kept is given back
    assert pages.release() == 2**23


def test_no_more_is_kept_than_said(nothing_kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "KEPT", 3 * 2**23)
    held = [pages.empty(torch.empty(0), 2**21) for _ in range(5)]
    del held
    assert pages.release() == 3 * 2**23
    assert pages.release() == 0


def test_small_and_traced_memory_is_torchs() -> None:
    assert pages.empty(torch.empty(0), 3, 2).untyped_storage().resizable()
    assert pages.empty(torch.empty(0), 0).shape == (0,)
    assert pages.empty(torch.empty(0, device="meta"), 2**24).is_meta


def test_threads_share_what_is_kept(nothing_kept: None) -> None:
    """No block is in two hands: each thread finds in its own what it wrote."""
    like = torch.empty(0)

    def work(mark: int) -> bool:
        right = True
        for _ in range(20):
            x = pages.empty(like, 2**21).fill_(float(mark))
            right = right and bool((x == mark).all())
            del x
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


def test_results_outlive_the_step(nothing_kept: None) -> None:
    """A gradient that became a parameter's own stays what it was while later steps take memory."""
    layer = GATv2Conv(64, 32, heads=4)
    edges = torch.randint(0, 20_000, (2, 50_000), generator=torch.Generator().manual_seed(0))
    x = torch.randn(20_000, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = layer(x, edges)
    out.square().mean().backward()
    kept_out, kept_grad = out.detach().clone(), x.grad.clone()
    for _ in range(2):
        y = torch.randn(20_000, 64).requires_grad_()
        layer(y, edges).sum().backward()
    assert out.equal(kept_out)
    assert x.grad.equal(kept_grad)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [GATConv, GATv2Conv, TransformerConv])
def test_outputs_may_be_changed_in_place(kind: type[nn.Module], bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own: no output of a layer is a view."""
    monkeypatch.setattr(pages, "LARGE", 1)
    generator = torch.Generator().manual_seed(0)
    layer = kind(5, 4, heads=2, residual=True, bias=bias) if kind is not TransformerConv else kind(5, 4, 2, bias=bias)
    x, edges = torch.randn(9, 5, generator=generator), torch.randint(0, 9, (2, 20), generator=generator)
    results = []
    for change in (torch.relu, torch.relu_):
        leaf = x.clone().requires_grad_()
        out = change(layer(leaf, edges))
        results.append((out, *torch.autograd.grad(out.sum(), [leaf, *layer.parameters()])))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_memory_is_the_cpus_whatever_the_default_is(nothing_kept: None) -> None:
    with torch.device("meta"):
        x = pages.empty(torch.zeros(1, device="cpu"), 2**21)
    assert x.is_cpu
    x.fill_(1.0)
