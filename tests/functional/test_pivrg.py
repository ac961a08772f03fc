"""PIVRG solves its defining equation, with a preference whose ratio is bounded."""

import math

import pytest
import torch
from helpers.gram_properties import arbitrary_matrices, check_absent, check_arbitrary, check_batching
from helpers.grams import jacobians
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import counterpoise.functional as f

DROPS = st.lists(st.floats(-100, 1000, width=32), min_size=1, max_size=6)


@settings(deadline=None, max_examples=60)
@given(drops=DROPS, bound=st.floats(1.1, 5.0), least=st.floats(1.0, 100.0))
def test_preference_is_a_softmax_with_bounded_ratio(drops: list[float], bound: float, least: float) -> None:
    values = torch.tensor(drops, dtype=torch.float64)
    p = f.pivrg_preference(values, bound=bound, min_temperature=least)
    temperature = max((values.max() - values.min()).item() / math.log(bound), least)
    torch.testing.assert_close(p, len(drops) * torch.softmax(values / temperature, 0))
    assert p.max() <= bound * p.min() * (1 + 1e-12)
    assert p.mean().item() == pytest.approx(1)
    torch.testing.assert_close(f.pivrg_preference(values + 5, bound=bound, min_temperature=least), p)


def test_unknown_drop_gets_the_mean_value() -> None:
    p = f.pivrg_preference(torch.tensor([[torch.nan, 0.0, 30.0], [torch.nan, torch.nan, torch.nan]]))
    torch.testing.assert_close(p, torch.tensor([[1.0, 2 / 3, 4 / 3], [1.0, 1.0, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize("tasks", [2, 3, 8])
@pytest.mark.parametrize("kind", ["regular", "conflicting"])
def test_weights_solve_the_equation(kind: str, tasks: int) -> None:
    """Gw = √(p/w)."""
    j = jacobians(kind, 20, tasks)
    drops = torch.linspace(-10.0, 50.0, tasks, dtype=torch.float64)
    gram = j @ j.mT
    w = f.pivrg_weights(gram, drops)
    p = f.pivrg_preference(drops)
    assert (w > 0).all()
    torch.testing.assert_close((gram @ w.unsqueeze(-1)).squeeze(-1), (p / w).sqrt(), rtol=1e-7, atol=0)
    importance = torch.linspace(1.0, 3.0, tasks)
    both = f.pivrg_weights(gram, drops, preference=importance)
    torch.testing.assert_close(both, f.fairgrad_weights(gram, alpha=2.0, preference=p * importance))


def test_equal_drops_are_fairgrad() -> None:
    j = jacobians("conflicting", 5, 4)
    gram = j @ j.mT
    torch.testing.assert_close(f.pivrg_weights(gram, torch.full((4,), 7.0)), f.fairgrad_weights(gram, alpha=2.0))


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000), tasks=st.integers(2, 6), decades=st.floats(-3, 3))
def test_permutation_and_scale(seed: int, tasks: int, decades: float) -> None:
    """Gradients times c give weights times c^(−4/3)."""
    j = jacobians("conflicting", 1, tasks, seed)[0]
    generator = torch.Generator().manual_seed(seed)
    drops, order = 50 * torch.randn(tasks, generator=generator), torch.randperm(tasks, generator=generator)
    w = f.pivrg_weights(j @ j.T, drops)
    torch.testing.assert_close(f.pivrg_weights(j[order] @ j[order].T, drops[order]), w[order], rtol=1e-6, atol=0)
    c = 10**decades
    torch.testing.assert_close(f.pivrg_weights(c * c * j @ j.T, drops), c ** (-4 / 3) * w, rtol=1e-6, atol=0)


@pytest.mark.usefixtures("solver_mode")
@pytest.mark.parametrize("tasks", [3])
def test_batches_and_absent_tasks(tasks: int) -> None:
    drops = torch.linspace(-10.0, 50.0, tasks)
    check_batching(lambda gram: f.pivrg_weights(gram, drops), tasks)
    check_absent(lambda gram, index: f.pivrg_weights(gram, drops[index]), tasks)


@settings(deadline=None, max_examples=40)
@given(arbitrary_matrices())
def test_arbitrary_matrices(gram: Tensor) -> None:
    check_arbitrary(lambda matrix: f.pivrg_weights(matrix, torch.arange(float(len(gram)))), gram)


def test_invalid_arguments() -> None:
    for options in ({"bound": 1.0}, {"min_temperature": 0.0}):
        with pytest.raises(ValueError, match="bound must exceed 1 and min_temperature 0"):
            f.pivrg_preference(torch.zeros(2), **options)
