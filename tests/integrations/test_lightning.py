"""The Lightning mixin: precision, accumulation, clipping, resuming, logging and DDP."""

import warnings
from pathlib import Path
from typing import Any, cast

import lightning as pl
import pytest
import torch
from helpers.comparison import assert_same_state
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import counterpoise as cp
from counterpoise.integrations.lightning import Balanced

warnings.filterwarnings("ignore", module="lightning")
TASKS = ["a", "b"]


def balancer(name: str) -> cp.Balancer:
    return cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS)) if name == "hybrid" else cp.make(name, TASKS)


class Model(Balanced, pl.LightningModule):
    def __init__(self, method: str = "bpgs") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})
        self.balancer = balancer(method)

    def losses(self, batch: list[Tensor]) -> dict[str, Tensor]:
        x, y = batch
        z = self.trunk(x)
        return {t: (h(z)[:, 0].float() - y[:, i]).square().mean() for i, (t, h) in enumerate(self.heads.items())}

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return self.losses(batch)

    def shared_parameters(self) -> Any:
        return self.trunk.parameters()

    def configure_optimizers(self) -> Any:
        network = [*self.trunk.parameters(), *self.heads.parameters()]
        return torch.optim.SGD([{"params": network}, *self.balancer.param_groups()], lr=0.01)


class Manual(Model):
    def __init__(self, method: str = "bpgs") -> None:
        super().__init__(method)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> Any:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.balance(self.losses(batch)))
        optimizer.step()


class WithHooks(Model):
    """Hooks as users write them, without calling super()."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None: ...

    def on_after_backward(self) -> None: ...

    def on_train_epoch_end(self) -> None: ...


class PlainSum(Model):
    def training_step(self, batch: list[Tensor], index: int) -> Any:
        return sum(self.losses(batch).values())


def rows() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(48, 4, generator=generator)
    return TensorDataset(x, torch.randn(48, 2, generator=generator) * torch.tensor([1.0, 20.0]))


def loader(size: int = 8, **options: Any) -> DataLoader[Any]:
    return DataLoader(rows(), batch_size=size, **options)


class EverySecondRow(pl.LightningDataModule):
    """Give each of two processes every second row of a batch of 16."""

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        return loader(sampler=DistributedSampler(rows(), 2, self.trainer.global_rank, shuffle=False))


def fit(
    model: pl.LightningModule, folder: Path, data: Any = None, *, resume: Path | None = None, **options: Any
) -> pl.Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    start: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "default_root_dir": folder}
    trainer = pl.Trainer(**{**start, **quiet, "enable_checkpointing": False, **options})
    trainer.fit(model, data or loader(), ckpt_path=resume, weights_only=True)
    return trainer


def train_without_lightning(method: str, *, accumulate: int = 1, clip: float | None = None) -> Model:
    """Train without Lightning, with `balancer.loss`."""
    model = Model(method)
    optimizer = model.configure_optimizers()
    for _ in range(2):
        for count, batch in enumerate(loader(), 1):
            balanced = model.balancer.loss(model.losses(batch), shared=[*model.trunk.parameters()])
            (balanced / accumulate).backward()
            if count % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_([*model.trunk.parameters(), *model.heads.parameters()], clip)
                optimizer.step()
                optimizer.zero_grad()
    return model


@pytest.mark.parametrize("kind", [Model, Manual])
@pytest.mark.parametrize("method", ["bpgs", "cagrad", "hybrid"])
def test_same_training_as_without_lightning(method: str, kind: type[Model], tmp_path: Path) -> None:
    model = kind(method)
    fit(model, tmp_path)
    assert_same_state(model, train_without_lightning(method), tolerance=1e-6)


@pytest.mark.parametrize("method", ["kendall", "bpgs", "hybrid"])
def test_accumulation_and_clipping_of_the_network_only(method: str, tmp_path: Path) -> None:
    model = Model(method)
    fit(model, tmp_path, accumulate_grad_batches=3, gradient_clip_val=0.5)
    assert_same_state(model, train_without_lightning(method, accumulate=3, clip=0.5), tolerance=1e-6)


@pytest.mark.parametrize("method", ["bpgs", "hybrid"])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_mixed_precision(method: str, precision: Any, tmp_path: Path) -> None:
    """Mixed precision is close to float32; fp16 uses a gradient scale of 1024."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if precision == "16-mixed" else None
    model = Model(method)
    fit(model, tmp_path, plugins=[MixedPrecision(precision, "cpu", scaler)])
    assert_same_state(model, train_without_lightning(method), tolerance=0.05)


