"""Nash-MTL as in the paper's experiments, kept here to reproduce the paper's numbers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import gradients
from ...aggregation import Aggregation, StepContext
from ...gradients import GradientList, TaskGradients

ITERATIONS, TOLERANCE, FLOOR = 50, 1e-8, 1e-12


class NashAuthors(Aggregation):
    r"""Nash-MTL with an undamped fixed-point iteration that starts from the result of the previous step.

    .. math:: \alpha \leftarrow \frac{a}{\sum_j a_j}, \quad a_i = \frac{1}{\max((G\alpha)_i, 10^{-12})}

    The iteration runs at most 50 times, on the Gram matrix divided by its Frobenius norm. It converges if all cosines
    are positive; with a negative cosine it may alternate between two solutions. The direction Σ α_i g_i is clipped to
    norm 1 **before the loss scale is removed**, so with a GradScaler at 2¹⁶ the shared parameters receive gradients of
    norm 2⁻¹⁶, near Adam's ε. Values that are not finite are replaced by 0.

    Use `counterpoise.NashMTL` for the published method.
    """

    alpha: Tensor

    def __init__(self, tasks: int | Sequence[str], **options: Any) -> None:
        super().__init__(tasks, **options)
        self.register_buffer("alpha", torch.full(self.shape, 1 / len(self.tasks)))

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[Tensor, GradientList]:
        gram = self._gram(grads, context._replace(scale=None)).nan_to_num(0.0, 0.0, 0.0)
        alpha = fixed_point(gram, self.alpha)
        if context.learning:
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


def fixed_point(gram: Tensor, start: Tensor) -> Tensor:
    """Run a fixed number of iterations. Those after convergence change nothing, so the device need not be read."""
    gram = gram / torch.linalg.matrix_norm(gram, keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)
    alpha, active = start, torch.ones((), dtype=torch.bool, device=gram.device)
    for _ in range(ITERATIONS):
        inverse = 1 / (gram @ alpha.unsqueeze(-1)).squeeze(-1).clamp_min(FLOOR)
        new = inverse / inverse.sum(-1, keepdim=True)
        moved = (new - alpha).abs().amax() >= TOLERANCE
        alpha = torch.where(active, new, alpha)
        active = active & moved
    return alpha
