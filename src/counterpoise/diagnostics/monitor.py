"""Watches the losses of a loop, and now and then the gradients behind them."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from .. import gradients
from ..balancer import Balancer
from ..functional.bpgs import radius, statistics
from ..gradients.retained import check_retained, is_checkpoint_error
from ..inputs import Losses, Slots, collect_losses, cut_nonfinite, mask_unsampled, task_names
from ..weighting import BPGS, Weighting
from .diagnosis import CONFLICT_COSINE, SATURATED, Diagnosis, saturation_edge

L = TypeVar("L", bound=Losses)


def diagnose(
    what: Balancer | int | Sequence[str] | Mapping[str, Any],
    *,
    shared: Iterable[Tensor] | None = None,
    every: int = 10,
) -> "Monitor":
    """Watches a loop and says what ails it.

    Args:
        what: a balancer, whose calls are then watched; or the tasks (a number, names, or losses by name), and you pass
            the losses of each step to the monitor yourself: `monitor(losses)`.
        shared: the parameters that all tasks share. Then conflict is looked at, too: one backward pass for each task.
        every: how many steps lie between two looks at gradients, on average: a fixed rhythm could be that of the data.

    Example:
        >>> with diagnose(["seg", "depth"]) as monitor:
        ...     for _ in range(3):
        ...         losses = monitor({"seg": torch.tensor(300.0), "depth": torch.tensor(0.1)})
        >>> monitor.diagnosis.verdict
        'scale'
    """
    return Monitor(what, shared=shared, every=every)


class Monitor:
    """Collects what it is shown; `diagnosis` reads it. Nothing waits for the device until then."""

    def __init__(
        self,
        what: Balancer | int | Sequence[str] | Mapping[str, Any],
        *,
        shared: Iterable[Tensor] | None = None,
        every: int = 10,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}, expected a number of steps, 1 or more")
        self.balancer = what if isinstance(what, Balancer) else None
        if self.balancer is not None and self.balancer.batch_shape:
            raise ValueError(f"the monitor looks at one model, not at replicas of shape {self.balancer.batch_shape}")
        self.tasks = what.tasks if isinstance(what, Balancer) else task_names(_names(what))
        self.every = every
        self._shared = None if shared is None else gradients.shared_parameters(shared)
        self._draws = random.Random(0)
        self._due = 0  # the step of the next look at gradients
        self._losses: list[Tensor] = []
        self._grams: list[Tensor] = []
        self._chart: tuple[Tensor, Tensor] | None = None
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        if isinstance(self.balancer, Weighting):
            before = self.balancer.register_forward_pre_hook(self._before, with_kwargs=True)
            after = self.balancer.register_forward_hook(self._after)
            self._undo = [before.remove, after.remove]
        elif self.balancer is not None:
            self._undo = [self._around_backward(self.balancer)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def __call__(self, losses: L, *, counts: Tensor | None = None) -> L:
        """Looks at the losses of a step, before its backward pass, and hands them back."""
        values, slots, inputs = collect_losses(losses, self.tasks, (), None)
        if counts is not None:
            values = mask_unsampled(values, counts)
        if self._shared is not None and torch.is_grad_enabled() and len(self._losses) >= self._due:
            self._due = len(self._losses) + self._draws.randint(1, 2 * self.every - 1)
            self._look_at_gradients(values, slots, inputs, self._shared)
        self._losses.append(values.clone())
        return losses

    @property
    def diagnosis(self) -> Diagnosis:
        if not self._losses:
            raise RuntimeError(
                "the monitor has seen no losses: train inside the with block, or call monitor(losses). It cannot look "
                "into a compiled step: return the losses from it, and call monitor(losses)"
            )
        losses = torch.stack(self._losses).cpu().double()
        present = torch.isfinite(losses)
        known = torch.where(present & (losses > 0), losses, torch.nan).log10()
        decades = torch.where(known.isnan(), -torch.inf, known).amax(-1) - known.nan_to_num(torch.inf).amin(-1)
        decades = torch.where((~known.isnan()).sum(-1) > 1, decades, torch.nan)  # fewer than two tasks were there
        _, std, _ = statistics(losses)
        chart = None if self._chart is None else [part.cpu().double() for part in self._chart]
        weighting = getattr(self.balancer, "weighting", None)
        return Diagnosis(
            tasks=self.tasks,
            steps=len(losses),
            losses=_numbers(torch.where(present, losses, torch.nan).nanmedian(0).values),
            decades=_numbers(decades),
            std=_numbers(std[..., 0]),
            absent=_numbers(1 - present.double().mean(0)),
            below=_numbers((present & (losses <= 0)).double().mean(0)),
            asked=self._shared is not None,
            looks=len(self._grams),
            reach=() if chart is None else _numbers(chart[0].abs()),
            slope=None if chart is None else float(chart[1].min()),
            edge=self._edge(),
            watched=tuple(type(part).__name__ for part in (self.balancer, weighting) if part is not None),
            in_gradient_space=self.balancer is not None and not isinstance(self.balancer, Weighting),
            **self._conflict(),
        )

    def _edge(self) -> float:
        """Where the chart counts as saturated; only that of the batch has a radius."""
        bpgs = getattr(self.balancer, "weighting", None) or self.balancer
        if not (isinstance(bpgs, BPGS) and bpgs.kind == "batch"):
            return SATURATED
        return saturation_edge(radius(len(self.tasks), bpgs.anchor["margin"]))

    def _conflict(self) -> dict[str, Any]:
        if not self._grams:
            return {}
        gram = torch.stack(self._grams).cpu().double()
        norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
        cosines = gram / norms.unsqueeze(-1) / norms.unsqueeze(-2)
        first, second = torch.triu_indices(len(self.tasks), len(self.tasks), 1)
        pairs = cosines[:, first, second]
        pairs = pairs[torch.isfinite(pairs)]
        share = {"negative": 0.0, "conflict": CONFLICT_COSINE}
        return {
            "norms": _numbers(torch.where(torch.isfinite(norms), norms, torch.nan).nanmedian(0).values),
            "cosines": tuple(
                _numbers(row) for row in torch.where(torch.isfinite(cosines), cosines, torch.nan).nanmean(0)
            ),
            **({name: float((pairs < limit).double().mean()) for name, limit in share.items()} if len(pairs) else {}),
        }

    def _before(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self.balancer is not None
        if self.balancer.learning and not torch.compiler.is_compiling():
            self(args[0] if args else kwargs["losses"], counts=kwargs.get("counts"))

    def _after(self, *_: object) -> None:
        self._look_at_chart()

    def _around_backward(self, balancer: Balancer) -> Callable[[], None]:
        """A gradient-space balancer has no forward pass to hook into: its `backward` is wrapped for a while."""
        plain, around = balancer.backward, balancer.__dict__.get("backward")  # of a monitor who came earlier

        def watched(losses: Losses, **needs: Any) -> Tensor:
            if balancer.learning:
                self(losses, counts=needs.get("counts"))
            objective = plain(losses, **needs)
            self._look_at_chart()
            return objective

        balancer.backward = watched  # type: ignore[method-assign]
        return lambda: balancer.__dict__.pop("backward") if around is None else setattr(balancer, "backward", around)

    def _look_at_gradients(
        self, values: Tensor, slots: Slots, inputs: tuple[Tensor, ...], shared: Sequence[Tensor]
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
            check_retained(self, roots, shared)
        rows: list[gradients.GradientList] = []
        for root in roots:
            try:
                found = torch.autograd.grad(root.loss, shared, root.grad, retain_graph=True, allow_unused=True)
            except RuntimeError as error:
                if is_checkpoint_error(error):
                    return
                raise
            rows.append([*found])
        seen = [root.slot for root in roots]
        if any(grad is not None for row in rows for grad in row):
            gram = gradients.scatter_gram(gradients.gram(rows, 0), tuple(seen), tasks)
            missing = [slot for slot in range(tasks) if slot not in seen]
            gram.diagonal()[missing] = torch.nan
            gram.diagonal().masked_fill_(~torch.isfinite(values), torch.nan)
            self._grams.append(gram)

    def _look_at_chart(self) -> None:
        if torch.compiler.is_compiling():
            return
        if (len(self._losses) - 1) % self.every == 0:
            chart = getattr(getattr(self.balancer, "weighting", None) or self.balancer, "chart", None)
            if chart is not None:
                self._chart = (chart.z_over_tau, chart.slope)


def _names(what: int | Sequence[str] | Mapping[str, Any]) -> int | Sequence[str]:
    return list(what) if isinstance(what, Mapping) else what


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(values.tolist())
