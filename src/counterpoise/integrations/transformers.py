"""Transformers: a Trainer for models that return several losses."""

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback

from .._files import atomic_path
from ..aggregation import Aggregation
from ..balancer import Balancer
from ..distributed import average_gradients
from ..inputs import collect_losses

FILE = "balancer.pt"


class BalancedTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """Trains a model whose output has a dict of losses by task, under the key `losses`.

    The Trainer's clip is for the model's gradients; the balancer's are not clipped. In evaluation the loss is the plain
    sum of the losses that are there. Under DDP a gradient-space balancer reaches each parameter T times, which DDP does
    not allow: its own averaging is switched off, and gradients are averaged here.

    Args:
        balancer: any balancer. It is trained by the Trainer's own optimiser, without decay, and its state is saved in
            every checkpoint and found again by `train(resume_from_checkpoint=…)`.
        shared: the parameters that all tasks share; only gradient-space balancers need them.
        losses_key: where the losses are in the model's output.
    """

    def __init__(
        self,
        *args: Any,
        balancer: Balancer,
        shared: Iterable[nn.Parameter] | None = None,
        losses_key: str = "losses",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.balancer = balancer.to(self.args.device)
        self.shared = None if shared is None else list(shared)
        self.losses_key = losses_key
        self.model_accepts_loss_kwargs = False  # the model divides by no count of items: the Trainer must, by its steps
        self.add_callback(_Keep(self))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        del num_items_in_batch  # each task has its own mean
        wrapper = self._ddp(model)
        if wrapper is not None:
            wrapper.require_backward_grad_sync = False
        outputs = model(**inputs)
        losses = outputs.get(self.losses_key) if isinstance(outputs, Mapping) else None
        if losses is None:
            raise KeyError(f"the model's output has no {self.losses_key!r}: expected a dict of losses by task there")
        if not model.training:
            loss, outputs = self._plain_sum(losses, outputs)
        elif self.shared is None:
            loss = self.balancer.loss(losses)
        else:
            loss = self.balancer.loss(losses, shared=self.shared)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(model, *args, **kwargs)
        if self._ddp(model) is not None and self.accelerator.sync_gradients:
            average_gradients(model.parameters())
        return loss

    def _ddp(self, model: nn.Module) -> DistributedDataParallel | None:
        if isinstance(model, DistributedDataParallel) and isinstance(self.balancer, Aggregation):
            return model
        return None

    def _plain_sum(self, losses: Mapping[str, Tensor | None], outputs: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """Of the losses that are there; in the output, which is gathered over batches, absent ones are NaN."""
        values, _, _ = collect_losses(losses, self.balancer.tasks, (), self.args.device)
        there = dict(zip(self.balancer.tasks, values.unbind(), strict=True))
        return torch.where(torch.isfinite(values), values, 0.0).sum(), {**outputs, self.losses_key: there}

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        made = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if made:
            for group in self.balancer.param_groups():
                optimizer.add_param_group(group)
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(p.requires_grad and id(p) not in known for p in self.balancer.parameters()):
            warnings.warn("the optimiser does not know balancer.param_groups(): θ stays as it is", stacklevel=2)
        return optimizer

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        weights = self.balancer.weights
        if "loss" in logs and weights is not None:
            logs = logs | {f"weight/{t}": w for t, w in zip(self.balancer.tasks, weights.tolist(), strict=True)}
        super().log(logs, *args, **kwargs)

    def train(
        self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(resume_from_checkpoint, os.PathLike):
            resume_from_checkpoint = os.fspath(resume_from_checkpoint)
        found = resume_from_checkpoint
        if found is True:
            from transformers.trainer_utils import get_last_checkpoint

            found = get_last_checkpoint(self.args.output_dir)
        if isinstance(found, str):
            path = Path(found) / FILE
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing: this checkpoint was not written by a BalancedTrainer")
            self.balancer.load_state_dict(torch.load(path, map_location=self.args.device, weights_only=True))
        return super().train(resume_from_checkpoint, *args, **kwargs)


class _Keep(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Saves the balancer with every checkpoint, and tells it when an epoch ends."""

    def __init__(self, trainer: BalancedTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not args.should_save:
            return
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / FILE
        with atomic_path(path) as temporary:
            torch.save(self.trainer.balancer.state_dict(), temporary)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.balancer.zero_grad()  # the Trainer clears the gradients of the model alone

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The one before has ended, be it in this process or in one that was resumed; in its midst, epoch is broken."""
        if state.epoch and state.epoch == int(state.epoch):
            self.trainer.balancer.epoch_end()
