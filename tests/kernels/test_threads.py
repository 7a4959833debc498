"""Kernels on several threads: the same bits for any number of them, several callers at once, and forked processes."""

import multiprocessing
import os
import sys
import threading

import pytest
import torch

from tests.cases.tools import fresh
from tests.kernels.csr_loop import gradients, operands, pairs_of, run
from unified_attn import DenseBias, Graph, attention, attention_with_lse

forks = pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="fork is unsafe on macOS")
NEEDLESS = "ignore:.*fork.*:DeprecationWarning"  # newer interpreters warn about any fork of a process with threads


def large(dtype=torch.float32, form="dot", vectors="rows"):
    """A problem that is cut into several blocks and handed to several threads."""
    generator = torch.Generator().manual_seed(5)
    nodes, edges = 3000, 40000
    first = torch.randint(0, nodes, (edges,), generator=generator) ** 2 // nodes  # degrees differ
    second = torch.randint(0, nodes, (edges,), generator=generator) ** 2 // nodes
    shape = {"width": 48, "size": 8} if form == "sum" else {"width": 64, "size": 32}
    tensors = operands(dtype, batch=1, edges=edges, full=True, n=(nodes, nodes), form=form, vectors=vectors, **shape)
    return tensors, pairs_of(first, second, nodes, nodes)


def results(tensors, rows, **options):
    got = run(tensors, rows, dropout_p=0.1, seed=torch.tensor(3), **options)
    return [*got, *gradients(got, tensors).values()]


@pytest.fixture
def restore_threads():
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("vectors", ["rows", "table", "features"])
@pytest.mark.parametrize("form", ["dot", "sum"])
def test_same_bits_for_any_number_of_threads(form, vectors):
    tensors, rows = large(form=form, vectors=vectors.replace("table", "rows"))
    codes = {}
    if vectors == "table":
        for name in ("key_vectors", "value_vectors"):
            tensors[name] = tensors[name].detach()[:9, :1].requires_grad_()
        codes = dict.fromkeys(("key_code", "value_code"), torch.arange(40000)[None] % 9)
    torch.set_num_threads(1)
    want = results(tensors, rows, **codes)
    for count in (2, 3, 2, 1, 7):
        torch.set_num_threads(count)
        for a, b in zip(results(tensors, rows, **codes), want, strict=True):
            assert torch.equal(a, b)


@pytest.mark.usefixtures("restore_threads")
def test_python_threads_at_once():
    torch.set_num_threads(2)
    tensors, rows = large()
    want = results(tensors, rows)
    right = []

    def caller():
        right.extend(
            all(torch.equal(a, b) for a, b in zip(results(tensors, rows), want, strict=True)) for _ in range(3)
        )

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert right == [True] * 12


def _in_child(queue, tensors, rows, want):
    # Nothing else of torch that uses its threads, which hang in a forked child; so numpy compares.
    torch.set_num_threads(2)
    queue.put(all((a.numpy() == b.numpy()).all() for a, b in zip(run(tensors, rows), want, strict=True)))


@pytest.mark.usefixtures("restore_threads")
@forks
@pytest.mark.filterwarnings(NEEDLESS)
def test_fork_after_a_call():
    torch.set_num_threads(2)
    tensors, rows = large()
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    want = run(tensors, rows)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, tensors, rows, want))
    child.start()
    try:
        assert queue.get(timeout=60)
        child.join(60)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()


FORKED = """
import os, signal, torch
from tests.cases.tools import fresh
from unified_attn import GAT, Graph, attention

q = torch.ones(1, 8, 300, 8)
attention(q, q, q, mask=Graph(torch.arange(300).repeat(2, 20)))  # several tasks, and nothing else that has threads
child = os.fork()
if child == 0:
    signal.alarm(30)
    torch.randn(400000).sin()
    attention(q, q, q, mask=Graph(torch.arange(300).repeat(2, 20)))
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@forks
def test_torchs_own_operators_in_a_forked_child():
    """They would wait for the threads that our call started in the parent."""
    assert fresh(FORKED).split()[-1] == "7"


@pytest.mark.parametrize("heads", [1, 8])
def test_the_gradient_of_one_number_for_all_pairs(heads):
    """It is a sum over pairs of all tasks; the log-sum-exp of each query that sees a key gains 1 from it."""
    graph = Graph(torch.randint(0, 2000, (2, 40000), generator=torch.Generator().manual_seed(0)), num_keys=2000)
    x = torch.randn(1, 2000, 8, 8, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    bias = torch.randn(heads, 1, 1, generator=torch.Generator().manual_seed(2)).requires_grad_()
    lse = attention_with_lse(x, x, x, mask=graph, bias=DenseBias(bias), backend="csr")[1]
    seen = lse > -torch.inf
    (found,) = torch.autograd.grad(lse[seen].sum(), bias)
    torch.testing.assert_close(found.flatten(), seen.sum((0, 2)).view(heads, -1).sum(1).float(), rtol=3e-5, atol=0)


LAYOUTS = {
    "dense": lambda x: x,
    "edges last": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    "a part": lambda x: torch.cat([x, x], 2)[..., : x.shape[2]],
    "all heads alike": lambda x: x[:1].expand(8, -1, -1),
}


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_learned_table_of_pairs_gets_the_same_bits(layout):
    """Items of a batch and parallel edges add to one number of it."""
    graph = Graph(torch.randint(0, 30, (2, 4000), generator=torch.Generator().manual_seed(0)), num_keys=30)
    x = torch.randn(4, 30, 8, 8, generator=torch.Generator().manual_seed(1)).transpose(1, 2)
    table = torch.randn(8, 30, 30, generator=torch.Generator().manual_seed(2))

    def results(backend, dtype):
        leaf = table.to(dtype).requires_grad_()
        out = attention(
            x.to(dtype), x.to(dtype), x.to(dtype), mask=graph, bias=DenseBias(LAYOUTS[layout](leaf)), backend=backend
        )
        return [out.detach(), *torch.autograd.grad(out.sin().sum(), leaf)]

    torch.set_num_threads(1)
    want = results("csr", torch.float32)
    for found, right in zip(want, results("reference", torch.float64), strict=True):
        torch.testing.assert_close(found.double(), right, rtol=1e-4, atol=1e-5)
    for count in (2, 5, 5):
        torch.set_num_threads(count)
        assert all(torch.equal(a, b) for a, b in zip(results("csr", torch.float32), want, strict=True))
