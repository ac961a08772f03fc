"""Batches of molecules in pairs: every molecule once, and the same outputs as alone."""

import pytest
import torch

from counterpoise.lab.data.qm9_synthetic import synthetic_molecules
from counterpoise.lab.engine.qm9_batches import SLOT, BatchOrder, paired, separate
from counterpoise.lab.engine.qm9_workload import molecule_inputs
from counterpoise.lab.models.qm9 import StackedMPNN

MOLECULES = synthetic_molecules(60, seed=2)
SIZES = MOLECULES.present().sum(1)


def order_of(batch_size: int) -> BatchOrder:
    order = BatchOrder(2, 30, batch_size, "cpu")
    order.arrange(torch.stack([torch.arange(30), torch.arange(30, 60)]), SIZES)
    return order


def test_batches_keep_their_molecules_and_pair_the_smallest_with_the_largest() -> None:
    order = order_of(10)
    for number in range(3):
        rows, weight = order.next()
        expected = torch.arange(10 * number, 10 * number + 10)
        assert torch.equal(rows.sort().values, torch.stack([expected, expected + 30]))
        assert (weight == 0.1).all()
        small, large = SIZES[rows].unflatten(-1, (-1, 2)).unbind(-1)
        assert (small.diff() >= 0).all()
        assert (large.diff() <= 0).all()
        assert order.pairs_fit[number] == bool((small + large <= SLOT).all())
    assert torch.equal(order.next()[0], order.rows[:, 0])


def test_an_incomplete_batch_is_filled_with_molecules_of_weight_0() -> None:
    order = order_of(8)
    weight = order.weight[0, -1]
    assert sorted(weight.tolist()) == pytest.approx([0.0] * 2 + [1 / 6] * 6)
    assert sorted(order.rows[0, -1][weight > 0].tolist()) == list(range(24, 30))


def test_batches_of_odd_size_are_not_paired() -> None:
    assert order_of(7).pairs_fit == [False] * 5


def test_molecules_in_pairs_have_the_same_outputs_as_alone() -> None:
    network = StackedMPNN([0, 1], 3, width=4, edge_width=4)
    inputs = molecule_inputs(MOLECULES, "cpu", torch.float32)
    largest, smallest = int(SIZES.argmax()), int(SIZES.argmin())
    middle = (SIZES == 20).nonzero().flatten()[:2].tolist()
    assert SIZES[largest] == 29
    assert len(middle) == 2
    rows = torch.tensor([[smallest, largest, *middle], [*middle, smallest, largest]])
    together, alone = network(paired(inputs, rows, SIZES)), network(separate(inputs, rows))
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)
