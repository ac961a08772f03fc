"""Krum and the trimmed mean compared with their definitions and with torchjd."""

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.gram_properties import arbitrary_matrices, check_absent, check_arbitrary, check_batching
from helpers.grams import KINDS, jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import counterpoise.functional as f


def scores(j: Tensor, byzantine: int) -> Tensor:
    """Return the sums of the squared distances to the T − f − 2 nearest others."""
    nearest = (j - j.unsqueeze(1)).square().sum(-1).fill_diagonal_(torch.inf).sort(-1).values
    return nearest[:, : max(1, len(j) - byzantine - 2)].sum(-1)


@pytest.mark.usefixtures("solver_mode")
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), tasks=st.integers(3, 9), data=st.data())
def test_krum_selects_the_smallest_scores(seed: int, tasks: int, data: st.DataObject) -> None:
    byzantine, selected = data.draw(st.integers(0, tasks - 3)), data.draw(st.integers(1, tasks))
    j = jacobians("regular", 1, tasks, seed)[0]
    weights = f.krum_weights(j @ j.T, byzantine=byzantine, selected=selected)
    assert weights.sum().item() == pytest.approx(1)
    expected = scores(j, byzantine).argsort(stable=True)[:selected]
    assert set(weights.nonzero().flatten().tolist()) == set(expected.tolist())
    assert (weights[expected] == 1 / selected).all()
    if tasks - byzantine - 2 == 1:
        return  # the two nearest gradients have equal scores, and the order of the tasks decides
    order = torch.randperm(tasks, generator=torch.Generator().manual_seed(seed))
    scaled = 1e-5 * j[order]
    permuted = f.krum_weights(scaled @ scaled.T, byzantine=byzantine, selected=selected)
    assert (permuted == weights[order]).all()


def test_krum_ignores_outliers() -> None:
    j = jacobians("regular", 1, 8)[0] + 5
    j[[2, 5]] *= -1000
    weights = f.krum_weights(j @ j.T, byzantine=2, selected=4)
    assert (weights[[2, 5]] == 0).all()


def test_krum_torchjd() -> None:
    """Compare on 200 matrices. torchjd adds distances without squares: where it selects others, ours score lower."""
    generator = torch.Generator().manual_seed(0)
    agreed = 0
    for count in range(200):
        tasks = 3 + count % 14
        j = torch.randn(tasks, 40, generator=generator, dtype=torch.float64)
        if count % 2:
            j = j * 10 ** torch.randn(tasks, 1, generator=generator, dtype=torch.float64)
        byzantine, selected = count % (tasks - 2), 1 + count % tasks
        ours = f.krum_weights(j @ j.T, byzantine=byzantine, selected=selected)
        theirs = torchjd.KrumWeighting(byzantine, selected)(j @ j.T)
        if (ours - theirs).abs().max() < 1e-12:
            agreed += 1
        else:
            assert ours @ scores(j, byzantine) <= theirs @ scores(j, byzantine) * (1 + 1e-12)  # equal if scores are
    assert agreed >= 180


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [4, 6])
def test_krum_batches_and_absent_tasks(tasks: int) -> None:
    kinds = tuple(kind for kind in KINDS if kind not in ("duplicated", "opposite"))  # without ties
    check_batching(lambda gram: f.krum_weights(gram, byzantine=1, selected=2), tasks, kinds=kinds)
    check_absent(lambda gram, index: f.krum_weights(gram, byzantine=0, selected=2), tasks)


@pytest.mark.usefixtures("solver_mode")
def test_krum_with_few_present_tasks() -> None:
    gram = torch.diag(torch.tensor([1.0, torch.nan, 4.0, torch.nan]))
    assert f.krum_weights(gram, byzantine=1, selected=3).tolist() == [0.5, 0, 0.5, 0]
    gram[2, 2] = torch.nan
    assert f.krum_weights(gram, byzantine=1).tolist() == [1, 0, 0, 0]
    assert f.krum_weights(torch.full((4, 4), torch.nan), byzantine=1).tolist() == [0, 0, 0, 0]


@settings(deadline=None, max_examples=60)
@given(arbitrary_matrices(least=3))
def test_krum_arbitrary_matrices(gram: Tensor) -> None:
    check_arbitrary(lambda matrix: f.krum_weights(matrix, byzantine=0, selected=2), gram)


def test_krum_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="byzantine must be at least 0 and at most T − 3 for T = 4 tasks, got 2"):
        f.krum_weights(torch.eye(4), byzantine=2)
    with pytest.raises(ValueError, match="selected must be between 1 and the number of tasks, 4, got 5"):
        f.krum_weights(torch.eye(4), byzantine=1, selected=5)
    with pytest.raises(ValueError, match=r"shape \(…, T, T\), got \(3, 4\)"):
        f.krum_weights(torch.ones(3, 4), byzantine=1)


def test_trimmed_mean_torchjd() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in range(200):
        tasks = 2 + count % 15
        trim = count % ((tasks + 1) // 2)
        j = torch.randn(tasks, 17, generator=generator)
        theirs = torchjd.TrimmedMean(trim)(j)
        torch.testing.assert_close(f.trimmed_mean(j, trim=trim), theirs)
        torch.testing.assert_close(f.trimmed_mean(list(j), trim=trim), theirs)
        order = torch.randperm(tasks, generator=generator)
        torch.testing.assert_close(f.trimmed_mean(3 * j[order], trim=trim), 3 * theirs)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("trim", [0, 1, 2])
def test_trimmed_mean_leaves_out_absent_tasks(trim: int) -> None:
    generator = torch.Generator().manual_seed(trim)
    rows = torch.randn(6, 4, 3, generator=generator)
    for count in range(7):
        present = torch.zeros(6, dtype=torch.bool)
        present[torch.randperm(6, generator=generator)[:count]] = True
        gradients = torch.where(present.view(-1, 1, 1), rows, torch.nan)
        least = min(trim, max(0, (count - 1) // 2))
        expected = f.trimmed_mean(rows[present], trim=least) if count else torch.zeros(4, 3)
        torch.testing.assert_close(f.trimmed_mean(gradients, trim=trim, present=present), expected)


@pytest.mark.usefixtures("solver_mode")
def test_trimmed_mean_with_a_mask_for_each_replica() -> None:
    rows = torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(0))
    present = torch.ones(5, 3, dtype=torch.bool)
    present[0, 1] = False
    result = f.trimmed_mean(rows, trim=1, present=present)
    for replica in range(3):
        one = f.trimmed_mean(rows[:, replica], trim=1, present=present[:, replica])
        torch.testing.assert_close(result[replica], one)


def test_trimmed_mean_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="below half the number of tasks, 4, got 2"):
        f.trimmed_mean(torch.ones(4, 2), trim=2)


@pytest.mark.usefixtures("solver_mode")
def test_trimmed_mean_keeps_nan_and_leaves_out_infinite_values() -> None:
    rows = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, torch.inf], [3.0, torch.nan, 3.0], [4.0, 4.0, 4.0]])
    expected = torch.tensor([2.5, torch.nan, 3.5])
    torch.testing.assert_close(f.trimmed_mean(rows, trim=1), expected, equal_nan=True)
    present = torch.tensor([True, True, False, True])
    torch.testing.assert_close(f.trimmed_mean(rows, trim=1, present=present), torch.tensor([2.0, 2.0, 4.0]))
    present = torch.tensor([False, True, True, True])
    found = f.trimmed_mean(rows, trim=1, present=present)
    torch.testing.assert_close(found, torch.tensor([3.0, torch.nan, 4.0]), equal_nan=True)
