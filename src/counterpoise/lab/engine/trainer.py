"""The trainer of synthetic and tabular runs. It trains a batch of runs as replicas of one program."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .balancer_groups import BalancerGroups
from .config import Recipe, Run
from .optim import network_optimizer, schedule_factor
from .torch_settings import autocast
from .workload import Workload
from .workloads import WORKLOADS


class Trainer:
    """Train runs of equal shapes together, epoch by epoch. The state can be saved and loaded between epochs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        first = runs[0]
        self.runs, self.schedule, self.device = list(runs), first.schedule, first.device
        self.workload: Workload = WORKLOADS[first.data.name](runs)
        self.balancers = BalancerGroups(runs, self.workload.tasks, first.device, self.workload.passes)
        self.network = network_optimizer(
            list(self.workload.network.parameters()), runs, decay_mask=self.workload.decay_mask()
        )
        balancer_optimizers = self.balancers.optimizers()
        self.optimizers = [self.network, *(optimizer for _, optimizer in balancer_optimizers)]
        self.clipped_with_network = [
            (rows, optimizer) for rows, optimizer in balancer_optimizers if _clips_jointly(runs[rows.start].recipe)
        ]
        self.shared = self.workload.shared_parameters()
        fp16 = self.schedule.precision == "fp16"
        self.scaler = torch.amp.GradScaler(first.device.split(":")[0]) if fp16 else None
        self.epoch = self.step = 0
        self.history: list[list[dict[str, Any]]] = [[] for _ in runs]
        self.stopped = torch.zeros(len(runs), dtype=torch.bool)
        self.active: Tensor | float = 1.0  # 0 for runs that have stopped early, (R, 1)
        self.best = torch.full((len(runs),), -torch.inf)
        self.best_epoch = torch.zeros(len(runs), dtype=torch.long)
        self.best_value = self.network.value.clone()

    @property
    def done(self) -> bool:
        return self.epoch >= self.schedule.epochs or bool(self.stopped.all())

    @property
    def latest_value(self) -> float:
        """The monitored value of the last epoch, averaged over the runs."""
        return float(torch.tensor([rows[-1]["monitor"] for rows in self.history]).mean()) if self.epoch else 0.0

    def train_epoch(self) -> None:
        """Train and evaluate one epoch, and append it to the history of each run that has not stopped."""
        # Copied to the device once per epoch rather than once per step.
        self.active = (~self.stopped).to(self.device, torch.float32).unsqueeze(1) if self.stopped.any() else 1.0
        with self.workload.kernel_settings():
            losses, weights = self._train()
            self.balancers.epoch_end()
            with self._autocast():
                measured = self.workload.evaluate()
        self.epoch += 1
        self._record(losses, weights, {name: value.cpu() for name, value in measured.items()})

    def _train(self) -> tuple[Tensor, Tensor]:
        """Train one epoch, and return the losses and weights (R, T) averaged over its steps."""
        workload, balancers = self.workload, self.balancers
        workload.network.train()
        total: Tensor | None = None
        for batch in workload.batches():
            with self._autocast():
                losses = workload.losses(batch)
            balancers.backward(losses, self.shared, self.scaler)
            self._step_optimizers()
            if balancers.needs_step_end:
                with torch.no_grad(), self._autocast():
                    balancers.step_end(workload.losses(batch))
            values = torch.stack([losses.detach(), balancers.weights(losses)])
            total = values if total is None else total.add_(values)
        workload.network.eval()
        assert total is not None, "an epoch has at least one batch"
        mean = (total / workload.steps).cpu()
        return mean[0], mean[1]

    def _step_optimizers(self) -> None:
        total = self.schedule.epochs * self.workload.steps
        if self.scaler is not None:
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)  # type: ignore[arg-type]
        for optimizer in self.optimizers:
            optimizer.gather_gradients()
        for rows, optimizer in self.clipped_with_network:
            optimizer.norm = self.network.norm[rows] = torch.hypot(self.network.norm[rows], optimizer.norm)
        for optimizer in self.optimizers:
            factor = schedule_factor(self.schedule, self.step, total, self.runs[0].network_lr)
            scale = factor * self.active if optimizer is self.network else factor
            if self.scaler is None:
                optimizer.step(scale)
            else:
                self.scaler.step(optimizer, scale)  # type: ignore[arg-type]
        if self.scaler is not None:
            self.scaler.update()
        self.step += 1

    def _record(self, losses: Tensor, weights: Tensor, measured: dict[str, Tensor]) -> None:
        per_task = {"loss": losses, "weight": weights, "score": measured["score"], "held_out_loss": measured["loss"]}
        score, watched = measured["score"], measured.get("watched_loss", measured["loss"])
        values = {"macro": score.mean(1), "worst": score.amin(1), "-loss": -watched.sum(1)}
        values["monitor"] = monitor = values[self.schedule.monitor]
        values |= {name: value for name, value in measured.items() if value.dim() == 1}
        better = ~self.stopped & (monitor > self.best + self.schedule.min_delta)
        self.best = torch.where(better, monitor, self.best)
        self.best_epoch = torch.where(better, self.epoch, self.best_epoch)
        column = better.to(self.best_value.device).unsqueeze(1)
        self.best_value = torch.where(column, self.network.value, self.best_value)
        charts = self.balancers.chart_values()
        for r, history in enumerate(self.history):
            if not self.stopped[r]:
                history.append(
                    {"epoch": self.epoch}
                    | {name: row[r].tolist() for name, row in per_task.items()}
                    | {name: float(value[r]) for name, value in values.items() if name != "-loss"}
                    | {"chart": charts[r]}
                )
        if self.schedule.patience is not None:
            self.stopped |= self.epoch - self.best_epoch >= self.schedule.patience

    def pictures(self) -> list[dict[str, bytes]]:
        """Return no pictures: these runs predict no images."""
        return [{} for _ in self.runs]

    def results(self) -> list[dict[str, Any]]:
        """Return the result of each run: the scores of its last or best epoch, and which epoch was best."""
        tasks = self.workload.tasks
        results = []
        for history, epoch, best in zip(self.history, self.best_epoch.tolist(), self.best.tolist(), strict=True):
            row = history[max(epoch, 1) - 1] if self.schedule.report == "best" else history[-1]
            results.append(
                {
                    "epochs": len(history),
                    "macro": row["macro"],
                    "worst": row["worst"],
                    "metrics": {name: row[name] for name in self.workload.metrics},
                    "scores": dict(zip(tasks, row["score"], strict=True)),
                    "weights": dict(zip(tasks, row["weight"], strict=True)),
                    "chart": row["chart"],
                    "peak": peak_z_over_tau(history),
                    "best": {"epoch": epoch, "value": best},
                }
            )
        return results

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.device, self.schedule.precision)

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in _STATE_ATTRIBUTES}
        return state | {
            "groups": [optimizer.state_dict() for optimizer in self.optimizers],
            "sections": self.balancers.state_dict(),
            "workload": self.workload.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _STATE_ATTRIBUTES:
            setattr(self, name, state[name])
        self.balancers.load_state_dict(state["sections"])
        for optimizer, saved in zip(self.optimizers, state["groups"], strict=True):
            optimizer.load_state_dict(saved)
        self.workload.load_state_dict(state["workload"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])


def _clips_jointly(recipe: Recipe) -> bool:
    """Return whether the balancer's gradient is clipped together with the network's."""
    return (recipe.weighting or recipe).joined


def peak_z_over_tau(history: list[dict[str, Any]]) -> float | None:
    """Return the largest |z|/τ at the end of any epoch; None for methods without a chart."""
    return max((abs(z) for row in history for z in row["chart"].get("z_over_tau", ())), default=None)


_STATE_ATTRIBUTES = ("epoch", "step", "history", "stopped", "best", "best_epoch", "best_value")
