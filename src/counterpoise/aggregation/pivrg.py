"""PIVRG: FairGrad with more weight for the tasks that lag behind."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .._state.float32 import state_dtype
from ..distributed import ProcessGroup
from ..functional import pivrg_weights, smooth_weights
from ..functional._floats import FLOOR
from ..functional._outliers import limit_outliers
from ..gradients import Passes
from ..inputs import PerTask, check_number, per_task
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "pivrg",
    paper="Qin et al. 2025",
    url="https://openaccess.thecvf.com/content/CVPR2025/html/Qin_Revisiting_Fairness_in_Multitask_Learning_A_Performance-Driven_Approach_for_Variance_CVPR_2025_paper.html",
    space="gradient",
    needs=("shared",),
    summary="fair gains with more weight for the tasks that lag behind their baseline: evens out performance",
)
class PIVRG(Aggregation):
    r"""Performance-informed variance reduction (Qin et al., CVPR 2025).

    This is FairGrad with α = 2 and a preference for the tasks that lag behind. Use it to even out the performance of
    the tasks relative to single-task training.

    .. math:: p = T \operatorname{softmax}(\Delta / \tau), \qquad
       \tau = \max\Bigl(\frac{\max \Delta - \min \Delta}{\log b}, \tau_{\min}\Bigr), \qquad
       G w = \sqrt{p / w}

    Here :math:`\Delta_i = 100\,(\bar L_i - L_i^*) / |L_i^*|` is the performance drop in percent, from a running mean of
    the training losses and a baseline :math:`L_i^*`. The authors measure the drops by the metrics of each task after
    each epoch. `importance` multiplies p.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        baselines (tensor, mapping or sequence of float, optional): Loss :math:`L_i^*` of each task in single-task
            training, by name or in the order of `tasks`. `None` takes the first loss of each task, and the drops then
            measure how far it has decreased. Default: `None`.
        bound (float, optional): Bound b on the ratio of the largest to the smallest p, above 1. Default: `2.0`.
        min_temperature (float, optional): Smallest temperature :math:`\tau_{\min}`, positive. Default: `10.0`.
        decay (float, optional): Decay of the running mean of the losses, in [0, 1). Default: `0.99`.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all. `"lean"` never holds the gradients of all tasks. `"auto"` chooses by the
            number of tasks and the size of the shared network. Default: `"auto"`.
        ranks (str, optional): What is compared in a process group. `"exact"` averages the task gradients over ranks
            first, `"local"` compares those of each rank. Default: `"exact"`.
        importance (mapping or sequence of float, optional): Importance of each task, in place of the method's uniform
            preference. A mapping may leave out tasks, whose importance is 1. Default: `None`.
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
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.PIVRG(2, baselines=[1.0, 0.5], decay=0.0)
        >>> _ = balancer.backward([w[0], w[1]], shared=[w])  # the second loss is twice its baseline
        >>> balancer.weights
        tensor([0.8736, 1.1006])

    References:
        Qin et al., Revisiting Fairness in Multitask Learning: A Performance-Driven Approach for Variance Reduction.
        https://openaccess.thecvf.com/content/CVPR2025/html/Qin_Revisiting_Fairness_in_Multitask_Learning_A_Performance-Driven_Approach_for_Variance_CVPR_2025_paper.html
    """

    uses_preference: ClassVar[bool] = True
    baselines: Tensor
    mean_losses: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        baselines: PerTask | None = None,
        bound: float = 2.0,
        min_temperature: float = 10.0,
        decay: float = 0.99,
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
        check_number(self, "bound", bound, above=1)
        check_number(self, "min_temperature", min_temperature, above=0)
        check_number(self, "decay", decay, least=0, below=1)
        self.bound, self.min_temperature, self.decay = bound, min_temperature, decay
        self._given_baselines = baselines is not None
        self.register_buffer(
            "baselines", per_task("baselines", baselines, torch.nan, self.tasks, self.shape, owner=self)
        )
        self.register_buffer("mean_losses", torch.full(self.shape, torch.nan, dtype=state_dtype()))

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        losses = torch.where(context.losses.isfinite(), context.losses, torch.nan).to(self.mean_losses.dtype)
        limited = limit_outliers(losses, self.mean_losses, 1 - self.decay, least_mean=FLOOR)
        means = smooth_weights(self.mean_losses, limited, alpha=self.decay)
        baselines = torch.where(self.baselines.isnan(), losses, self.baselines)
        if context.learning:
            update = self._may_update(gram, context)
            self.mean_losses.copy_(torch.where(update, means, self.mean_losses))
            self.baselines.copy_(torch.where(update, baselines, self.baselines))
        drops = 100 * (means - baselines) / baselines.abs()  # NaN means unknown
        return pivrg_weights(
            gram,
            drops,
            bound=self.bound,
            min_temperature=self.min_temperature,
            preference=self._preference(gram),
        )

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.mean_losses.fill_(torch.nan)
        if not self._given_baselines:
            self.baselines.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bound={self.bound}, min_temperature={self.min_temperature}, decay={self.decay}"
