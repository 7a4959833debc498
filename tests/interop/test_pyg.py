"""Models of torch-geometric before and after `convert`: outputs, gradients, weights, and what is left alone."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from tests.nn.twins import close, edges_between, features, gradients, without_loops
from unified_attn import nn as ours
from unified_attn.interop.pyg import convert, to_hetero

EDGES = without_loops(edges_between(7, 7, 20))
Run = Callable[[nn.Module], Tensor]


def same(model: nn.Module, run: Run, inputs: list[Tensor], layers: int) -> nn.Module:
    """The converted model, after its outputs and gradients were found to be those of a copy that was not converted."""
    with torch.no_grad():
        for n, parameter in enumerate(model.parameters()):
            parameter.copy_(0.5 * features(*parameter.shape, dtype=parameter.dtype, seed=n))
    before = copy.deepcopy(model)
    state = {key: id(value) for key, value in model.named_parameters()}
    converted = convert(model)
    assert converted is model
    kinds = (ours.GATConv, ours.GATv2Conv, ours.TransformerConv, ours.HGTConv)
    assert sum(isinstance(module, kinds) for module in converted.modules()) == layers
    assert not any(isinstance(module, pyg.MessagePassing) for module in converted.modules())
    assert state == {key: id(value) for key, value in converted.named_parameters()}
    assert list(before.state_dict()) == list(converted.state_dict())
    a, b = run(before), run(converted)
    close(b, a)
    wanted, found = gradients(before, a, inputs), gradients(converted, b, inputs)
    for key, grad in wanted.items():
        close(found[key], grad, key)
    return converted


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("jk", [None, "cat", "max"])
def test_gat_model(v2: bool, edge_dim: int | None, jk: str | None) -> None:
    model = pyg.models.GAT(5, 8, num_layers=3, out_channels=4, v2=v2, edge_dim=edge_dim, jk=jk, heads=2).double()
    x = features(7, 5, dtype=torch.float64)
    edge_attr = None if edge_dim is None else features(EDGES.shape[1], edge_dim, dtype=torch.float64, seed=1)
    inputs = [x] if edge_attr is None else [x, edge_attr]
    same(model, lambda net: net(x, EDGES, edge_attr=edge_attr), inputs, 3)


class Net(nn.Module):
    """Skips, a layer that is used twice and held twice, a list, weights that are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.GATConv(5, 4, heads=2)
        self.shared = pyg.TransformerConv(8, 4, heads=2, beta=True)
        self.again = self.shared
        self.rest = nn.ModuleList([pyg.GATv2Conv(8, 4, heads=2, residual=True), nn.ReLU(), nn.Linear(8, 3)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x, (_, weights) = self.first(x, edge_index, return_attention_weights=True)
        x = x + self.shared(x, edge_index).relu()
        x = x + self.again(x, edge_index)
        for module in self.rest:
            x = module(x, edge_index) if isinstance(module, (pyg.GATv2Conv, ours.GATv2Conv)) else module(x)
        return x * (1.0 + weights.square().sum())


def test_hand_written_net() -> None:
    x = features(7, 5, dtype=torch.float64)
    net = same(Net().double(), lambda net: net(x, EDGES), [x], 3)
    assert net.shared is net.again
    assert repr(convert.report(Net())) == (
        "first: GATConv becomes unified_attn.nn.GATConv\n"
        "shared, again: TransformerConv becomes unified_attn.nn.TransformerConv\n"
        "rest.0: GATv2Conv becomes unified_attn.nn.GATv2Conv"
    )
    assert str(convert.report(net)) == (
        "no attention layer of torch-geometric found\nalready of unified_attn.nn: first, shared, rest.0"
    )
    assert str(convert.report(nn.Linear(2, 3))) == "no attention layer of torch-geometric found"


def test_other_attention_layers_are_named() -> None:
    model = nn.ModuleList([pyg.SuperGATConv(4, 4), pyg.GATConv(4, 4), pyg.RGATConv(4, 4, 2)])
    report = convert.report(model)
    assert report.converted == ("1",)
    assert report.left == {"0": "there is no such layer here", "2": "there is no such layer here"}


@pytest.mark.parametrize("method", ["propagate", "edge_updater", "message", "forward"])
def test_a_replaced_method_is_kept(method: str) -> None:
    layer = pyg.GATConv(4, 4)
    setattr(layer, method, lambda *args, **kwargs: None)
    assert convert.report(layer).left == {"": f"the method {method} was replaced on the object"}


def test_what_a_user_put_on_a_layer_goes_along() -> None:
    layer = pyg.GATConv((-1, -1), 4)
    layer.tag = marker = object()
    assert convert(layer).tag is marker
    assert not hasattr(convert(pyg.GATConv(4, 4)), "aggr_module")


@pytest.mark.parametrize("make", [pyg.GATConv, pyg.GATv2Conv])
@pytest.mark.parametrize("options", [{}, {"edge_dim": 3}, {"heads": 2, "residual": True}])
def test_targets_that_are_the_first_sources(make: Callable[..., nn.Module], options: dict) -> None:
    """The pattern of neighbour sampling: a loop joins target i and source i, which are one node."""
    x = features(7, 5, dtype=torch.float64).requires_grad_()
    edges = torch.tensor([[0, 6, 2, 5, 4, 4], [1, 0, 1, 2, 0, 0]])
    edge_attr = features(6, 3, dtype=torch.float64) if "edge_dim" in options else None
    theirs = make(5, 4, **options).double()
    mine = convert(copy.deepcopy(theirs))
    outs = [layer((x, x[:3]), edges, edge_attr=edge_attr) for layer in (theirs, mine)]
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-9, atol=1e-9)
    weights = torch.randn_like(outs[0])
    grads = [torch.autograd.grad(out, x, weights)[0] for out in outs]
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"give \(x, x\[:n\]\), the view itself"):
        mine((x, x[:3].clone()), edges, edge_attr=edge_attr)


