"""Optional packages: absent, present, or present and broken at import. Each disables one thing, with a line of reason.

A broken binary made a whole library unusable, also what did not need it: rusty1s/pytorch_scatter #186, #333, dmlc/dgl
#7247. Each test runs in a fresh interpreter, in which a fake package comes first on the path or an import is forbidden.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.cases.tools import fresh

BROKEN = {
    "a mismatched library": ("raise OSError('libscatter.so: undefined symbol: _ZN2at4_ops')", "libscatter.so"),
    "a failed import": ("raise ImportError('DLL load failed')", "DLL load failed"),
    "an undefined symbol": ("raise RuntimeError('undefined symbol: foo\\nand a second line')", "undefined symbol: foo"),
    "no operator": ("raise AttributeError('torch.ops has no scatter')", "torch.ops has no scatter"),
    "a dependency that is missing": ("import surely_not_installed_anywhere", "surely_not_installed_anywhere"),
    "an error without words": ("raise OSError()", "torch-scatter does not import"),
    "the wrong package": ("", "torch"),
}

# Three nodes, node 2 hears 0 and 1 and node 0 hears 2; forward, gradients and second derivatives.
RUN = """
import torch
from unified_attn import Graph, Window, attention, explain
edges = torch.tensor([[0, 1, 2], [2, 2, 0]])
v = torch.tensor([[2.0], [4.0], [9.0]], dtype=torch.float64).expand(1, 1, 3, 1).clone().requires_grad_()
zero = torch.zeros(1, 1, 3, 4, dtype=torch.float64, requires_grad=True)
out = attention(zero, zero, v, mask=Graph(edges), backend="scatter")
(dv,) = torch.autograd.grad(out.sum(), v)
print(out.flatten().tolist(), dv.flatten().tolist())
x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(1, 1, 3, 4).requires_grad_()
for mask in (Graph(edges), Window(1, 1)):
    assert torch.autograd.gradgradcheck(lambda x: attention(x, x, x, mask=mask, backend="scatter"), x)
text = str(explain(zero, zero, v, mask=Graph(edges)))
print(next(line for line in text.splitlines() if line.split()[0] == "scatter"))
"""
NUMBERS = "[9.0, 0.0, 3.0] [0.5, 0.5, 1.0]"


def forbid(*packages: str) -> str:
    """`None` in sys.modules makes an import fail as if the package were not installed."""
    return f"import sys; sys.modules.update(dict.fromkeys({packages}))\n"


def test_scatter_without_torch_scatter(tmp_path: Path) -> None:
    # Hidden from the path finder, so that the error is the one of a package that is not there.
    hide = """
import importlib.abc, sys
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch_scatter":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""
    numbers, line = fresh(hide + RUN).splitlines()
    assert numbers == NUMBERS
    assert line == "  scatter    could run it [torch's own reductions (torch-scatter is not installed)]"


@pytest.mark.skipif(importlib.util.find_spec("torch_scatter") is None, reason="torch-scatter is not installed")
def test_scatter_with_torch_scatter() -> None:
    from importlib.metadata import version

    numbers, line = fresh(RUN).splitlines()
    assert numbers == NUMBERS
    assert line == f"  scatter    could run it [torch-scatter {version('torch-scatter')}]"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(*case, id=name, marks=() if name == "an undefined symbol" else pytest.mark.slow)
        for name, case in BROKEN.items()
    ],
)
def test_scatter_with_a_broken_torch_scatter(body: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "torch_scatter.py").write_text(body)
    numbers, *lines = fresh(RUN, tmp_path).splitlines()
    assert numbers == NUMBERS
    (line,) = lines  # one line of reason, whatever the error said
    assert line.startswith("  scatter    could run it [torch's own reductions (")
    assert words in line


def test_the_reductions_agree_with_and_without_torch_scatter() -> None:
    code = """
import torch
from unified_attn import EdgeBias, Graph, attention
g = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(2, 2, 9, 4, generator=g, dtype=torch.float64).requires_grad_() for _ in range(3))
bias = torch.randn(40, 2, generator=g, dtype=torch.float64).requires_grad_()
graph = Graph(torch.randint(0, 9, (2, 40), generator=g))
out = attention(q, k, v, mask=graph, bias=EdgeBias(bias), backend="scatter")
for x in (out, *torch.autograd.grad(out.pow(2).sum(), (q, k, v, bias))):
    print(*(f"{y:.9f}" for y in x.flatten().tolist()))
"""
    assert fresh(code) == fresh(forbid("torch_scatter") + code)


@pytest.mark.parametrize("kind", ["absent", "broken"])
def test_csr_without_numba_says_so_and_the_rest_runs(kind: str, tmp_path: Path) -> None:
    head = forbid("numba") if kind == "absent" else ""
    if kind == "broken":
        (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 1.26 or less')")
    code = """
import torch
from unified_attn import Graph, UnsupportedError, attention, explain
x = torch.zeros(1, 1, 3, 4)
graph = Graph(torch.tensor([[0, 1, 2], [2, 2, 0]]))
told = explain(x, x, x, mask=graph)
print(told.backend)
print(*told.reasons["csr"])
try:
    attention(x, x, x, mask=graph, backend="csr")
except UnsupportedError as error:
    print(error.backend)
print(attention(x, x, x + 1, mask=graph)[0, 0, :, 0].tolist())
"""
    chosen, reason, named, out = fresh(head + code, tmp_path).splitlines()
    assert chosen == "scatter"
    assert reason.startswith("numba does not import: ")
    assert named == "csr"
    assert out == "[1.0, 0.0, 1.0]"


OTHERS = ("torch_geometric", "networkx", "scipy", "sklearn", "torch_scatter", "transformers", "triton", "matplotlib")


def test_everything_runs_without_any_optional_package() -> None:
    code = """
import torch
from unified_attn import *
x = torch.randn(1, 2, 5, 4, requires_grad=True)
graph = Graph(torch.tensor([[0, 1, 2], [2, 2, 0]]))
for mask, backends in ((Causal(), ["reference"]), (Window(1, 0), ["reference", "scatter", "csr"]),
                       (graph, ["reference", "scatter", "csr"])):
    for backend in backends:
        attention(x, x, x, mask=mask, bias=ALiBi(2) + RoPE(4), backend=backend).sum().backward()
print(attention_weights(x, x, mask=graph).shape[-1])
"""
    assert fresh(forbid(*OTHERS) + code) == "3\n"


@pytest.mark.parametrize("package", ["networkx", "scipy"])
def test_a_graph_of_another_package_needs_nothing_but_that_package(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    make = {
        "networkx": "import networkx; graph = Graph.from_networkx(networkx.path_graph(3))",
        "scipy": "import scipy.sparse; graph = Graph.from_scipy(scipy.sparse.eye_array(3, k=1).tocsr())",
    }[package]
    absent = [name for name in OTHERS if name != package]
    code = f"from unified_attn import Graph\n{make}\nprint(graph)"
    assert fresh(forbid(*absent) + code) == f"Graph({4 if package == 'networkx' else 2} edges, 3 nodes)\n"
