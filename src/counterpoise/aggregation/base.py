"""Gradient space: task gradients in, one direction out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, NoReturn, get_args

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from .. import distributed, gradients
from ..balancer import Balancer, Common
from ..functional import Step, weighted_sum
from ..functional.gram import looking_is_free
from ..gradients import Root, Row, TaskGradients
from ..losses import Losses, Slots, check_counts, check_finite, gather
from ..weighting import Weighting

Heads = Literal["own", "aggregated"]
Passes = Literal["loop", "batched"]
Ranks = Literal["exact", "local"]


class Options(Common, total=False):
    """Options that every gradient-space method takes."""

    weighting: Weighting | None
    """A loss-space method that weighs the losses first: J ← diag(w) J. None: a plain sum."""
    heads: Heads
    """What parameters beside the shared ones get: "own", the gradient of their weighted loss, or "aggregated", that
    times the weight which the method gives the task."""
    passes: Passes
    """How task gradients are computed: "loop", one backward pass each, or "batched", all in one pass of batched
    vector-Jacobian products, faster for small networks with many tasks. Passing `features` is cheaper than both."""
    ranks: Ranks
    """In a process group: "exact" averages task gradients over ranks before they are compared (T gradients travel),
    "local" compares those of each rank (nothing travels here; the directions are averaged afterwards)."""


class Seen(NamedTuple):
    """What a method may look at besides the task gradients."""

    losses: Tensor  # (…, T), averaged over ranks, NaN where absent
    present: Tensor  # (…, T)
    scale: Tensor | None  # what a GradScaler multiplied the gradients by
    learning: bool


class Aggregation(Balancer):
    """Base of the gradient-space methods: a subclass holds state and says how to `solve` for the weights of a Gram
    matrix, or, where that does not suffice, how to `aggregate` the gradients themselves."""

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
        weighting: Weighting | None = None,
        heads: Heads = "own",
        passes: Passes = "loop",
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
        self.weighting = weighting
        self.heads = heads
        self.passes = passes
        self.ranks = ranks

    def solve(self, gram: Tensor, seen: Seen) -> Tensor:
        """Weights (…, T) for a Gram matrix (…, T, T) whose diagonal is NaN for absent tasks."""
        raise NotImplementedError(f"{type(self).__name__} must define solve or aggregate")

    def aggregate(self, grads: TaskGradients, seen: Seen) -> tuple[Tensor | None, Row]:
        """The weights c (None where the direction is not Σ c_i g_i), and the direction. The rows may be spent."""
        weights = self.solve(self._gram(grads, seen), seen)
        return weights, gradients.combine(grads.rows, weights[..., list(grads.slots)])

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
            f"balancer(losses).backward()"
        )

    def backward(
        self,
        losses: Losses,
        *,
        shared: Iterable[Tensor] | None = None,
        features: Tensor | Sequence[Tensor] | None = None,
        scaler: GradScaler | None = None,
        retain_graph: bool = False,
        counts: Tensor | None = None,
        **needs: Any,
    ) -> Tensor:
        """Adds the direction to `.grad` of the shared parameters, and to all others the gradients of their losses.

        Exactly one of `shared`, the parameters that all tasks share, and `features`, the representation from which all
        heads start, says where tasks are compared. Returns the objective of the weighting (a plain sum by default).
        """
        targets, at_features = self._targets(shared, features), features is not None
        with torch.autocast(targets[0].device.type, enabled=False):
            step, roots, seen = self._weigh(losses, counts, scaler, **needs)
            weights: Tensor | None = torch.ones_like(step.weights)
            if not self.compares(seen):
                self._add_up(roots, targets, at_features, retain_graph)
            elif roots or self._exact():
                weights = self._compare(roots, targets, at_features, retain_graph, seen)
        self._last.weights = None if weights is None else step.weights * weights.to(step.weights.dtype)
        return step.objective

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

    def _targets(self, shared: Iterable[Tensor] | None, features: Tensor | Sequence[Tensor] | None) -> Sequence[Tensor]:
        if (shared is None) == (features is None):
            given = "neither" if shared is None else "both"
            raise ValueError(
                f"{type(self).__name__}.backward got {given} of shared= and features=, expected one: the parameters "
                f"that all tasks share, or the representation from which all heads start"
            )
        if shared is not None:
            return gradients.shared_parameters(shared)
        targets = [features] if isinstance(features, Tensor) else list(features or ())
        for target in targets:
            if not target.requires_grad:
                raise ValueError("features do not require a gradient: pass them as the shared network returns them")
        return targets

    def _weigh(
        self, losses: Losses, counts: Tensor | None, scaler: GradScaler | None, **needs: Any
    ) -> tuple[Step, list[Root], Seen]:
        """The loss-space step, θ's gradient included, and where the backward passes start."""
        learning = self.learning
        values, slots, inputs = gather(losses, self.tasks, self.batch_shape, self._device())
        if self.strict:
            check_finite(values, slots, self.tasks)
        scale = None if scaler is None else scaler.scale(torch.ones((), device=values.device))
        step, local, mean = self._loss_space(values, counts, learning, **needs)
        learned = None if self.weighting is None else self.weighting.learned
        if learned is not None and step.gradient is not None:
            gradient = step.gradient if scale is None else step.gradient * scale
            gradients.accumulate([learned], [gradient.to(learned.dtype)])
        multipliers = self.multipliers(mean, learning)
        if multipliers is not None:
            step, local = (s._replace(weights=s.weights * multipliers.to(s.weights.dtype)) for s in (step, local))
        flow = local.weights if scale is None else local.weights * scale
        seen = Seen(mean, (step.weights != 0) & torch.isfinite(mean), scale, learning)
        return step, self._roots(values, slots, inputs, flow), seen

    def _loss_space(
        self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any
    ) -> tuple[Step, Step, Tensor]:
        if self.weighting is not None:
            step, local = self.weighting.take_step(values, counts, learning, **needs)
            mean = values
            if learning and distributed.active(self.process_group):
                mean, _ = distributed.average(values, counts, self.process_group)
            return step, local, mean
        if needs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(map(repr, needs))}")
        if counts is not None:
            check_counts(counts, self.shape)
        if not (learning and distributed.active(self.process_group)):
            step = weighted_sum(torch.ones_like(values), values)
            return step, step, values
        mean, share = distributed.average(values, counts, self.process_group)
        step = weighted_sum(torch.ones_like(mean), mean)
        return step, step._replace(weights=(step.weights * share).to(step.weights.dtype)), mean

    def _roots(self, values: Tensor, slots: Slots, inputs: Sequence[Tensor], flow: Tensor) -> list[Root]:
        absent: Sequence[int] = ()
        if looking_is_free(values) and not self.batch_shape:
            absent = [i for i, finite in enumerate(torch.isfinite(values).tolist()) if not finite]
        if slots is None:
            each = torch.diag_embed(flow).to(inputs[0].dtype).unbind(-2)
            return [Root(i, inputs[0], grad) for i, grad in enumerate(each) if i not in absent]
        columns = flow.unbind(-1)
        return [
            Root(slot, loss, columns[slot].to(loss.dtype))
            for slot, loss in zip(slots, inputs, strict=True)
            if slot not in absent
        ]

    def _compare(
        self, roots: Sequence[Root], targets: Sequence[Tensor], at_features: bool, keep: bool, seen: Seen
    ) -> Tensor | None:
        """Task gradients, their aggregation, and what every parameter gets of it; returns the weights."""
        grads = self._task_gradients(roots, targets, at_features, keep)
        with torch.no_grad():
            weights, direction = self.aggregate(grads, seen)
            if grads.leaves and grads.others:
                own = self.heads == "own" or weights is None
                factors = None if own or weights is None else weights[..., list(grads.slots)]
                gradients.accumulate(grads.leaves, gradients.combine(grads.others, factors))
            if not at_features:
                gradients.accumulate(targets, direction)
        if at_features:
            reached = [(z, grad) for z, grad in zip(targets, direction, strict=True) if grad is not None]
            torch.autograd.backward([z for z, _ in reached], [grad for _, grad in reached], retain_graph=keep)
        return weights

    def _task_gradients(
        self, roots: Sequence[Root], targets: Sequence[Tensor], at_features: bool, keep: bool
    ) -> TaskGradients:
        batched = self.passes == "batched"
        collect = at_features or batched or self.heads == "aggregated"
        leaves = gradients.leaves_beside(roots, targets) if collect else []
        if batched:
            grads = gradients.by_batch(roots, targets, leaves, keep)
        elif at_features:
            grads = gradients.at_features(roots, targets, leaves, keep)
        else:
            grads = gradients.by_loop(roots, targets, leaves, keep)
        if not self._exact():
            return grads
        # Every rank takes part for every task, with zeros where it has none.
        every = range(len(self.tasks))
        place = {slot: index for index, slot in enumerate(grads.slots)}
        given: list[Row] = [grads.rows[place[slot]] if slot in place else [None] * len(targets) for slot in every]
        rows = [self._whole(row, targets, average=not at_features) for row in given]
        others: list[Row] = [grads.others[place[slot]] if slot in place else [None] * len(leaves) for slot in every]
        # The union batch has the features of all ranks one below the other, each 1/world of the mean loss.
        partial = distributed.world(self.process_group) ** -2 if at_features else grads.partial
        return grads._replace(slots=tuple(every), rows=rows, others=others, partial=partial)

    def _add_up(self, roots: Sequence[Root], targets: Sequence[Tensor], at_features: bool, keep: bool) -> None:
        """A step without comparison: one plain backward pass."""
        if at_features and roots:
            torch.autograd.backward([r.loss for r in roots], [r.grad for r in roots], retain_graph=keep)
        elif not at_features:
            row = gradients.all_at_once(roots, targets, keep)
            gradients.accumulate(targets, self._whole(row, targets, average=True) if self._exact() else row)

    def _whole(self, row: Row, targets: Sequence[Tensor], *, average: bool) -> Row:
        """A row without gaps, averaged over ranks; a sharded gradient is so already."""
        whole = [torch.zeros_like(t) if g is None else g for g, t in zip(row, targets, strict=True)]
        if average:
            distributed.average_tensors([g for g in whole if not gradients.sharded(g)], self.process_group)
        return [*whole]

    def _exact(self) -> bool:
        return self.ranks == "exact" and self.learning and distributed.active(self.process_group)

    def _gram(self, grads: TaskGradients, seen: Seen) -> Tensor:
        """The Gram matrix of all T tasks, unscaled, NaN on the diagonal for those that are absent."""
        products = gradients.gram(grads.rows, len(self.batch_shape))
        if grads.partial is not None:
            products = distributed.total(products, self.process_group) * grads.partial
        if seen.scale is not None:
            products = products / seen.scale.to(products.dtype).square()
        first = next(grad for row in grads.rows for grad in row if grad is not None)
        products = products.to(torch.promote_types(first.dtype, torch.float32))
        tasks, present = len(self.tasks), seen.present
        if len(grads.slots) < tasks:
            slots = torch.tensor(grads.slots, device=products.device)
            gram = products.new_zeros(*self.batch_shape, tasks, tasks)
            gram[..., slots.unsqueeze(-1), slots] = products
            given = torch.zeros(tasks, dtype=torch.bool, device=products.device).index_fill_(0, slots, True)
            products, present = gram, present & given
        products.diagonal(dim1=-2, dim2=-1).masked_fill_(~present, torch.nan)
        return products

    def _device(self) -> torch.device | None:
        """Where the balancer lives; None if it has no state to live anywhere."""
        for tensor in (*self.parameters(), *self.buffers()):
            return tensor.device
        return None
