"""Predicts how well molecules dissolve, with and without a bias for the type of each bond.

    python -m experiments.graph_regression --seeds 3
    python -m experiments.graph_regression --seeds 3 --network.num_edge_types 0          # without
    python -m experiments.graph_regression --network.local transformer --network.global_attention false \\
        --network.max_distance 0 --layers torch_geometric                                # a baseline

The network is a graph Transformer: every atom attends all atoms of its molecule, preferred by the length of the
shortest path between them and by the type of the bond, if there is one; degrees have embeddings.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from experiments.layers import Source, layer
from experiments.molecules import Batches, Molecules, RegressionTraining
from experiments.training.command import start
from experiments.training.config import Metric, RunConfig, SettingError, TrainingConfig
from experiments.training.job import Job
from experiments.training.run import Outcome, fit
from graphs.datasets import aqsol
from unified_attn.models import GraphNet, GraphNetConfig

ERROR = Metric("mean absolute error", higher_is_better=False, unit="log mol/l")
ATOMS, BONDS = 65, 5
TRAINING = TrainingConfig(
    epochs=60, lr=1e-3, schedule="cosine", optimizer="adamw", weight_decay=0.01, patience=0, monitor="loss", clip=1.0
)
NETWORK = GraphNetConfig(
    num_node_types=ATOMS,
    num_edge_types=BONDS,
    global_attention=True,
    max_degree=8,
    max_distance=8,
    output="graph",
    pooling="sum",
    out_channels=1,
    channels=64,
    num_layers=4,
    num_heads=4,
    ff_channels=128,
    dropout=0.1,
)


def graph_regression(
    run: RunConfig,
    layers: Source = "unified_attn",
    batch: int = 128,
    training: TrainingConfig = TRAINING,
    network: GraphNetConfig = NETWORK,
) -> dict[str, Any]:
    """Trains a graph network on AqSol over several seeds.

    Args:
        run: Where and how often.
        layers: Whose layers act along edges: ours, or torch-geometric's as a baseline with the same seeds, which start
            from the same weights.
        batch: Molecules a step.
        training: How it is trained.
        network: What it reads and its parts; `num_edge_types` is 5, or 0 to leave the types of bonds out.

    Returns:
        What results.json holds.
    """
    check_network(network, layers)
    if batch < 1:
        raise SettingError(f"batch is {batch}; it must be at least 1")
    settings = {
        "layers": layers,
        "batch": batch,
        "training": dataclasses.asdict(training),
        "network": dataclasses.asdict(network),
    }
    job = Job(run, f"graph_regression/{name_of(network)}-{layers}", settings, ERROR)
    data = aqsol()
    (split,) = data.splits
    molecules = Molecules(data, network)
    print(f"{data}, {split}")

    def one(seed: int, folder: Path) -> Outcome:
        net = GraphNet(network)
        if layers == "torch_geometric":
            replace_local(net)
        module = RegressionTraining(net, data.y[split.train], training)
        batches = [
            Batches(molecules, chosen, batch, shuffle=n == 0)
            for n, chosen in enumerate((split.train, split.val, split.test))
        ]
        return fit(module, *batches, training, ERROR, folder, seed, resume=run.resume, progress=run.progress)

    return job.repeat(one)


def name_of(network: GraphNetConfig) -> str:
    """`transformer-global-types`: the parts that differ most."""
    parts = {"global": network.global_attention, "types": network.num_edge_types}
    return "-".join([*filter(None, [network.local]), *(name for name, there in parts.items() if there)])


def check_network(network: GraphNetConfig, layers: Source) -> None:
    """Raises SettingError unless the data have what the network reads, and it gives a number a molecule."""
    wanted = {"num_node_types": (ATOMS,), "num_edge_types": (0, BONDS), "output": ("graph",), "out_channels": (1,)}
    wanted |= dict.fromkeys(("in_channels", "edge_dim", "laplacian_size", "walk_length", "max_path_length"), (0,))
    for name, known in wanted.items():
        value = getattr(network, name)
        if value not in known:
            raise SettingError(f"network.{name} is {value}; this job gives {' or '.join(map(str, known))}")
    if layers == "torch_geometric" and (network.global_attention or network.local is None):
        raise SettingError(
            "layers is 'torch_geometric', which has no attention over packed graphs with a bias; set network.local, "
            "network.global_attention false and network.max_distance 0"
        )


def replace_local(net: GraphNet) -> None:
    """Puts torch-geometric's layers in the place of ours, with the same weights."""
    config = net.config
    options = {"dropout": config.attention_dropout, "edge_dim": config.channels if config.num_edge_types else None}
    for block in net.blocks:
        width, heads = config.channels, config.num_heads
        with torch.random.fork_rng():
            twin = layer("torch_geometric", config.local, width, width // heads, heads, **options)
        twin.load_state_dict(block.local.state_dict())
        block.local = twin


if __name__ == "__main__":
    start(graph_regression)
