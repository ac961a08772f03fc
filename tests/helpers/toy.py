"""A toy problem: two regressions on shared features, one loss 100 times the other, trained for 50 steps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import counterpoise as cp

STEPS, EPOCH = 50, 10


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network, the inputs and the targets."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 8, generator=generator)
    y = torch.tanh(x @ torch.randn(8, 2, generator=generator)) * torch.tensor([1.0, 10.0])
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), x, y


def extra_arguments(method: cp.Method, losses: Tensor, again: Callable[[], Tensor] | None = None) -> dict[str, Any]:
    """Return the arguments of `backward` that a method needs besides losses and shared parameters.

    `again` recomputes the losses of the batch.
    """
    arguments: dict[str, Any] = {"kpis": 1 / (1 + losses.detach())} if "kpis" in method.needs else {}
    if "residuals" in method.needs:
        arguments["residuals"] = {"small": losses[..., 0], "large": losses[..., 1]}
    return arguments | {need: again for need in ("validation", "training") if need in method.needs}


def shared(model: nn.Module, method: cp.Method) -> list[nn.Parameter]:
    """Return the shared parameters: the hidden layer, or all parameters for a method that takes virtual steps."""
    return list((model if "validation" in method.needs else model[0]).parameters())  # type: ignore[index]


def train(name: str, steps: int = STEPS, **options: Any) -> tuple[Tensor, Tensor]:
    """Train with a method through `backward`, and return the losses before and after."""
    model, x, y = problem()
    method = cp.describe(name)
    balancer = cp.make(name, ["small", "large"], **options)
    optimizer = torch.optim.Adam([{"params": model.parameters()}, *balancer.param_groups()], lr=0.03)

    def losses() -> Tensor:
        errors: Tensor = (model(x) - y).square()
        return errors.mean(0)

    first = losses().detach()
    for step in range(steps):
        now = losses()
        optimizer.zero_grad()
        balancer.backward(now, shared=shared(model, method), **extra_arguments(method, now, losses))
        optimizer.step()
        with torch.no_grad():
            balancer.step_end(losses())
        if (step + 1) % EPOCH == 0:
            balancer.epoch_end()
    return first, losses().detach()
