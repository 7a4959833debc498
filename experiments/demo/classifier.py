"""Two GATv2 layers over the digits: `graph_attention(q, k, v, graph, score=GATv2(att))`."""

from __future__ import annotations

from dataclasses import dataclass

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu
from torchmetrics.functional.classification import multiclass_accuracy

from experiments.demo.digits import CLASSES, Digits, draw_labels
from unified_attn import GATv2, attention_weights, graph_attention


@dataclass
class ClassifierConfig:
    """The classifier and its training. Chosen on label draws 100 to 104; those reported begin at 0.

    Args:
        neighbours: Nearest digits that each is joined to.
        eigenvectors: Of the graph's Laplacian, beside the pixels.
        heads: Heads a layer.
        head_dim: Size of a head of the first layer.
        epochs: Steps over the whole graph.
        lr: Of AdamW.
        weight_decay: Of AdamW.
        dropout: Of features.
        attention_dropout: Of attention weights.
        consistency: Weight of the agreement of two dropout passes on unlabelled nodes.
        temperature: Below 1 sharpens what they should agree upon.
    """

    neighbours: int = 7
    eigenvectors: int = 32
    heads: int = 4
    head_dim: int = 16
    epochs: int = 50
    lr: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    attention_dropout: float = 0.2
    consistency: float = 3.0
    temperature: float = 0.5


class GraphLayer(nn.Module):
    """GATv2 (Brody et al. 2022) with a residual: ``[N, F]`` to ``[N, H, D]``."""

    def __init__(self, inputs: int, heads: int, head_dim: int, attention_dropout: float, scale: float | None) -> None:
        super().__init__()
        self.target, self.source, self.residual = (nn.Linear(inputs, heads * head_dim) for _ in range(3))
        self.att = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, head_dim)))
        self.attention_dropout, self.scale = attention_dropout, scale

    def project(self, linear: nn.Linear, x: Tensor) -> Tensor:
        return linear(x).unflatten(-1, self.att.shape)

    def forward(self, x: Tensor, digits: Digits) -> Tensor:
        q, k = self.project(self.target, x), self.project(self.source, x)
        p = self.attention_dropout if self.training else 0.0
        out = graph_attention(q, k, k, digits.graph, score=GATv2(self.att), scale=self.scale, dropout_p=p)
        return out + self.project(self.residual, x)

    def weights(self, x: Tensor, digits: Digits) -> Tensor:
        """Of each edge, ``[H, E]``."""
        q, k = (self.project(linear, x).transpose(0, 1)[None] for linear in (self.target, self.source))
        return attention_weights(q, k, mask=digits.graph, score=GATv2(self.att), scale=self.scale)[0]


class GraphClassifier(nn.Module):
    """Logits ``[N, classes]``. `scale` 0 makes every score 0: each node then takes a plain mean."""

    def __init__(self, features: int, config: ClassifierConfig, scale: float | None) -> None:
        super().__init__()
        width = config.heads * config.head_dim
        self.first = GraphLayer(features, config.heads, config.head_dim, config.attention_dropout, scale)
        self.norm = nn.LayerNorm(width)
        self.second = GraphLayer(width, config.heads, CLASSES, config.attention_dropout, scale)
        self.p = config.dropout

    def hidden(self, digits: Digits) -> Tensor:
        x = dropout(digits.features, self.p, self.training)
        return dropout(elu(self.norm(self.first(x, digits).flatten(1))), self.p, self.training)

    def forward(self, digits: Digits) -> Tensor:
        return self.second(self.hidden(digits), digits).mean(1)


class ClassifierTraining(lightning.LightningModule):
    """Cross-entropy on the labelled nodes; on all, two dropout passes should agree (GRAND, Feng et al. 2020)."""

    def __init__(self, digits: Digits, labelled: Tensor, config: ClassifierConfig, scale: float | None) -> None:
        super().__init__()
        self.digits, self.labelled, self.config = digits, labelled, config
        self.net = GraphClassifier(digits.features.shape[1], config, scale)
        self.targets = torch.from_numpy(digits.labels)[labelled]  # the only labels that training sees

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), self.config.lr, weight_decay=self.config.weight_decay)

    def training_step(self, batch: object, index: int) -> Tensor:
        logits = torch.stack([self.net(self.digits) for _ in range(2)])
        fit = cross_entropy(logits[:, self.labelled].flatten(0, 1), self.targets.repeat(2))
        p = logits.softmax(-1)
        sharp = p.mean(0).detach() ** (1 / self.config.temperature)
        disagreement = (p - sharp / sharp.sum(-1, keepdim=True)).square().sum(-1).mean(-1).sum()
        ramp = min(1.0, self.current_epoch / (0.3 * self.config.epochs))  # the first guesses are worth little
        return fit + self.config.consistency * ramp * disagreement


def train(digits: Digits, seed: int, config: ClassifierConfig, scale: float | None) -> GraphClassifier:
    """Trains on the labels drawn with this seed."""
    lightning.seed_everything(seed, verbose=False)
    labelled = torch.from_numpy(draw_labels(digits.labels, seed))
    module = ClassifierTraining(digits, labelled, config, scale)
    trainer = lightning.Trainer(
        max_epochs=config.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,  # the bar counts trainings
    )
    trainer.fit(module, train_dataloaders=range(1))  # a step an epoch: a batch is the whole graph
    return module.net.eval()


def accuracy(predicted: Tensor, digits: Digits, labelled: Tensor) -> float:
    """Share of the unlabelled nodes that are right."""
    rest = torch.ones(len(digits.labels), dtype=torch.bool)
    rest[labelled] = False
    right = multiclass_accuracy(predicted[rest], torch.from_numpy(digits.labels)[rest], CLASSES, average="micro")
    return float(right)
