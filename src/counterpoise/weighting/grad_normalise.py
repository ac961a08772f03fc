"""Gradient normalisation: weights that give all task gradients the same norm."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import Step, gradient_normalise_weights, weighted_sum
from ..gradients import TaskGradients
from ..inputs import PerTask, check_number, per_task
from ..registry import register
from ._gradients import Schedule, update_running_norms
from .base import Weighting


@register(
    "grad-normalise",
    paper="Wang et al. 2023",
    url="https://arxiv.org/abs/2308.08468",
    space="scale",
    needs=("shared",),
    summary="weights 1/‖g‖ from running gradient norms: for losses whose gradients differ in size",
)
class GradNormalise(Weighting):
    r"""Gradient normalisation (Wang et al. 2023; EnCodec's balancer, Défossez et al. 2022).

    The weights are inverse to a running mean of each task's gradient norm, so that all tasks contribute equally to the
    gradient of the shared parameters. Use it if the scale of a loss is not the scale of its gradient, for example if a
    loss can reach zero.

    .. math:: w_i = T\,\frac{r_i\, \bar n_i^{-p}}{\sum_j r_j\, \bar n_j^{-p}}, \qquad
              \log \bar n_i \leftarrow \beta \log \bar n_i + (1 - \beta) \log \|\nabla L_i\|

    Multiplying a loss by a constant does not change its contribution if :math:`p = 1`. With :math:`p = 2` the weights
    are those of `GradNormProxy`. With `features=` and `shares` it is EnCodec's balancer, up to a factor common to all
    tasks. Call `backward(losses, shared=…)`, or pass `shared=` or `features=` to the call.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        exponent (float, optional): Exponent :math:`p`. Default: `1.0`.
        beta (float, optional): Decay rate :math:`\beta` of the running mean, in [0, 1). Default: `0.9`.
        shares (mapping, sequence or tensor, optional): Share :math:`r_i` of each task in the gradient. `None` means
            equal shares. Default: `None`.
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
        log_norms: The running means of the logarithms of the gradient norms.

    Returns:
        Calling the balancer returns the weighted sum, a scalar, or one value per replica with `batch_shape`.

    Example:
        >>> import torch
        >>> import counterpoise as cp
        >>> w = torch.ones(2, requires_grad=True)
        >>> balancer = cp.GradNormalise(2)
        >>> _ = balancer.backward([w[0], 3 * w[1]], shared=[w])
        >>> balancer.weights, w.grad
        (tensor([1.5000, 0.5000]), tensor([1.5000, 1.5000]))

    References:
        Wang et al., An Expert's Guide to Training Physics-informed Neural Networks. https://arxiv.org/abs/2308.08468
        Défossez et al., High Fidelity Neural Audio Compression. https://arxiv.org/abs/2210.13438
    """

    requires_positive_losses: bool = False
    measures_gradients: bool = True
    log_norms: Tensor
    shares: Tensor | None

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        exponent: float = 1.0,
        beta: float = 0.9,
        shares: PerTask | None = None,
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
        check_number(self, "exponent", exponent)
        check_number(self, "beta", beta, least=0, below=1)
        check_number(self, "every", every, least=1, whole=True)
        self.exponent = exponent
        self.beta = beta
        self.schedule = Schedule(every)
        given = None if shares is None else per_task("shares", shares, 1.0, self.tasks, (len(self.tasks),), owner=self)
        if given is not None and not bool((given >= 0).all() & (given.sum() > 0)):
            raise ValueError(f"shares are {given.tolist()}, expected numbers that are 0 or more, and one above 0")
        self.register_buffer("shares", given, persistent=False)
        self.register_buffer("log_norms", torch.full(self.shape, torch.nan))

    @property
    def normalised(self) -> bool:
        return True

    def renew(self, grads: TaskGradients) -> None:
        update_running_norms(self.log_norms, grads, self.process_group, beta=self.beta)

    def weigh(self, losses: Tensor, learning: bool) -> Step:
        weights = gradient_normalise_weights(self.log_norms, exponent=self.exponent, shares=self.shares)
        return weighted_sum(weights, losses)

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.log_norms.fill_(torch.nan)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, exponent={self.exponent}, beta={self.beta}, every={self.schedule.every}"
