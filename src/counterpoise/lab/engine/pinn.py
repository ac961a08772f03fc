"""The trainer of physics-informed networks: a batch of runs, whose training step is one CUDA graph."""

import base64
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .config import Run
from .cuda_graphs import Branches
from .optim import schedule_factor
from .pinn_workload import PinnWorkload
from .stack_trainer import Pattern, StackTrainer, rounded
from .task_losses import balanced_gradient
from .torch_settings import disable_onednn
from .trainer import peak_z_over_tau

FIELD_POINTS = 40  # points of the saved solution in each direction
FIELD_SEEDS = (0, 5)  # seeds whose solution is saved
METRICS = ("rel_l2", "rel_l2_last")


class PinnTrainer(StackTrainer):
    """Train runs on one differential equation together. Methods of all spaces can be mixed.

    An epoch is a fixed number of steps. The network at the lowest training loss, the sum of the losses of a step, is
    kept; its error is reported. On CUDA, steps are replayed as a CUDA graph; COUNTERPOISE_GRAPH=0 disables this.
    """

    workload: PinnWorkload

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(runs, PinnWorkload(runs))
        device = self.device
        # The step reads and writes these tensors in place, so that a CUDA graph can replay it.
        self.rate_factor = torch.ones((), device=device)
        self.best_loss = torch.full((len(runs), 1), torch.inf, device=device)
        self.best_step = torch.zeros(len(runs), 1, dtype=torch.float64, device=device)
        self.best_value = self.network.value.clone()

    @property
    def latest_value(self) -> float:
        """The relative error of the last epoch, averaged over the runs."""
        return float(np.mean([rows[-1]["metrics"]["rel_l2"] for rows in self.history])) if self.epoch else 0.0

    def train_epoch(self) -> None:
        """Train and evaluate one epoch, and append it to the history of each run."""
        for _ in self.epoch_in_steps():
            pass

    def epoch_in_steps(self) -> Iterator[None]:
        """Train and evaluate one epoch, and yield after each step. The settings of torch are those of the caller."""
        self.rate_factor.fill_(schedule_factor(self.schedule, self.epoch, self.schedule.epochs, 1.0))
        self.log.zero_()
        for _ in range(self.workload.steps):
            with disable_onednn():
                self.advance()
            yield
        with disable_onednn():
            self.balancers.epoch_end()
            errors = {"rel_l2": self.best_value, "rel_l2_last": self.network.value}
            measured = {name: self.workload.errors(value).tolist() for name, value in errors.items()}
        self.epoch += 1
        self._record(measured)

    def variants(self) -> Pattern:
        """Return whether a step before the next one has to be finished."""
        return (self.steps > 0,)

    def step(self, due: Pattern) -> None:
        workload = self.workload
        last = workload.counter - 1
        beside = Branches(workload.seeds.device, first=-1)
        if due[-1]:
            with beside.next():
                self._finish_step(last)
        points = workload.draw()
        losses, gradients = workload.task_gradients(points)
        beside.join()
        with self._measuring(due):
            residuals = partial(workload.residuals, points)
            direction = balanced_gradient(self.balancers, self.network.value, losses, gradients, residuals)
        self._update(losses, direction, [self.rate_factor] * len(self.optimizers))
        with torch.no_grad():
            self._keep_best(losses.sum(1, keepdim=True))

    @torch.no_grad()
    def _finish_step(self, last: Tensor) -> None:
        """Give FAMO the losses of the last step's points after that step.

        This is done in the next step, beside its pass through the networks, because it takes long on few runs.
        """
        for balancer, rows in self.balancers.step_end_rows():
            balancer.step_end(self.workload.losses(self.workload.points_at(last, rows), rows))

    def _keep_best(self, total: Tensor) -> None:
        """Keep the networks after a step whose loss was the lowest so far, as the authors' code does."""
        better = total < self.best_loss
        pairs = ((self.best_loss, total), (self.best_step, self.network.steps), (self.best_value, self.network.value))
        for kept, new in pairs:
            torch.where(better, torch.as_tensor(new), kept, out=kept)

    def _record(self, measured: dict[str, list[float]]) -> None:
        losses, weights = (self.log / self.workload.steps).tolist()
        measured = {name: rounded(values) for name, values in measured.items()}
        charts = self.balancers.chart_values()
        for r, history in enumerate(self.history):
            metrics = {name: measured[name][r] for name in METRICS}
            history.append(
                {
                    "epoch": self.epoch,
                    "loss": rounded(losses[r]),
                    "weight": rounded(weights[r]),
                    "monitor": -metrics["rel_l2"],
                    "metrics": metrics,
                    "chart": charts[r],
                }
            )

    def results(self) -> list[dict[str, Any]]:
        """Return the result of each run: the error at the lowest training loss and that of the last step."""
        results = []
        mean_square = float(self.workload.exact.square().mean())
        losses, steps = self.best_loss.squeeze(1).tolist(), self.best_step.squeeze(1).tolist()
        for history, loss, step, field in zip(self.history, losses, steps, self._fields(), strict=True):
            last = history[-1]
            error = last["metrics"]["rel_l2"]
            score = 1 - error
            further = rounded([1e9 * error**2 * mean_square, loss])
            results.append(
                {
                    "epochs": len(history),
                    "macro": score,
                    "metrics": last["metrics"] | dict(zip(("mse_e9", "training_loss"), further, strict=True)),
                    "weights": dict(zip(self.workload.tasks, last["weight"], strict=True)),
                    "chart": last["chart"],
                    "peak": peak_z_over_tau(history),
                    "best": {"epoch": math.ceil(step / self.workload.steps), "value": score},
                    **({} if field is None else {"field": field}),
                }
            )
        return results

    def _fields(self) -> list[str | None]:
        """Return the solution of each network of some seeds on a coarse grid."""
        grid = self.workload.equation.grid(FIELD_POINTS).to(self.workload.grid)
        values = self.workload.predict(self.best_value, grid).cpu().numpy()
        return [
            encode_field(field) if run.seed in FIELD_SEEDS and np.isfinite(field).all() else None
            for run, field in zip(self.runs, values, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in _STATE_TENSORS}
        return super().state_dict() | kept | {"workload": self.workload.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name in _STATE_TENSORS:
            getattr(self, name).copy_(state[name])
        self.workload.load_state_dict(state["workload"])


_STATE_TENSORS = ("best_loss", "best_step", "best_value")


def encode_field(values: NDArray[Any]) -> str:
    """Return a field as text, in half precision relative to its largest value."""
    largest = float(np.abs(values).max()) or 1.0
    scaled = (values / largest).astype("<f2")
    return f"{largest!r} {base64.b64encode(scaled.tobytes()).decode()}"


def decode_field(text: str) -> NDArray[np.float64]:
    """Return a square field from its text. The first index is the first coordinate."""
    largest, data = text.split()
    values = np.frombuffer(base64.b64decode(data), "<f2").astype(np.float64)
    points = math.isqrt(len(values))
    return float(largest) * values.reshape(points, points)