@pytest.mark.parametrize("make", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv])
def test_second_derivatives_by_another_back_end(make: Callable[..., nn.Module]) -> None:
    theirs = make(5, 4).double()
    mine = convert(copy.deepcopy(theirs))
    mine.backend = "scatter"
    twice = []
    for layer in (theirs, mine):
        x = features(7, 5, dtype=torch.float64).requires_grad_()
        (grad,) = torch.autograd.grad(layer(x, EDGES).square().sum(), x, create_graph=True)
        twice.append(torch.autograd.grad(grad.square().sum(), x)[0])
    torch.testing.assert_close(twice[1], twice[0], rtol=1e-8, atol=1e-8)
    mine.backend = "none such"
    with pytest.raises(ValueError, match="none such"):
        mine(features(7, 5, dtype=torch.float64), EDGES)


KEPT = "self-loops that the graph has keep their edge features, which torch-geometric replaces"
RAISES = "edge features that are missing raise, where torch-geometric leaves them out"


@pytest.mark.parametrize(
    ("layer", "notes"),
    [
        (lambda: pyg.GATConv(5, 4, edge_dim=3), (KEPT, RAISES)),
        (lambda: pyg.GATv2Conv(5, 4, edge_dim=3), (KEPT, RAISES)),
        (lambda: pyg.GATv2Conv(5, 4, edge_dim=3, add_self_loops=False), (RAISES,)),
        (lambda: pyg.TransformerConv(5, 4, edge_dim=3), ()),
        (lambda: pyg.GATConv(5, 4), ()),
        (lambda: pyg.HGTConv(5, 4, (["a"], [("a", "to", "a")])), ()),
    ],
)
def test_what_changes_with_edge_features_is_noted(layer: Callable[[], nn.Module], notes: tuple[str, ...]) -> None:
    """The notes are there where outputs differ, and not where they do not."""
    theirs = layer().double()
    assert convert.report(theirs).findings[0].notes == notes
    if isinstance(theirs, pyg.HGTConv):
        return
    x, loops = features(7, 5, dtype=torch.float64), torch.cat([EDGES, torch.tensor([[2], [2]])], dim=1)
    given = {} if theirs.edge_dim is None else {"edge_attr": features(loops.shape[1], 3, dtype=torch.float64, seed=1)}
    mine = convert(copy.deepcopy(theirs))
    assert torch.allclose(theirs(x, loops, **given), mine(x, loops, **given)) == (KEPT not in notes)
    if RAISES in notes:
        assert theirs(x, EDGES).isfinite().all()
        with pytest.raises(ValueError, match="edge_attr is missing"):
            mine(x, EDGES)


