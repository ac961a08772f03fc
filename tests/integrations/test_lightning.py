"""Lightning, the real one: any balancer, every precision, accumulation, clipping, resume, two processes."""

import warnings
from pathlib import Path
from typing import Any, cast

import lightning as pl
import pytest
import torch
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
    """As people write them: without a call of super()."""

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


class Shares(pl.LightningDataModule):
    """Each of two processes has every second row of a batch of 16."""

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


def plain(method: str, *, accumulate: int = 1, clip: float | None = None) -> Model:
    """The same training by hand, with `balancer.backward`."""
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


def same(a: nn.Module, b: nn.Module, tolerance: float = 1e-6) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, equal_nan=True, msg=name)


@pytest.mark.parametrize("kind", [Model, Manual])
@pytest.mark.parametrize("method", ["bpgs", "cagrad", "hybrid"])
def test_the_same_training_as_by_hand(method: str, kind: type[Model], tmp_path: Path) -> None:
    model = kind(method)
    fit(model, tmp_path)
    same(model, plain(method))


@pytest.mark.parametrize("method", ["kendall", "bpgs", "hybrid"])
def test_accumulation_and_clipping_of_the_network_alone(method: str, tmp_path: Path) -> None:
    model = Model(method)
    fit(model, tmp_path, accumulate_grad_batches=3, gradient_clip_val=0.5)
    same(model, plain(method, accumulate=3, clip=0.5))


@pytest.mark.parametrize("method", ["bpgs", "hybrid"])
@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed"])
def test_mixed_precision(method: str, precision: Any, tmp_path: Path) -> None:
    """Close to float32, with a scale of 1024 on every gradient in fp16."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if precision == "16-mixed" else None
    model = Model(method)
    fit(model, tmp_path, plugins=[MixedPrecision(precision, "cpu", scaler)])
    same(model, plain(method), tolerance=0.05)


@pytest.mark.parametrize("method", ["bpgs", "hybrid"])
def test_resume_is_exact_and_the_logger_gets_the_weights(method: str, tmp_path: Path) -> None:
    whole, half, rest = Model(method), Model(method), Model(method)
    logger = CSVLogger(tmp_path)
    fit(whole, tmp_path, max_epochs=4, logger=logger, log_every_n_steps=2)
    fit(half, tmp_path, max_epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    fit(rest, tmp_path, max_epochs=4, resume=tmp_path / "half.ckpt")
    same(whole, rest, tolerance=0.0)
    header, *lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert {"weight/a", "weight/b", "theta/a", "z_over_tau/b"} <= set(header.split(","))
    assert len(lines) == 12


@pytest.mark.parametrize("kind", [Model, WithHooks])
def test_epochs_end_for_the_methods_that_wait_for_it(kind: type[Model], tmp_path: Path) -> None:
    model = kind("dwa")
    fit(model, tmp_path, max_epochs=3)
    assert model.balancer.weights is not None
    assert not torch.allclose(model.balancer.weights, torch.ones(2))


@pytest.mark.parametrize("steps", [6, 8])  # at the end of the first epoch, and in the midst of the second
def test_resume_is_exact_wherever_the_checkpoint_fell(steps: int, tmp_path: Path) -> None:
    whole, rest = Model("dwa"), Model("dwa")
    kept = ModelCheckpoint(tmp_path, filename="kept", every_n_train_steps=steps, save_top_k=-1)
    fit(whole, tmp_path, max_epochs=4, callbacks=[kept], enable_checkpointing=True)
    fit(rest, tmp_path, max_epochs=4, resume=tmp_path / "kept.ckpt")
    same(whole, rest, tolerance=0.0)


def test_what_manual_optimisation_returns_is_not_balanced_again(tmp_path: Path) -> None:
    class Returning(Manual):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            super().training_step(batch, index)
            return self.losses(batch)

    model = Returning("rlw")
    fit(model, tmp_path, max_epochs=1)
    assert int(cast("cp.RLW", model.balancer).counter) == 6


def test_a_parents_losses_reach_its_child_as_they_are(tmp_path: Path) -> None:
    class Child(Model):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            losses = super().training_step(batch, index)
            return {**losses, "b": losses["b"] / 100}

    fit(Child(), tmp_path, max_epochs=1)


def test_a_step_needs_no_trainer() -> None:
    model = Model()
    model.training_step(next(iter(loader())), 0).backward()
    assert all(p.grad is not None for p in model.trunk.parameters())


def test_a_misspelt_task_is_named(tmp_path: Path) -> None:
    class Misspelt(Model):
        def training_step(self, batch: list[Tensor], index: int) -> Any:
            return {"a": self.losses(batch)["a"], "bb": self.losses(batch)["b"]}

    with pytest.raises(ValueError, match="unknown task 'bb'"):
        fit(Misspelt(), tmp_path)


@pytest.mark.parametrize(("method", "kind"), [("bpgs", Model), ("hybrid", WithHooks), ("cagrad", PlainSum)])
def test_two_processes_train_as_one_on_the_union_batch(method: str, kind: type[Model], tmp_path: Path) -> None:
    model, alone = kind(method), kind(method)
    strategy = DDPStrategy(process_group_backend="gloo", start_method="fork")
    fit(model, tmp_path, Shares(), devices=2, strategy=strategy, use_distributed_sampler=False)
    fit(alone, tmp_path, loader(16))
    same(model, alone, tolerance=1e-5)
