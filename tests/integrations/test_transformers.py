"""The Transformers Trainer with a small two-head model: accumulation, resuming, evaluation and DDP."""

import os
import socket
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers.comparison import assert_same_state
from helpers.process_group import run_ranks
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainingArguments
from transformers.models.bert import BertConfig, BertModel

import counterpoise as cp
from counterpoise.integrations.transformers import BalancedTrainer

TASKS = ["topic", "score"]
SGD: dict[str, Any] = {
    "optim": "sgd",
    "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential",
}


class TwoHeads(PreTrainedModel):
    config_class = BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.topic = nn.Linear(config.hidden_size, 3)
        self.score = nn.Linear(config.hidden_size, 1)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor, topic: Tensor, labels: Tensor, **_: Any) -> dict[str, Any]:
        """Accept keyword arguments, from which the Trainer infers that the model uses `num_items_in_batch`."""
        z = self.encoder(input_ids).last_hidden_state[:, 0]
        losses = {
            "topic": nn.functional.cross_entropy(self.topic(z), topic),
            "score": (self.score(z)[:, 0] - labels).square().mean(),
        }
        return {"losses": losses}


@pytest.mark.parametrize("balancer", [cp.FAMO(TASKS), cp.CAGrad(TASKS, weighting=cp.FAMO(TASKS))])
def test_a_method_that_needs_more_than_the_trainer_provides_is_refused(balancer: cp.Balancer) -> None:
    with pytest.raises(ValueError, match="FAMO needs 'step_end', which BalancedTrainer does not provide"):
        BalancedTrainer(make_model(), balancer=balancer)


def make_model() -> TwoHeads:
    torch.manual_seed(0)
    size: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    return TwoHeads(BertConfig(vocab_size=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **size))


def rows() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "input_ids": torch.randint(20, (5,), generator=generator),
            "topic": torch.randint(3, (), generator=generator),
            "labels": 30 * torch.randn((), generator=generator),
        }
        for _ in range(24)
    ]


def balancer(method: str) -> cp.Balancer:
    return cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS)) if method == "hybrid" else cp.make(method, TASKS)


def make_trainer(folder: Path, method: str, **options: Any) -> BalancedTrainer:
    plain: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 2}
    steps: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": 6, "save_steps": 3, "learning_rate": 1e-2}
    args = TrainingArguments(output_dir=str(folder), **{**plain, **steps, **options})
    net = make_model()
    shared = net.encoder.parameters() if method == "hybrid" else None
    return BalancedTrainer(net, args, train_dataset=rows(), balancer=balancer(method), shared=shared)


@pytest.mark.parametrize("method", ["bpgs", "hybrid"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_same_training_as_without_the_trainer(method: str, accumulate: int, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, method, gradient_accumulation_steps=accumulate, max_steps=6 // accumulate, **SGD)
    trainer.train()
    net, own = make_model(), balancer(method)
    optimizer = torch.optim.SGD([{"params": net.parameters()}, *own.param_groups()], lr=1e-2)
    for count, batch in enumerate(trainer.get_train_dataloader(), 1):
        loss = own.loss(net(**batch)["losses"], shared=[*net.encoder.parameters()])
        (loss / accumulate).backward()
        if count % accumulate == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert trainer.model is not None
    assert_same_state(trainer.model, net, 1e-5)
    assert_same_state(trainer.balancer, own, 1e-5)


# Epochs of three or six steps: the checkpoint after three is at the end of an epoch or within one.
@pytest.mark.parametrize(
    ("method", "steps", "epoch"), [("bpgs", 6, 3), ("bpgs", 6, 6), ("hybrid", 6, 3), ("dwa", 9, 6)]
)
def test_resuming_is_exact(method: str, steps: int, epoch: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_steps": steps, "per_device_train_batch_size": 24 // epoch}
    whole = make_trainer(tmp_path / "whole", method, **options)
    whole.train()
    rest = make_trainer(tmp_path / "whole", method, **options)
    checkpoint = tmp_path / "whole" / "checkpoint-3"
    rest.train(resume_from_checkpoint=checkpoint if epoch == 3 else str(checkpoint))
    assert whole.model is not None
    assert rest.model is not None
    assert_same_state(whole.model, rest.model, 0.0)
    assert_same_state(whole.balancer, rest.balancer, 0.0)
    logged = [entry for entry in whole.state.log_history if "weight/topic" in entry]
    assert len(logged) == steps // 2


def test_evaluation_sums_the_present_losses(tmp_path: Path) -> None:
    class AbsentTasks(TwoHeads):
        def forward(self, input_ids: Tensor, topic: Tensor, labels: Tensor, **_: Any) -> dict[str, Any]:
            losses = super().forward(input_ids, topic, labels)["losses"]
            return {"losses": {"topic": losses["topic"] * torch.nan, "score": None}, "z": losses["topic"]}

    trainer = make_trainer(tmp_path, "bpgs")
    trainer.model = AbsentTasks(cast("BertConfig", make_model().config))
    trainer.compute_metrics = lambda found: {"outputs": len(found.predictions)}
    found = trainer.evaluate(cast("Any", rows()))
    assert (found["eval_loss"], found["eval_outputs"]) == (0.0, 2)


def test_evaluation_reports_a_loss_for_a_model_without_labels(tmp_path: Path) -> None:
    class Unlabelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
            errors = (self.layer(x) - y).square().mean(0)
            return {"losses": {"topic": errors[0], "score": errors[1]}}

    torch.manual_seed(0)
    model, (x, y) = Unlabelled(), (torch.randn(8, 3), torch.randn(8, 2))
    arguments = TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    trainer = BalancedTrainer(model, arguments, balancer=cp.BPGS(TASKS))
    found = trainer.evaluate(cast("Any", [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]))
    expected = sum(loss.item() for loss in model(x, y)["losses"].values())
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_optimizer_without_balancer_parameters_warns(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, "bpgs")
    trainer.optimizer = torch.optim.SGD(cast("nn.Module", trainer.model).parameters(), lr=0.1)
    with pytest.warns(cp.BalanceWarning, match="no optimiser contains"):
        trainer.create_optimizer()


def train_in_group(rank: int, world: int, folder: str, port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    trainer = make_trainer(
        Path(folder), "hybrid", ddp_backend="gloo", max_steps=3, per_device_train_batch_size=2, **SGD
    )
    trainer.train()
    assert trainer.model is not None
    torch.save([trainer.model.state_dict(), trainer.balancer.state_dict()], Path(folder) / f"{rank}.pt")


def test_two_processes_train_like_one_on_the_union_batch(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_ranks(train_in_group, 2, str(tmp_path), port)
    alone = make_trainer(tmp_path, "hybrid", max_steps=3, **SGD)
    alone.train()
    assert alone.model is not None
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for ours, theirs in zip(found, [alone.model.state_dict(), alone.balancer.state_dict()], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_invalid_checkpoint_and_missing_losses_raise(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match=r"balancer\.pt is missing"):
        make_trainer(tmp_path, "bpgs").train(resume_from_checkpoint=str(tmp_path / "other"))
    trainer = make_trainer(tmp_path, "bpgs")
    trainer.losses_key = "several"
    with pytest.raises(KeyError, match="no key 'several'"):
        trainer.train()
