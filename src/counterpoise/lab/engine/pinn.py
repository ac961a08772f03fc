"""The trainer of physics-informed networks: a batch of runs, whose training step is one CUDA graph."""

import base64
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...weighting._gradients import Schedule as MeasurementSchedule
from .balancer_groups import BalancerGroups
from .config import Run
from .cuda_graphs import CudaGraphStep
from .optim import ReplicaOptimizer, schedule_factor
from .pinn_workload import PinnWorkload
from .task_losses import balanced_gradient
from .torch_settings import disable_onednn

FIELD_POINTS = 40  # points of the saved solution in each direction
FIELD_SEEDS = (0, 5)  # seeds whose solution is saved
METRICS = ("rel_l2", "rel_l2_last")

Pattern = tuple[bool, ...]
"""Which of the balancers' schedules measure gradients in a step."""


class PinnTrainer:
    """Train runs on one differential equation together. Methods of all spaces can be mixed.

    An epoch is a fixed number of steps. The network at the lowest training loss, the sum of the losses of a step, is
    kept; its error is reported. On CUDA, steps are replayed as a CUDA graph; COUNTERPOISE_GRAPH=0 disables this.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        self.runs, self.schedule, self.device = list(runs), first.schedule, device
        self.workload = PinnWorkload(runs)
        self.balancers = BalancerGroups(runs, self.workload.tasks, device, "loop")
        self.network = ReplicaOptimizer(
            self.workload.network.layers(),  # type: ignore[arg-type]
            len(runs),
            optimizer=self.schedule.optimizer,
            lr=[run.network_lr for run in runs],
            weight_decay=[run.schedule.weight_decay for run in runs],
            clip=[run.network_clip for run in runs],
            gain=[run.recipe.network_gain for run in runs],
            capturable=True,
        )
        self.optimizers = [self.network, *(optimizer for _, optimizer in self.balancers.optimizers(capturable=True))]
        self.epoch = self.steps = 0
        self.history: list[list[dict[str, Any]]] = [[] for _ in runs]
        # The step reads and writes these tensors in place, so that a CUDA graph can replay it.
        self.rate_factor = torch.ones((), device=device)
        self.log = torch.zeros(2, len(runs), len(self.workload.tasks), device=device)
        self.best_loss = torch.full((len(runs), 1), torch.inf, device=device)
        self.best_step = torch.zeros(len(runs), 1, dtype=torch.float64, device=device)
        self.best_value = self.network.value.clone()
        self.schedules = [module for module in self.balancers.modules() if isinstance(module, MeasurementSchedule)]
        self.programs: dict[Pattern, Callable[[], None]] = {}

    @property
    def done(self) -> bool:
        return self.epoch >= self.schedule.epochs

    @property
    def latest_value(self) -> float:
        """The relative error of the last epoch, averaged over the runs."""
        return float(np.mean([rows[-1]["metrics"]["rel_l2"] for rows in self.history])) if self.epoch else 0.0

    def advance(self) -> None:
        """Run the next step, on CUDA as a replay of the graph for its measurements."""
        due = tuple(self.steps % schedule.every == 0 for schedule in self.schedules)
        if due not in self.programs:
            self.programs[due] = self._program(due)
        self.programs[due]()
        self.steps += 1

    def _program(self, due: Pattern) -> Callable[[], None]:
        step = partial(self.step, due)
        graphs = torch.device(self.device).type == "cuda" and os.environ.get("COUNTERPOISE_GRAPH") != "0"
        return CudaGraphStep(step, lambda: None) if graphs else step

    def train_epoch(self) -> None:
        """Train and evaluate one epoch, and append it to the history of each run."""
        self.rate_factor.fill_(schedule_factor(self.schedule, self.epoch, self.schedule.epochs, 1.0))
        self.log.zero_()
        with disable_onednn():
            for _ in range(self.workload.steps):
                self.advance()
            self.balancers.epoch_end()
            errors = {"rel_l2": self.best_value, "rel_l2_last": self.network.value}
            measured = {name: self.workload.errors(value).tolist() for name, value in errors.items()}
        self.epoch += 1
        self._record(measured)

    def step(self, due: Pattern) -> None:
        """Train on new points.

        Args:
            due: for each of `schedules`, whether its balancer measures the gradients of the tasks in this step. A CUDA
                graph does not see the counters of the schedules, so there is a graph for every such pattern.
        """
        workload = self.workload
        points = workload.draw()
        losses, gradients = workload.task_gradients(points)
        with ExitStack() as held:
            for schedule, measures in zip(self.schedules, due, strict=True):
                held.enter_context(schedule.hold(measures))
            residuals = partial(workload.residuals, points)
            direction = balanced_gradient(self.balancers, self.network.value, losses, gradients, residuals)
        self.network.set_gradient(direction)
        with torch.no_grad():
            for optimizer in self.optimizers[1:]:
                optimizer.gather_gradients()
            self.log += torch.stack([losses, self.balancers.weights(losses)])
            for optimizer in self.optimizers:
                optimizer.step(self.rate_factor)
            self._keep_best(losses.sum(1, keepdim=True))
            for balancer, rows in self.balancers.step_end_rows():
                balancer.step_end(workload.losses(points, rows))

    def _keep_best(self, total: Tensor) -> None:
        """Keep the networks after a step whose loss was the lowest so far, as the authors' code does."""
        better = total < self.best_loss
        pairs = ((self.best_loss, total), (self.best_step, self.network.steps), (self.best_value, self.network.value))
        for kept, new in pairs:
            kept.copy_(torch.where(better, new, kept))

    def _record(self, measured: dict[str, list[float]]) -> None:
        losses, weights = (self.log / self.workload.steps).tolist()
        measured = {name: _rounded(values) for name, values in measured.items()}
        charts = self.balancers.chart_values()
        for r, history in enumerate(self.history):
            metrics = {name: measured[name][r] for name in METRICS}
            history.append(
                {
                    "epoch": self.epoch,
                    "loss": _rounded(losses[r]),
                    "weight": _rounded(weights[r]),
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
            further = _rounded([1e9 * error**2 * mean_square, loss])
            z_over_tau = [abs(z) for row in history for z in row["chart"].get("z_over_tau", ())]
            results.append(
                {
                    "epochs": len(history),
                    "macro": score,
                    "metrics": last["metrics"] | dict(zip(("mse_e9", "training_loss"), further, strict=True)),
                    "weights": dict(zip(self.workload.tasks, last["weight"], strict=True)),
                    "chart": last["chart"],
                    "peak": max(z_over_tau, default=None),
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

    def pictures(self) -> list[dict[str, bytes]]:
        """Return no pictures: the results contain the solutions."""
        return [{} for _ in self.runs]

    def state_dict(self) -> dict[str, Any]:
        for schedule in self.schedules:
            schedule.steps = self.steps  # held schedules do not count
        state = {name: getattr(self, name) for name in _STATE_ATTRIBUTES}
        return state | {
            "groups": [optimizer.state_dict() for optimizer in self.optimizers],
            "sections": self.balancers.state_dict(),
            "workload": self.workload.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.history, self.steps = (state[name] for name in ("epoch", "history", "steps"))
        for name in _STATE_TENSORS:
            getattr(self, name).copy_(state[name])
        self.balancers.load_state_dict(state["sections"])
        for optimizer, saved in zip(self.optimizers, state["groups"], strict=True):
            optimizer.load_state_dict(saved)
        self.workload.load_state_dict(state["workload"])
        self.programs = {}  # captured graphs would use the old tensors of the balancers


_STATE_TENSORS = ("best_loss", "best_step", "best_value")
_STATE_ATTRIBUTES = ("epoch", "history", "steps", *_STATE_TENSORS)


def _rounded(values: Sequence[float]) -> list[float]:
    """Round to six digits, which keeps archives of many runs small."""
    return [float(f"{value:.6g}") for value in values]


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
