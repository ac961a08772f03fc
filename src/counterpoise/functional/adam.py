"""Adam as a pure function, for the few methods that own a small optimiser: its state lives in their buffers."""

from typing import NamedTuple

from torch import Tensor


class AdamState(NamedTuple):
    step: Tensor
    mean: Tensor
    square: Tensor


def adam(
    value: Tensor,
    gradient: Tensor,
    state: AdamState,
    *,
    lr: float,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, AdamState]:
    """One step of Adam with coupled weight decay, as `torch.optim.Adam` takes it."""
    gradient = gradient.to(value.dtype) + weight_decay * value
    step = state.step + 1
    mean = betas[0] * state.mean + (1 - betas[0]) * gradient
    square = betas[1] * state.square + (1 - betas[1]) * gradient.square()
    corrected = mean / (1 - betas[0] ** step)
    spread = (square / (1 - betas[1] ** step)).sqrt() + eps
    return value - lr * corrected / spread, AdamState(step, mean, square)
