"""The advice to standardise regression targets: a weight does not undo a factor on a target."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import counterpoise as cp

TASKS, STEPS, BATCH = ["value", "class"], 400, 64


def train(make: Callable[[], cp.Balancer], seed: int, unit: float) -> tuple[float, cp.Diagnosis]:
    """Train a regression in some unit beside a classification; return the held-out R², and the diagnosis."""
    torch.manual_seed(seed)
    x = torch.randn(1500, 10)
    z = torch.tanh(x @ torch.randn(10, 4) / 3)
    y = z @ torch.randn(4) + 0.1 * torch.randn(1500)
    label = (z @ torch.randn(4, 3)).argmax(1)
    y = unit * (y - y.mean()) / y.std()
    trunk = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    heads = nn.Linear(64, 1), nn.Linear(64, 3)
    balancer = make()
    parameters = [*trunk.parameters(), *heads[0].parameters(), *heads[1].parameters()]
    optimizer = torch.optim.Adam([{"params": parameters}, *balancer.param_groups()], lr=1e-3)

    def predict(rows: Tensor) -> tuple[Tensor, Tensor]:
        features = trunk(x[rows])
        return heads[0](features)[:, 0], heads[1](features)

    with cp.diagnose(balancer, shared=trunk.parameters()) as monitor:
        for _ in range(STEPS):
            rows = torch.randint(1000, (BATCH,))
            value, logits = predict(rows)
            optimizer.zero_grad()
            losses = {
                "value": functional.mse_loss(value, y[rows]),
                "class": functional.cross_entropy(logits, label[rows]),
            }
            balancer.backward(losses, shared=trunk.parameters())
            optimizer.step()
    with torch.no_grad():
        held_out = torch.arange(1000, 1500)
        error = functional.mse_loss(predict(held_out)[0], y[held_out]) / y[held_out].var()
    return 1 - error.item(), monitor.diagnosis


@pytest.mark.parametrize("seed", [0, 1])
def test_a_target_in_a_wrong_unit_is_hardly_trained_by_methods_that_divide_by_losses(seed: int) -> None:
    standardised, _ = train(lambda: cp.Static(TASKS), seed, 1.0)
    divided, of_bpgs = train(lambda: cp.BPGS(TASKS), seed, 1000.0)
    by_norms, _ = train(lambda: cp.GradNormalise(TASKS), seed, 1000.0)
    _, of_sum = train(lambda: cp.Static(TASKS), seed, 1000.0)
    assert standardised > 0.8
    assert divided < 0.3
    assert divided + 0.3 < by_norms < standardised
    assert "Standardise regression targets first." in of_sum.advice[0]
    assert "cp.GradNormalise" in of_bpgs.advice[0]
    assert "designed for this" not in of_bpgs.advice[0]
