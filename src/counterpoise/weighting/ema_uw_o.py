"""EMA-UW-O: inverse smoothed losses."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, _floats, uw_o
from ..functional._floats import FLOOR, FloatStep
from ..functional._masking import output_dtype
from ..functional._outliers import OUTLIER, limit_outliers
from ..functional._step import floats_to_tensor
from ..inputs import PerTask, check_number
from ..registry import register
from .base import Weighting


@register("ema-uw-o", summary="1/EMA(L), normalised: UW-O without the noise of single batches")
class EMAUWO(Weighting):
    r"""Inverse exponential moving averages of the losses, normalised to sum to 1.

    This is `UWO` without the noise of single batches. Compare it with `BPGS` to see whether learning θ matters, or
    whether smoothing the losses is enough.

    .. math:: w_i \propto 1 / \bar L_i, \qquad \bar L_i \leftarrow \beta \bar L_i + (1 - \beta)\,\mathrm{sg}[L_i]

    The first loss of a task initialises its average.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        beta (float, optional): Decay of the moving average, in [0, 1). Default: `0.9`.
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
        >>> balancer = cp.EMAUWO(2)
        >>> _ = balancer(torch.tensor([1.0, 3.0]))
        >>> balancer.weights.tolist()
        [0.75, 0.25]
    """

    average: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        beta: float = 0.9,
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
        check_number(self, "beta", beta, least=0, below=1)
        self.beta = beta
        self.register_buffer("average", torch.full(self.shape, torch.nan))

    @property
    def normalised(self) -> bool:
        return True

    def observe(self, losses: Tensor) -> None:
        self.average.copy_(self._moved(losses))

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep | None:
        average = self.average
        means: list[float] = average.tolist()
        for mean, loss in zip(map(abs, means), losses, strict=True):
            if not (mean <= FLOOR or abs(loss) <= OUTLIER * mean):
                return None  # the first loss, as the mean is NaN, or a loss to limit
        # Not in Python floats: the last bit of `lerp` in float32 depends on the machine.
        dtype = self._last.dtype
        moved = torch.lerp(floats_to_tensor(losses, dtype), average.to(dtype), self.beta)
        if learning:
            moved = average.copy_(moved)
        return _floats.uw_o(losses, moved.tolist(), normalise=True)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        average = self.average.to(output_dtype(losses)) if learning else self._moved(losses)
        return uw_o(losses, torch.nan_to_num(average, 1.0), normalise=True)

    def _moved(self, losses: Tensor) -> Tensor:
        """Return the running means after these losses."""
        current = losses.to(output_dtype(losses))
        limited = limit_outliers(current, self.average, 1 - self.beta, least_mean=FLOOR)
        moved = torch.where(
            torch.isnan(self.average), current, torch.lerp(limited, self.average.to(current), self.beta)
        )
        return torch.where(torch.isfinite(losses), moved, self.average.to(current))

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.average.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}"
