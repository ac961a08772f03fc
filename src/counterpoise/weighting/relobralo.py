"""ReLoBRaLo: relative progress of each loss, with random lookback to the first step."""

from collections.abc import Mapping, Sequence
from math import isnan

import torch
from torch import Tensor

from .._state.seeds import replica_seeds
from ..distributed import ProcessGroup
from ..functional import Step, _float_rules, _floats, relobralo_weights, uniform, weighted_sum
from ..functional._floats import FloatStep
from ..functional._masking import clamp_to_dtype
from ..functional._random import draw_floats
from ..inputs import PerTask, check_number
from ..registry import register
from ._state_floats import read_floats, read_integer, write_floats, write_integer
from .base import Weighting


@register(
    "relobralo",
    paper="Bischof and Kraus 2021",
    url="https://arxiv.org/abs/2110.09813",
    summary="more weight for losses that fell little since the last or the first step: proposed for PINNs",
)
class ReLoBRaLo(Weighting):
    r"""Relative loss balancing with random lookback (Bischof and Kraus 2021).

    A loss that decreased less than the others gets more weight, measured from the previous step and, at random, from
    the first step. The method was proposed for physics-informed neural networks. The weights are invariant to the scale
    of a loss.

    .. math:: w(t) = \alpha \bigl(\rho\, w(t - 1) + (1 - \rho)\, \hat w(t, 0)\bigr) + (1 - \alpha)\, \hat w(t, t - 1),
        \qquad \hat w(t, t') = T \operatorname{softmax}\bigl(L(t) / (\tau L(t'))\bigr)

    In each training step, :math:`\rho` is 1 with probability `expected_rho`, else 0. The draws depend on `seed` and a
    step counter alone: they are the same on every device and rank, and continue after a checkpoint is loaded. In
    evaluation mode the weights of the last training step are used.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        alpha (float, optional): Decay rate :math:`\alpha` of the weights, in [0, 1]. Default: `0.999`.
        temperature (float, optional): Temperature :math:`\tau` of the softmax; higher values give more equal weights.
            Default: `0.1`.
        expected_rho (float, optional): Probability that :math:`\rho` is 1, in [0, 1]; 1 never looks back to the first
            step. Default: `0.9999`.
        seed (int or sequence of int, optional): Seed of the random stream. With `batch_shape`, one seed per replica;
            a single seed is incremented from replica to replica. Default: `0`.
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
        >>> balancer = cp.ReLoBRaLo(2, alpha=0.5)
        >>> for losses in ([1.0, 1.0], [1.0, 0.9]):
        ...     _ = balancer(torch.tensor(losses))
        >>> [round(w, 3) for w in balancer.weights.tolist()]
        [1.231, 0.769]

    References:
        Bischof and Kraus, Multi-Objective Loss Balancing for Physics-Informed Deep Learning.
        https://arxiv.org/abs/2110.09813
    """

    weight: Tensor
    first: Tensor
    previous: Tensor
    seed: Tensor
    counter: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        alpha: float = 0.999,
        temperature: float = 0.1,
        expected_rho: float = 0.9999,
        seed: int | Sequence[int] = 0,
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
        for name, value in (("alpha", alpha), ("expected_rho", expected_rho)):
            check_number(self, name, value, least=0, most=1)
        check_number(self, "temperature", temperature, above=0)
        self.alpha = alpha
        self.temperature = temperature
        self.expected_rho = expected_rho
        self.register_buffer("weight", torch.ones(self.shape))
        self.register_buffer("first", torch.full(self.shape, torch.nan))
        self.register_buffer("previous", torch.full(self.shape, torch.nan))
        self.register_buffer("seed", replica_seeds(seed, self.batch_shape))
        self.register_buffer("counter", torch.zeros(self.batch_shape, dtype=torch.long))

    @property
    def normalised(self) -> bool:
        return True

    def weigh_floats(self, losses: list[float], learning: bool) -> FloatStep:
        kept = read_floats(self, "weight")
        if not learning:
            return _floats.weighted_sum(kept, losses)
        first, temperature = read_floats(self, "first"), self.temperature
        seed, counter = read_integer(self, "seed"), read_integer(self, "counter")
        if draw_floats(uniform, seed, counter, 1)[0] >= self.expected_rho:
            kept = _float_rules.ratio_weights(losses, first, temperature=temperature)
        new = _float_rules.relobralo_weights(
            losses, read_floats(self, "previous"), kept, alpha=self.alpha, temperature=temperature
        )
        state = {"weight": new, "previous": losses}
        if isnan(sum(first)):
            state["first"] = [x if isnan(old) else old for old, x in zip(first, losses, strict=True)]
        weights = write_floats(self, **state)[0]
        write_integer(self, "counter", counter + 1)
        return _floats.weighted_sum(weights, losses)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        if learning:  # not in `observe`: remembered losses take part in the softmax
            self._update(losses)
        return weighted_sum(self.weight, losses)

    def _update(self, losses: Tensor) -> None:
        rho = (uniform(self.seed, self.counter, 1) < self.expected_rho).to(self.weight.dtype)
        options = {"alpha": self.alpha, "temperature": self.temperature}
        self.weight.copy_(relobralo_weights(losses, self.previous, self.first, self.weight, rho, **options))
        present, current = torch.isfinite(losses), clamp_to_dtype(losses, self.first.dtype)
        self.first.copy_(torch.where(present & torch.isnan(self.first), current, self.first))
        self.previous.copy_(torch.where(present, current, self.previous))
        self.counter.add_(1)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.weight.fill_(1)
        self.first.fill_(torch.nan)
        self.previous.fill_(torch.nan)
        self.counter.zero_()

    def extra_repr(self) -> str:
        options = {"alpha": self.alpha, "temperature": self.temperature, "expected_rho": self.expected_rho}
        return ", ".join([super().extra_repr(), *(f"{name}={value}" for name, value in options.items())])
