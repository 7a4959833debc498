"""Which layers of torch-geometric have a twin here, and how it is made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from unified_attn.nn import GATConv, GATv2Conv, HGTConv, TransformerConv
from unified_attn.nn.heads import IF_ONE_SET
from unified_attn.nn.linear import Linear

Attention = GATConv | GATv2Conv | TransformerConv | HGTConv
LAYERS: tuple[type[Attention], ...] = (GATConv, GATv2Conv, TransformerConv, HGTConv)
"""Those that have a namesake in torch-geometric; their constructor arguments are attributes there."""

OTHERS = ("AGNNConv", "HANConv", "HEATConv", "PointTransformerConv", "RGATConv", "SuperGATConv")
"""Layers of torch-geometric with attention that have no namesake here."""


def name_of(module: nn.Module) -> str:
    """The name of its class."""
    return type(module).__name__


def ours_of(module: nn.Module) -> type[Attention] | None:
    """The namesake of the layer's exact type."""
    import torch_geometric.nn as pyg

    return next((layer for layer in LAYERS if type(module) is getattr(pyg, layer.__name__)), None)


def reason(module: Any) -> str:
    """Why a layer must stay as it is; empty if it can be replaced."""
    from torch_geometric.nn.aggr import SumAggregation

    if ours_of(module) is None:
        named = {c.__name__ for c in type(module).__mro__}
        base = next((layer.__name__ for layer in LAYERS if layer.__name__ in named), None)
        return f"it is a subclass of {base}, which may do anything" if base else "there is no such layer here"
    if type(module.aggr_module) is not SumAggregation:
        return f"it aggregates by {module.aggr!r}, and attention sums"
    if module.flow != "source_to_target":
        return f"its flow is {module.flow!r}"
    if module.explain:
        return "an explainer is attached to it"
    if module.decomposed_layers != 1:
        return f"it is decomposed into {module.decomposed_layers} layers"
    parts = _parts()
    for path, part in module.named_modules():
        if path and type(part) not in parts:
            return f"its {path} is a {name_of(part)}"
        place = f" of its {path}" if path else ""
        hooks = _hooks(part)
        if hooks:
            return f"the hooks{place} ({', '.join(hooks)}) would be lost"
        replaced = [name for name in vars(part) if inspect.isfunction(getattr(type(part), name, None))]
        if replaced:
            return f"the method {replaced[0]}{place} was replaced on the object"
    try:
        wanted = _held(_empty(module))
    except (TypeError, ValueError) as error:
        return f"its arguments are not taken here: {error}"
    names = _held(module)
    if names != wanted:
        return f"it holds other tensors than its class: {', '.join(sorted(names ^ wanted))}"
    return ""


def _parts() -> set[type[nn.Module]]:
    """What torch-geometric's layers consist of."""
    from torch_geometric.nn import HeteroDictLinear, HeteroLinear, Linear
    from torch_geometric.nn.aggr import SumAggregation
    from torch_geometric.nn.parameter_dict import ParameterDict

    return {HeteroDictLinear, HeteroLinear, Linear, SumAggregation, ParameterDict, nn.ModuleDict}


def _hooks(part: nn.Module) -> list[str]:
    """Names of the kinds of hooks that a module has, but for the one by which a lazy weight finds its size."""
    own = getattr(part, "_hook", None)
    lazy = {own.id} if own is not None else set()
    kinds = [(name, hooks) for name, hooks in vars(part).items() if name.endswith("_hooks") and isinstance(hooks, dict)]
    return [name.strip("_") for name, hooks in kinds if set(hooks) - lazy]


def _held(module: nn.Module) -> set[str]:
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return {name for name, _ in (*parameters, *buffers) if name != "fill_value"}


def notes(module: Any) -> tuple[str, ...]:
    """What changes when the layer is replaced."""
    loops = _loops(module)
    edges = ours_of(module) in (GATConv, GATv2Conv) and module.edge_dim is not None
    found = {
        "self-loops over one node set, none between two, where torch-geometric adds them": loops == IF_ONE_SET,
        "self-loops that the graph has keep their edge features, which torch-geometric replaces": bool(loops) and edges,
        "edge features that are missing raise, where torch-geometric leaves them out": edges,
    }
    return tuple(note for note, applies in found.items() if applies)


def _loops(module: Any) -> bool | str:
    """Two input sizes are, as a rule, two node sets, between which there are no self-loops."""
    loops: bool = getattr(module, "add_self_loops", False)
    return IF_ONE_SET if loops and isinstance(module.in_channels, (tuple, list)) else loops


def _heads(module: Any) -> dict[str, Any]:
    names = ("in_channels", "out_channels", "heads", "concat", "dropout", "edge_dim")
    return {name: getattr(module, name) for name in names}


def _of_gat(module: Any) -> dict[str, Any]:
    more = {name: getattr(module, name) for name in ("negative_slope", "fill_value", "residual")}
    return {**_heads(module), **more, "add_self_loops": _loops(module), "bias": module.bias is not None}


def _of_gatv2(module: Any) -> dict[str, Any]:
    return {**_of_gat(module), "share_weights": module.share_weights}


def _of_transformer(module: Any) -> dict[str, Any]:
    bias = module.lin_key.bias is not None
    return {**_heads(module), "beta": module.beta, "bias": bias, "root_weight": module.root_weight}


def _of_hgt(module: Any) -> dict[str, Any]:
    sizes = {kind: linear.in_channels for kind, linear in module.kqv_lin.lins.items()}
    metadata = module.node_types, module.edge_types
    return {"in_channels": sizes, "out_channels": module.out_channels, "metadata": metadata, "heads": module.heads}


ARGUMENTS: dict[type[Attention], Callable[[Any], dict[str, Any]]] = {
    GATConv: _of_gat,
    GATv2Conv: _of_gatv2,
    TransformerConv: _of_transformer,
    HGTConv: _of_hgt,
}


def _empty(module: Any) -> nn.Module:
    """Our layer of the same arguments, without weights (and without drawing any)."""
    ours = ours_of(module)
    if ours is None:
        raise TypeError(f"{name_of(module)} has no namesake in this library")
    with torch.device("meta"):
        return ours(**ARGUMENTS[ours](module))


@functools.cache
def _own_attributes(kind: Any) -> frozenset[str]:
    """What torch-geometric puts on an object of such a layer; anything else is its user's."""
    few = {"metadata": (["a"], [("a", "to", "a")])} if kind.__name__ == "HGTConv" else {}
    return frozenset(vars(kind(1, 1, **few)))


def twin(module: nn.Module) -> nn.Module:
    """Our layer with the very parameters of theirs, and what a user put on the object."""
    twin = _empty(module)
    kind: Any = type(module)
    for name in sorted(vars(module).keys() - _own_attributes(kind)):
        setattr(twin, name, getattr(module, name))
    for path, part in twin.named_modules(remove_duplicate=False):
        source: Any = module.get_submodule(path)
        if isinstance(part, Linear):
            part.in_channels = source.in_channels
        for name in list(part._parameters):
            setattr(part, name, getattr(source, name))
        part.training = source.training
    return twin
