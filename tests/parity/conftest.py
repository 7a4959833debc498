from collections.abc import Iterator

import pytest
import torch

from unified_attn import vectors


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of tiny problems: torch's own threads would wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def projected_in_kernels() -> Iterator[None]:
    """Not formed for every edge, as for few edges: that is what "pair both" does."""
    before, vectors.FORMED = vectors.FORMED, 0
    yield
    vectors.FORMED = before
