"""Layers inside of the workers of a data loader, which are forked from a process whose threads have run kernels."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from unified_attn.nn import GATv2Conv


class Steps(Dataset):
    """Item n: the gradient of a training step on the n-th random graph."""

    def __init__(self, nodes: int) -> None:
        torch.manual_seed(0)
        self.layer = GATv2Conv(8, 8, heads=8, add_self_loops=False)
        self.nodes = nodes

    def __len__(self) -> int:
        return 4

    def __getitem__(self, n: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(n)
        edge_index = torch.randint(0, self.nodes, (2, 6 * self.nodes), generator=generator)
        x = torch.randn(self.nodes, 8, generator=generator)
        (grad,) = torch.autograd.grad(self.layer(x, edge_index).square().sum(), [self.layer.att])
        return grad


@pytest.mark.parametrize("nodes", [20, 4000])  # on one thread, and on several where there are several
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_training_steps_in_forked_workers(nodes: int) -> None:
    steps = Steps(nodes)
    want = [steps[n] for n in range(len(steps))]
    loader = DataLoader(steps, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=120)
    for got, expected in zip(loader, want, strict=True):
        torch.testing.assert_close(got, expected)
