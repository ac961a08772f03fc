"""The schedule of stacked runs equals that of PyTorch for each run."""

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from counterpoise.lab.engine.plateau import Plateau


@pytest.mark.parametrize("patience", [5, 10])
def test_rates_equal_those_of_pytorch(patience: int) -> None:
    rates = torch.tensor([[1e-3], [0.025], [1e-3]])
    stream = torch.Generator().manual_seed(0)
    values = torch.rand(200, 3, generator=stream, dtype=torch.float64) - 0.3 + torch.linspace(1, 0, 200)[:, None]
    values[:, 2] = torch.linspace(-1, -2, 200)
    values[:, 0] = 1.0
    values[60, 0] = torch.nan
    plateau = Plateau(3, least=1e-5, patience=patience)
    optimizers = [torch.optim.SGD([torch.zeros(1)], lr=float(rate)) for rate in rates]
    peers = [ReduceLROnPlateau(o, factor=0.7, patience=patience, min_lr=1e-5) for o in optimizers]
    for row in values:
        plateau.step(row)
        for peer, value in zip(peers, row.tolist(), strict=True):
            peer.step(value)
        expected = torch.tensor([[optimizer.param_groups[0]["lr"]] for optimizer in optimizers])
        torch.testing.assert_close(rates * plateau.factors(rates), expected)
    assert expected[0] == pytest.approx(1e-5)
    assert expected[2] == pytest.approx(1e-3)


def test_a_rate_of_zero_stays_zero() -> None:
    rates = torch.zeros(1, 1)
    assert (rates * Plateau(1, least=1e-5).factors(rates)).item() == 0
