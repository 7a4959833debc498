"""A layer of the library beside torch-geometric's of the same name, with the same weights."""

from __future__ import annotations

from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from unified_attn import nn as ours

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}

# (nodes, edges): isolated nodes, parallel edges, no edges, a node, none at all.
GRAPHS = {
    "sparse": (9, 12),
    "crowded": (4, 30),
    "no edges": (3, 0),
    "one node": (1, 2),
    "no nodes": (0, 0),
}


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def edges_between(sources: int, targets: int, count: int, seed: int = 0) -> Tensor:
    g = random(seed)
    return torch.stack([torch.randint(max(n, 1), (count,), generator=g) for n in (sources, targets)])


def one_loop_a_node(edge_index: Tensor) -> Tensor:
    """Without the second and further loops at a node, which torch-geometric makes one."""
    seen: set[int] = set()
    keep = []
    for e, (j, i) in enumerate(edge_index.t().tolist()):
        if i != j or i not in seen:
            keep.append(e)
        if i == j:
            seen.add(i)
    return edge_index[:, keep]


def without_loops(edge_index: Tensor) -> Tensor:
    return edge_index[:, edge_index[0] != edge_index[1]]


def features(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=random(seed), dtype=torch.float64).to(dtype).requires_grad_()


def twins(name: str, *args: Any, dtype: torch.dtype = torch.float64, **options: Any) -> tuple[nn.Module, nn.Module]:
    """(theirs, ours), whose biases are no longer 0, so that they count."""
    theirs, mine = getattr(pyg, name)(*args, **options).to(dtype), getattr(ours, name)(*args, **options).to(dtype)
    with torch.no_grad():
        for n, parameter in enumerate(theirs.parameters()):
            parameter.copy_(0.5 * features(*parameter.shape, dtype=dtype, seed=300 + n))
    mine.load_state_dict(theirs.state_dict(), strict=True)
    return theirs, mine


def gradients(module: nn.Module, out: Tensor, inputs: list[Tensor]) -> dict[str, Tensor]:
    """Of a fixed weighting of the output; what was not used has gradient 0."""
    weight = torch.linspace(-1.0, 2.0, out.numel(), dtype=torch.float64).cos().to(out.dtype).reshape(out.shape)
    named = {**dict(module.named_parameters()), **{f"input {n}": x for n, x in enumerate(inputs)}}
    grads = torch.autograd.grad((out * weight).sum(), list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(named.items(), grads, strict=True)}


def agree(theirs: nn.Module, mine: nn.Module, inputs: list[Tensor], *args: Any, mine_args: Any = None) -> None:
    """Outputs and all gradients, of parameters and of `inputs`, are the same."""
    a, b = theirs(*args), mine(*(args if mine_args is None else mine_args))
    close(b, a)
    found, wanted = gradients(mine, b, inputs), gradients(theirs, a, inputs)
    assert found.keys() == wanted.keys()
    for key, grad in wanted.items():
        close(found[key], grad, key)


def close(found: Tensor, wanted: Tensor, what: str = "output") -> None:
    size = max(1.0, float(wanted.detach().abs().max())) if wanted.numel() else 1.0
    tolerance = TOLERANCE[wanted.dtype] * size
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=tolerance, msg=lambda text: f"{what}: {text}")