@pytest.mark.parametrize("model", [3, None, pyg.GATConv])
def test_what_is_no_model_is_refused(model: Any) -> None:
    for call in (convert, convert.report):
        with pytest.raises(
            TypeError, match=r"model is (a int|a NoneType|the class GATConv, .*); give a torch.nn.Module"
        ):
            call(model)


def test_sequential() -> None:
    model = pyg.Sequential(
        "x, edge_index",
        [(pyg.GATConv(5, 4), "x, edge_index -> x"), nn.ReLU(), (pyg.TransformerConv(4, 3), "x, edge_index -> x")],
    ).double()
    x = features(7, 5, dtype=torch.float64)
    same(model, lambda net: net(x, EDGES), [x], 2)


RELATIONS = [("a", "to", "a"), ("a", "to", "b"), ("b", "back", "a")]


def hetero_inputs() -> tuple[dict[str, Tensor], dict[Any, Tensor]]:
    x = {"a": features(7, 5, dtype=torch.float64), "b": features(4, 5, dtype=torch.float64, seed=1)}
    sizes = {"a": 7, "b": 4}
    edges = {(s, r, t): without_loops(edges_between(sizes[s], sizes[t], 12, seed=3)) for s, r, t in RELATIONS}
    return x, edges


def test_hetero_conv() -> None:
    x, edges = hetero_inputs()
    model = pyg.HeteroConv(
        {
            RELATIONS[0]: pyg.GATConv((5, 5), 4, heads=2),
            RELATIONS[1]: pyg.GATv2Conv((5, 5), 4, heads=2, add_self_loops=False),
            RELATIONS[2]: pyg.TransformerConv((5, 5), 4, heads=2),
        }
    ).double()
    assert convert.report(model).findings[0].notes == (
        "self-loops over one node set, none between two, where torch-geometric adds them",
    )
    same(model, lambda net: torch.cat([out for _, out in sorted(net(x, edges).items())]), list(x.values()), 3)


