"""Monitoring the losses of a training loop and, in some steps, the gradients of the tasks."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from .. import gradients
from ..aggregation._step import WeighedLosses
from ..balancer import Balancer, transient_hook
from ..functional.bpgs import radius
from ..inputs import Losses, Slots, collect_losses, cut_nonfinite, mask_unsampled, task_names
from ..weighting import BPGS, Weighting
from .diagnosis import Diagnosis
from .evaluation import fixed_ratio, gradient_statistics, loss_statistics, weight_statistics
from .measurements import SATURATED, saturation_edge

L = TypeVar("L", bound=Losses)


def diagnose(
    balancer_or_tasks: Balancer | int | Sequence[str] | Mapping[str, Any],
    *,
    shared: Iterable[Tensor] | None = None,
    every: int = 10,
) -> "Monitor":
    """Monitor a training loop to find out whether loss scales or gradient conflicts dominate, or one task collapses.

    Use the result as a context manager around the loop. A few hundred steps are enough. Training is not changed.

    Args:
        balancer_or_tasks (Balancer, int, sequence of str, or mapping): A balancer, whose steps are then monitored; or
            the tasks (their number, their names, or a mapping with their names as keys), in which case you call
            `monitor(losses)` in every step.
        shared (iterable of Tensor, optional): The parameters that all tasks share. If given, the norms of the task
            gradients and conflicts between them are measured too, at the cost of one backward pass per task. Default:
            `None`.
        every (int, optional): Average number of steps between two such measurements. The intervals are random, so that
            they do not coincide with a period of the data. Default: `10`.

    Returns:
        Monitor: A context manager; its property `diagnosis` returns the result.

    Raises:
        ValueError: If `every` is below 1, or if the balancer has a batch shape.

    Example:
        >>> import counterpoise as cp
        >>> with cp.diagnose(["seg", "depth"]) as monitor:
        ...     for _ in range(3):
        ...         losses = monitor({"seg": torch.tensor(300.0), "depth": torch.tensor(0.1)})
        >>> monitor.diagnosis.verdict
        'scale'
    """
    return Monitor(balancer_or_tasks, shared=shared, every=every)


class Monitor:
    """Collect the losses, weights and task gradients of a training loop; `diagnosis` evaluates them.

    Nothing synchronises with the device before `diagnosis` is read. `counterpoise.diagnose` creates a monitor and
    describes the arguments.

    Args:
        balancer_or_tasks (Balancer, int, sequence of str, or mapping): A balancer, or the tasks.
        shared (iterable of Tensor, optional): The parameters that all tasks share, to measure conflicts.
            Default: `None`.
        every (int, optional): Average number of steps between two measurements of conflict. Default: `10`.

    Example:
        >>> import counterpoise as cp
        >>> balancer = cp.Static(2)
        >>> weight = torch.ones(2, requires_grad=True)
        >>> with cp.Monitor(balancer, shared=[weight]) as monitor:
        ...     balancer([weight.sum(), (3 * weight).sum()]).backward()
        >>> monitor.diagnosis.verdict
        'neither'
    """

    def __init__(
        self,
        balancer_or_tasks: Balancer | int | Sequence[str] | Mapping[str, Any],
        *,
        shared: Iterable[Tensor] | None = None,
        every: int = 10,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}, expected a number of steps, at least 1")
        self.balancer = balancer_or_tasks if isinstance(balancer_or_tasks, Balancer) else None
        if self.balancer is not None and self.balancer.batch_shape:
            raise ValueError(f"the monitor supports one model, not replicas of shape {self.balancer.batch_shape}")
        self.tasks = _tasks_of(balancer_or_tasks)
        self.every = every
        self._shared = None if shared is None else gradients.shared_parameters(shared)
        self._random = random.Random(0)
        self._next_check = 0  # the step in which gradients are compared next
        self._losses: list[Tensor] = []
        self._weights: list[Tensor] = []  # empty without a balancer, else one entry per step
        self._grams: list[Tensor] = []
        self._fixed_norms: list[Tensor] = []  # one for each Gram matrix
        self._checked: list[int] = []  # the steps of the Gram matrices
        self._chart: tuple[Tensor, Tensor] | None = None
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        if isinstance(self.balancer, Weighting):
            before = self.balancer.register_forward_pre_hook(self._before_forward, with_kwargs=True)
            after = self.balancer.register_forward_hook(self._after_forward)
            self._undo = [before.remove, after.remove]
        elif self.balancer is not None:
            self._undo = [self._wrap_backward(self.balancer)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def __call__(self, losses: L, *, counts: Tensor | None = None) -> L:
        """Record the losses of one step, before its backward pass.

        Args:
            losses (Losses): The losses, in any form that a balancer accepts.
            counts (Tensor, optional): Number of samples behind each loss, (T,); tasks with 0 are absent.
                Default: `None`.

        Returns:
            Losses: The losses, unchanged.
        """
        self._record_losses(losses, counts)
        self._record_weights()
        return losses

    def _record_losses(self, losses: Losses, counts: Tensor | None) -> None:
        split_fixed = getattr(self.balancer, "_split_fixed", None)
        balanced, fixed = (losses, []) if split_fixed is None else split_fixed(losses)
        values, slots, inputs = collect_losses(balanced, self.tasks, (), None)
        if counts is not None:
            values = mask_unsampled(values, counts)
        if self._shared is not None and torch.is_grad_enabled() and len(self._losses) >= self._next_check:
            self._next_check = len(self._losses) + self._random.randint(1, 2 * self.every - 1)
            self._compare_gradients(values, slots, inputs, self._shared, fixed)
        self._losses.append(values.clone())

    def _record_weights(self) -> None:
        """Record the balancer's weights of the last step; NaN where a method has none, or where a step failed."""
        missing = len(self._losses) - len(self._weights)
        if self.balancer is None or torch.compiler.is_compiling() or not missing:
            return
        weights, unknown = self.balancer.weights, torch.full_like(self._losses[-1], torch.nan)
        self._weights += [unknown] * (missing - 1) + [unknown if weights is None else weights]

    @property
    def diagnosis(self) -> Diagnosis:
        """The evaluation of all steps so far.

        Raises:
            RuntimeError: If no losses were recorded.
        """
        if not self._losses:
            raise RuntimeError(
                "the monitor has recorded no losses: train inside the with block, or call monitor(losses). It cannot "
                "monitor a compiled step: return the losses from it, and call monitor(losses)"
            )
        losses = torch.stack(self._losses).cpu().double()
        found = loss_statistics(losses, self.tasks)
        weighting = getattr(self.balancer, "weighting", None)
        parts = [part for part in (self.balancer, weighting) if part is not None]
        memory = any(getattr(part, "memory", False) for part in parts)
        weights = None
        if len(self._weights) == len(losses):
            weights = torch.stack([part.to(self._weights[-1]) for part in self._weights]).cpu().double()
            vanishing = [self.tasks.index(task) for task in found["vanishing"]]
            found |= weight_statistics(weights, losses, vanishing, memory)
        if self._grams:
            weights = None if weights is None else weights[self._checked]
            grams, fixed_norms = (torch.stack(part).cpu().double() for part in (self._grams, self._fixed_norms))
            found |= gradient_statistics(grams, losses[self._checked], weights)
            if weights is not None:
                found["fixed_ratio"] = fixed_ratio(fixed_norms, grams, weights)
        if self._chart is not None:
            z_over_tau, slope = (part.cpu().double() for part in self._chart)
            found |= {"abs_z_over_tau": tuple(z_over_tau.abs().tolist()), "slope": float(slope.min())}
        return Diagnosis(
            tasks=self.tasks,
            steps=len(losses),
            fixed=dict(getattr(self.balancer, "fixed", {})),
            gradients_requested=self._shared is not None,
            gradient_checks=len(self._grams),
            saturation_edge=self._saturation_edge(),
            methods=tuple(map(_method_name, parts)),
            in_gradient_space=self.balancer is not None and not isinstance(self.balancer, Weighting),
            memory=memory,
            max_ratio=next((ratio for part in parts if (ratio := getattr(part, "max_ratio", None))), None),
            **found,
        )

    def _saturation_edge(self) -> float:
        """Return the |z|/τ at which the chart counts as saturated; only the batch chart has a radius."""
        bpgs = getattr(self.balancer, "weighting", None) or self.balancer
        if not (isinstance(bpgs, BPGS) and bpgs.chart == "batch"):
            return SATURATED
        return saturation_edge(radius(len(self.tasks), bpgs.anchor["margin"]))

    @transient_hook
    def _before_forward(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self.balancer is not None
        if self.balancer.learning and not torch.compiler.is_compiling():
            self._record_losses(args[0] if args else kwargs["losses"], kwargs.get("counts"))

    @transient_hook
    def _after_forward(self, *_: object) -> None:
        self._record_weights()
        self._record_chart()

    def _wrap_backward(self, balancer: Balancer) -> Callable[[], None]:
        """Wrap `backward`, because a gradient-space balancer has no forward pass to hook; return a function to undo."""
        original, outer = balancer.backward, balancer.__dict__.get("backward")  # outer: the wrapper of another monitor

        def monitored(losses: Any, **needs: Any) -> Tensor:
            if balancer.learning:
                given = losses.given if isinstance(losses, WeighedLosses) else losses  # the former from `loss`
                self._record_losses(given, needs.get("counts"))
            objective = original(losses, **needs)
            self._record_weights()
            self._record_chart()
            return objective

        balancer.backward = monitored  # type: ignore[method-assign]
        return lambda: balancer.__dict__.pop("backward") if outer is None else setattr(balancer, "backward", outer)

    def _compare_gradients(
        self, values: Tensor, slots: Slots, inputs: tuple[Tensor, ...], shared: Sequence[Tensor], fixed: list[Tensor]
    ) -> None:
        if slots is None:
            cut_nonfinite(values, slots, inputs)
        given = inputs[0].unbind(-1) if slots is None else inputs
        tasks = len(self.tasks)
        roots = [
            gradients.TaskRoot(slot, loss, torch.ones_like(loss))
            for slot, loss in zip(range(tasks) if slots is None else slots, given, strict=True)
            if loss.requires_grad
        ]
        if roots:
            gradients.check_retained(self, roots, shared)
        rows: list[gradients.GradientList] = []
        for root in roots:
            try:
                grads = torch.autograd.grad(root.loss, shared, root.grad, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                if gradients.is_checkpoint_error(error):
                    return
                raise
            rows.append([*grads])
        seen = [root.slot for root in roots]
        if any(grad is not None for row in rows for grad in row):
            gram = gradients.scatter_gram(gradients.gram_matrix(rows, 0), tuple(seen), tasks)
            missing = [slot for slot in range(tasks) if slot not in seen]
            gram.diagonal()[missing] = torch.nan
            gram.diagonal().masked_fill_(~torch.isfinite(values), torch.nan)
            self._grams.append(gram)
            self._fixed_norms.append(_gradient_norm(fixed, shared))
            self._checked.append(len(self._losses))

    def _record_chart(self) -> None:
        if torch.compiler.is_compiling():
            return
        if (len(self._losses) - 1) % self.every == 0:
            geometry = getattr(getattr(self.balancer, "weighting", None) or self.balancer, "geometry", None)
            if geometry is not None:
                self._chart = (geometry.z_over_tau, geometry.slope)


def _gradient_norm(losses: Sequence[Tensor], shared: Sequence[Tensor]) -> Tensor:
    """Return the norm of the gradient of the sum of the losses; 0 if none has a graph to the parameters."""
    total = [loss for loss in losses if loss.requires_grad]
    grads = torch.autograd.grad(total, shared, retain_graph=True, allow_unused=True) if total else ()
    norms = [torch.linalg.vector_norm(grad) for grad in grads if grad is not None]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else shared[0].new_zeros(())


def _tasks_of(balancer_or_tasks: Balancer | int | Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
    if isinstance(balancer_or_tasks, Balancer):
        return balancer_or_tasks.tasks
    return task_names(list(balancer_or_tasks) if isinstance(balancer_or_tasks, Mapping) else balancer_or_tasks)


def _method_name(balancer: Balancer) -> str:
    on_gradients = getattr(balancer, "statistic", "loss") == "gradient"
    return type(balancer).__name__ + ("(statistic='gradient')" if on_gradients else "")
