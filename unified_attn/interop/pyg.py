"""A torch-geometric model with the attention layers of this library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from unified_attn.nn import GATConv, GATv2Conv, HGTConv, TransformerConv
from unified_attn.nn.heads import IF_ONE_SET
from unified_attn.nn.linear import Linear

Model = TypeVar("Model", bound=nn.Module)

Attention = GATConv | GATv2Conv | TransformerConv | HGTConv
LAYERS: tuple[type[Attention], ...] = (GATConv, GATv2Conv, TransformerConv, HGTConv)
"""Those that have a namesake in torch-geometric; their constructor arguments are attributes there."""

METHODS = ("forward", "message", "aggregate", "update", "edge_update", "message_and_aggregate")
"""What somebody may have replaced on one object."""


@dataclass(frozen=True)
class Finding:
    """What happens to one layer.

    Args:
        paths: Where it is in the model; several if it is shared.
        layer: The class's name.
        reason: Why it is left alone; empty if it is replaced.
        notes: What changes when it is replaced.
    """

    paths: tuple[str, ...]
    layer: str
    reason: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = ", ".join(path or "(the model itself)" for path in self.paths)
        if self.reason:
            return f"{where}: {self.layer} is left alone: {self.reason}"
        return "; ".join([f"{where}: {self.layer} becomes unified_attn.nn.{self.layer}", *self.notes])


@dataclass(frozen=True)
class Report:
    """What :data:`convert` does to a model; prints a line a layer.

    Args:
        findings: One a layer, in the order of the model.
    """

    findings: tuple[Finding, ...]

    @property
    def converted(self) -> tuple[str, ...]:
        """Paths of the layers that are replaced."""
        return tuple(path for finding in self.findings if not finding.reason for path in finding.paths)

    @property
    def left(self) -> dict[str, str]:
        """Why the others are not, by path."""
        return {path: finding.reason for finding in self.findings if finding.reason for path in finding.paths}

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or "no attention layer of torch-geometric found"

    __repr__ = __str__


class Convert:
    """Replaces the attention layers of a torch-geometric model by those of this library, in place.

    Layers whose type is exactly torch-geometric's ``GATConv``, ``GATv2Conv``, ``TransformerConv`` or ``HGTConv`` are
    replaced, wherever they are in the model: also inside ``torch_geometric.nn.Sequential``, ``HeteroConv`` and what
    ``to_hetero`` makes (which itself knows torch-geometric's layers alone: convert its result). Their parameters are
    handed over, the same objects, so an optimizer made before goes on training them; training mode, device, dtype and
    ``requires_grad`` are kept, and so are the names of the ``state_dict``. A layer that is used in several places stays
    one layer.

    Outputs and gradients are the same, but for the faults that the layers' docstrings name. A layer with two input
    sizes that asked for self-loops gets them over one node set, and none between two.

    Left alone, and named in the report: subclasses (a parametrization makes one), layers with another aggregation or
    flow, with hooks or replaced methods, with an explainer, and with parts that are not torch-geometric's own.

    Args:
        model: Any module; if it is itself such a layer, use what is returned.

    Returns:
        The model. :meth:`report` says beforehand what happens.

    Raises:
        ImportError: If torch-geometric is missing.

    Example:
        >>> import torch_geometric.nn as pyg
        >>> model = pyg.models.GAT(in_channels=8, hidden_channels=4, num_layers=2, out_channels=3, heads=2)
        >>> convert.report(model)
        convs.0: GATConv becomes unified_attn.nn.GATConv
        convs.1: GATConv becomes unified_attn.nn.GATConv
        >>> x, edge_index = torch.randn(5, 8), torch.tensor([[0, 1, 2], [3, 3, 4]])
        >>> before = model(x, edge_index)
        >>> bool(torch.allclose(convert(model)(x, edge_index), before, atol=1e-6))
        True
    """

    def __call__(self, model: Model) -> Model:
        made: dict[int, nn.Module] = {}
        for _, module in _survey(model):
            if not _reason(module):
                made[id(module)] = _twin(module)
        for parent in list(model.modules()):
            for name, child in parent._modules.items():
                if child is not None and id(child) in made:
                    parent._modules[name] = made[id(child)]
        return made.get(id(model), model)  # type: ignore[return-value]

    def report(self, model: nn.Module) -> Report:
        """What calling this would do to the model, a finding a layer; changes nothing.

        Args:
            model: Any module.
        """
        return Report(
            tuple(
                Finding(tuple(paths), _name(module), _reason(module), () if _reason(module) else _notes(module))
                for paths, module in _survey(model)
            )
        )

    def __repr__(self) -> str:
        return "convert"


convert = Convert()


def _survey(model: nn.Module) -> Iterator[tuple[list[str], nn.Module]]:
    """Each layer that is, or derives from, one with a namesake here, with all its paths."""
    import torch_geometric.nn as pyg

    theirs = tuple(getattr(pyg, layer.__name__) for layer in LAYERS)
    paths: dict[int, list[str]] = {}
    found: dict[int, nn.Module] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, theirs):
            paths.setdefault(id(module), []).append(path)
            found[id(module)] = module
    for key, module in found.items():
        yield paths[key], module


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _ours(module: nn.Module) -> type[Attention] | None:
    """The namesake of the layer's exact type."""
    import torch_geometric.nn as pyg

    return next((layer for layer in LAYERS if type(module) is getattr(pyg, layer.__name__)), None)


def _reason(module: Any) -> str:
    """Why a layer must stay as it is; empty if it can be replaced."""
    from torch_geometric.nn.aggr import SumAggregation

    if _ours(module) is None:
        base = next(layer.__name__ for layer in LAYERS if layer.__name__ in {c.__name__ for c in type(module).__mro__})
        return f"it is a subclass of {base}, which may do anything"
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
            return f"its {path} is a {_name(part)}"
        place = f" of its {path}" if path else ""
        hooks = _hooks(part)
        if hooks:
            return f"the hooks{place} ({', '.join(hooks)}) would be lost"
        replaced = [name for name in METHODS if name in vars(part)]
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


def _notes(module: Any) -> tuple[str, ...]:
    if _loops(module) == IF_ONE_SET:
        return ("self-loops over one node set, none between two",)
    return ()


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
    ours = _ours(module)
    if ours is None:
        raise TypeError(f"{_name(module)} has no namesake in this library")
    with torch.device("meta"):
        return ours(**ARGUMENTS[ours](module))


def _twin(module: nn.Module) -> nn.Module:
    """Our layer with the very parameters of theirs."""
    twin = _empty(module)
    for path, part in twin.named_modules(remove_duplicate=False):
        source: Any = module.get_submodule(path)
        if isinstance(part, Linear):
            part.in_channels = source.in_channels
        for name in list(part._parameters):
            setattr(part, name, getattr(source, name))
        part.training = source.training
    return twin
