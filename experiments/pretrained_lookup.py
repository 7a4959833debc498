"""DictionaryLookup by the weights that its authors trained, through our layers.

    python -m experiments.pretrained_lookup

Accuracy over all queries of all dictionaries of 10 keys: GATv2 with one head knows every answer, GAT with eight three
in four (published: 100.0 and 74.5 %, of the dictionaries that the authors drew). Brody et al., ICLR 2022, arXiv
2105.14491.
"""

from __future__ import annotations

import torch
from jsonargparse import auto_cli

from experiments.layers import Source
from experiments.lookup_models import AUTHORS, authors_net
from experiments.lookup_training import share_right
from graphs.dictionary_lookup import dictionary_lookup


def pretrained_lookup(layers: Source = "unified_attn") -> dict[str, float]:
    """Evaluates the authors' two models.

    Args:
        layers: Whose layers run the weights: ours, or torch-geometric's.

    Returns:
        Accuracy by model.
    """
    data = dictionary_lookup(10)
    found = {}
    for model in AUTHORS:
        found[model] = share_right(authors_net(model, layers), data, torch.arange(len(data.x)), layers)
        print(f"{model:5} of {layers}: {100 * found[model]:.2f} % of {data.y.numel():,} queries")
    return found


if __name__ == "__main__":
    auto_cli(pretrained_lookup, as_positional=False)
