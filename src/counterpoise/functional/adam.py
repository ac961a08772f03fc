"""Adam as a pure function, for methods whose small optimiser keeps its state in their buffers."""

from typing import NamedTuple

from torch import Tensor


class AdamState(NamedTuple):
    """State of :func:`adam`.

    Attributes:
        step (Tensor): Number of steps taken.
        mean (Tensor): Running average of the gradient.
        square (Tensor): Running average of the squared gradient.
    """

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
    """Take one step of Adam with coupled weight decay, as `torch.optim.Adam` does.

    Args:
        value (Tensor): Current value of the parameter.
        gradient (Tensor): Its gradient, same shape.
        state (AdamState): State after the previous step; zeros at the start.
        lr (float): Learning rate.
        weight_decay (float, optional): Factor of the value that is added to the gradient. Default: 0.0.
        betas (tuple[float, float], optional): Decay rates of the two running averages. Default: (0.9, 0.999).
        eps (float, optional): Term added to the denominator. Default: 1e-8.

    Returns:
        tuple[Tensor, AdamState]: The new value and the new state.

    Example:
        >>> zero = torch.zeros(2)
        >>> value, state = adam(torch.ones(2), torch.ones(2), AdamState(torch.zeros(()), zero, zero), lr=0.1)
        >>> value
        tensor([0.9000, 0.9000])

    References:
        Kingma and Ba, Adam: A Method for Stochastic Optimization. https://arxiv.org/abs/1412.6980
    """
    gradient = gradient.to(value.dtype) + weight_decay * value
    step = state.step + 1
    mean = betas[0] * state.mean + (1 - betas[0]) * gradient
    square = betas[1] * state.square + (1 - betas[1]) * gradient.square()
    corrected = mean / (1 - betas[0] ** step)
    denominator = (square / (1 - betas[1] ** step)).sqrt() + eps
    return value - lr * corrected / denominator, AdamState(step, mean, square)
