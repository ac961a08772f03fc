"""The trainer of dense prediction: images on the device, mixed precision, no synchronisation within an epoch."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import counterpoise as cp

from ..data.augment import AugmentationPlan, Batch, augment_batch, draw_augmentation, evaluation_batch, mix_seed
from ..data.dense import load_images
from ..data.images import CLASSES, IGNORED
from ..data.visualisation import render_examples, select_examples
from ..metrics.dense import TASKS, DenseMetrics
from .balancer_groups import build_balancer, chart_values, compares_gradients
from .config import Recipe, Run
from .cuda_graphs import CudaGraphStep
from .dense_network import LossModule, build_segnet, compile_on_cuda, with_eager_fallback
from .dense_optim import DenseOptimizers
from .methods import describe
from .torch_settings import autocast, cudnn_benchmark, seeded

CAPTURABLE_METHODS = ("nash-mtl", "nash-authors", "cagrad", "pcgrad")
"""Gradient-space methods whose step runs the same kernels every time."""


class DenseTrainer:
    """Train one run of dense prediction, alone or as one of several processes.

    The state can be saved and loaded between epochs.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.schedule, self.device, self.epoch = run, run.schedule, run.device, 0
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.images = load_images(run.data.name, run.data.kwargs, run.device)
        self.loader_seed = int(run.data.kwargs.get("loader_seed", run.seed))
        self.factors = _loss_factors(run)
        self.network = build_segnet(run, synchronised=self.world > 1)
        self.shared, self.heads = self.network.shared_parameters(), list(self.network.heads.parameters())
        self.balancer = build_balancer(run.recipe, TASKS, [run.seed], stacked=False).to(run.device)
        method = describe(run.recipe.name)
        self.needs_step_end = "step_end" in method.needs
        self.combines_gradients = issubclass(method.build, cp.Aggregation)
        self.retains_graph = compares_gradients(run.recipe)
        self.losses = self._compiled_losses()
        compiled = compile_on_cuda(self.network, run.device, retain_graph=self.retains_graph)
        self.predict = with_eager_fallback(compiled, self.network)
        self.optim = DenseOptimizers(run, self.network, self.balancer, self.steps)
        # The step reads and writes these tensors in place, so that a CUDA graph can replay it.
        self.batch_index = torch.zeros(1, dtype=torch.long, device=run.device)
        self.augmentation = self._draw_augmentation().to(run.device)
        self.log = torch.zeros(4, self.steps, len(TASKS), device=run.device)
        self.metrics = DenseMetrics(len(CLASSES), run.device)
        self.held_out = self._padded_held_out()
        self._capture_steps()
        self.rows: list[dict[str, Any]] = []
        self.best, self.best_epoch, self.stopped = -float("inf"), 0, False
        self.best_state: dict[str, Tensor] = {}

    @property
    def runs(self) -> list[Run]:
        return [self.run]

    @property
    def history(self) -> list[list[dict[str, Any]]]:
        return [self.rows]

    @property
    def done(self) -> bool:
        return self.epoch >= self.schedule.epochs or self.stopped

    @property
    def latest_value(self) -> float:
        """The monitored value of the last epoch."""
        return float(self.rows[-1]["monitor"]) if self.rows else 0.0

    @property
    def steps(self) -> int:
        """The number of batches in an epoch. An incomplete last batch is dropped."""
        count, size = len(self.images.train), self.schedule.batch_size
        if count < size or size % self.world:
            raise ValueError(
                f"cannot split {count} images into batches of {size} for {self.world} process(es): use a batch size "
                f"of at most {count} that is a multiple of {self.world}"
            )
        return count // size

    def _compiled_losses(self) -> Callable[[Any], Any]:
        module = LossModule(self.network, self.device, self.schedule.precision)
        compiled: Any = compile_on_cuda(module, self.device, retain_graph=self.retains_graph)
        if self.world > 1 and not self.combines_gradients:
            return DistributedDataParallel(compiled)
        return with_eager_fallback(compiled, module)

    def _capture_steps(self) -> None:
        """Set `step` and `measure`, as CUDA graphs where possible. COUNTERPOISE_GRAPH=0 disables this."""
        self.step: Callable[[], None] = self._step
        self.measure: Callable[[], None] = self._measure
        enabled = os.environ.get("COUNTERPOISE_GRAPH") != "0" and self.world == 1
        if enabled and torch.device(self.device).type == "cuda":
            self.measure = CudaGraphStep(self._measure, self.optim.reset_scaler)
            if _can_capture(self.run.recipe):
                self.step = CudaGraphStep(self._step, self.optim.reset_scaler)

    @contextmanager
    def without_cuda_graphs(self) -> Iterator[None]:
        """Run steps eagerly: the allocator does not see the memory that a replay uses."""
        captured = self.step, self.measure
        self.step, self.measure = self._step, self._measure
        try:
            yield
        finally:
            self.step, self.measure = captured

    def _padded_held_out(self) -> Tensor:
        """Return the held-out images, padded with the first one to complete batches on all ranks."""
        order, size = self.images.held_out, self.schedule.batch_size * self.world
        return torch.cat((order, order[:1].expand(-len(order) % size))).to(self.device)

    def _draw_augmentation(self) -> AugmentationPlan:
        """Draw the order and the augmentations of the current epoch."""
        return draw_augmentation(self.images, seed=self.run.seed, loader_seed=self.loader_seed, epoch=self.epoch)

    def train_epoch(self) -> None:
        """Train and evaluate one epoch, and append it to the history."""
        with cudnn_benchmark(), seeded(mix_seed(self.run.seed, self.epoch, 2), self.device):
            log = self.train_steps()
            self.balancer.epoch_end()
            metrics = self.evaluate()
        self.epoch += 1
        self.record(log, metrics)

    def train_steps(self) -> Tensor:
        """Run the training steps of one epoch.

        Returns:
            For each step the losses times the number of pixels, the number of pixels, the weights and z/τ,
            (4, steps, T).
        """
        self.network.train()
        self.augmentation.copy_from(self._draw_augmentation())
        self.batch_index.zero_()
        for _ in range(self.steps):
            self.step()
        self.network.eval()
        if self.world > 1:
            dist.all_reduce(self.log[:2])
        return self.log

    def _batch_positions(self) -> Tensor:
        """Return the positions of this rank's images in the order of the epoch, for the next batch."""
        share = self.schedule.batch_size // self.world
        offset = self.batch_index * self.schedule.batch_size + self.rank * share
        return offset + torch.arange(share, device=self.device)

    def _step(self) -> None:
        """Train on the next batch of the epoch."""
        batch = augment_batch(self.images, self.augmentation.select(self._batch_positions()))
        losses, counts = self._scaled_losses(batch)
        self.optim.zero_grad()
        options: dict[str, Any] = {"counts": counts} if self.world > 1 else {}
        self.balancer.backward(losses, shared=self.shared, scaler=self.optim.scaler, **options)
        if self.world > 1 and self.combines_gradients:
            cp.average_gradients(self.heads)
        with torch.no_grad():
            self._log_step(torch.stack(losses), counts)
            self.optim.step()
            if self.needs_step_end:
                self.balancer.step_end(self._scaled_losses(batch)[0], **options)
            self.batch_index += 1

    def _scaled_losses(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
        losses, counts = self.losses(batch)
        if self.factors is not None:
            losses = tuple(loss * factor for loss, factor in zip(losses, self.factors.unbind(), strict=True))
        return losses, counts

    def _log_step(self, losses: Tensor, counts: Tensor) -> None:
        """Write a step into the log. Call this before the optimiser step, while θ still belongs to the weights."""
        weights = self.balancer.weights
        weights = torch.full_like(losses, torch.nan) if weights is None else weights.to(losses.dtype)
        theta = getattr(getattr(self.balancer, "weighting", None) or self.balancer, "theta", None)
        z_over_tau = torch.zeros_like(losses) if theta is None else torch.tanh(theta / 2)  # 2σ(θ) − 1
        row = torch.stack((losses.detach() * counts, counts, weights, z_over_tau.to(losses.dtype)))
        self.log.index_copy_(1, self.batch_index, row.unsqueeze(1))

    def evaluate(self) -> dict[str, float]:
        """Return all metrics on the held-out images."""
        self.metrics.reset()
        self.batch_index.zero_()
        for _ in range(len(self.held_out) // (self.schedule.batch_size * self.world)):
            self.measure()
        if self.world > 1:
            for sums in (self.metrics.confusion, self.metrics.angles, self.metrics.sums):
                dist.all_reduce(sums)
        return self.metrics.read()

    @torch.no_grad()
    def _measure(self) -> None:
        """Add the next batch of held-out images to the metrics."""
        size = self.schedule.batch_size
        positions = (self.batch_index * self.world + self.rank) * size + torch.arange(size, device=self.device)
        batch = evaluation_batch(self.images, self.held_out.index_select(0, positions))
        counted = (positions < len(self.images.held_out)).view(-1, 1, 1)  # False for padding
        label = torch.where(counted, batch.label, IGNORED)
        depth, normals = batch.depth * counted.unsqueeze(1), batch.normals * counted.unsqueeze(1)
        with autocast(self.device, self.schedule.precision):
            out = self.predict(batch.rgb)
        self.metrics.add(out, label, depth, normals, counted.sum())
        self.batch_index += 1

    def record(self, log: Tensor, metrics: dict[str, float]) -> None:
        """Append an epoch to the history, and update the best epoch and early stopping."""
        sums, counts, weights, z = log.double().cpu()
        monitor = self.schedule.monitor
        value = -metrics[monitor[1:]] if monitor.startswith("-") else metrics[monitor]
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "loss": (sums / counts.clamp_min(1)).mean(0).tolist(),
            "weight": weights.mean(0).tolist(),
            "weight_sd": weights.std(0, correction=0).tolist(),
            "monitor": value,
            "metrics": metrics,
            "chart": {},
        }
        (chart,) = chart_values(self.balancer, 1)
        if chart:
            row["chart"] = chart | {
                "z_over_tau_mean": z.mean(0).tolist(),
                "z_over_tau_first": z[0].tolist(),
                "z_over_tau_max": z.abs().amax(0).tolist(),
            }
        self.rows.append(row)
        if value > self.best + self.schedule.min_delta:
            self.best, self.best_epoch = value, self.epoch
            self.best_state = {name: tensor.clone() for name, tensor in self.network.state_dict().items()}
        patience = self.schedule.patience
        self.stopped = patience is not None and self.epoch - self.best_epoch >= patience

    def results(self) -> list[dict[str, Any]]:
        """Return the result of the run: the metrics of its last epoch, and which epoch was best."""
        last = self.rows[-1]
        parameters = [p for p in (*self.network.parameters(), *self.balancer.parameters()) if p.requires_grad]
        thetas = [max(map(abs, row["chart"]["theta"])) for row in self.rows if row["chart"]]
        theta_metrics = {"theta_max_first": thetas[0], "theta_max": thetas[-1]} if thetas else {}
        z_over_tau = [abs(z) for row in self.rows for z in row["chart"].get("z_over_tau_mean", ())]
        return [
            {
                "epochs": len(self.rows),
                "metrics": last["metrics"] | theta_metrics,
                "peak": max(z_over_tau, default=None),
                "weights": dict(zip(TASKS, last["weight"], strict=True)),
                "chart": last["chart"],
                "parameters": sum(p.numel() for p in parameters),
                "best": {"epoch": self.best_epoch, "value": self.best},
            }
        ]

    @torch.no_grad()
    def pictures(self) -> list[dict[str, bytes]]:
        """Return pictures of a few held-out images and their predictions."""
        batch = evaluation_batch(self.images, select_examples(self.images).to(self.device))
        with autocast(self.device, self.schedule.precision):
            out = self.network.eval()(batch.rgb)  # not the compiled network, which expects complete batches
        return [render_examples(batch, out)]

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in _STATE_ATTRIBUTES}
        return state | {
            "network": self.network.state_dict(),
            "balancer": self.balancer.state_dict(),
            "optim": self.optim.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _STATE_ATTRIBUTES:
            setattr(self, name, state[name])
        self.network.load_state_dict(state["network"])
        self.balancer.load_state_dict(state["balancer"])
        self.optim.load_state_dict(state["optim"])
        self._capture_steps()  # a captured step would use the old tensors


_STATE_ATTRIBUTES = ("epoch", "rows", "best", "best_epoch", "best_state", "stopped")


def _loss_factors(run: Run) -> Tensor | None:
    """Return the factors of the training losses; None if all are 1."""
    factors = [float(run.data.kwargs.get(f"factor_{task}", 1.0)) for task in TASKS]
    return None if set(factors) == {1.0} else torch.tensor(factors, device=run.device)


def _can_capture(recipe: Recipe) -> bool:
    """Return whether the training step of a method can be replayed as a CUDA graph.

    It can if the method does not count steps in Python, as is the case for most loss-space methods.
    """
    recipes = [recipe, *([recipe.weighting] if recipe.weighting else [])]
    return all(r.name in CAPTURABLE_METHODS or not (describe(r.name).needs or compares_gradients(r)) for r in recipes)
