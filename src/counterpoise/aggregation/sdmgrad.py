"""SDMGrad: MGDA regularised towards the average gradient, solved by a few steps at a time."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._state.float32 import state_dtype
from ..distributed import ProcessGroup
from ..functional import sdmgrad_weights
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "sdmgrad",
    paper="Xiao et al. 2023",
    url="https://arxiv.org/abs/2305.18409",
    space="gradient",
    needs=("shared",),
    summary="MGDA regularised towards the average gradient, with weights that carry over from step to step",
)
class SDMGrad(Aggregation):
    r"""Direction-oriented multi-objective learning (Xiao, Ban and Ji, NeurIPS 2023).

    This is MGDA regularised towards the average gradient. Use it for the trade-off between both: λ = 0 is MGDA, and a
    large λ is the average.

    .. math:: \min_w \tfrac12 \|g_w + \lambda g_0\|^2 \quad\text{on the simplex},
       \qquad d = \frac{g_w + \lambda g_0}{1 + \lambda}

    The weights start from those of the last step and take `iterations` projected momentum steps. The paper uses
    independent batches for the two factors of the Gram matrix, which makes its gradient in w unbiased; here both
    factors come from the same batch.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        lam (float, optional): Regularisation :math:`\lambda` towards the average gradient, at least 0.
            Default: `0.3`.
        lr (float, optional): Step size of the inner solver. The default is the authors'; it is too large to converge
            to the minimum, for which 0.3 to 1 is suitable. Default: `10.0`.
        momentum (float, optional): Momentum of the inner solver, in [0, 1). Default: `0.5`.
        iterations (int, optional): Number of inner steps. Default: `20`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all. `"lean"` never holds the gradients of all tasks. `"auto"` chooses by the
            number of tasks and the size of the shared network. Default: `"auto"`.
        ranks (str, optional): What is compared in a process group. `"exact"` averages the task gradients over ranks
            first, `"local"` compares those of each rank. Default: `"exact"`.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Enables `memory` of the weighting. Without a weighting it has no effect.
            Default: `False`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Returns:
        `backward` adds the direction to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.zeros(2, requires_grad=True)
        >>> balancer = cp.SDMGrad(2)
        >>> _ = balancer.backward([w[0], w[1]], shared=[w])
        >>> w.grad
        tensor([0.5000, 0.5000])

    References:
        Xiao et al., Direction-oriented Multi-objective Learning: Simple and Provable Stochastic Algorithms.
        https://arxiv.org/abs/2305.18409
    """

    w: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        lam: float = 0.3,
        lr: float = 10.0,
        momentum: float = 0.5,
        iterations: int = 20,
        weighting: Weighting | None = None,
        heads: Heads = "own",
        passes: Passes = "auto",
        ranks: Ranks = "exact",
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            weighting=weighting,
            heads=heads,
            passes=passes,
            ranks=ranks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "lam", lam, least=0)
        check_number(self, "lr", lr, above=0)
        check_number(self, "momentum", momentum, least=0, below=1)
        check_number(self, "iterations", iterations, least=1, whole=True)
        self.lam, self.lr, self.momentum, self.iterations = lam, lr, momentum, iterations
        self.register_buffer("w", torch.full(self.shape, 1 / len(self.tasks), dtype=state_dtype()))

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        weights, w = sdmgrad_weights(
            gram, self.w, lam=self.lam, lr=self.lr, momentum=self.momentum, iterations=self.iterations
        )
        if context.learning:
            self.w.copy_(torch.where(self._may_update(gram, context), w, self.w))
        return weights

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.w.fill_(1 / len(self.tasks))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, lam={self.lam}, lr={self.lr}, momentum={self.momentum}"
