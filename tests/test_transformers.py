"""Transformers' own Trainer with a tiny model of two heads: as by hand, accumulation, save and resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedModel, TrainingArguments

import counterpoise as cp
from counterpoise.integrations.transformers import BalancedTrainer

TASKS = ["topic", "score"]


class TwoHeads(PreTrainedModel):
    config_class = BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.topic = nn.Linear(config.hidden_size, 3)
        self.score = nn.Linear(config.hidden_size, 1)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor, topic: Tensor, score: Tensor) -> dict[str, Any]:
        z = self.encoder(input_ids).last_hidden_state[:, 0]
        losses = {
            "topic": nn.functional.cross_entropy(self.topic(z), topic),
            "score": (self.score(z)[:, 0] - score).square().mean(),
        }
        return {"losses": losses}


def model() -> TwoHeads:
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
            "score": 30 * torch.randn((), generator=generator),
        }
        for _ in range(24)
    ]


def balancer(method: str) -> cp.Balancer:
    return cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS)) if method == "hybrid" else cp.make(method, TASKS)


def trainer(folder: Path, method: str, **options: Any) -> BalancedTrainer:
    plain: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_steps": 2}
    steps: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": 6, "save_steps": 3, "learning_rate": 1e-2}
    args = TrainingArguments(output_dir=str(folder), **{**plain, **steps, **options})
    net = model()
    shared = None if method == "bpgs" else net.encoder.parameters()
    return BalancedTrainer(net, args, train_dataset=rows(), balancer=balancer(method), shared=shared)


def same(a: nn.Module, b: nn.Module, tolerance: float) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("method", ["bpgs", "hybrid"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_same_training_as_by_hand(method: str, accumulate: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"optim": "sgd", "lr_scheduler_type": "constant", "train_sampling_strategy": "sequential"}
    made = trainer(tmp_path, method, gradient_accumulation_steps=accumulate, max_steps=6 // accumulate, **options)
    made.train()
    net, own = model(), balancer(method)
    optimizer = torch.optim.SGD([{"params": net.parameters()}, *own.param_groups()], lr=1e-2)
    for count, batch in enumerate(made.get_train_dataloader(), 1):
        loss = own.loss(net(**batch)["losses"], shared=[*net.encoder.parameters()])
        (loss / accumulate).backward()
        if count % accumulate == 0:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert made.model is not None
    same(made.model, net, 1e-5)
    same(made.balancer, own, 1e-5)


@pytest.mark.parametrize("method", ["bpgs", "hybrid"])
def test_resume_is_exact(method: str, tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", method)
    whole.train()
    rest = trainer(tmp_path / "whole", method)
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    assert whole.model is not None
    assert rest.model is not None
    same(whole.model, rest.model, 0.0)
    same(whole.balancer, rest.balancer, 0.0)
    logged = [entry for entry in whole.state.log_history if "weight/topic" in entry]
    assert len(logged) == 3


def test_a_foreign_checkpoint_and_a_model_without_losses_are_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(FileNotFoundError, match=r"balancer\.pt is missing"):
        trainer(tmp_path, "bpgs").train(resume_from_checkpoint=str(tmp_path / "other"))
    made = trainer(tmp_path, "bpgs")
    made.losses_key = "several"
    with pytest.raises(KeyError, match="no 'several'"):
        made.train()
