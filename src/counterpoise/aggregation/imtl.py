"""IMTL: the loss balance and the gradient balance together."""

from collections.abc import Sequence
from typing import Unpack

from ..registry import register
from ..weighting import IMTLL
from .base import Options, weighted_by
from .imtl_g import IMTLG


@register(
    "imtl",
    paper="Liu et al. 2021",
    space="gradient",
    needs=("shared",),
    summary="IMTL-L and then IMTL-G: heads at one scale, shared parameters at equal projections",
)
class IMTL(IMTLG):
    """Impartial multi-task learning (Liu et al., ICLR 2021): IMTL-L scales the losses, IMTL-G their gradients.

    The learned scales are parameters of this balancer: give them to the optimiser with `param_groups()`.

    Example:
        >>> IMTL(2)
        IMTL(
          task_0, task_1
          (weighting): IMTLL(task_0, task_1)
        )
    """

    def __init__(self, tasks: int | Sequence[str], **options: Unpack[Options]) -> None:
        super().__init__(tasks, **weighted_by(IMTLL, tasks, options))
