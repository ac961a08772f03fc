"""The trainer of molecules: a batch of runs, whose training step is one CUDA graph."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.qm9 import TARGETS
from .config import Run
from .plateau import PATIENCE, Plateau
from .qm9_workload import QM9Workload, TrainingBatch, relative_change
from .stack_trainer import Pattern, StackTrainer, rounded
from .task_losses import balanced_gradient
from .torch_settings import allow_tf32, disable_onednn
from .trainer import peak_z_over_tau

CHANGE = "mae_change"  # Δm in %
DIGITS = 4  # of the losses and weights in a history
METRICS = (CHANGE, *(f"mae_{target}" for target in TARGETS))


class QM9Trainer(StackTrainer):
    """Train runs on molecules together. Methods of all spaces can be mixed.

    The learning rate of each run is reduced when Δm of its validation molecules stops decreasing. The test molecules
    are evaluated at the epoch with the lowest Δm. On CUDA, steps are replayed as a CUDA graph; COUNTERPOISE_GRAPH=0
    disables this.
    """

    workload: QM9Workload

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(runs, QM9Workload(runs))
        count, device = len(runs), self.device
        self.plateau = Plateau(count, least=self.schedule.lr_end, patience=PATIENCE[self.schedule.decay])
        self.best = torch.full((count,), torch.inf, dtype=torch.float64)  # Δm of the validation molecules
        self.best_epoch = torch.zeros(count, dtype=torch.long)
        self.test_errors = torch.full((count, len(TARGETS)), torch.nan, dtype=torch.float64)
        self.stopped = torch.zeros(count, dtype=torch.bool)
        # The step reads and writes these tensors in place, so that a CUDA graph can replay it.
        self.factors = [torch.ones_like(optimizer.lr) for _, optimizer in self.optimizers]
        self.errors = torch.zeros(count, len(TARGETS), dtype=torch.float64, device=device)
        self.measures = {pairs: self._captured(partial(self._measure, pairs)) for pairs in (False, True)}

    @property
    def done(self) -> bool:
        return self.epoch >= self.schedule.epochs or bool(self.stopped.all())

    @property
    def latest_value(self) -> float:
        """Δm of the validation molecules after the last epoch, averaged over the runs."""
        return float(np.mean([-rows[-1]["monitor"] for rows in self.history])) if self.epoch else 0.0

    def train_epoch(self) -> None:
        """Train and evaluate one epoch, and append it to the history of each run that has not stopped."""
        self.start_epoch()
        with self.kernel_settings():
            for _ in range(self.workload.steps):
                self.advance()
            self.balancers.epoch_end()
            errors = self.evaluate(self.workload.validation)
        self.epoch += 1
        self._record(errors)

    def start_epoch(self) -> None:
        """Set the learning rates and the order of the molecules."""
        active = (~self.stopped).float().unsqueeze(1)
        for (rows, optimizer), factor in zip(self.optimizers, self.factors, strict=True):
            factor.copy_(self.plateau.factors(optimizer.lr.cpu(), rows) * active[rows])
        self.log.zero_()
        self.workload.start_epoch(self.epoch)

    def kernel_settings(self) -> ExitStack:
        """Return a context that sets the torch backends for an epoch."""
        stack = ExitStack()
        stack.enter_context(disable_onednn())
        if self.schedule.precision != "fp32":
            stack.enter_context(allow_tf32())
        return stack

    def variants(self) -> Pattern:
        """Return whether pairs of molecules of the next batch fit into slots."""
        return (self.workload.order.pairs_fit[self.steps % self.workload.steps],)

    def step(self, due: Pattern) -> None:
        batch = self.workload.next_batch(self.workload.order, pairs=due[-1])
        with self._measuring(due):
            losses, direction = self._direction(batch)
        self._update(losses, direction, self.factors)
        with torch.no_grad():
            for balancer, rows in self.balancers.step_end_rows():
                balancer.step_end(self.workload.losses(batch, rows))

    def _direction(self, batch: TrainingBatch) -> tuple[Tensor, Tensor]:
        """Return the losses (R, T) and the gradient (R, P) that the balancers give the network."""
        workload = self.workload
        features = workload.network.features(batch.molecules)
        losses, at_features, of_heads = workload.task_gradients(features, batch)
        heads = self.network.value[:, -of_heads.shape[-1] :], of_heads
        if workload.compared == "features":
            found = balanced_gradient(self.balancers, features.flatten(1), losses, at_features, _no_residuals, heads)
            at_features, of_heads = found.split([at_features.shape[-1], of_heads.shape[-1]], 1)
            return losses, torch.cat([self._backward(features, at_features), of_heads], 1)
        rows = [self._backward(features, flow, retain_graph=True) for flow in at_features.unbind(1)]
        value = self.network.value[:, : -of_heads.shape[-1]]
        return losses, balanced_gradient(self.balancers, value, losses, torch.stack(rows, 1), _no_residuals, heads)

    def _backward(self, features: Tensor, gradient: Tensor, *, retain_graph: bool = False) -> Tensor:
        """Return the gradient (R, P) of the shared parameters from that at the features, (R, B·width)."""
        shared = self.workload.network.shared_layers()
        grads = torch.autograd.grad(features, shared, gradient.view_as(features), retain_graph=retain_graph)
        return torch.cat([grad.flatten(1) for grad in grads], 1)

    def evaluate(self, molecules: Tensor) -> Tensor:
        """Return the mean absolute errors (R, T) of held-out molecules (R, n)."""
        self.errors.zero_()
        self.workload.held_out.arrange(molecules, self.workload.sizes)
        for pairs in self.workload.held_out.pairs_fit:
            self.measures[pairs]()
        return (self.errors / molecules.shape[1]).cpu()

    @torch.no_grad()
    def _measure(self, pairs: bool) -> None:
        """Add the next batch of held-out molecules to the errors."""
        self.errors += self.workload.errors(pairs=pairs)

    def _record(self, errors: Tensor) -> None:
        change = relative_change(errors)
        better = ~self.stopped & (change < self.best - self.schedule.min_delta)
        self.best = torch.where(better, change, self.best)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        if better.any():
            with self.kernel_settings():
                found = self.evaluate(self.workload.test)
            self.test_errors = torch.where(better.unsqueeze(1), found, self.test_errors)
        rates = rounded(self.factors[0].mul(self.network.lr).squeeze(1).tolist())
        losses, weights = (self.log / self.workload.steps).tolist()
        changes = rounded(change.tolist())
        charts = [_rounded_chart(chart) for chart in self.balancers.chart_values()]
        for r, history in enumerate(self.history):
            if not self.stopped[r]:
                history.append(
                    {
                        "epoch": self.epoch,
                        "loss": rounded(losses[r], DIGITS),
                        "weight": rounded(weights[r], DIGITS),
                        "monitor": -float(changes[r]),
                        "metrics": {CHANGE: changes[r]},
                        "rate": rates[r],
                        "chart": charts[r],
                    }
                )
        self.plateau.step(change)
        if self.schedule.patience is not None:
            self.stopped |= self.epoch - self.best_epoch >= self.schedule.patience

    def results(self) -> list[dict[str, Any]]:
        """Return the result of each run: the errors of the test molecules at the epoch with the best validation."""
        results = []
        changes = relative_change(self.test_errors)
        for r, history in enumerate(self.history):
            epoch = max(int(self.best_epoch[r]), 1)
            row = history[epoch - 1]
            results.append(
                {
                    "epochs": len(history),
                    "macro": -float(changes[r]) / 100,
                    "metrics": _metrics(self.test_errors[r], changes[r]) | {"mae_change_validation": -row["monitor"]},
                    "weights": dict(zip(TARGETS, row["weight"], strict=True)),
                    "chart": row["chart"],
                    "peak": peak_z_over_tau(history),
                    "best": {"epoch": epoch, "value": row["monitor"]},
                }
            )
        return results

    def state_dict(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in _STATE_ATTRIBUTES}
        return super().state_dict() | kept | {"plateau": self.plateau.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name in _STATE_ATTRIBUTES:
            setattr(self, name, state[name])
        self.plateau.load_state_dict(state["plateau"])


_STATE_ATTRIBUTES = ("best", "best_epoch", "test_errors", "stopped")


def _no_residuals(parameter: Tensor, rows: slice) -> dict[str, Tensor]:
    raise ValueError("NTK needs residuals, which these tasks do not have: use another method")


def _rounded_chart(chart: dict[str, Any]) -> dict[str, Any]:
    lists = {name: value if isinstance(value, list) else [value] for name, value in chart.items()}
    found = {name: rounded(values, DIGITS) for name, values in lists.items()}
    return {name: values if isinstance(chart[name], list) else values[0] for name, values in found.items()}


def _metrics(errors: Tensor, change: Tensor) -> dict[str, float]:
    values = rounded([float(change), *errors.tolist()])
    return dict(zip(METRICS, values, strict=True))
