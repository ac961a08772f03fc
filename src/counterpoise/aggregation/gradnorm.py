"""GradNorm: learned weights that let all tasks train at the same rate."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .._state.adam import InternalAdam
from ..distributed import ProcessGroup
from ..functional import gradnorm_gradient
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "gradnorm",
    paper="Chen et al. 2018",
    url="https://arxiv.org/abs/1711.02257",
    space="scale",
    needs=("shared",),
    summary="learned weights that equalise gradient norms, with more weight for tasks that lag behind",
)
class GradNorm(Aggregation):
    r"""Gradient normalisation (Chen et al., ICML 2018).

    Weights on the losses are learned such that the gradient norms become equal, with larger norms for tasks that train
    more slowly. Use it when gradient norms and training rates differ between tasks.

    .. math:: \min_w \sum_i \bigl| w_i n_i - \mathrm{sg}[\bar n\, r_i^\alpha] \bigr|, \qquad
       r_i = \frac{L_i / L_i(0)}{\operatorname{mean}_j L_j / L_j(0)}

    Here :math:`n_i = \|\nabla L_i\|`, and :math:`\bar n` is the mean of the :math:`w_i n_i`. The derivative in
    :math:`w_i` is :math:`n_i \operatorname{sign}(\cdot)`, so no second backward pass is needed. The weights are
    positive with :math:`\sum_i w_i = T`, multiply the losses, heads included, and are moved by an internal Adam. The
    paper computes norms on the last shared layer: pass its parameters as `shared=`. One popular package has the wrong
    sign of α.

    It computes the norms in its own backward passes, those that also train the network, so it cannot be the `weighting`
    of another method; `GradNormalise` can.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        alpha (float, optional): Strength :math:`\alpha` with which slow tasks are favoured. Default: `1.5`.
        lr (float, optional): Learning rate of the internal Adam. Default: `0.025`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss, which contains the weight of the method here; `"aggregated"` is the same. Default: `"own"`.
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

    Attributes:
        task_weights: The learned weights for the next step.

    Returns:
        `backward` adds the gradients to `.grad` and returns the weighted sum of the losses, detached.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.GradNorm(2)
        >>> _ = balancer.backward([w[0], 5 * w[1]], shared=[w])
        >>> [round(x, 3) for x in balancer.task_weights.tolist()]  # less weight for the longer gradient
        [1.025, 0.975]

    References:
        Chen et al., GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks.
        https://arxiv.org/abs/1711.02257
    """

    requires_positive_losses: bool = True
    compares_sizes: bool = True
    task_weights: Tensor
    first: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        alpha: float = 1.5,
        lr: float = 0.025,
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
        check_number(self, "alpha", alpha, least=0)
        check_number(self, "lr", lr, least=0)
        self.alpha, self.lr = alpha, lr
        self.register_buffer("task_weights", torch.ones(self.shape))
        self.register_buffer("first", torch.full(self.shape, torch.nan))
        self.adam = InternalAdam(self.shape)

    def multipliers(self, losses: Tensor, learning: bool) -> Tensor:
        return self.task_weights.clone()

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        if context.learning:
            norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
            self._update_weights(norms, self._may_update(gram, context) & context.present, context)
        return context.present.to(gram.dtype)

    def _update_weights(self, norms: Tensor, due: Tensor, context: StepContext) -> None:
        losses = context.losses.to(self.first.dtype)
        self.first.copy_(torch.where(torch.isnan(self.first) & context.present & (losses != 0), losses, self.first))
        gradient = gradnorm_gradient(self.task_weights, norms, losses, self.first, alpha=self.alpha)
        self.adam.update(self.task_weights, self.adam.limit_outliers(gradient), due=due, lr=self.lr)
        self.task_weights.clamp_min_(1e-3)
        self.task_weights.mul_(len(self.tasks) / self.task_weights.sum(-1, keepdim=True))

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.task_weights.fill_(1.0)
        self.first.fill_(torch.nan)
        self.adam.clear()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, alpha={self.alpha}, lr={self.lr}"
