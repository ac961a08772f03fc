"""Krum: the mean of the gradients that are nearest to their neighbours."""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ..distributed import ProcessGroup
from ..functional import krum_weights
from ..gradients import Passes
from ..inputs import PerTask, check_number
from ..registry import register
from ..weighting import Weighting
from ._step import StepContext
from .base import Aggregation, Heads, Ranks


@register(
    "krum",
    paper="Blanchard et al. 2017",
    url="https://proceedings.neurips.cc/paper/2017/hash/f4b9ec30ad9f68f89b29639786cb62ef-Abstract.html",
    space="gradient",
    needs=("shared",),
    summary="mean of the gradients that are nearest to each other: ignores outlying task gradients",
)
class Krum(Aggregation):
    r"""Krum and Multi-Krum (Blanchard et al., NeurIPS 2017).

    The direction is the mean of the `selected` gradients with the smallest distances to their neighbours. Use it if the
    gradients of some tasks may be arbitrary, for example because of corrupt labels. Tasks that are not selected get
    weight 0, so it does not balance tasks that differ in scale.

    .. math:: s_i = \sum_{j \in N_i} \|g_i - g_j\|^2, \qquad d = \frac1m \sum_{i \in M} g_i

    Here :math:`N_i` are the T − f − 2 nearest other gradients, and M the m tasks with the smallest scores
    :math:`s_i`. With fewer than three tasks all scores are 0, and the tasks that come first are selected. T counts the
    present tasks only.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        byzantine (int, optional): Number f of gradients that may be arbitrary, from 0 to T − 3. `None` is the largest
            with 2f + 2 < T, for which the paper gives a guarantee. Default: `None`.
        selected (int, optional): Number m of gradients that are averaged, from 1 to T; 1 is Krum and more is
            Multi-Krum. `None` is T − f, so that all tasks are averaged for f = 0. Default: `None`.
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
        >>> balancer = cp.Krum(5, selected=2)
        >>> _ = balancer.backward([w[0], w[0] + w[1], w[0] + w[1], w[0] + w[1], -9 * w[0]], shared=[w])
        >>> balancer.weights
        tensor([0.0000, 0.5000, 0.5000, 0.0000, 0.0000])

    References:
        Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
        https://proceedings.neurips.cc/paper/2017/hash/f4b9ec30ad9f68f89b29639786cb62ef-Abstract.html
    """

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        byzantine: int | None = None,
        selected: int | None = None,
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
        count = len(self.tasks)
        most = max(count - 3, 0)
        byzantine = most // 2 if byzantine is None else byzantine
        check_number(self, "byzantine", byzantine, least=0, most=most, whole=True)
        selected = count - byzantine if selected is None else selected
        check_number(self, "selected", selected, least=1, most=count, whole=True)
        self.byzantine, self.selected = byzantine, selected

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        return krum_weights(gram, byzantine=self.byzantine, selected=self.selected)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, byzantine={self.byzantine}, selected={self.selected}"
