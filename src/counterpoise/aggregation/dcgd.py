"""DCGD: a direction in the dual cone of the residual gradient and the sum of the others."""

from collections.abc import Mapping, Sequence
from typing import get_args

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import DCGDKind, dcgd_weights
from ..gradients import Passes
from ..inputs import PerTask
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from ._task_index import task_index
from .base import Aggregation, Heads, Ranks


@register(
    "dcgd",
    paper="Hwang and Lim 2024",
    url="https://arxiv.org/abs/2409.18426",
    space="gradient",
    needs=("shared",),
    summary="no conflict between the residual and the sum of the other losses: for physics-informed networks",
)
class DCGD(Aggregation):
    r"""Dual cone gradient descent (Hwang and Lim, NeurIPS 2024).

    The tasks form two groups: the residual of a differential equation, with gradient r, and all others, whose gradients
    add up to b. The direction conflicts with neither. Use it for physics-informed networks.

    .. math:: c = \frac{r}{\|r\|} + \frac{b}{\|b\|}, \qquad d = \frac{\langle c, r + b\rangle}{\|c\|^2}\, c

    This is `kind="center"`; `counterpoise.functional.dcgd_weights` describes the other two. All tasks but the residual
    have the same weight. For two tasks, the center is the direction of ConFIG.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        residual (int or str, optional): Index or name of the task that is the residual. Default: `0`.
        kind (str, optional): `"center"` projects the sum of all gradients on the bisector c; `"projection"` projects it
            orthogonally to the group that it conflicts with; `"average"` is the mean of the projections orthogonal to
            either group. The last two use the plain sum if there is no conflict. Default: `"center"`.
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
        >>> balancer = cp.DCGD(["residual", "boundary"], residual="residual")
        >>> _ = balancer.backward({"residual": w[0], "boundary": 3 * w[1]}, shared=[w])
        >>> w.grad
        tensor([2., 2.])

    References:
        Hwang and Lim, Dual Cone Gradient Descent for Training Physics-Informed Neural Networks.
        https://arxiv.org/abs/2409.18426
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        residual: int | str = 0,
        kind: DCGDKind = "center",
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
        if kind not in get_args(DCGDKind):
            raise ValueError(f"DCGD: kind is {kind!r}, expected one of {', '.join(map(repr, get_args(DCGDKind)))}")
        self.residual = task_index(self, "residual", residual, self.tasks)
        self.kind = kind

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        return dcgd_weights(gram, self.residual, kind=self.kind)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, residual={self.tasks[self.residual]}, kind={self.kind}"
