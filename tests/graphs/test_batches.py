"""Batches of seeds for torch's data loader."""

import pytest
import torch
from torch.utils.data import DataLoader

from graphs.batches import SampledBatches
from graphs.generators import power_law
from graphs.sampling import Neighbors

NEIGHBORS = Neighbors(power_law(100, 900, seed=0), 100)
SEEDS = torch.arange(20, 61)


def made(**changes):
    return SampledBatches(NEIGHBORS, SEEDS, [3, 2], **{"batch_size": 8, "seed": 5} | changes)


def same(one, two):
    return torch.equal(one.seeds, two.seeds) and all(
        torch.equal(a.edge_ids, b.edge_ids) and torch.equal(a.nodes, b.nodes)
        for a, b in zip(one.blocks, two.blocks, strict=True)
    )


def test_an_epoch_has_each_seed_once():
    batches = made()
    assert len(batches) == 6
    assert [len(batch.seeds) for batch in batches] == [8, 8, 8, 8, 8, 1]
    order = torch.cat([batch.seeds for batch in batches])
    assert not torch.equal(order, SEEDS)
    assert torch.equal(order.sort().values, SEEDS)
    assert torch.equal(torch.cat([batch.seeds for batch in made(shuffle=False)]), SEEDS)
    for batch in batches:
        assert torch.equal(batch.blocks[-1].nodes[: len(batch.seeds)], batch.seeds)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_do_not_depend_on_the_workers(workers):
    loaded = list(DataLoader(made(), batch_size=None, num_workers=workers))
    assert len(loaded) == 6
    assert all(map(same, loaded, made()))


def test_seed_and_epoch_change_order_and_samples():
    batches = made(shuffle=False)
    first = batches[0]
    assert same(first, batches[0])
    assert not torch.equal(made(shuffle=False, seed=6)[0].blocks[1].edge_ids, first.blocks[1].edge_ids)
    batches.set_epoch(1)
    assert torch.equal(batches[0].seeds, first.seeds)
    assert not torch.equal(batches[0].blocks[1].edge_ids, first.blocks[1].edge_ids)
    shuffled = made()
    before = shuffled[0].seeds
    shuffled.set_epoch(1)
    assert not torch.equal(shuffled[0].seeds, before)
    shuffled.set_epoch(0)
    assert torch.equal(shuffled[0].seeds, before)


def test_no_seeds_no_batches():
    assert list(SampledBatches(NEIGHBORS, SEEDS[:0], [1], batch_size=4)) == []


def test_wrong_arguments_raise_at_once():
    with pytest.raises(ValueError, match="batch_size is 0"):
        made(batch_size=0)
    with pytest.raises(TypeError, match=r"batch_size is 2\.5"):
        made(batch_size=2.5)
    with pytest.raises(ValueError, match="twice"):
        SampledBatches(NEIGHBORS, torch.tensor([1, 1]), [1], batch_size=1)
    with pytest.raises(ValueError, match="fanouts holds -3"):
        SampledBatches(NEIGHBORS, SEEDS, [-3], batch_size=1)
    with pytest.raises(IndexError, match="batch 6 of 6"):
        made()[6]
