"""GradVac: rotates gradients until their cosine reaches its moving average."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import gradvac_weights
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Heads, Ranks
from .pcgrad import PCGrad


@register(
    "gradvac",
    paper="Wang et al. 2021",
    url="https://arxiv.org/abs/2010.05874",
    space="gradient",
    needs=("shared",),
    summary="PCGrad with an adaptive target: rotates gradients until their cosine reaches its moving average",
)
class GradVac(PCGrad):
    r"""Gradient vaccine (Wang et al., ICLR 2021).

    Like `PCGrad`, but with an adaptive target: a gradient is changed if its cosine with another one is below the
    moving average of their cosines. Use it for related tasks, whose gradients should stay similar.

    .. math:: \hat g_i \leftarrow \hat g_i + \frac{\|\hat g_i\| (\hat\phi_{ij} \sqrt{1 - \phi_{ij}^2}
       - \phi_{ij} \sqrt{1 - \hat\phi_{ij}^2})}{\|g_j\| \sqrt{1 - \hat\phi_{ij}^2}} g_j
       \quad\text{if } \phi_{ij} < \hat\phi_{ij}

    The change sets :math:`\phi_{ij}`, the cosine of :math:`\hat g_i` and :math:`g_j`, to :math:`\hat\phi_{ij}`, its
    moving average (0 at the start).

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        beta (float, optional): Rate of the moving average, in [0, 1]. The default is the paper's.
            Default: `0.01`.
        seed (int or sequence of int, optional): Seed of the random stream. With `batch_shape`, one seed per replica;
            a single seed is incremented from replica to replica. Default: `0`.
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
        >>> balancer = cp.GradVac(2)
        >>> _ = balancer.backward([w[0], w[1] - w[0]], shared=[w])  # the first step, with φ̂ = 0, is that of PCGrad
        >>> w.grad
        tensor([0.5000, 1.5000])

    References:
        Wang et al., Gradient Vaccine: Investigating and Improving Multi-task Optimization in Massively Multilingual
        Models. https://arxiv.org/abs/2010.05874
    """

    phi: Tensor

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        beta: float = 0.01,
        seed: int | Sequence[int] = 0,
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
            seed=seed,
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
        check_number(self, "beta", beta, least=0, most=1)
        self.beta = beta
        self.register_buffer("phi", torch.zeros(*self.shape, len(self.tasks)))

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        weights, phi = gradvac_weights(gram, self.phi, self._draw_order(context), beta=self.beta)
        if context.learning:
            self.phi.copy_(torch.where(self._may_update(gram, context).unsqueeze(-1), phi, self.phi))
        return weights

    @torch.no_grad()
    def reset(self) -> None:
        super().reset()
        self.phi.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, beta={self.beta}"
