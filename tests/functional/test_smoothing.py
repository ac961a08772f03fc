"""The moving average of weights agrees with torchjd and handles first steps and absent tasks."""

import pytest
import torch
import torchjd.aggregation as torchjd
from helpers.grams import grams

import counterpoise.functional as f


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
def test_torchjd(alpha: float) -> None:
    """Compare the smoothed weights of UPGrad over 50 steps, 200 in total."""
    weighting = torchjd.CRMOGMWeighting(torchjd.UPGradWeighting(), alpha=alpha)
    lam = torch.full((4,), torch.nan, dtype=torch.float64)
    for gram in grams("conflicting", 50, 4):
        lam = f.smooth_weights(lam, torchjd.UPGradWeighting()(gram), alpha=alpha)
        torch.testing.assert_close(lam, weighting(gram))


def test_weights_stay_on_the_simplex() -> None:
    lam = torch.full((3,), torch.nan, dtype=torch.float64)
    for gram in grams("conflicting", 20, 3):
        lam = f.smooth_weights(lam, f.mgda_weights(gram))
        assert lam.sum().item() == pytest.approx(1)
        assert (lam >= 0).all()


def test_absent_task_keeps_its_weight() -> None:
    nan = torch.nan
    previous = torch.tensor([[0.2, 0.8, nan], [nan, nan, nan]])
    current = torch.tensor([[nan, 0.4, 0.6], [nan, 1.0, 0.0]])
    expected = torch.tensor([[0.2, 0.6, 0.6], [nan, 1.0, 0.0]])
    torch.testing.assert_close(f.smooth_weights(previous, current, alpha=0.5), expected, equal_nan=True)


def test_result_has_no_autograd_graph() -> None:
    current = torch.tensor([0.3, 0.7], requires_grad=True)
    assert not f.smooth_weights(torch.tensor([0.5, 0.5]), current).requires_grad


def test_invalid_alpha() -> None:
    with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\], got 1.5"):
        f.smooth_weights(torch.ones(2), torch.ones(2), alpha=1.5)
