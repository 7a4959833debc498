"""A torch-geometric model with the attention layers of this library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from unified_attn.interop.pyg_twins import LAYERS, OTHERS, name_of, notes, reason, twin
from unified_attn.operator import kind_of

Model = TypeVar("Model", bound=nn.Module)


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
        ours: Paths of the layers that are this library's already.
    """

    findings: tuple[Finding, ...]
    ours: tuple[str, ...] = ()

    @property
    def converted(self) -> tuple[str, ...]:
        """Paths of the layers that are replaced."""
        return tuple(path for finding in self.findings if not finding.reason for path in finding.paths)

    @property
    def left(self) -> dict[str, str]:
        """Why the others are not, by path."""
        return {path: finding.reason for finding in self.findings if finding.reason for path in finding.paths}

    def __str__(self) -> str:
        lines = [*map(str, self.findings)] or ["no attention layer of torch-geometric found"]
        if self.ours:
            lines.append(f"already of unified_attn.nn: {', '.join(path or '(the model itself)' for path in self.ours)}")
        return "\n".join(lines)

    __repr__ = __str__


class Convert:
    """Replaces the attention layers of a torch-geometric model by those of this library, in place.

    Layers whose type is exactly torch-geometric's ``GATConv``, ``GATv2Conv``, ``TransformerConv`` or ``HGTConv`` are
    replaced, wherever they are in the model: also inside ``torch_geometric.nn.Sequential``, ``HeteroConv`` and what
    ``to_hetero`` makes (for models written with our layers see :func:`to_hetero`). Their parameters are
    handed over, the same objects, so an optimizer made before goes on training them; training mode, device, dtype and
    ``requires_grad`` are kept, and so are the names of the ``state_dict``. A layer that is used in several places stays
    one layer.

    Outputs and gradients are the same, but for the faults that the layers' docstrings name. A layer with two input
    sizes that asked for self-loops gets them over one node set, and none between two. Backward may be differentiated
    again after ``layer.backend = "scatter"``.

    Left alone, and named in the report: subclasses (a parametrization makes one), layers with another aggregation or
    flow, with hooks or replaced methods, with an explainer, with parts that are not torch-geometric's own; other layers
    with attention, such as ``SuperGATConv``. Layers in plain Python lists are not found, as torch does not either.

    ``torch_geometric.explain`` and torch-geometric's own ``to_hetero`` work on ``MessagePassing`` layers alone: explain
    the model before it is converted (or load its weights into an unconverted one), and see :func:`to_hetero`.

    Args:
        model: Any module; if it is itself such a layer, use what is returned.

    Returns:
        The model. :meth:`report` says beforehand what happens.

    Raises:
        ImportError: If torch-geometric is missing.
        TypeError: If the model is no module.

    Example:
        >>> import torch
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
            if not reason(module):
                made[id(module)] = twin(module)
        return _replaced(model, made)

    def report(self, model: nn.Module) -> Report:
        """What calling this would do to the model, a finding a layer; changes nothing.

        Args:
            model: Any module.
        """
        findings = tuple(
            Finding(tuple(paths), name_of(module), reason(module), () if reason(module) else notes(module))
            for paths, module in _survey(model)
        )
        return Report(findings, tuple(path for path, module in model.named_modules() if isinstance(module, LAYERS)))

    def __repr__(self) -> str:
        return "convert"


convert = Convert()


def to_hetero(
    model: nn.Module,
    metadata: tuple[Sequence[str], Sequence[tuple[str, str, str]]],
    aggr: str = "sum",
    input_map: dict[str, str] | None = None,
) -> nn.Module:
    """torch-geometric's ``to_hetero`` for a model that is written with layers of this library.

    That function treats as message passing only what derives from ``MessagePassing``, and would run other layers once a
    relation without joining what arrives at a node. Here each layer is inside such an object while it works.

    Args:
        model: A model of one node set; it stays as it is.
        metadata: (node types, relations), the latter as (source type, name, target type).
        aggr: How a node joins what its relations bring.
        input_map: As there.

    Returns:
        What ``to_hetero`` makes, with a layer of this library a relation, and the ``state_dict`` that it would have.

    Raises:
        ImportError: If torch-geometric is missing.
        ValueError: If a layer asks for self-loops and a relation joins two node types.

    Example:
        >>> import torch
        >>> from unified_attn.nn import TransformerConv
        >>> class Net(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = TransformerConv((-1, -1), 4)
        ...     def forward(self, x, edge_index):
        ...         return self.layer(x, edge_index)
        >>> likes = ("user", "likes", "user")
        >>> net = to_hetero(Net(), (["user"], [likes]))
        >>> net({"user": torch.randn(3, 5)}, {likes: torch.tensor([[0], [1]])})["user"].shape
        torch.Size([3, 4])
    """
    from torch_geometric.nn import MessagePassing
    from torch_geometric.nn import to_hetero as theirs

    class Wrapped(MessagePassing):  # type: ignore[misc]
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer
            self.add_self_loops = getattr(layer, "add_self_loops", False) is True

        def reset_parameters(self) -> None:
            self.layer.reset_parameters()  # type: ignore[operator]

    def unwrapped(part: nn.Module) -> nn.Module:
        return _replaced(part, {id(m): m.layer for m in part.modules() if isinstance(m, Wrapped)})

    wrapped = {id(module): Wrapped(module) for module in model.modules() if type(module) in LAYERS}
    try:
        hetero: nn.Module = theirs(_replaced(model, wrapped), metadata, aggr, input_map)  # copies what it uses
    finally:
        unwrapped(model)
    return unwrapped(hetero)


def _replaced(model: Model, by: dict[int, Any]) -> Model:
    """The model with other modules in the place of those whose ids are given."""
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is not None and id(child) in by:
                parent._modules[name] = by[id(child)]
    replaced: Model = by.get(id(model), model)
    return replaced


def _survey(model: nn.Module) -> Iterator[tuple[list[str], nn.Module]]:
    """Each layer that is, or derives from, one with attention, with all its paths."""
    import torch_geometric.nn as pyg

    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {kind_of(model)}; give a torch.nn.Module")
    theirs = tuple(getattr(pyg, name) for name in (*(layer.__name__ for layer in LAYERS), *OTHERS))
    paths: dict[int, list[str]] = {}
    found: dict[int, nn.Module] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, theirs):
            paths.setdefault(id(module), []).append(path)
            found[id(module)] = module
    for key, module in found.items():
        yield paths[key], module
