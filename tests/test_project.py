"""The project's own shape: what the wheel holds, who imports whom, and what `import unified_attn` needs and costs."""

from __future__ import annotations

import ast
import os
import shutil
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = "unified_attn"

# A part of the library imports from its own row and the rows above it, inside functions too; for types alone, from any.
ROWS = [
    {"_autocast", "_compiling", "_counting_sort", "_watched", "dropout"},
    {"errors", "rows", "pairs", "vectors", "problem", "tiles", "strips"},
    {"masks", "biases", "scores"},
    {"kernels"},
    {"backends"},
    {"operator", "linear"},
    {"nn"},
    {"models"},
    {"interop", "accounting", "diagnostics", "testing", "__init__"},
]
# Never imported by the library.
FORBIDDEN = {"graphs", "experiments", "tests"}
# Imported when used: not while a module loads, but for the parts named here, which are themselves loaded when used.
LAZY: dict[str, set[str]] = {
    "numba": {"_compiling", "kernels"},
    "triton": {"kernels"},
    "torch_scatter": set(),
    "torch_geometric": set(),
    "transformers": set(),
    "scipy": set(),
    "networkx": set(),
    "matplotlib": set(),
}


def part_of(module: str) -> str:
    """`unified_attn.masks.graph` is in the part `masks`; a name that is no part comes from the package's `__init__`."""
    part = [*module.split("."), "__init__"][1]
    return part if any(part in row for row in ROWS) else "__init__"


def imports(node: ast.AST, package: list[str], loading: bool = True) -> Iterator[tuple[str, bool]]:
    """Each import under `node`, but for types: its full name, and whether it is done while the module loads."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, loading) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            parents = package[: len(package) - child.level + 1] if child.level else []
            base = ".".join(parents + ([child.module] if child.module else []))
            yield from ((f"{base}.{alias.name}", loading) for alias in child.names)
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports(child, package, loading and not deferred)


def faults(file: str, source: str) -> list[str]:
    """What is wrong with the imports of a file, whose path is given from the library's folder."""
    parts = Path(file).with_suffix("").parts
    own = parts[0]
    place = next((i for i, row in enumerate(ROWS) if own in row), None)
    if place is None:
        return [f"{file}: {own!r} has no row in ROWS; give it one"]
    allowed = set().union(*ROWS[: place + 1])
    found = []
    for name, loading in imports(ast.parse(source), [LIBRARY, *parts[:-1]]):
        top = name.split(".")[0]
        if top in FORBIDDEN:
            found.append(f"{file} imports {name}")
        elif top == LIBRARY and part_of(name) not in allowed:
            found.append(f"{file} imports {name}, from a row below its own")
        elif loading and own not in LAZY.get(top, {own}):
            found.append(f"{file} imports {name} while it loads")
    return found


def test_imports_run_one_way() -> None:
    folder = ROOT / LIBRARY
    files = sorted(folder.rglob("*.py"))
    assert files
    assert [fault for file in files for fault in faults(str(file.relative_to(folder)), file.read_text())] == []


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("masks/graph.py", "from unified_attn.nn import GATConv", "a row below its own"),
        ("masks/graph.py", "from ..nn.gat import GATConv", "a row below its own"),
        ("masks/graph.py", "def f():\n    import unified_attn.operator", "a row below its own"),
        ("masks/graph.py", "from unified_attn import attention", "a row below its own"),
        ("rows.py", "from .kernels import x", "a row below its own"),
        ("nn/gat.py", "import graphs.citation", "imports graphs.citation"),
        ("backends/scatter.py", "try:\n    import torch_scatter\nexcept ImportError: pass", "while it loads"),
        ("backends/csr.py", "from numba import njit", "while it loads"),
        ("novel.py", "", "no row"),
    ],
)
def test_a_wrong_import_is_found(file: str, source: str, fault: str) -> None:
    (found,) = faults(file, source)
    assert fault in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("masks/graph.py", "from unified_attn import rows\nfrom .base import Mask\nfrom ..biases import Bias"),
        ("masks/graph.py", "def f():\n    import networkx"),
        ("kernels/forward.py", "from numba import njit"),
        ("interop/pyg.py", "if TYPE_CHECKING:\n    from torch_geometric.nn import GATConv"),
        ("rows.py", "if TYPE_CHECKING:\n    from .masks import Mask"),
        ("__init__.py", "from .operator import attention"),
    ],
)
def test_a_right_import_is_let_through(file: str, source: str) -> None:
    assert faults(file, source) == []


def python(code: str, *paths: Path) -> str:
    """What a fresh interpreter prints as it runs `code`, with `paths` to search first; warnings are errors."""
    search = os.pathsep.join(map(str, [*paths, ROOT]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_torch_and_numpy_alone_and_costs_little() -> None:
    # CPU seconds, not wall-clock ones: a busy machine must not fail this. `None` in sys.modules makes an import fail.
    code = f"""
import sys, time
import numpy, torch
sys.modules.update(dict.fromkeys({[*LAZY, "sklearn", "lightning"]}))
begin = time.process_time()
import {LIBRARY}
print(time.process_time() - begin)
"""
    assert statistics.median(float(python(code)) for _ in range(3)) < 0.5


def test_import_survives_broken_optional_packages(tmp_path: Path) -> None:
    for name in LAZY:
        (tmp_path / f"{name}.py").write_text(f"raise OSError('{name} was built against another torch')")
    assert python(f"import {LIBRARY}; print('fine')", tmp_path) == "fine\n"


def test_a_broken_torch_scatter_leaves_the_scatter_back_end(tmp_path: Path) -> None:
    (tmp_path / "torch_scatter.py").write_text("raise OSError('undefined symbol')")
    code = """
import torch
from unified_attn import Graph, attention
v = torch.tensor([[2.0], [4.0], [9.0]]).expand(1, 1, 3, 1)
edges = torch.tensor([[0, 1, 2], [2, 2, 0]])
print(attention(torch.zeros_like(v), v, v, mask=Graph(edges), backend="scatter").flatten().tolist())
"""
    assert python(code, tmp_path) == "[9.0, 0.0, 3.0]\n"


def test_wheel_holds_the_library_alone(tmp_path: Path) -> None:
    # Built from a copy, so that no build/ is left in the checkout, nor an older one picked up from there.
    source = tmp_path / "source"
    hidden = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "data", "outputs")
    shutil.copytree(ROOT, source, ignore=hidden)
    (source / "graphs").mkdir(exist_ok=True)
    (source / "graphs" / "__init__.py").touch()
    build = [sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    subprocess.run([*build, tmp_path, source], check=True, capture_output=True)

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    folder = source / LIBRARY
    wanted = {f"{LIBRARY}/{file.relative_to(folder).as_posix()}" for file in folder.rglob("*.py")}
    assert held == wanted | {f"{LIBRARY}/py.typed"}
