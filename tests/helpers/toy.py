"""The stated toy run: two linear regressions on shared features, 200 steps, one loss 100 times the other."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import counterpoise as cp

STEPS, EPOCH = 200, 20


def problem() -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 8, generator=generator)
    y = torch.tanh(x @ torch.randn(8, 2, generator=generator)) * torch.tensor([1.0, 10.0])
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), x, y


def extra_arguments(method: cp.Method, losses: Tensor, again: Callable[[], Tensor] | None = None) -> dict[str, Any]:
    """What a method needs beyond losses and shared parameters; `again` computes the losses of the batch anew."""
    found: dict[str, Any] = {"kpis": 1 / (1 + losses.detach())} if "kpis" in method.needs else {}
    return found | {need: again for need in ("validation", "training") if need in method.needs}


def shared(model: nn.Module, method: cp.Method) -> list[nn.Parameter]:
    """The hidden layer; for a method that takes virtual steps, everything that moves."""
    return list((model if "validation" in method.needs else model[0]).parameters())  # type: ignore[index]


def train(name: str, steps: int = STEPS, **options: Any) -> tuple[Tensor, Tensor]:
    """Losses before and after training with a method, through `backward`."""
    model, x, y = problem()
    method = cp.describe(name)
    balancer = cp.make(name, ["small", "large"], **options)
    optimizer = torch.optim.Adam([{"params": model.parameters()}, *balancer.param_groups()], lr=0.01)

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
