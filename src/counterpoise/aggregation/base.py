"""Base class of the gradient-space methods: task gradients in, one direction out.

One call of `backward` has four steps:

1. `_prepare` checks the losses, runs the loss-space weighting, and returns where the task backward passes start.
2. `BackwardPasses` computes one gradient per task; `gradients.ranks` averages them in a process group.
3. `aggregate` builds the Gram matrix, calls the method's own `solve`, and combines the gradients to one direction.
4. `accumulate` adds the direction to `.grad` of the shared parameters, and the gradients of the heads to theirs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, get_args

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from .. import distributed, gradients
from .._checks import Values
from .._closures import check_lbfgs
from ..distributed import ProcessGroup
from ..functional import Step
from ..functional._masking import clamp_to_dtype
from ..functional.closed_form import unweighted_sum
from ..gradients import BackwardPasses, ComparisonTargets, FactorScaler, GradientList, Passes, TaskGradients, TaskRoot
from ..inputs import (
    Losses,
    PerTask,
    Slots,
    check_differentiable,
    check_flags,
    check_values,
    collect_losses,
    mask_unsampled,
)
from ..weighting import Weighting
from ._products import gram_dtype, mask_invalid, solve_products
from ._statistics import GradientStatistics
from ._step import PreparedStep, StepContext, WeighedLosses

Solver: TypeAlias = tuple[Callable[..., Tensor], dict[str, Any]]
"""A function that maps a Gram matrix to weights, and its further arguments."""

Heads = Literal["own", "aggregated"]
Ranks = Literal["exact", "local"]


class Aggregation(GradientStatistics):
    """Base class of the gradient-space methods.

    A subclass holds the state and implements `solve`, which maps a Gram matrix to weights. A method that needs the
    gradients themselves implements `aggregate` instead.

    Args:
        tasks (int or sequence of str): Number of tasks, or their names.
        weighting (Weighting, optional): Loss-space method whose weights multiply the losses before their gradients
            are compared. `None` weights all losses equally. Default: `None`.
        heads (str, optional): Gradient of the parameters that are not shared. `"own"` is the gradient of their weighted
            loss; `"aggregated"` multiplies it by the weight that the method gives the task. Default: `"own"`.
        passes (str, optional): How task gradients are computed. `"loop"` runs one backward pass per task, `"batched"`
            one vectorised pass for all. `"lean"` never holds the gradients of all tasks. `"auto"` chooses by the
            number of tasks, the size of the shared network and, on a GPU, the free memory. Default: `"auto"`.
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
        >>> class Mean(cp.Aggregation):
        ...     def solve(self, gram, context):
        ...         return torch.full(gram.shape[:-1], 1 / len(self.tasks))
        >>> w = torch.zeros(2, requires_grad=True)
        >>> _ = Mean(2).backward([w[0], 3 * w[1]], shared=[w])
        >>> w.grad
        tensor([0.5000, 1.5000])
    """

    supports_sharding: ClassVar[bool] = True  # whether each rank may hold only a part of every gradient (FSDP)
    compares_sizes: bool = False  # whether the weight of a task follows from the size of its gradient
    uses_preference: ClassVar[bool] = False  # whether `solve` takes `importance`, as the preference of the method
    backward_arguments: ClassVar[tuple[str, ...]] = ()  # arguments of `backward` that the weighting does not take

    def __init__(
        self,
        tasks: int | Sequence[str],
        *,
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
            importance=importance,
            fixed=fixed,
            batch_shape=batch_shape,
            strict=strict,
            process_group=process_group,
        )
        for name, value, kinds in (("heads", heads, Heads), ("passes", passes, Passes), ("ranks", ranks, Ranks)):
            if value not in get_args(kinds):
                raise ValueError(f"{name} is {value!r}, expected one of {', '.join(map(repr, get_args(kinds)))}")
        check_flags(self, memory=memory)
        if weighting is not None:
            self._adopt(weighting, memory)
        elif memory:
            no_effect = f"memory=True has no effect on {type(self).__name__} without weighting=, a loss-space balancer"
            self._checks.warn("memory", no_effect)
        self.weighting = weighting
        self.heads = heads
        self.passes = passes
        gradients.check_lean(passes, type(self).__name__, rows=self._needs_rows(), replicas=bool(self.batch_shape))
        self.ranks = ranks
        self._backward = BackwardPasses()

    def solve(self, gram: Tensor, context: StepContext) -> Tensor:
        """Return weights (…, T) for a Gram matrix (…, T, T) whose diagonal is NaN for absent tasks."""
        solver = self._solver(context, self._preference(gram))
        if solver is None:
            raise NotImplementedError(f"{type(self).__name__} must define solve or aggregate")
        weights = solver[0](gram, **solver[1])
        self._end_solve(context)
        return weights

    def _solver(self, context: StepContext, preference: Tensor | None) -> Solver | None:
        """Return `solve` as a function of the Gram matrix, with further arguments that are tensors or hashable.

        The function changes no state. A method that defines it instead of `solve` takes fewer operations on CUDA.
        """
        del context, preference
        return None

    def _end_solve(self, context: StepContext) -> None:
        """Change the state of a method with a `_solver` after each call of it."""

    def aggregate(self, grads: TaskGradients, context: StepContext) -> tuple[Tensor | None, GradientList]:
        """Return the weights c and the direction. The gradients may be overwritten.

        The weights are None if the direction is not a combination Σ c_i g_i.
        """
        weights = self._solve_at_once(grads, context)
        if weights is None:
            gram = self._gram(grads, context)
            weights = self.solve(gram, context)
            if not self.uses_preference:
                weights = self._times_importance(weights)
            weights = mask_invalid(weights, gram, context.present, context.scale)
        return weights, gradients.combine_tasks(grads, gradients.select_weights(weights, grads.slots))

    def _solve_at_once(self, grads: TaskGradients, context: StepContext) -> Tensor | None:
        """Return the weights of a method with a `_solver` if all tasks have a row, and None otherwise."""
        if type(self).solve is not Aggregation.solve or len(grads.slots) < len(self.tasks):
            return None
        dtype = gram_dtype(grads)
        importance = self.importance
        if importance is not None:
            importance = importance.to(context.present.device, dtype, non_blocking=True)
        found = self._solver(context, importance)
        if found is None:
            return None
        weights = solve_products(
            self._row_products(grads),
            context.present,
            context.scale,
            None if self.uses_preference else importance,
            dtype=dtype,
            solver=found[0],
            **found[1],
        )
        self._end_solve(context)
        return weights

    def multipliers(self, losses: Tensor, learning: bool) -> Tensor | None:
        """Return factors (…, T) on the losses that do not depend on the gradients of this step, or None.

        They also multiply the gradients of the heads.
        """
        del losses, learning
        return None

    def needs_task_gradients(self, context: StepContext) -> bool:
        """Return whether this step compares task gradients. Otherwise it is one plain backward pass."""
        del context
        return True

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        """Raise an error that names `backward`: a gradient-space method has no objective to return."""
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
        """Add the direction to `.grad` of the shared parameters, and the gradients of their losses to all others.

        Pass `shared`, `features`, or both. With `shared` alone, tasks are compared on the shared parameters. With
        `features` alone, they are compared at the representation, which costs little more than a plain step if
        the heads are small next to the shared network. With both, they are compared on the shared parameters, and each
        head is passed only once.

        Args:
            losses (tensor, mapping or sequence of tensors): The losses of the batch.
            shared (iterable of Tensor, optional): The parameters that all tasks share. Default: `None`.
            features (Tensor or sequence of Tensor, optional): The representation that all heads take as input.
                Default: `None`.
            scaler (GradScaler, optional): Scaler for mixed precision, applied after weighting. Default: `None`.
            retain_graph (bool, optional): Whether to keep the graph for another pass. Default: `False`.
            counts (Tensor, optional): Number of samples of each loss, (…, T). A task without samples is absent, and
                ranks are averaged in proportion to their counts. Default: `None`.
            needs: Further inputs of the weighting, such as `kpis` for DTP.

        Returns:
            The objective of the weighting, detached; the sum of the losses without a weighting.
        """
        targets = ComparisonTargets.of(shared, features, type(self).__name__)
        with torch.autocast(targets.targets[0].device.type, enabled=False):
            step, roots, context, fixed = self._prepare(losses, counts, scaler, targets, **needs)
            self._accumulate_weighting_gradient(step, context)
            weights: Tensor | None = torch.ones_like(step.weights)
            if not self.needs_task_gradients(context):
                self._backward_sum([*roots, *fixed], targets, retain_graph)
            else:
                if self.fixed:
                    self._backward_sum(fixed, targets, keep=bool(roots) or retain_graph)
                if roots or self._combines_ranks():  # a rank without losses takes part for the other ranks
                    weights = self._backward_per_task(roots, targets, context, retain_graph)
        self._last.weights = None if weights is None else step.weights * weights.to(step.weights.dtype)
        self._checks.resume(self, step.weights if self._last.weights is None else self._last.weights)
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
        """Return the objective that `backward(losses, …)` returns, with `backward` as its backward pass.

        Call `loss.backward()`. Other terms may be added to the loss before. `torch.autograd.grad`,
        `backward(inputs=…)` and `create_graph=True` raise an error, because the direction of a gradient-space method is
        not the derivative of a function.
        """
        if shared is not None:
            shared = [shared] if isinstance(shared, Tensor) else list(shared)
        targets = ComparisonTargets.of(shared, features, type(self).__name__)
        own = {name: needs.pop(name) for name in self.backward_arguments if name in needs}
        with torch.autocast(targets.targets[0].device.type, enabled=False):
            weighed = self._weigh(losses, counts, None, targets, **needs)
        objective = weighed.step.objective
        return gradients.defer_backward(
            objective.sum() if self.batch_shape else objective,
            lambda scaler, retain: self.backward(
                weighed,  # type: ignore[arg-type]
                shared=shared,
                features=features,
                counts=counts,
                scaler=scaler,
                retain_graph=retain,
                **own,
            ),
            [*weighed.inputs, *weighed.fixed],
        )

    def step_end(self, losses_after: Losses, *, counts: Tensor | None = None) -> None:
        if self.weighting is not None:
            self.weighting.step_end(self._split_fixed(losses_after)[0], counts=counts)

    def epoch_end(self) -> None:
        if self.weighting is not None:
            self.weighting.epoch_end()

    def reset(self) -> None:
        super().reset()
        if self.weighting is not None:
            self.weighting.reset()

    # Step 1: losses and loss-space weighting.

    def _prepare(
        self,
        losses: Losses | WeighedLosses,
        counts: Tensor | None,
        scaler: GradScaler | FactorScaler | None,
        targets: ComparisonTargets,
        **needs: Any,
    ) -> PreparedStep:
        """Weight the losses, unless `loss` has done so, and return where the backward passes start."""
        scale = None if scaler is None else scaler.scale(torch.ones((), device=targets.targets[0].device))
        weighed = losses if isinstance(losses, WeighedLosses) else self._weigh(losses, counts, scale, targets, **needs)
        step, values = weighed.step, weighed.values
        known = values if self.ranks == "local" else weighed.mean
        present = step.weights != 0
        # The weights of an unweighted sum are nonzero for finite losses only.
        unweighted = self.weighting is None and type(self).multipliers is Aggregation.multipliers
        if not unweighted or known is not weighed.mean:
            present = present & (known.abs() < torch.inf)  # fewer kernels than `isfinite`
        context = StepContext(weighed.mean, step.weights, present, scale, weighed.learning)
        flow = weighed.local.weights
        if not self.needs_task_gradients(context):
            flow, step = self._times_importance(flow), step._replace(weights=self._times_importance(step.weights))
        roots = gradients.task_roots(values, weighed.slots, weighed.inputs, flow if scale is None else flow * scale)
        terms = [term for term in weighed.fixed if term.requires_grad]
        fixed = [TaskRoot(-1, term, torch.ones_like(term) * (1.0 if scale is None else scale)) for term in terms]
        return PreparedStep(step, roots, context, fixed)

    def _weigh(
        self, losses: Losses, counts: Tensor | None, scale: Tensor | None, targets: ComparisonTargets, **needs: Any
    ) -> WeighedLosses:
        """Weight the losses. Without any loss, the targets determine the device and the precision of the results."""
        learning, device, target = self.learning, self._state_device(), targets.targets[0]
        balanced, fixed = self._split_fixed(losses, record=True)
        values, slots, inputs = collect_losses(balanced, self.tasks, self.batch_shape, device, target.dtype)
        if not inputs and device is None:
            values = values.to(target.device)
        if self.strict:
            positive = self._must_be_positive()
            if self.weighting is not None:
                positive = positive | self.weighting._must_be_positive()
            check_values(values, slots, self.tasks, counts, positive=positive)
        if counts is not None:
            values = mask_unsampled(values, counts)
        check_differentiable(values, slots, inputs, self.tasks)
        if self.weighting is not None and self.weighting.measures_gradients:
            needs = self.weighting.measure(values, slots, inputs, targets, counts, scale, learning, **needs)
        step, local, mean = self._loss_space_step(values, counts, learning, **needs)
        self.record(step.weights, values, slots, learning, counts)
        multipliers = self.multipliers(mean, learning)
        if multipliers is not None:
            step, local = (s._replace(weights=s.weights * multipliers.to(s.weights.dtype)) for s in (step, local))
        if fixed:
            step = step._replace(objective=sum((term.detach() for term in fixed), step.objective))
        return WeighedLosses(losses, step, local, values, slots, inputs, mean, fixed, learning)

    def record(
        self, weights: Tensor, values: Tensor, slots: Slots, learning: bool, counts: Tensor | None = None
    ) -> None:
        if self.weighting is not None:
            self.weighting.record(weights, values, slots, learning, counts)
            self._checks.share_warned(self.weighting._checks)
        super().record(weights, values, slots, learning, counts)

    def _look(self, values: Values, weights: Values) -> None:
        check_lbfgs(self, self.weighting)
        self._checks.defer(values)  # until the backward pass has computed the weights of the method

    def _loss_space_step(
        self, values: Tensor, counts: Tensor | None, learning: bool, **needs: Any
    ) -> tuple[Step, Step, Tensor]:
        """Return the step on the losses of all ranks, the step for this rank, and the mean losses over ranks."""
        distributes = learning and distributed.is_active(self.process_group)
        if self.weighting is not None:
            step, local = self.weighting.take_step(values, counts, learning, **needs)
            mean = distributed.average_losses(values, counts, self.process_group)[0] if distributes else values
            return step, local, mean
        if needs:
            raise TypeError(f"{type(self).__name__} takes no {', '.join(map(repr, needs))}")
        if not distributes:
            step = unweighted_sum(values)
            return step, step, values
        mean, share = distributed.average_losses(values, counts, self.process_group)
        return *distributed.localise_step(unweighted_sum(mean), share, values), mean

    def _accumulate_weighting_gradient(self, step: Step, context: StepContext) -> None:
        """Add the gradient of the weighting's own parameter (such as θ of BPGS) to its `.grad`."""
        learned = None if self.weighting is None else self.weighting.learned
        if learned is not None and learned.requires_grad and step.gradient is not None:
            gradient = step.gradient
            if gradient.dtype != learned.dtype:
                gradient = clamp_to_dtype(gradient, learned.dtype)
            gradients.accumulate([learned], [gradient if context.scale is None else gradient * context.scale])

    # Steps 2 to 4: task gradients, their aggregation, and accumulation into `.grad`.

    def _backward_per_task(
        self, roots: Sequence[TaskRoot], targets: ComparisonTargets, context: StepContext, keep: bool
    ) -> Tensor | None:
        """Compute and aggregate task gradients, accumulate the results, and return the weights."""
        if targets.sharded:
            self._check_sharding(roots)
            roots = gradients.add_missing_roots(roots, len(self.tasks))
        needs = {"heads": self.heads == "aggregated", "rows": self._needs_rows() or self._combines_ranks()}
        grads = self._backward.compute(roots, targets, keep, self.passes, **needs)
        if self._combines_ranks():
            grads = gradients.average_over_ranks(grads, targets, len(self.tasks), self.process_group)
        if self.compares_sizes:
            self._checks.warn_unreached(self, grads.unreached())
        with torch.no_grad():
            weights, direction = self.aggregate(grads, context)
            if grads.leaves and grads.other_rows:
                own = self.heads == "own" or weights is None
                factors = None if own or weights is None else gradients.select_weights(weights, grads.slots)
                gradients.accumulate(grads.leaves, gradients.combine(grads.other_rows, factors))
            if not targets.at_features:
                gradients.accumulate(targets.targets, direction)
        if targets.at_features:
            del grads  # the pass through the shared network needs the memory
            reached = [(z, grad) for z, grad in zip(targets.targets, direction, strict=True) if grad is not None]
            torch.autograd.backward([z for z, _ in reached], [grad for _, grad in reached], retain_graph=keep)
        return weights

    def _backward_sum(self, roots: Sequence[TaskRoot], targets: ComparisonTargets, keep: bool) -> None:
        """Run one plain backward pass of the weighted sum."""
        self._backward.check([root for root in roots if root.slot >= 0], targets, self.passes)
        if targets.at_features and roots:
            torch.autograd.backward([r.loss for r in roots], [r.grad for r in roots], retain_graph=keep)
        elif not targets.at_features:
            row = gradients.sum_gradients(roots, targets.targets, keep)
            if self._combines_ranks():
                row = gradients.fill_and_average(row, targets.targets, self.process_group)
            gradients.accumulate(targets.targets, row)

    def _needs_rows(self) -> bool:
        """Return whether the method needs more than the Gram matrix of one network."""
        overridden = (getattr(type(self), name) is not getattr(Aggregation, name) for name in ("aggregate", "backward"))
        return bool(self.batch_shape) or any(overridden)
