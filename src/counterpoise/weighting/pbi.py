"""PBI: distance along a preference ray, with a penalty on the distance from it."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _float_rules, pbi
from ..functional._floats import FloatStep
from ..inputs import PerTask, check_number, per_task
from ..registry import register
from ._preference import PreferenceWeighting
from ._state_floats import read_floats


@register(
    "pbi",
    paper="Zhang and Li 2007",
    url="https://doi.org/10.1109/TEVC.2007.892759",
    summary="keeps the losses in fixed proportions while they decrease: to choose a point of the Pareto front",
)
class PBI(PreferenceWeighting):
    r"""Penalty-based boundary intersection (Zhang and Li, IEEE TEVC 2007).

    The losses are driven to the ray of the preference and decrease along it. Use it to keep losses in given
    proportions.

    .. math:: J = d_1 + \theta d_2, \qquad d_1 = \hat p \cdot (L - z), \qquad d_2 = \lVert L - z - d_1 \hat p \rVert

    Here :math:`\hat p` is the preference divided by its norm. A loss that is small compared with its preference has a
    negative weight: it increases until the losses are on the ray. Choose preferences in proportion to the losses that
    you expect, or set `max_ratio`, which raises such weights and keeps them positive.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        preference (tensor, mapping or sequence of float, optional): Preference :math:`p_i` of each task, by name or in
            the order of `tasks`. `None` means 1 for every task. Default: `None`.
        theta (float, optional): Factor :math:`\theta` of the distance from the ray. Default: `5.0`.
        reference (tensor, mapping or sequence of float, optional): Ideal point :math:`z`, a lower bound of each loss.
            `None` means 0 for every task. Default: `None`.
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

    Returns:
        Calling the balancer returns :math:`J`, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.PBI(2, preference=[1.0, 0.0])
        >>> balancer(torch.tensor([3.0, 4.0])).item(), balancer.weights.tolist()
        (23.0, [1.0, 5.0])

    References:
        Zhang and Li, MOEA/D: A Multiobjective Evolutionary Algorithm Based on Decomposition.
        https://doi.org/10.1109/TEVC.2007.892759
    """

    reference: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        preference: PerTask | None = None,
        theta: float = 5.0,
        reference: PerTask | None = None,
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
            preference=preference,
            importance=importance,
            fixed=fixed,
            memory=memory,
            max_ratio=max_ratio,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        check_number(self, "theta", theta, least=0)
        self.theta = theta
        self.register_buffer(
            "reference", per_task("entries of reference", reference, 0.0, self.tasks, self.shape, owner=self)
        )

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        preference, reference = read_floats(self, "preference"), read_floats(self, "reference")
        return _float_rules.pbi(losses, preference, reference, theta=self.theta)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        return pbi(losses, self.preference, theta=self.theta, reference=self.reference)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, theta={self.theta}"