class Two(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        options = {} if kind is pyg.TransformerConv else {"add_self_loops": False}
        self.one = kind((-1, -1), 4, heads=2, **options)
        self.two = kind((-1, -1), 3, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.two(self.one(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.GATv2Conv, pyg.TransformerConv])
@pytest.mark.parametrize("lazy", [True, False])
def test_to_hetero(kind: type[nn.Module], lazy: bool) -> None:
    x, edges = hetero_inputs()
    model = pyg.to_hetero(Two(kind), (["a", "b"], RELATIONS)).double()

    def run(net: nn.Module) -> Tensor:
        return torch.cat([out for _, out in sorted(net(x, edges).items())])

    if lazy:  # converted before its sizes are known
        convert(model)
        assert not any(isinstance(module, pyg.MessagePassing) for module in model.modules())
        run(model).sum().backward()
        theirs = pyg.to_hetero(Two(kind), (["a", "b"], RELATIONS)).double()
        theirs.load_state_dict(model.state_dict(), strict=True)
        close(run(model), run(theirs))
        return
    run(model)
    same(model, run, list(x.values()), 6)


class OurTwo(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        options: dict[str, Any] = {} if name == "TransformerConv" else {"add_self_loops": False}
        self.one = getattr(ours, name)((-1, -1), 4, heads=2, **options)
        self.two = getattr(ours, name)((-1, -1), 3, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.two(self.one(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_to_hetero_of_our_layers(name: str) -> None:
    """Alone it took them for maps of edges, and gave an output a relation."""
    x, edges = hetero_inputs()
    net = OurTwo(name)
    mine = to_hetero(net, (["a", "b"], RELATIONS)).double()
    assert type(net.one) is getattr(ours, name)
    assert not any(isinstance(module, pyg.MessagePassing) for module in mine.modules())
    theirs = pyg.to_hetero(Two(getattr(pyg, name)), (["a", "b"], RELATIONS)).double()
    theirs(x, edges)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    found, wanted = mine(x, edges), theirs(x, edges)
    assert found.keys() == wanted.keys() == {"a", "b"}
    for kind in wanted:
        close(found[kind], wanted[kind])


def test_to_hetero_of_our_layers_with_loops_between_types_raises() -> None:
    net = OurTwo("GATConv")
    net.one.add_self_loops = True
    with pytest.raises(ValueError, match="add_self_loops"):
        to_hetero(net, (["a", "b"], RELATIONS))
    assert type(net.one) is ours.GATConv


@pytest.mark.parametrize("lazy", [False, True])
def test_hgt(lazy: bool) -> None:
    x, edges = hetero_inputs()
    layers = [
        pyg.HGTConv(-1 if lazy else 5, 8, (["a", "b"], RELATIONS), heads=2),
        pyg.HGTConv(8, 8, (["a", "b"], RELATIONS)),
    ]
    model = nn.ModuleList(layers).double()

    def run(net: nn.Module) -> Tensor:
        hidden = dict(x)
        for layer in net:
            hidden = layer(hidden, edges)
        return torch.cat([out for _, out in sorted(hidden.items())])

    if lazy:
        convert(model)
        assert all(isinstance(layer, ours.HGTConv) for layer in model)
        theirs = nn.ModuleList(layers)
        run(model)  # the very parameters of theirs: their sizes are known now
        theirs[0].kqv_lin._hook.remove()
        close(run(model), run(theirs))
    else:
        same(model, run, list(x.values()), 2)


def test_our_layers_in_hetero_conv() -> None:
    x, edges = hetero_inputs()
    layers = {
        RELATIONS[0]: (pyg.GATConv(5, 4), ours.GATConv(5, 4)),
        RELATIONS[1]: (pyg.GATv2Conv(5, 4, add_self_loops=False), ours.GATv2Conv(5, 4, add_self_loops=False)),
        RELATIONS[2]: (pyg.TransformerConv((-1, -1), 4), ours.TransformerConv((-1, -1), 4)),
    }
    theirs, mine = (pyg.HeteroConv({key: pair[n] for key, pair in layers.items()}).double() for n in range(2))
    theirs(x, edges)
    mine.load_state_dict(theirs.state_dict(), strict=True)
    for key, out in theirs(x, edges).items():
        close(mine(x, edges)[key], out)


def test_self_loops_between_two_sets_go_and_over_one_set_stay() -> None:
    theirs = pyg.GATConv((5, 5), 4).double()
    mine = convert(theirs)
    assert isinstance(mine, ours.GATConv)
    x, y = features(6, 5, dtype=torch.float64), features(4, 5, dtype=torch.float64, seed=1)
    close(mine(x, EDGES[:, EDGES.max(0).values < 6]), theirs(x, EDGES[:, EDGES.max(0).values < 6]))
    without = pyg.GATConv((5, 5), 4, add_self_loops=False).double()
    without.load_state_dict(theirs.state_dict())
    edge_index = edges_between(6, 4, 9)
    close(mine((x, y), edge_index), without((x, y), edge_index))


class Sub(pyg.GATConv):
    pass


def hooked() -> nn.Module:
    layer = pyg.GATConv(5, 4)
    layer.register_forward_hook(lambda *args: None)
    return layer


def message_hooked() -> nn.Module:
    layer = pyg.TransformerConv(5, 4)
    layer.register_message_forward_hook(lambda *args: None)
    return layer


def hooked_part() -> nn.Module:
    layer = pyg.GATv2Conv(5, 4)
    layer.lin_r.register_forward_pre_hook(lambda *args: None)
    return layer


def patched() -> nn.Module:
    layer = pyg.GATConv(5, 4)
    layer.forward = lambda x, edge_index: x
    return layer


def other_part() -> nn.Module:
    layer = pyg.GATConv(5, 4)
    layer.lin = nn.Linear(5, 4)
    return layer


def more_weights() -> nn.Module:
    layer = pyg.GATConv(5, 4)
    layer.extra = nn.Parameter(torch.zeros(1))
    return layer


def explained() -> nn.Module:
    layer = pyg.GATConv(5, 4)
    layer.explain = True
    return layer


def normed() -> nn.Module:
    layer = pyg.GATConv(5, 4)
    nn.utils.parametrizations.weight_norm(layer.lin)
    return layer


def normed_itself() -> nn.Module:
    layer = pyg.GATConv(5, 4)
    nn.utils.parametrizations.weight_norm(layer, "att_src")
    return layer


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Sub(5, 4), "subclass of GATConv"),
        (normed_itself, "subclass of GATConv"),
        (lambda: pyg.GATConv(5, 4, aggr="mean"), "aggregates by 'mean'"),
        (lambda: pyg.GATv2Conv(5, 4, aggr=["sum", "max"]), r"aggregates by \['sum', 'max'\]"),
        (lambda: pyg.TransformerConv(5, 4, flow="target_to_source"), "flow is 'target_to_source'"),
        (hooked, r"hooks \(forward_hooks\)"),
        (message_hooked, r"hooks \(message_forward_hooks\)"),
        (hooked_part, "hooks of its lin_r"),
        (patched, "method forward was replaced"),
        (other_part, "its lin is a Linear"),
        (normed, "its lin is a Parametrized"),
        (more_weights, "other tensors than its class: extra"),
        (explained, "explainer"),
        (lambda: pyg.GATConv(5, 4, decomposed_layers=2), "decomposed into 2"),
        (lambda: pyg.GATConv(5, 4, fill_value="median"), "arguments are not taken here: fill_value is 'median'"),
    ],
)
def test_left_alone(make: Callable[[], nn.Module], reason: str) -> None:
    model = nn.ModuleDict({"odd": make(), "plain": pyg.GATConv(5, 4)})
    odd = model["odd"]
    report = convert.report(model)
    assert report.converted == ("plain",)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(report.left["odd"])
    assert f"odd: {type(odd).__name__} is left alone: " in str(report)
    convert(model)
    assert model["odd"] is odd
    assert isinstance(model["plain"], ours.GATConv)


def test_mode_dtype_and_frozen_weights_are_kept_and_nothing_is_drawn() -> None:
    model = nn.Sequential(pyg.GATConv(5, 4, dropout=0.5), pyg.GATv2Conv(5, 4, share_weights=True)).bfloat16()
    model[0].eval()
    model[1].att.requires_grad_(False)
    state = torch.get_rng_state()
    convert(model)
    assert torch.equal(state, torch.get_rng_state())
    assert not model[0].training
    assert not model[0].lin.training
    assert model[1].training
    assert not model[1].att.requires_grad
    assert model[1].lin_l is model[1].lin_r
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_parameters_collected_before_are_those_that_are_trained() -> None:
    model = pyg.models.GAT(5, 8, num_layers=2, out_channels=4)
    collected = list(model.parameters())
    x = torch.randn(7, 5)
    losses = []
    for _ in range(2):
        loss = convert(model)(x, EDGES).square().mean()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in collected:
                parameter -= 0.1 * parameter.grad
    assert losses[1] < losses[0]


def test_a_converted_model_is_pickled_and_copied_and_holds_nothing_of_torch_geometric() -> None:
    model = convert(Net())
    x = torch.randn(7, 5)
    assert all(not type(module).__module__.startswith("torch_geometric") for module in model.modules())
    buffer = io.BytesIO()
    torch.save(model.first, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(loaded(x, EDGES), model.first(x, EDGES))
    assert torch.equal(copy.deepcopy(model)(x, EDGES), model(x, EDGES))


def test_the_model_itself() -> None:
    theirs = pyg.TransformerConv(5, 4, edge_dim=2, heads=2)
    assert str(convert.report(theirs)).startswith("(the model itself): TransformerConv becomes")
    mine = convert(theirs)
    assert isinstance(mine, ours.TransformerConv)
    x, edge_attr = torch.randn(7, 5), torch.randn(EDGES.shape[1], 2)
    close(mine(x, EDGES, edge_attr), theirs(x, EDGES, edge_attr))


def test_fill_value_comes_along() -> None:
    for fill in (torch.tensor([2.0, 3.0]), 4.0, "max"):
        theirs = pyg.GATConv(5, 4, edge_dim=2, fill_value=fill)
        x, edge_attr = torch.randn(7, 5), torch.randn(EDGES.shape[1], 2)
        close(convert(theirs)(x, EDGES, edge_attr), theirs(x, EDGES, edge_attr))
