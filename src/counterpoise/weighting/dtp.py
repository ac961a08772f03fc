"""DTP: more weight for the tasks with the worst performance indicators."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, dtp_weights, weighted_sum
from ..inputs import PerTask, check_number
from ..registry import register
from .base import Weighting


@register(
    "dtp",
    paper="Guo et al. 2018",
    url="https://openaccess.thecvf.com/content_ECCV_2018/html/Michelle_Guo_Focus_on_the_ECCV_2018_paper.html",
    needs=("kpis",),
    summary="difficult tasks first, judged by performance indicators (accuracy, …) that you pass in",
)
class DTP(Weighting):
    r"""Dynamic task prioritisation (Guo et al., ECCV 2018).

    Tasks with low performance indicators get more weight. Use it when you can measure the performance of each task
    during training, for example its accuracy.

    .. math:: w_i = -(1 - \kappa_i)^\gamma \log \kappa_i, \qquad \kappa \leftarrow \alpha k + (1 - \alpha)\kappa

    Pass the indicators :math:`k_i \in (0, 1)`, higher is better, as `kpis=` to the call or to `backward`, as a
    mapping, sequence or tensor. The first value of a task initialises its average, and the average is kept in steps
    without new values. In a process group, pass the same values on every rank.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        gamma (float, optional): Focusing exponent :math:`\gamma`. Default: `1.0`.
        alpha (float, optional): Rate :math:`\alpha` of the moving average, in (0, 1]. Default: `0.1`.
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
        Calling the balancer returns the weighted sum, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> balancer = cp.DTP(2)
        >>> _ = balancer(torch.tensor([1.0, 1.0]), kpis=[0.9, 0.3])
        >>> bool(balancer.weights[1] > balancer.weights[0])
        True

    References:
        Guo et al., Dynamic Task Prioritization for Multitask Learning.
        https://openaccess.thecvf.com/content_ECCV_2018/html/Michelle_Guo_Focus_on_the_ECCV_2018_paper.html
    """

    requires_positive_losses: bool = False
    raises_weights: ClassVar[bool] = True
    kappa: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        gamma: float = 1.0,
        alpha: float = 0.1,
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
        check_number(self, "gamma", gamma, least=0)
        check_number(self, "alpha", alpha, above=0, most=1)
        self.gamma = gamma
        self.alpha = alpha
        self.register_buffer("kappa", torch.full(self.shape, torch.nan))
        self._has_indicators = False
        self._new_indicators: Tensor | None = None

    def take_step(
        self, values: Tensor, counts: Tensor | None, learning: bool, *, kpis: PerTask | None = None, **needs: Any
    ) -> tuple[Step, Step]:
        self._new_indicators = None if kpis is None else self._check_indicators(kpis)
        if kpis is None and not self._has_indicators:
            # Reading the state waits for the device. This happens once, after a checkpoint was loaded.
            self._has_indicators = not bool(torch.isnan(self.kappa).all())
            if not self._has_indicators:
                raise ValueError("DTP needs indicators: pass kpis=, a number in (0, 1) for each task, higher is better")
        return super().take_step(values, counts, learning, **needs)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        kappa, new = self.kappa, self._new_indicators
        if new is not None:
            moved = torch.where(torch.isnan(kappa), new, torch.lerp(kappa, new, self.alpha))
            kappa = torch.where(torch.isnan(new), kappa, moved)
            if learning:
                self.kappa.copy_(kappa)
                self._has_indicators = True
        # A task that has no indicator yet gets the value 0.5.
        return weighted_sum(dtp_weights(torch.nan_to_num(kappa, 0.5), gamma=self.gamma), losses)

    def _check_indicators(self, kpis: PerTask) -> Tensor:
        """Return the new indicators as a tensor, NaN for tasks without a new value."""
        if isinstance(kpis, Mapping):
            if not kpis or set(kpis) - set(self.tasks):
                raise ValueError(f"kpis are given for {list(kpis)}, expected some of {list(self.tasks)}")
            kpis = [kpis.get(task, math.nan) for task in self.tasks]
        values = torch.as_tensor(kpis, dtype=self.kappa.dtype)
        if values.shape not in (self.shape, (len(self.tasks),)):
            raise ValueError(f"kpis have shape {tuple(values.shape)}, expected {self.shape}: one for each task")
        checked = values.device.type == "cpu" and not torch.compiler.is_compiling()  # elsewhere it would synchronise
        for slot, task in enumerate(self.tasks) if checked else ():
            if bool(((values[..., slot] < 0) | (values[..., slot] > 1)).any()):
                given = values[..., slot].tolist()
                raise ValueError(f"the indicator of task {task!r} is {given}, expected a number in (0, 1)")
        return values.detach().to(self.kappa, non_blocking=self.kappa.device.type != "cpu")

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.kappa.fill_(torch.nan)
        self._has_indicators = False
        self._new_indicators = None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, gamma={self.gamma}, alpha={self.alpha}"
