"""Two GATv2 layers over the digits: `graph_attention(q, k, v, graph, score=GATv2(att))`."""

from __future__ import annotations

from dataclasses import dataclass

import lightning
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu, one_hot
from torchmetrics.functional.classification import multiclass_accuracy

from experiments.demo.digits import CLASSES, Digits, draw_labels, influence
from unified_attn import GATv2, Graph, attention_weights, graph_attention

FIRST_DRAW = 200  # of the label draws that are reported: no choice was made by looking at these


@dataclass
class ClassifierConfig:
    """The classifier and its training. Chosen by accuracy on label draws below 110; those reported begin at FIRST_DRAW.

    Args:
        neighbours: Nearest digits that each is joined to.
        eigenvectors: Of the graph's Laplacian, beside the pixels.
        hidden_labels: Share of the labels that a pass does not see, and is asked for.
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
    eigenvectors: int = 16
    hidden_labels: float = 0.4
    heads: int = 4
    head_dim: int = 16
    epochs: int = 35
    lr: float = 0.01
    weight_decay: float = 5e-4
    dropout: float = 0.5
    attention_dropout: float = 0.2
    consistency: float = 1.0
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

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        q, k = self.project(self.target, x), self.project(self.source, x)
        p = self.attention_dropout if self.training else 0.0
        out = graph_attention(q, k, k, graph, score=GATv2(self.att), scale=self.scale, dropout_p=p)
        return out + self.project(self.residual, x)

    def weights(self, x: Tensor, graph: Graph) -> Tensor:
        """Of each edge, ``[H, E]``."""
        q, k = (self.project(linear, x).transpose(0, 1)[None] for linear in (self.target, self.source))
        return attention_weights(q, k, mask=graph, score=GATv2(self.att), scale=self.scale)[0]


class GraphClassifier(nn.Module):
    """Logits ``[N, classes]``. `scale` 0 makes every score 0: each node then takes a plain mean."""

    def __init__(self, features: int, config: ClassifierConfig, scale: float | None) -> None:
        super().__init__()
        width = config.heads * config.head_dim
        self.first = GraphLayer(features, config.heads, config.head_dim, config.attention_dropout, scale)
        self.norm = nn.LayerNorm(width)
        self.second = GraphLayer(width, config.heads, CLASSES, config.attention_dropout, scale)
        self.p = config.dropout

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        x = self.first(dropout(x, self.p, self.training), graph).flatten(1)
        x = dropout(elu(self.norm(x)), self.p, self.training)
        return self.second(x, graph).mean(1)


class Labels:
    """The known labels, as inputs that a pass can see some of (Shi et al. 2021), spread along the graph beforehand."""

    def __init__(self, digits: Digits, seed: int) -> None:
        drawn = draw_labels(digits.labels, seed)
        self.features, self.graph = digits.features, digits.graph
        self.nodes = torch.from_numpy(drawn)
        self.classes = torch.from_numpy(digits.labels[drawn])
        self.influence = influence(digits, drawn)

    def inputs(self, seen: Tensor) -> Tensor:
        """Features and beliefs ``[N, F + classes]`` by the labels that are seen, ``[L]`` bool."""
        known = one_hot(self.classes, CLASSES) * seen[:, None].float()
        belief = self.influence @ (known / known.sum(0).clamp(min=1.0))  # each class counts alike
        share = belief / belief.sum(1, keepdim=True).clamp(min=1e-12)
        return torch.cat([self.features, 3 * share], dim=1)

    def all_inputs(self) -> Tensor:
        return self.inputs(torch.ones_like(self.nodes, dtype=torch.bool))


class ClassifierTraining(lightning.LightningModule):
    """Cross-entropy on the labels that a pass does not see; two passes should agree (GRAND, Feng et al. 2020)."""

    def __init__(self, labels: Labels, config: ClassifierConfig, scale: float | None) -> None:
        super().__init__()
        self.labels, self.config = labels, config
        self.net = GraphClassifier(labels.features.shape[1] + CLASSES, config, scale)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), self.config.lr, weight_decay=self.config.weight_decay)

    def training_step(self, batch: object, index: int) -> Tensor:
        labels = self.labels
        seen = torch.rand(2, len(labels.nodes)) >= self.config.hidden_labels
        logits = torch.stack([self.net(labels.inputs(one), labels.graph) for one in seen])
        asked = (~seen).nonzero(as_tuple=True)
        fit = cross_entropy(logits[asked[0], labels.nodes[asked[1]]], labels.classes[asked[1]])
        p = logits.softmax(-1)
        sharp = p.mean(0).detach() ** (1 / self.config.temperature)
        disagreement = (p - sharp / sharp.sum(-1, keepdim=True)).square().sum(-1).mean(-1).sum()
        ramp = min(1.0, self.current_epoch / (0.3 * self.config.epochs))  # the first guesses are worth little
        return fit + self.config.consistency * ramp * disagreement


def train(labels: Labels, seed: int, config: ClassifierConfig, scale: float | None) -> GraphClassifier:
    """Trains on these labels alone."""
    lightning.seed_everything(seed, verbose=False)
    module = ClassifierTraining(labels, config, scale)
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
