"""One run of dense prediction: images on the device, mixed precision, nothing read before an epoch has ended."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import counterpoise as cp

from ..data.augment import Batch, Draws, augmented, draw, mixed, plain
from ..data.dense import load_images
from ..data.images import CLASSES, IGNORED
from ..data.visualisation import chosen, pictures
from ..metrics.dense import TASKS, DenseMetrics, losses
from ..models import SegNet
from .balancer_groups import build_balancer, charts
from .config import Run
from .cuda_graphs import CudaGraphStep
from .dense_optim import DenseOptimizers
from .methods import describe

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
STEADY = ("nash-mtl", "nash-authors", "cagrad", "pcgrad")
"""Gradient-space methods whose step says nothing in Python that would have to be said again."""


class Losses(nn.Module):
    """The network with the losses on top: what is compiled, and what is wrapped for several processes."""

    def __init__(self, network: SegNet, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self.network, self.autocast = network, autocast

    def forward(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
        """One loss for each task, and how many pixels stand behind each."""
        with self.autocast():
            out = self.network(batch.rgb)
        found, counts = losses(out, batch.label, batch.depth, batch.normals)
        return found.unbind(), counts


class DenseTrainer:
    """Trains one run, epoch by epoch, alone or as one of several processes; can be saved and loaded between epochs."""

    def __init__(self, run: Run) -> None:
        self.run, self.schedule, self.device, self.epoch = run, run.schedule, run.device, 0
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.images = load_images(run.data.name, run.data.kwargs, run.device)
        self.loader_seed = int(run.data.kwargs.get("loader_seed", run.seed))
        factors = [float(run.data.kwargs.get(f"factor_{task}", 1.0)) for task in TASKS]
        self.factors = None if set(factors) == {1.0} else torch.tensor(factors, device=run.device)
        self.network = self._network()
        self.shared, self.heads = self.network.shared_parameters(), list(self.network.heads.parameters())
        self.balancer = build_balancer(run.recipe, TASKS, [run.seed], stacked=False).to(run.device)
        method = describe(run.recipe.name)
        self.needs_after = "step_end" in method.needs
        self.in_gradient_space = method.space == "gradient"
        self.losses = self._compiled(Losses(self.network, self._autocast), train=True)
        self.predict = self._compiled(self.network, train=False)
        self.optim = DenseOptimizers(run, self.network, self.balancer, self.steps)
        self.at = torch.zeros(1, dtype=torch.long, device=run.device)  # the batch of the epoch that comes next
        self.draws = self._draw().to(run.device)
        self.log = torch.zeros(4, self.steps, len(TASKS), device=run.device)
        self.metrics = DenseMetrics(len(CLASSES), run.device)
        self.held_out = self._held_out()
        self.step, self.measure = self._replayed(self._step, train=True), self._replayed(self._measure)
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
    def live(self) -> float:
        """The latest monitored value."""
        return float(self.rows[-1]["monitor"]) if self.rows else 0.0

    @property
    def steps(self) -> int:
        """Batches in an epoch; the last one is dropped if it is not full."""
        count, size = len(self.images.train), self.schedule.batch_size
        if count < size or size % self.world:
            raise ValueError(f"{count} images make no batches of {size} for {self.world} process(es)")
        return count // size

    @property
    def _kind(self) -> str:
        return torch.device(self.device).type

    def _network(self) -> SegNet:
        with self._seeded(self.run.seed):
            network = SegNet(**self.run.model.kwargs)
        if self.world > 1:
            from ..models.synchronised import synchronise_layers

            synchronise_layers(network)
        layout = torch.channels_last if self._kind == "cuda" else torch.contiguous_format
        return network.to(self.device).to(memory_format=layout)  # type: ignore[call-overload, no-any-return]

    def _compiled(self, module: nn.Module, *, train: bool) -> Callable[[Any], Any]:
        """Compiled on CUDA; what the compiler cannot take is run as it is. COUNTERPOISE_COMPILE=0: never compiled."""
        wrapped: Any = module
        if self._kind == "cuda" and os.environ.get("COUNTERPOISE_COMPILE") != "0":
            if self.in_gradient_space:  # goes through the graph once for each task
                cp.retain_compiled_graphs()
            wrapped = torch.compile(module, dynamic=False)
        if train and self.world > 1 and not self.in_gradient_space:
            return DistributedDataParallel(wrapped)
        return wrapped if wrapped is module else _or_plain(wrapped, module)

    def _replayed(self, step: Callable[[], None], *, train: bool = False) -> Callable[[], None]:
        """Captured in a CUDA graph, where that works. COUNTERPOISE_GRAPH=0: never.

        A training step can be if the method keeps no count of steps in Python: most of loss space, some of the rest.
        """
        recipe = self.run.recipe
        names = [recipe.name, *([recipe.weighting.name] if recipe.weighting else [])]
        steady = all(name in STEADY or not describe(name).needs for name in names)
        off = self._kind != "cuda" or self.world > 1 or os.environ.get("COUNTERPOISE_GRAPH") == "0"
        return step if off or (train and not steady) else CudaGraphStep(step, self.optim.forget_scaling)

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        """Steps as they are, kernel by kernel: a replay hides from the allocator what it uses."""
        captured = self.step, self.measure
        self.step, self.measure = self._step, self._measure
        try:
            yield
        finally:
            self.step, self.measure = captured

    def _held_out(self) -> Tensor:
        """The held-out images, filled up to whole batches on all ranks by the first one, which does not count again."""
        order, size = self.images.held_out, self.schedule.batch_size * self.world
        return torch.cat((order, order[:1].expand(-len(order) % size))).to(self.device)

    def _draw(self) -> Draws:
        return draw(self.images, seed=self.run.seed, loader_seed=self.loader_seed, epoch=self.epoch)

    def train_epoch(self) -> None:
        """Trains one epoch, evaluates it, and writes it into the history."""
        with self._kernels(), self._seeded(mixed(self.run.seed, self.epoch, 2)):
            log = self._train()
            self.balancer.epoch_end()
            metrics = self._evaluate()
        self.epoch += 1
        self._record(log, metrics)

    def _train(self) -> Tensor:
        """One epoch; for each step the tasks' losses times pixels, pixels, weights and z/τ, (4, steps, T)."""
        self.network.train()
        self.draws.become(self._draw())
        self.at.zero_()
        for _ in range(self.steps):
            self.step()
        self.network.eval()
        if self.world > 1:
            dist.all_reduce(self.log[:2])
        return self.log

    def _places(self) -> Tensor:
        """Where this rank's images of the next batch stand in the order of the epoch."""
        share = self.schedule.batch_size // self.world
        return self.at * self.schedule.batch_size + self.rank * share + torch.arange(share, device=self.device)

    def _step(self) -> None:
        """The next batch of the epoch. What changes from step to step lies on the device: the step can be replayed."""
        batch = augmented(self.images, self.draws.take(self._places()))
        found, counts = self._losses(batch)
        self.optim.zero_grad()
        options: dict[str, Any] = {"counts": counts} if self.world > 1 else {}
        self.balancer.backward(found, shared=self.shared, scaler=self.optim.scaler, **options)
        if self.world > 1 and self.in_gradient_space:
            cp.average_gradients(self.heads)
        with torch.no_grad():
            self._note(torch.stack(found), counts)
            self.optim.step()
            if self.needs_after:
                self.balancer.step_end(self._losses(batch)[0], **options)
            self.at += 1

    def _losses(self, batch: Batch) -> tuple[tuple[Tensor, ...], Tensor]:
        found, counts = self.losses(batch)
        if self.factors is not None:
            found = tuple(loss * factor for loss, factor in zip(found, self.factors.unbind(), strict=True))
        return found, counts

    def _note(self, found: Tensor, counts: Tensor) -> None:
        """Into the log, between backward and step: θ is still the one that gave these weights."""
        weights = self.balancer.weights
        weights = torch.full_like(found, torch.nan) if weights is None else weights.to(found.dtype)
        theta = getattr(getattr(self.balancer, "weighting", None) or self.balancer, "theta", None)
        position = torch.zeros_like(found) if theta is None else torch.tanh(theta / 2)  # 2σ(θ) − 1
        row = torch.stack((found.detach() * counts, counts, weights, position.to(found.dtype)))
        self.log.index_copy_(1, self.at, row.unsqueeze(1))

    def _evaluate(self) -> dict[str, float]:
        """All metrics on the held-out images, in batches of the training's size."""
        self.metrics.reset()
        self.at.zero_()
        for _ in range(len(self.held_out) // (self.schedule.batch_size * self.world)):
            self.measure()
        if self.world > 1:
            for sums in (self.metrics.confusion, self.metrics.angles, self.metrics.sums):
                dist.all_reduce(sums)
        return self.metrics.read()

    @torch.no_grad()
    def _measure(self) -> None:
        size = self.schedule.batch_size
        places = (self.at * self.world + self.rank) * size + torch.arange(size, device=self.device)
        batch = plain(self.images, self.held_out.index_select(0, places))
        counts = (places < len(self.images.held_out)).view(-1, 1, 1)  # others fill up the last batch
        label = torch.where(counts, batch.label, IGNORED)
        depth, normals = batch.depth * counts.unsqueeze(1), batch.normals * counts.unsqueeze(1)
        with self._autocast():
            out = self.predict(batch.rgb)
        self.metrics.add(out, label, depth, normals, counts.sum())
        self.at += 1

    def _record(self, log: Tensor, metrics: dict[str, float]) -> None:
        seen = log.double().cpu()
        each = seen[0] / seen[1].clamp_min(1)
        weights, z = seen[2:]
        monitor = self.schedule.monitor
        value = -metrics[monitor[1:]] if monitor.startswith("-") else metrics[monitor]
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "loss": each.mean(0).tolist(),
            "weight": weights.mean(0).tolist(),
            "weight_sd": weights.std(0, correction=0).tolist(),
            "monitor": value,
            "metrics": metrics,
            "chart": {},
        }
        (chart,) = charts(self.balancer, 1)
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
        """What the run ends with: the metrics of its last epoch, and when it was best."""
        last = self.rows[-1]
        parameters = [p for p in (*self.network.parameters(), *self.balancer.parameters()) if p.requires_grad]
        thetas = [max(map(abs, row["chart"]["theta"])) for row in self.rows if row["chart"]]
        found = {"theta_max_first": thetas[0], "theta_max": thetas[-1]} if thetas else {}
        means = [abs(z) for row in self.rows for z in row["chart"].get("z_over_tau_mean", ())]
        return [
            {
                "epochs": len(self.rows),
                "metrics": last["metrics"] | found,
                "peak": max(means, default=None),
                "weights": dict(zip(TASKS, last["weight"], strict=True)),
                "chart": last["chart"],
                "parameters": sum(p.numel() for p in parameters),
                "best": {"epoch": self.best_epoch, "value": self.best},
            }
        ]

    @torch.no_grad()
    def pictures(self) -> list[dict[str, bytes]]:
        """What the network makes of a few held-out images. As it is: the compiled one wants whole batches."""
        batch = plain(self.images, chosen(self.images).to(self.device))
        with self._autocast():
            out = self.network.eval()(batch.rgb)
        return [pictures(batch, out)]

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = AUTOCAST.get(self.schedule.precision)
        return nullcontext() if dtype is None else torch.autocast(self._kind, dtype)

    @contextmanager
    def _kernels(self) -> Iterator[None]:
        """cuDNN may measure which of its convolutions is fastest here."""
        settings: Any = torch.backends.cudnn
        before, settings.benchmark = settings.benchmark, True
        try:
            yield
        finally:
            settings.benchmark = before

    @contextmanager
    def _seeded(self, seed: int) -> Iterator[None]:
        """The global streams, from which dropout draws, start at `seed` and are put back afterwards."""
        devices = [torch.device(self.device)] if self._kind == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            yield

    def state_dict(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in _PLAIN}
        return state | {
            "network": self.network.state_dict(),
            "balancer": self.balancer.state_dict(),
            "optim": self.optim.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, state[name])
        self.network.load_state_dict(state["network"])
        self.balancer.load_state_dict(state["balancer"])
        self.optim.load_state_dict(state["optim"])
        self.step = self._replayed(self._step, train=True)  # a captured one would know the old tensors


_PLAIN = ("epoch", "rows", "best", "best_epoch", "best_state", "stopped")


def _or_plain(compiled: Callable[..., Any], module: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled module until the compiler fails on it."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    chosen = [compiled]

    def call(given: Any) -> Any:
        try:
            return chosen[0](given)
        except TorchDynamoException as error:
            warnings.warn(f"the network is not compiled: {type(error).__name__}: {error}", stacklevel=2)
            chosen[0] = module
            return module(given)

    return call
