"""Nash-MTL as the paper's authors ran it: kept in the laboratory alone, because the paper's row rests on it."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from ... import gradients
from ...aggregation.base import Aggregation, Options, Seen
from ...gradients import GradientList, TaskGradients

ITERATIONS, TOLERANCE, FLOOR = 50, 1e-8, 1e-12


class NashAuthors(Aggregation):
    r"""An undamped fixed-point iteration, started where the last step's ended.

    .. math:: \alpha \leftarrow \frac{a}{\sum_j a_j}, \quad a_i = \frac{1}{\max((G\alpha)_i, 10^{-12})}

    at most 50 times on the Gram matrix divided by its Frobenius norm. For positive cosines it converges; with a
    negative one it may alternate between two patterns, and which of them a step sees is chance. The direction Σ α_i g_i
    is clipped to norm 1 **while it still carries the loss scale**, so that under a GradScaler at 2¹⁶ the shared
    parameters see gradients of norm 2⁻¹⁶, near Adam's ε. What is not finite becomes 0. For the method itself take
    `counterpoise.NashMTL`.
    """

    alpha: Tensor

    def __init__(self, tasks: int | Sequence[str], **options: Unpack[Options]) -> None:
        super().__init__(tasks, **options)
        self.register_buffer("alpha", torch.full(self.shape, 1 / len(self.tasks)))

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[Tensor, GradientList]:
        gram = self._gram(grads, seen._replace(scale=None)).nan_to_num(0.0, 0.0, 0.0)
        alpha = iterate(gram, self.alpha)
        if seen.learning:
            self.alpha.copy_(alpha)
        direction = gradients.combine(grads.rows, gradients.select_weights(alpha, grads.slots), grads.stacks)
        present = [grad for grad in direction if grad is not None]
        for grad in present:
            grad.nan_to_num_(0.0, 0.0, 0.0)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in present]))
        factor = (1 / (norm + 1e-6)).clamp_max(1.0)
        torch._foreach_mul_(present, factor)
        return alpha * factor, direction

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.alpha.fill_(1 / len(self.tasks))


def iterate(gram: Tensor, start: Tensor) -> Tensor:
    """The iteration; a fixed number of rounds, of which those after convergence change nothing."""
    gram = gram / torch.linalg.matrix_norm(gram, keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)
    alpha, going = start, torch.ones((), dtype=torch.bool, device=gram.device)
    for _ in range(ITERATIONS):
        inverse = 1 / (gram @ alpha.unsqueeze(-1)).squeeze(-1).clamp_min(FLOOR)
        new = inverse / inverse.sum(-1, keepdim=True)
        moved = (new - alpha).abs().amax() >= TOLERANCE
        alpha = torch.where(going, new, alpha)
        going = going & moved
    return alpha
