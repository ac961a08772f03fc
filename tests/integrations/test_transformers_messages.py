"""The Transformers Trainer: logged scalars, the progress bar, fixed losses, bfloat16, and messages that name it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import ProgressCallback, TrainingArguments

import counterpoise as cp
from counterpoise.integrations.transformers import BalancedTrainer

TASKS = ["a", "b"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(4, 8)
        self.heads = nn.ModuleDict({task: nn.Linear(8, 1) for task in TASKS})
        self.penalised = False

    def forward(self, x: Tensor) -> dict[str, Any]:
        z = self.trunk(x)
        losses = {task: head(z).square().mean() for task, head in self.heads.items()}
        if self.penalised:
            losses["l2"] = self.trunk.weight.square().sum()
        return {"losses": losses}


def make_trainer(folder: Path, balancer: cp.Balancer, *, bar: bool = False, **options: Any) -> BalancedTrainer:
    model = Model()
    model.penalised = bool(balancer.fixed)
    shared = options.pop("shared", model.trunk.parameters())
    start: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": not bar, "logging_steps": 2}
    args = TrainingArguments(str(folder), **start, max_steps=4, learning_rate=0.01, save_strategy="no", **options)
    rows = [{"x": row} for row in torch.randn(32, 4)]
    return BalancedTrainer(
        model, args, train_dataset=rows, balancer=balancer, shared=shared, weights_on_progress_bar=bar
    )


@pytest.mark.parametrize(
    ("balancer", "learned"),
    [
        (cp.Kendall(TASKS), ["log_vars"]),
        (cp.BPGS(TASKS), ["theta", "z_over_tau"]),
        (cp.PCGrad(TASKS, weighting=cp.IMTLL(TASKS)), ["log_scales"]),
    ],
)
def test_losses_weights_and_learned_values_are_logged(
    balancer: cp.Balancer, learned: list[str], tmp_path: Path
) -> None:
    trainer = make_trainer(tmp_path, balancer)
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    names = {f"{name}/{task}" for name in ["loss", "weight", *learned] for task in TASKS}
    assert len(entries) == 2
    assert all(names <= set(entry) and all(isinstance(entry[name], float) for name in names) for entry in entries)


def test_weights_on_the_progress_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    close = ProgressCallback.on_train_end

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        shown.append(self.training_bar.postfix)
        close(self, *args, **kwargs)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(ProgressCallback, "on_train_end", record)
    make_trainer(tmp_path, cp.BPGS(TASKS), bar=True).train()
    assert "weight/a=" in shown[0]
    assert "weight/b=" in shown[0]


def test_missing_shared_parameters_name_the_argument(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass shared= to BalancedTrainer"):
        make_trainer(tmp_path, cp.PCGrad(TASKS), shared=None).train()


@pytest.mark.parametrize("method", ["uw-o", "pcgrad"])
@pytest.mark.parametrize("options", [{}, {"bf16": True}])
def test_fixed_losses_train_and_count_in_evaluation(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, cp.make(method, TASKS, fixed={"l2": 2.0}), gradient_accumulation_steps=2, max_grad_norm=0.0, **options
    )
    trainer.train()
    assert "loss/l2" in trainer.state.log_history[0]
    model = trainer.model
    assert isinstance(model, Model)
    model.eval()
    x = torch.ones(4, 4)
    losses = model(x)["losses"]
    loss, outputs = trainer.compute_loss(model, {"x": x}, return_outputs=True)
    torch.testing.assert_close(loss, losses["a"] + losses["b"] + 2 * losses["l2"])
    assert set(outputs["losses"]) == {"a", "b", "l2"}
    assert model.trunk.weight.norm() < Model().trunk.weight.norm()


def test_missing_losses_name_the_key_and_the_option(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, cp.UWO(TASKS))
    trainer.losses_key = "several"
    with pytest.raises(KeyError, match=r"no key 'several' \(got the keys \['losses'\]\).*losses_key="):
        trainer.train()
