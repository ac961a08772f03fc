"""CR-MOGM: the weights of another gradient-space method, smoothed over the steps."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._state.float32 import state_dtype
from ..distributed import ProcessGroup
from ..functional import smooth_weights
from ..functional._outliers import outlier_factors
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import make, register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "cr-mogm",
    paper="Zhou et al. 2022",
    url="https://proceedings.neurips.cc/paper_files/paper/2022/hash/f91bd64a3620aad8e70a27ad9cb3ca57-Abstract-Conference.html",
    space="gradient",
    needs=("shared",),
    summary="smooths the weights of another gradient-space method over the steps: for small batches",
)
class CRMOGM(Aggregation):
    r"""Smoothed weights of another gradient-space method (Zhou et al., NeurIPS 2022).

    The weights of the wrapped method are averaged over the steps, which reduces their noise on small batches.

    .. math:: \lambda \leftarrow \alpha \lambda + (1 - \alpha) \hat\lambda, \qquad d = \sum_i \lambda_i g_i

    Here :math:`\hat\lambda` are the weights that the wrapped method computes in this step. The average starts with
    those of the first step. An absent task keeps its λ. The paper increases α as the learning rate decays; assign
    `balancer.alpha` for that.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        method (Aggregation or str, optional): The wrapped method: its name, or an instance for the same tasks to
            set its options. It must compute its weights from the Gram matrix, without `weighting` and `fixed`.
            Default: `"mgda"`.
        alpha (float, optional): Share :math:`\alpha` of the previous weights, in [0, 1]. Default: `0.9`.
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
        >>> balancer = cp.CRMOGM(2, method=cp.MGDA(2), alpha=0.5)
        >>> for scale in (1, 3):
        ...     _ = balancer.backward([w[0], scale * w[1]], shared=[w])  # MGDA: (0.5, 0.5), then (0.9, 0.1)
        >>> balancer.weights
        tensor([0.7000, 0.3000])

    References:
        Zhou et al., On the Convergence of Stochastic Multi-Objective Gradient Manipulation and Beyond.
        https://proceedings.neurips.cc/paper_files/paper/2022/hash/f91bd64a3620aad8e70a27ad9cb3ca57-Abstract-Conference.html
    """

    lam: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        method: Aggregation | str = "mgda",
        alpha: float = 0.9,
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
        check_number(self, "alpha", alpha, least=0, most=1)
        self.alpha = alpha
        self.method = self._wrapped(method)
        self.compares_sizes = self.method.compares_sizes
        self.strict = self.strict or self.method.strict
        self.register_buffer("lam", torch.full(self.shape, torch.nan, dtype=state_dtype()))

    def _wrapped(self, method: Aggregation | str) -> Aggregation:
        """Return the wrapped method; raise an error if its weights are not those of its `solve`."""
        wrapped = make(method, self.tasks, batch_shape=self.batch_shape) if isinstance(method, str) else method
        name = type(wrapped).__name__
        hooks = ("aggregate", "multipliers", "needs_task_gradients", "backward")
        if not isinstance(wrapped, Aggregation) or any(
            getattr(type(wrapped), h) is not getattr(Aggregation, h) for h in hooks
        ):
            raise TypeError(f"method is {name}, expected a gradient-space method with weights from the Gram matrix")
        if wrapped.weighting is not None or wrapped.fixed:
            raise ValueError(f"method has weighting= or fixed=: pass them to {type(self).__name__} instead")
        if wrapped.shape != self.shape:
            raise ValueError(f"method balances losses of shape {wrapped.shape}, expected {self.shape}")
        return wrapped

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        current = self.method.solve(gram, context)
        if not self.method.uses_preference:
            current = self.method._times_importance(current)
        present = ~gram.diagonal(dim1=-2, dim2=-1).isnan()
        current = self._limited(torch.where(present, current.to(self.lam.dtype), 0.0))
        lam = smooth_weights(self.lam, torch.where(present, current, torch.nan), alpha=self.alpha)
        if context.learning:
            self.lam.copy_(torch.where(self._may_update(gram, context), lam, self.lam))
        return torch.where(present, lam, 0.0)

    def _limited(self, current: Tensor) -> Tensor:
        """Return the weights of this step, limited in size where they would dominate the average for many steps."""
        size, mean_size = (lam.abs().amax(-1, keepdim=True) for lam in (current, self.lam.nan_to_num(0.0)))
        return current * outlier_factors(size, mean_size, 1 - self.alpha)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.method.reset()
        self.lam.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha}"