@pytest.mark.parametrize("method", ["bpgs", "hybrid"])
def test_resuming_is_exact_and_weights_are_logged(method: str, tmp_path: Path) -> None:
    whole, half, rest = Model(method), Model(method), Model(method)
    logger = CSVLogger(tmp_path)
    fit(whole, tmp_path, max_epochs=4, logger=logger, log_every_n_steps=2)
    fit(half, tmp_path, max_epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    fit(rest, tmp_path, max_epochs=4, resume=tmp_path / "half.ckpt")
    assert_same_state(whole, rest, tolerance=0.0)
    header, *lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert {"weight/a", "weight/b", "theta/a", "z_over_tau/b"} <= set(header.split(","))
    assert len(lines) == 12


@pytest.mark.parametrize("kind", [Model, WithHooks])
def test_epoch_end_is_called(kind: type[Model], tmp_path: Path) -> None:
    model = kind("dwa")
    fit(model, tmp_path, max_epochs=3)
    assert model.balancer.weights is not None
    assert not torch.allclose(model.balancer.weights, torch.ones(2))


@pytest.mark.parametrize("steps", [6, 8])  # at the end of the first epoch, and within the second
def test_resuming_is_exact_within_and_between_epochs(steps: int, tmp_path: Path) -> None:
    whole, rest = Model("dwa"), Model("dwa")
    kept = ModelCheckpoint(tmp_path, filename="kept", every_n_train_steps=steps, save_top_k=-1)
    fit(whole, tmp_path, max_epochs=4, callbacks=[kept], enable_checkpointing=True)
    fit(rest, tmp_path, max_epochs=4, resume=tmp_path / "kept.ckpt")
    assert_same_state(whole, rest, tolerance=0.0)


def test_output_of_manual_optimization_is_not_balanced_again(tmp_path: Path) -> None:
    class Returning(Manual):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            super().training_step(batch, index)
            return self.losses(batch)

    model = Returning("rlw")
    fit(model, tmp_path, max_epochs=1)
    assert int(cast("cp.RLW", model.balancer).counter) == 6


def test_subclass_receives_unbalanced_losses_of_its_parent(tmp_path: Path) -> None:
    class Child(Model):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            losses = super().training_step(batch, index)
            return {**losses, "b": losses["b"] / 100}

    class Direct(Model):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            losses = self.losses(batch)
            return {**losses, "b": losses["b"] / 100}

    child, direct = Child(), Direct()
    for model in (child, direct):
        fit(model, tmp_path, max_epochs=1)
    assert_same_state(child, direct, tolerance=0.0)


def test_training_step_without_a_trainer() -> None:
    model = Model()
    model.training_step(next(iter(loader())), 0).backward()
    assert all(p.grad is not None for p in model.trunk.parameters())


def test_unknown_task_raises(tmp_path: Path) -> None:
    class Misspelled(Model):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            return {"a": self.losses(batch)["a"], "bb": self.losses(batch)["b"]}

    with pytest.raises(ValueError, match="unknown task 'bb'"):
        fit(Misspelled(), tmp_path)


@pytest.mark.filterwarnings("ignore:training_step returned a tensor:counterpoise.BalanceWarning")
@pytest.mark.parametrize(("method", "kind"), [("bpgs", Model), ("hybrid", WithHooks), ("cagrad", PlainSum)])
def test_two_processes_train_like_one_on_the_union_batch(method: str, kind: type[Model], tmp_path: Path) -> None:
    model, alone = kind(method), kind(method)
    strategy = DDPStrategy(process_group_backend="gloo", start_method="fork")
    fit(model, tmp_path, EverySecondRow(), devices=2, strategy=strategy, use_distributed_sampler=False)
    fit(alone, tmp_path, loader(16))
    assert_same_state(model, alone, tolerance=1e-5)
