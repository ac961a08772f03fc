"""One trainer for every run: a stack of replicas, of which a single run is the smallest."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .balancer_groups import BalancerGroups
from .config import Recipe, Run
from .optim import Group, schedule_factor
from .workload import WORKLOADS, Workload

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Trains runs that share their shapes, epoch by epoch; what it holds can be saved and loaded between epochs."""

    def __init__(self, runs: Sequence[Run]) -> None:
        first = runs[0]
        self.runs, self.schedule, self.device = list(runs), first.schedule, first.device
        self.workload: Workload = WORKLOADS[first.data.name](runs)
        self.sections = BalancerGroups(runs, self.workload.tasks, first.device, self.workload.passes)
        self.network = Group(
            list(self.workload.network.parameters()),
            len(runs),
            optimizer=self.schedule.optimizer,
            lr=[run.network_lr for run in runs],
            weight_decay=[run.schedule.weight_decay for run in runs],
            clip=[run.network_clip for run in runs],
            gain=[run.recipe.network_gain for run in runs],
            decaying=self.workload.decaying(),
        )
        sections = self.sections.groups()
        self.groups = [self.network, *(group for _, group in sections)]
        self.joined = [(rows, group) for rows, group in sections if joined(runs[rows.start].recipe)]
        self.shared = self.workload.shared_parameters()
        fp16 = self.schedule.precision == "fp16"
        self.scaler = torch.amp.GradScaler(first.device.split(":")[0]) if fp16 else None
        self.epoch = self.step = 0
        self.history: list[list[dict[str, Any]]] = [[] for _ in runs]
        self.stopped = torch.zeros(len(runs), dtype=torch.bool)
        self.running: Tensor | float = 1.0
        self.best = torch.full((len(runs),), -torch.inf)
        self.best_epoch = torch.zeros(len(runs), dtype=torch.long)
        self.best_value = self.network.value.clone()

    @property
    def done(self) -> bool:
        return self.epoch >= self.schedule.epochs or bool(self.stopped.all())

    @property
    def live(self) -> float:
        """The mean over the runs of the latest monitored value."""
        return float(torch.tensor([rows[-1]["monitor"] for rows in self.history]).mean()) if self.epoch else 0.0

    def train_epoch(self) -> None:
        """Trains one epoch, scores it, and writes it into the history of every run that has not stopped."""
        # Which runs go on is sent to the device once for each epoch, not for each step.
        self.running = (~self.stopped).to(self.device, torch.float32).unsqueeze(1) if self.stopped.any() else 1.0
        with self.workload.kernels():
            losses, weights = self._train()
            self.sections.epoch_end()
            with self._autocast():
                measured = self.workload.evaluate()
        self.epoch += 1
        self._record(losses, weights, {name: value.cpu() for name, value in measured.items()})

    def _train(self) -> tuple[Tensor, Tensor]:
        """One epoch; the mean losses and weights, (R, T), over its steps."""
        workload, sections = self.workload, self.sections
        workload.network.train()
        total: Tensor | None = None
        for batch in workload.batches():
            with self._autocast():
                losses = workload.losses(batch)
            sections.backward(losses, self.shared, self.scaler)
            self._step_groups()
            if sections.needs_after:
                with torch.no_grad(), self._autocast():
                    sections.step_end(workload.losses(batch))
            seen = torch.stack([losses.detach(), sections.weights(losses)])
            total = seen if total is None else total.add_(seen)
        workload.network.eval()
        assert total is not None, "an epoch without batches"
        mean = (total / workload.steps).cpu()
        return mean[0], mean[1]

    def _step_groups(self) -> None:
        total = self.schedule.epochs * self.workload.steps
        if self.scaler is not None:
            for group in self.groups:
                self.scaler.unscale_(group)  # type: ignore[arg-type]
        for group in self.groups:
            group.gather()
        for rows, group in self.joined:
            group.norm = self.network.norm[rows] = torch.hypot(self.network.norm[rows], group.norm)
        for group in self.groups:
            factor = schedule_factor(self.schedule, self.step, total, self.runs[0].network_lr)
            scale = factor * self.running if group is self.network else factor
            if self.scaler is None:
                group.step(scale)
            else:
                self.scaler.step(group, scale)  # type: ignore[arg-type]
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
        charts = self.sections.charts()
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
        """There is nothing to see."""
        return [{} for _ in self.runs]

    def results(self) -> list[dict[str, Any]]:
        """What each run ends with: the scores of its last epoch (or its best), and when it was best."""
        tasks = self.workload.tasks
        found = []
        for history, epoch, best in zip(self.history, self.best_epoch.tolist(), self.best.tolist(), strict=True):
            row = history[max(epoch, 1) - 1] if self.schedule.report == "best" else history[-1]
            found.append(
                {
                    "epochs": len(history),
                    "macro": row["macro"],
                    "worst": row["worst"],
                    "metrics": {name: row[name] for name in self.workload.metrics},
                    "scores": dict(zip(tasks, row["score"], strict=True)),
                    "weights": dict(zip(tasks, row["weight"], strict=True)),
                    "chart": row["chart"],
                    "peak": peak(history),
                    "best": {"epoch": epoch, "value": best},
                }
            )
        return found

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.schedule.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.split(":")[0], dtype)

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in _PLAIN}
        return state | {
            "groups": [group.state_dict() for group in self.groups],
            "sections": self.sections.state_dict(),
            "workload": self.workload.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.sections.load_state_dict(state["sections"])
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.load_state_dict(saved)
        self.workload.load_state_dict(state["workload"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])


def joined(recipe: Recipe) -> bool:
    """Whether the coordinates are clipped as part of the network."""
    return (recipe.weighting or recipe).joined


def peak(history: list[dict[str, Any]]) -> float | None:
    """The largest |z|/τ at the end of any epoch; None for methods without a chart."""
    return max((abs(z) for row in history for z in row["chart"].get("z_over_tau", ())), default=None)


_PLAIN = ("epoch", "step", "history", "stopped", "best", "best_epoch", "best_value")
