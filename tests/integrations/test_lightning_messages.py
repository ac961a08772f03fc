"""The Lightning mixin: logged scalars, the progress bar, fixed losses, and messages that name its hooks."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader

import counterpoise as cp
from counterpoise.integrations.lightning import Balanced

warnings.filterwarnings("ignore", module="lightning")
TASKS = ["a", "b"]
Losses = dict[str, Tensor]


class Model(Balanced, pl.LightningModule):
    """A network with two heads, whose training step returns what `output` makes of the losses."""

    def __init__(
        self, balancer: cp.Balancer, output: Callable[["Model", Losses], Any] = lambda _, losses: losses
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})
        self.balancer, self.output = balancer, output

    def training_step(self, x: Tensor, index: int) -> Any:
        z = self.trunk(x)
        return self.output(self, {task: head(z).square().mean() for task, head in self.heads.items()})

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([{"params": self.network_parameters()}, *self.balancer.param_groups()], lr=0.01)


class WithShared(Model):
    shared: Any = None

    def shared_parameters(self) -> Any:
        return self.trunk.parameters() if self.shared is None else self.shared


def fit(model: Model, folder: Path, **options: Any) -> pl.Trainer:
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    start: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 1, "default_root_dir": folder}
    trainer = pl.Trainer(**{**start, **quiet, "enable_checkpointing": False, **options})
    trainer.fit(model, DataLoader(torch.randn(32, 4), batch_size=8))  # type: ignore[arg-type]
    return trainer


@pytest.mark.parametrize(("method", "learned"), [("kendall", ["log_vars"]), ("bpgs", ["theta", "z_over_tau"])])
def test_losses_weights_and_learned_values_are_logged(method: str, learned: list[str], tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    fit(Model(cp.make(method, TASKS)), tmp_path, logger=logger, log_every_n_steps=2)
    header, *lines = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert {f"{name}/{task}" for name in ["loss", "weight", *learned] for task in TASKS} <= set(header.split(","))
    assert len(lines) == 2


@pytest.mark.parametrize("enabled", [False, True])
def test_weights_on_the_progress_bar(enabled: bool, tmp_path: Path) -> None:
    model = Model(cp.BPGS(TASKS))
    model.weights_on_progress_bar = enabled
    shown = fit(model, tmp_path, logger=CSVLogger(tmp_path), log_every_n_steps=2).progress_bar_metrics
    assert set(shown) == ({"weight/a", "weight/b"} if enabled else set())


def test_missing_shared_parameters_name_the_hook(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"PCGrad compares task gradients .* override shared_parameters\(\)"):
        fit(Model(cp.PCGrad(TASKS)), tmp_path)


def test_a_module_that_lists_the_mixin_last_is_refused() -> None:
    with pytest.raises(TypeError, match=r"LightningModule precedes Balanced in the bases of Late.*list Balanced first"):
        type("Late", (pl.LightningModule, Balanced), {})


@pytest.mark.parametrize(("shared", "error"), [([], ValueError), ([3], TypeError)])
def test_invalid_shared_parameters_name_the_hook(shared: Any, error: type[Exception], tmp_path: Path) -> None:
    model = WithShared(cp.PCGrad(TASKS))
    model.shared = shared
    with pytest.raises(error, match=r"returned by WithShared\.shared_parameters\(\)"):
        fit(model, tmp_path)


def test_unbalanced_loss_in_a_dict_warns_once(tmp_path: Path) -> None:
    model = Model(cp.UWO(TASKS), lambda _, losses: {"loss": losses["a"] + losses["b"], **losses})
    with pytest.warns(cp.BalanceWarning, match="computed without the balancer") as found:
        fit(model, tmp_path)
    assert len([w for w in found if w.category is cp.BalanceWarning]) == 1


def test_unbalanced_tensor_warns_once(tmp_path: Path) -> None:
    model = Model(cp.UWO(TASKS), lambda _, losses: losses["a"] + losses["b"])
    expected = r"training_step returned a tensor, which was computed without the balancer.*self\.balance\(losses\)"
    with pytest.warns(cp.BalanceWarning, match=expected) as found:
        fit(model, tmp_path)
    assert len([w for w in found if w.category is cp.BalanceWarning]) == 1


def test_tensors_of_a_balancer_that_is_in_use_do_not_warn(tmp_path: Path) -> None:
    """The first step is balanced, the others belong to a phase that is not."""

    def in_phases(model: Model, losses: Losses) -> Tensor:
        return losses["a"] + losses["b"] if model.global_step else model.balance(losses)

    with warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        fit(Model(cp.UWO(TASKS), in_phases), tmp_path)


@pytest.mark.parametrize("call", [Model.balance, lambda model, losses: model.balancer(losses)])
def test_balanced_loss_in_a_dict_does_not_warn(call: Callable[[Model, Losses], Tensor], tmp_path: Path) -> None:
    model = Model(cp.UWO(TASKS), lambda model, losses: {"loss": call(model, losses), "other": losses["a"].detach()})
    with warnings.catch_warnings():
        warnings.simplefilter("error", cp.BalanceWarning)
        fit(model, tmp_path)
    assert model.balancer.weights is not None


def test_unknown_key_names_training_step(tmp_path: Path) -> None:
    model = Model(cp.UWO(TASKS), lambda _, losses: {**losses, "logits": losses["a"].detach()})
    with pytest.raises(ValueError, match=r"training_step returned the unknown task 'logits'.*self\.balance\(losses\)"):
        fit(model, tmp_path)


@pytest.mark.parametrize("method", ["uw-o", "pcgrad"])
def test_fixed_losses_may_be_returned(method: str, tmp_path: Path) -> None:
    def with_l2(model: Model, losses: Losses) -> Losses:
        return {**losses, "l2": model.trunk.weight.square().sum()}

    model, logger = WithShared(cp.make(method, TASKS, fixed={"l2": 10.0}), with_l2), CSVLogger(tmp_path)
    before = model.trunk.weight.norm().item()
    fit(model, tmp_path, logger=logger, log_every_n_steps=1)
    assert model.trunk.weight.norm() < before / 2  # the penalty alone halves the norm
    header, *_ = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert "loss/l2" in header.split(",")
    assert "weight/l2" not in header.split(",")


def test_parameter_in_no_optimiser_warns(tmp_path: Path) -> None:
    class Forgetful(WithShared):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.network_parameters(), lr=0.01)

    with pytest.warns(cp.BalanceWarning, match=r"no optimiser contains .* BPGS.*configure_optimizers"):
        fit(Forgetful(cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS))), tmp_path)


def test_parameter_with_weight_decay_warns(tmp_path: Path) -> None:
    class Decaying(Model):
        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), weight_decay=0.1)

    with pytest.warns(cp.BalanceWarning, match=r"weight_decay=0\.1.*configure_optimizers"):
        fit(Decaying(cp.Kendall(TASKS)), tmp_path)
