"""LRA: learning-rate annealing, weights from the entries of the task gradients relative to a reference task."""

from collections.abc import Mapping, Sequence
from typing import get_args

import torch
from torch import Tensor

from .. import distributed
from ..distributed import ProcessGroup
from ..functional import LRAForm, Step, lra_weights, weighted_sum
from ..gradients import TaskGradients, local_part
from ..inputs import PerTask, check_number, format_names
from ..registry import register
from ._gradients import Schedule, scatter
from .base import Weighting


@register(
    "lra",
    paper="Wang et al. 2021",
    url="https://arxiv.org/abs/2001.04536",
    space="scale",
    needs=("shared",),
    summary="learning-rate annealing: brings the gradients of boundary terms of a PINN to the size of the residual's",
)
class LRA(Weighting):
    r"""Learning-rate annealing (Wang, Teng and Perdikaris, SIAM J. Sci. Comput. 2021).

    The weight of each task follows the ratio of the largest entry of the reference task's gradient to the mean entry of
    its own. Use it for physics-informed networks, with the residual of the differential equation as the reference.

    .. math:: \lambda_i \leftarrow (1 - \alpha)\lambda_i
              + \alpha \frac{\max|\nabla L_{ref}|}{\operatorname{mean}|\lambda_i \nabla L_i|}

    The reference keeps weight 1. This is the form of the authors' code. The equation of the paper, `form="max-mean"`,
    divides by the mean of the unweighted gradient: if a loss is solved early and its gradient vanishes, its weight
    grows without bound. Call `backward(losses, shared=…)`, or pass `shared=` or `features=` to the call.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        reference (str or int, optional): The reference task. Default: `0`.
        alpha (float, optional): Rate :math:`\alpha` of the update, in (0, 1]. Default: `0.1`.
        form (str, optional): The ratio: `"max-weighted-mean"`, `"max-mean"`, or `"mean-mean"`, which compares the means
            of the unweighted gradients. Default: `"max-weighted-mean"`.
        every (int, optional): Number of steps between two measurements of the task gradients, each of which costs one
            backward pass per task. The other steps cost what a weighted sum costs. Default: `10`.
        importance (mapping or sequence of float, optional): Factor on the weight of each task, applied after balancing.
            A mapping may leave out tasks, whose factor is 1. Default: `None`.
        fixed (mapping of str to float, optional): Losses that are added with a fixed factor and not balanced, by name.
            They may be listed in `tasks` or not. Default: `None`.
        memory (bool, optional): Whether absent tasks enter the statistics with a running mean of their last losses, for
            loops in which a batch does not have all tasks. Default: `False`.
        max_ratio (float, optional): Bound on the ratio of the largest to the smallest weight, before `importance`.
            Beyond it, the weights are no longer invariant to the scale of a loss. Default: `None`.
        batch_shape (int or tuple of int, optional): Leading dimensions of the losses, to balance several replicas at
            once, each with its own state. Default: `()`.
        strict (bool, optional): If `True`, raise an error for a non-finite loss instead of treating its task as
            absent, and for a negative loss in a method that takes logarithms or inverses. This check waits for the
            device in every step. Default: `False`.
        process_group (ProcessGroup, optional): Process group over which the losses are averaged. `None` uses the
            default group, if one is initialised. Default: `None`.

    Attributes:
        task_weights: The weights λ.

    Returns:
        Calling the balancer returns the weighted sum, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.LRA(["residual", "boundary"])
        >>> _ = balancer.backward({"residual": 100 * w.sum(), "boundary": w.sum()}, shared=[w])
        >>> balancer.weights
        tensor([ 1.0000, 10.9000])

    References:
        Wang et al., Understanding and Mitigating Gradient Flow Pathologies in Physics-Informed Neural Networks.
        https://arxiv.org/abs/2001.04536
    """

    requires_positive_losses: bool = False
    measures_gradients: bool = True
    task_weights: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        reference: str | int = 0,
        alpha: float = 0.1,
        form: LRAForm = "max-weighted-mean",
        every: int = 10,
        importance: PerTask | None = None,
        fixed: Mapping[str, float] | None = None,
        memory: bool = False,
        max_ratio: float | None = None,
        batch_shape: int | tuple[int, ...] = (),
        strict: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        super().__init__(
            tasks,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "alpha", alpha, above=0, most=1)
        check_number(self, "every", every, least=1, whole=True)
        if form not in get_args(LRAForm):
            raise ValueError(f"form is {form!r}, expected one of {', '.join(map(repr, get_args(LRAForm)))}")
        if reference not in (*self.tasks, *range(len(self.tasks))):
            raise ValueError(f"reference is {reference!r}, expected one of {format_names(self.tasks)}, or its index")
        self.reference = self.tasks.index(reference) if isinstance(reference, str) else int(reference)
        self.alpha = alpha
        self.form: LRAForm = form
        self.schedule = Schedule(every)
        self.register_buffer("task_weights", torch.ones(self.shape))

    def renew(self, grads: TaskGradients) -> None:
        if self.reference not in grads.slots:
            return
        means, largest = self._entries(grads)
        absent = largest == 0  # the reference, in a replica or on all ranks
        largest.masked_fill_(absent, torch.nan)
        means[..., self.reference].masked_fill_(absent, torch.nan)
        weights = lra_weights(
            self.task_weights, largest, means, reference=self.reference, alpha=self.alpha, form=self.form
        )
        self.task_weights.copy_(weights)

    def _entries(self, grads: TaskGradients) -> tuple[Tensor, Tensor]:
        """Return the mean absolute entry of each task's gradient, (…, T), and the largest of the reference, (…)."""
        lead = len(self.batch_shape)
        size = float(sum(local_part(target).numel() for target in grads.targets))
        count = self.task_weights.new_full((), size) / torch.Size(self.batch_shape).numel()
        sums, largest = [], torch.zeros_like(self.task_weights[..., 0])
        for slot, row in zip(grads.slots, grads.rows, strict=True):
            entries = [local_part(g).abs().unsqueeze(-1).flatten(lead).to(largest) for g in row if g is not None]
            sums.append(sum((part.sum(-1) for part in entries), torch.zeros_like(largest)))
            if slot == self.reference:
                for part in entries:
                    largest = torch.maximum(largest, part.amax(-1))
        total = torch.stack(sums, -1)
        if grads.partial is not None:  # each rank has the gradient at the features of its own samples
            total = distributed.sum_over_ranks(total, self.process_group)
            count = distributed.sum_over_ranks(count, self.process_group)
            largest = distributed.max_over_ranks(largest, self.process_group)
        return scatter(total / count, grads.slots, len(self.tasks)), largest

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return weighted_sum(self.task_weights, losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.task_weights.fill_(1.0)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reference={self.tasks[self.reference]}, alpha={self.alpha}, form={self.form}"
