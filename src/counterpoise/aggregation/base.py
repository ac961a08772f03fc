"""Gradient space: task gradients in, one direction out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, get_args

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from .. import distributed, gradients
from ..balancer import Balancer, Common
from ..functional import Step, weighted_sum
from ..functional._gram import looking_is_free
from ..gradients import GradientList, TaskGradients, TaskRoot
from ..gradients.deferred import FactorScaler, defer_backward
from ..gradients.passes import BackwardPasses, ComparisonTargets, Passes
from ..inputs import (
    Losses,
    Slots,
    check_differentiable,
    check_finite,
    collect_losses,
    cut_nonfinite,
    format_names,
    has_custom_names,
    mask_unsampled,
)
from ..weighting import Weighting
from ..weighting._objective import clamp_to_dtype

Heads = Literal["own", "aggregated"]
Ranks = Literal["exact", "local"]


class Options(Common, total=False):
    """Options that every gradient-space method takes."""

    weighting: Weighting | None
    """A loss-space method that weighs the losses first: J ← diag(w) J. None: a plain sum."""
    heads: Heads
    """What parameters beside the shared ones get: "own", the gradient of their weighted loss, or "aggregated", that
    times the weight which the method gives the task."""
    passes: Passes
    """How task gradients are computed: "loop", one backward pass each; "batched", all in one pass of batched
    vector-Jacobian products; "auto", a loop, but for small shared networks with `features=`, where batches are faster
    on a GPU and as fast on a CPU, if vmap knows every operation there."""
    ranks: Ranks
    """In a process group: "exact" averages task gradients over ranks before they are compared (T gradients travel),
    "local" compares those of each rank (nothing travels here; the directions are averaged afterwards)."""


def weighted_by(kind: type[Weighting], tasks: int | Sequence[str], options: Options) -> Options:
    """Options with that weighting, of the same shape and process group, where none is given."""
    if options.get("weighting") is not None:
        return options
    common: Common = {}
    for name in Common.__annotations__:
        if name in options:
            common[name] = options[name]  # type: ignore[literal-required]
    return {**options, "weighting": kind(tasks, **common)}


class Seen(NamedTuple):
    """What a method may look at besides the task gradients."""

    losses: Tensor  # (…, T), averaged over ranks, NaN where absent
    weights: Tensor  # (…, T), what multiplied each loss before its gradient was taken
    present: Tensor  # (…, T)
    scale: Tensor | None  # what a GradScaler multiplied the gradients by
    learning: bool


class Aggregation(Balancer):
    """Base of the gradient-space methods: a subclass holds state and says how to `solve` for the weights of a Gram
    matrix, or, where that does not suffice, how to `aggregate` the gradients themselves."""

    shards: ClassVar[bool] = True  # whether rows may be parts of gradients

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        weighting: Weighting | None = None,
        heads: Heads = "own",
        passes: Passes = "auto",
        ranks: Ranks = "exact",
        **common: Any,
    ) -> None:
        super().__init__(tasks, **common)
        for name, value, kinds in (("heads", heads, Heads), ("passes", passes, Passes), ("ranks", ranks, Ranks)):
            if value not in get_args(kinds):
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, get_args(kinds)))}")
        if weighting is not None and not isinstance(weighting, Weighting):
            raise TypeError(f"weighting must be a loss-space balancer, got {type(weighting).__name__}")
        if weighting is not None and weighting.shape != self.shape:
            raise ValueError(f"weighting balances losses of shape {weighting.shape}, expected {self.shape}")
        if (
            weighting is not None
            and has_custom_names(weighting.tasks)
            and has_custom_names(self.tasks)
            and weighting.tasks != self.tasks
        ):
            expected = f"{format_names(self.tasks)}, in this order"
            raise ValueError(f"weighting balances {format_names(weighting.tasks)}, expected {expected}")
        if weighting is not None and weighting.process_group is None:
            weighting.process_group = self.process_group
        self.weighting = weighting
        self.heads = heads
        self.passes = passes
        self.ranks = ranks
        self._backward = BackwardPasses()

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        """Weights (…, T) for a Gram matrix (…, T, T) whose diagonal is NaN for absent tasks."""
        raise NotImplementedError(f"{type(self).__name__} must define solve or aggregate")

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[Tensor | None, GradientList]:
        """The weights c (None where the direction is not Σ c_i g_i), and the direction. The rows may be spent."""
        gram = self._gram(grads, seen)
        weights = self.solve(gram, seen)
        squares = gram.diagonal(dim1=-2, dim2=-1)
        if not (looking_is_free(gram) and math.isfinite(squares.sum().item())):
            # A gradient that is not finite, or whose square is beyond the range of its precision, is not an absent one.
            weights = torch.where(self._sound(squares, seen), weights, self._spoilt(seen))
        return weights, gradients.combine(grads.rows, gradients.select_weights(weights, grads.slots), grads.stacks)

    def multipliers(self, losses: Tensor, learning: bool) -> Tensor | None:
        """Factors (…, T) on the losses that are known before any gradient is; they reach the heads, too."""
        del losses, learning
        return None

    def compares(self, seen: Seen) -> bool:
        """Whether this step needs task gradients at all."""
        del seen
        return True

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name} works on gradients and has no loss to return: call balancer.backward(losses, shared=…) instead of "
            f"balancer(losses).backward(), or balancer.loss(losses, shared=…).backward()"
        )

    def backward(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        scaler: GradScaler | FactorScaler | None = None,
        retain_graph: bool = False,
        counts: Tensor | None = None,
        **needs: Any,
    ) -> Tensor:
        """Adds the direction to `.grad` of the shared parameters, and to all others the gradients of their losses.

        Tasks are compared on `shared`, the parameters that all of them share; or at `features`, the representation from
        which all heads start, for little more than a plain step; or on `shared` through `features`, which passes each
        head only once. Returns the objective of the weighting (a plain sum by default).
        """
        place = ComparisonTargets.of(shared, features, type(self).__name__)
        with torch.autocast(place.targets[0].device.type, enabled=False):
            step, roots, seen = self._weigh(losses, counts, scaler, place.targets[0], **needs)
            weights: Tensor | None = torch.ones_like(step.weights)
            if not self.compares(seen):
                self._add_up(roots, place, retain_graph)
            elif roots or self._exact():  # others may have some
                weights = self._compare(roots, place, retain_graph, seen)
        self._last.weights = None if weights is None else step.weights * weights.to(step.weights.dtype)
        return step.objective

    def loss(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        counts: Tensor | None = None,
        **needs: Any,
    ) -> Tensor:
        """The value is the plain sum of the losses: what the method makes of them is known after the backward pass.

        That pass is `loss.backward()`; with `inputs=`, or in `torch.autograd.grad`, torch runs nothing of it.
        """
        values, _, _ = collect_losses(losses, self.tasks, self.batch_shape, self._device())
        if counts is not None:
            values = mask_unsampled(values, counts)
        if shared is not None:
            shared = [shared] if isinstance(shared, Tensor) else list(shared)
        places = {"shared": shared, "features": features, "counts": counts, **needs}
        total = torch.where(torch.isfinite(values), values, 0.0).sum()
        return defer_backward(
            total, lambda factor, retain: self.backward(losses, scaler=factor, retain_graph=retain, **places)
        )

    def step_end(self, losses_after: Losses, *, counts: Tensor | None = None) -> None:
        if self.weighting is not None:
            self.weighting.step_end(losses_after, counts=counts)

    def epoch_end(self) -> None:
        if self.weighting is not None:
            self.weighting.epoch_end()

    def reset(self) -> None:
        super().reset()
        if self.weighting is not None:
            self.weighting.reset()

    def _weigh(
        self,
        losses: Losses,
        counts: Tensor | None,
        scaler: GradScaler | FactorScaler | None,
        target: Tensor,
        **needs: Any,
    ) -> tuple[Step, list[TaskRoot], Seen]:
        """The loss-space step, θ's gradient included, and where the backward passes start.

        Without any loss, `target` says on what device and in what precision to answer.
        """
        learning = self.learning
        device = self._device()
        values, slots, inputs = collect_losses(losses, self.tasks, self.batch_shape, device, target.dtype)
        if not inputs and device is None:
            values = values.to(target.device)
        if self.strict:
            check_finite(values, slots, self.tasks, counts)
        if counts is not None:
            values = mask_unsampled(values, counts)
        check_differentiable(values, slots, inputs, self.tasks)
        scale = None if scaler is None else scaler.scale(torch.ones((), device=values.device))
        step, local, mean = self._loss_space(values, counts, learning, **needs)
        learned = None if self.weighting is None else self.weighting.learned
        if learned is not None and learned.requires_grad and step.gradient is not None:
            gradient = clamp_to_dtype(step.gradient, learned.dtype)
            gradients.accumulate([learned], [gradient if scale is None else gradient * scale])
        multipliers = self.multipliers(mean, learning)
        if multipliers is not None:
            step, local = (s._replace(weights=s.weights * multipliers.to(s.weights.dtype)) for s in (step, local))
        flow = local.weights if scale is None else local.weights * scale
        there = values if self.ranks == "local" else mean
        seen = Seen(mean, step.weights, (step.weights != 0) & torch.isfinite(there), scale, learning)
        return step, self._roots(values, slots, inputs, flow), seen

    def _loss_space(
        self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any
    ) -> tuple[Step, Step, Tensor]:
        if self.weighting is not None:
            step, local = self.weighting.take_step(values, counts, learning, **needs)
            mean = values
            if learning and distributed.is_active(self.process_group):
                mean, _ = distributed.average_losses(values, counts, self.process_group)
            return step, local, mean
        if needs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(map(repr, needs))}")
        if not (learning and distributed.is_active(self.process_group)):
            step = weighted_sum(torch.ones_like(values), values)
            return step, step, values
        mean, share = distributed.average_losses(values, counts, self.process_group)
        return *distributed.localize_step(weighted_sum(torch.ones_like(mean), mean), share, values), mean

    def _roots(self, values: Tensor, slots: Slots, inputs: Sequence[Tensor], flow: Tensor) -> list[TaskRoot]:
        absent: Sequence[int] = ()
        if looking_is_free(values) and not self.batch_shape:
            absent = [i for i, finite in enumerate(torch.isfinite(values).tolist()) if not finite]
        if slots is None:
            cut_nonfinite(values, slots, tuple(inputs))
            each = torch.diag_embed(flow).to(inputs[0].dtype).unbind(-2)
            return [
                TaskRoot(i, inputs[0], grad)
                for i, grad in enumerate(each)
                if i not in absent and inputs[0].requires_grad
            ]
        columns = flow.unbind(-1)
        return [
            TaskRoot(slot, loss, columns[slot].to(loss.dtype))
            for slot, loss in zip(slots, inputs, strict=True)
            if slot not in absent and loss.requires_grad
        ]

    def _compare(self, roots: Sequence[TaskRoot], place: ComparisonTargets, keep: bool, seen: Seen) -> Tensor | None:
        """Task gradients, their aggregation, and what every parameter gets of it; returns the weights."""
        if place.sharded:
            roots = self._in_step_with_other_ranks(roots)
        grads = self._backward.compute(roots, place, keep, self.passes, heads=self.heads == "aggregated")
        if self._exact():
            grads = self._of_all_ranks(grads, place)
        with torch.no_grad():
            weights, direction = self.aggregate(grads, seen)
            if grads.leaves and grads.other_rows:
                own = self.heads == "own" or weights is None
                factors = None if own or weights is None else gradients.select_weights(weights, grads.slots)
                gradients.accumulate(grads.leaves, gradients.combine(grads.other_rows, factors))
            if not place.at_features:
                gradients.accumulate(place.targets, direction)
        if place.at_features:
            reached = [(z, grad) for z, grad in zip(place.targets, direction, strict=True) if grad is not None]
            torch.autograd.backward([z for z, _ in reached], [grad for _, grad in reached], retain_graph=keep)
        return weights

    def _in_step_with_other_ranks(self, roots: Sequence[TaskRoot]) -> Sequence[TaskRoot]:
        """Passes through sharded parameters (FSDP) are collective: a rank without a task goes along with zeros."""
        if not self.shards:
            raise ValueError(f"{type(self).__name__} does not know sharded parameters (FSDP)")
        if self.heads == "aggregated":
            raise ValueError("beside sharded parameters (FSDP) heads get their gradients as they are: pass heads='own'")
        if not roots:
            raise ValueError("sharded parameters (FSDP): each rank needs the loss of at least one task in every step")
        each = {root.slot: root for root in roots}
        spare = roots[0]
        zeros = torch.zeros_like(spare.grad)
        return [each.get(slot, TaskRoot(slot, spare.loss, zeros)) for slot in range(len(self.tasks))]

    def _of_all_ranks(self, grads: TaskGradients, place: ComparisonTargets) -> TaskGradients:
        """Every rank takes part for every task, with zeros where it has none."""
        every = range(len(self.tasks))
        at = {slot: index for index, slot in enumerate(grads.slots)}
        given: list[GradientList] = [grads.rows[at[i]] if i in at else [None] * len(place.targets) for i in every]
        others: list[GradientList] = [grads.other_rows[at[i]] if i in at else [None] * len(grads.leaves) for i in every]
        rows = [self._whole(row, place.targets, average=not place.at_features) for row in given]
        # The union batch has the features of all ranks one below the other, each 1/world of the mean loss.
        partial = distributed.world_size(self.process_group) ** -2 if place.at_features else grads.partial
        return grads._replace(slots=tuple(every), rows=rows, other_rows=others, partial=partial, stacks=None)

    def _add_up(self, roots: Sequence[TaskRoot], place: ComparisonTargets, keep: bool) -> None:
        """A step without comparison: one plain backward pass."""
        if place.at_features and roots:
            torch.autograd.backward([r.loss for r in roots], [r.grad for r in roots], retain_graph=keep)
        elif not place.at_features:
            row = gradients.sum_gradients(roots, place.targets, keep)
            whole = self._whole(row, place.targets, average=True) if self._exact() else row
            gradients.accumulate(place.targets, whole)

    def _whole(self, row: GradientList, targets: Sequence[Tensor], *, average: bool) -> GradientList:
        """A row without gaps, averaged over ranks; a sharded gradient is so already."""
        whole = [torch.zeros_like(t) if g is None else g for g, t in zip(row, targets, strict=True)]
        if average:
            distributed.average_tensors([g for g in whole if not gradients.is_sharded(g)], self.process_group)
        return [*whole]

    def _exact(self) -> bool:
        return self.ranks == "exact" and self.learning and distributed.is_active(self.process_group)

    def _true(self, products: Tensor, grads: TaskGradients, seen: Seen) -> Tensor:
        """Products of rows as those of whole gradients, unscaled."""
        products = self._summed(products, grads)
        return products if seen.scale is None else products / seen.scale.to(products.dtype).square()

    def _summed(self, products: Tensor, grads: TaskGradients) -> Tensor:
        """Products of rows, or of what a method makes of them, as those of whole gradients."""
        if grads.partial is None:
            return products
        return distributed.sum_over_ranks(products, self.process_group) * grads.partial

    def _squares(self, grads: TaskGradients, seen: Seen) -> Tensor:
        """(…, T): the diagonal of the Gram matrix alone, 0 for tasks without a gradient."""
        found = self._true(gradients.squared_norms(grads.rows, len(self.batch_shape)), grads, seen)
        each, none = dict(zip(grads.slots, found.unbind(-1), strict=True)), torch.zeros_like(found[..., 0])
        return torch.stack([each.get(slot, none) for slot in range(len(self.tasks))], -1)

    def _sound(self, squares: Tensor, seen: Seen) -> Tensor:
        """(…, 1): whether all gradients are finite. If not, a scaler skips the step, which must leave no trace."""
        return (torch.isfinite(squares) | ~seen.present).all(-1, keepdim=True)

    def _counts(self, gram: Tensor, seen: Seen) -> Tensor:
        """(…, 1): whether state may move by this step: some task is there, and all gradients are finite."""
        return self._sound(gram.diagonal(dim1=-2, dim2=-1), seen) & seen.present.any(-1, keepdim=True)

    @staticmethod
    def _spoilt(seen: Seen) -> Tensor | float:
        """The weight of every task where gradients are not sound: NaN, which a scaler notices; 0 if it scaled by 0."""
        return torch.nan if seen.scale is None else torch.where(seen.scale == 0, 0.0, torch.nan)

    def _gram(self, grads: TaskGradients, seen: Seen) -> Tensor:
        """The Gram matrix of all T tasks, unscaled, NaN on the diagonal for those that are absent."""
        products = self._true(gradients.gram_matrix(grads.rows, len(self.batch_shape), grads.stacks), grads, seen)
        first = next(grad for row in grads.rows for grad in row if grad is not None)
        products = products.to(torch.promote_types(first.dtype, torch.float32))
        tasks = len(self.tasks)
        products = gradients.scatter_gram(products, grads.slots, tasks)
        diagonal = products.diagonal(dim1=-2, dim2=-1)
        diagonal.masked_fill_(~seen.present, torch.nan)
        for slot in set(range(tasks)) - set(grads.slots):
            diagonal[..., slot] = torch.nan
        return products

    def _device(self) -> torch.device | None:
        """Where the balancer lives; None if it has no state to live anywhere."""
        for tensor in (*self.parameters(), *self.buffers()):
            return tensor.device
        return None
