"""Masks and biases are neither true nor false, and nothing that handles modules asks."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unified_attn import ALiBi, Bias, Causal, DenseBias, Documents, Graph, Mask, NoBias, Window, attention

IDS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Causal() and Documents(IDS),
        lambda: Causal() or Documents(IDS),
        lambda: not Causal(),
        lambda: bool(Causal() & Window(1, 0)),
        lambda: bool(Graph(IDS.reshape(2, 2))),
    ],
)
def test_a_mask_has_no_truth(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"neither true nor false; masks compose with & \| ~, not"):
        wrong()


@pytest.mark.parametrize(
    "wrong", [lambda: ALiBi(2) and NoBias(), lambda: ALiBi(2) or NoBias(), lambda: bool(ALiBi(2) + NoBias())]
)
def test_a_bias_has_no_truth(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"neither true nor false; biases compose with \+, not"):
        wrong()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mask: Mask = Causal() & Documents(IDS)
        self.bias: Bias = ALiBi(2) + DenseBias(nn.Parameter(torch.zeros(4, 4)))
        self.several = nn.ModuleList([Causal(), ALiBi(2)])
        self.named = nn.ModuleDict({"mask": ~Causal()})

    def forward(self, x: Tensor) -> Tensor:
        return attention(x, x, x, mask=self.mask, bias=self.bias)


def test_nothing_that_handles_modules_asks() -> None:
    layer, x = Layer(), torch.randn(1, 2, 4, 8)
    other = copy.deepcopy(layer).to(torch.float64).to(torch.float32).train().eval().requires_grad_(True)
    other.load_state_dict(layer.state_dict())
    saved = io.BytesIO()
    torch.save(other, saved)
    saved.seek(0)
    again = torch.load(saved, weights_only=False)
    assert repr(again) == repr(layer)
    again.apply(lambda module: None).zero_grad()
    assert [name for name, _ in again.named_parameters()] == ["bias._terms.1.table"]
    torch.testing.assert_close(nn.Sequential(again)(x), layer(x), rtol=0, atol=0)
    called = torch.func.functional_call(layer, dict(again.named_parameters()), (x,))
    torch.testing.assert_close(called, layer(x), rtol=0, atol=0)


def test_no_tracer_asks() -> None:
    layer, x = Layer(), torch.randn(1, 2, 4, 8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(layer, (x,)).module()
    for traced in (compiled, exported):
        torch.testing.assert_close(traced(x), layer(x))


def test_no_trainer_asks() -> None:
    lightning = pytest.importorskip("lightning")

    class Training(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer()

        def training_step(self, batch: Tensor) -> Tensor:
            return self.layer(batch).square().sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    training = Training()
    trainer = lightning.Trainer(
        max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(training, torch.utils.data.DataLoader(torch.randn(1, 2, 4, 8), batch_size=1))
    assert training.layer.bias.terms[1].table.abs().sum() > 0
