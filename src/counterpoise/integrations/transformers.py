"""Transformers: a Trainer for models that return a dict of losses."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformers import ProgressCallback, Trainer, TrainerCallback

from .._files import atomic_path
from ..aggregation import Aggregation
from ..balancer import Balancer
from ..distributed import average_gradients
from ..inputs import collect_losses
from ._messages import check_needs, check_optimisers, explain_shared
from .readings import readings

BALANCER_FILE = "balancer.pt"
SUPPORTED_NEEDS = {"shared", "epoch_end"}


class BalancedTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """A Trainer for a model whose output contains a dict of losses by task.

    Losses, weights and learned values by task (see `readings`) are logged together with the training loss. Gradient
    clipping applies to the model alone, not to the balancer. In evaluation, the loss is the sum of the losses that are
    present, where fixed losses are multiplied by their factors. Under DDP, a gradient-space balancer runs T backward
    passes through each parameter, which DDP does not support; DDP's gradient averaging is disabled, and `training_step`
    averages instead.

    Args:
        *args: Arguments of `Trainer`.
        balancer (Balancer): Any balancer. The Trainer's optimiser trains its parameters, without weight decay. Every
            checkpoint contains its state, which `train(resume_from_checkpoint=…)` restores.
        shared (iterable of nn.Parameter, optional): The parameters that all tasks share. Required by balancers that
            compare gradients. Default: `None`.
        losses_key (str, optional): Key of the losses in the model's output. Default: `"losses"`.
        weights_on_progress_bar (bool, optional): Whether the progress bar of the terminal shows the weights of the
            tasks, as of the last logged step. Default: `False`.
        **kwargs: Further arguments of `Trainer`.

    Example:
        >>> import tempfile
        >>> from transformers import TrainingArguments
        >>> import counterpoise as cp
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.encoder = nn.Linear(4, 8)
        ...
        ...     def forward(self, x):
        ...         z = self.encoder(x)
        ...         return {"losses": {"seg": z.square().mean(), "depth": (z - 1).square().mean()}}
        >>> model = Model()
        >>> trainer = BalancedTrainer(
        ...     model,
        ...     TrainingArguments(tempfile.mkdtemp(), use_cpu=True, report_to=[]),
        ...     balancer=cp.CAGrad(["seg", "depth"]),
        ...     shared=model.encoder.parameters(),
        ... )
        >>> trainer.compute_loss(model, {"x": torch.ones(2, 4)}).requires_grad
        True
    """

    def __init__(
        self,
        *args: Any,
        balancer: Balancer,
        shared: Iterable[nn.Parameter] | None = None,
        losses_key: str = "losses",
        weights_on_progress_bar: bool = False,
        **kwargs: Any,
    ) -> None:
        check_needs(balancer, SUPPORTED_NEEDS, "BalancedTrainer")
        super().__init__(*args, **kwargs)
        self.balancer = balancer.to(self.args.device)
        self.shared = None if shared is None else list(shared)
        self.losses_key = losses_key
        self.weights_on_progress_bar = weights_on_progress_bar
        self.model_accepts_loss_kwargs = False  # so the Trainer divides by the accumulation steps
        self.can_return_loss = True  # also for a model without an argument whose name contains "label"
        self.add_callback(_BalancerCallback(self))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor | tuple[Tensor, Any]:
        """Return the balanced loss, or in evaluation the sum of the losses; `num_items_in_batch` is ignored."""
        del num_items_in_batch  # each loss is already a mean
        wrapper = self._ddp(model)
        if wrapper is not None:
            wrapper.require_backward_grad_sync = False
        outputs = model(**inputs)
        losses = outputs.get(self.losses_key) if isinstance(outputs, Mapping) else None
        if losses is None:
            found = f"the keys {list(outputs)}" if isinstance(outputs, Mapping) else type(outputs).__name__
            raise KeyError(
                f"the model's output has no key {self.losses_key!r} (got {found}): return a dict of losses by task "
                f"under this key, or pass losses_key= to BalancedTrainer"
            )
        if not model.training:
            loss, outputs = self._sum_losses(losses, outputs)
        else:
            with explain_shared(self.balancer, "shared= of BalancedTrainer", "pass shared= to BalancedTrainer"):
                loss = self.balancer.loss(losses, shared=self.shared)
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Run one training step; under DDP with a gradient-space balancer, also average the gradients over ranks."""
        loss: Tensor = super().training_step(model, *args, **kwargs)
        if self._ddp(model) is not None and self.accelerator.sync_gradients:
            average_gradients(model.parameters())
        return loss

    def _ddp(self, model: nn.Module) -> DistributedDataParallel | None:
        if isinstance(model, DistributedDataParallel) and isinstance(self.balancer, Aggregation):
            return model
        return None

    def _sum_losses(self, losses: Mapping[str, Tensor | None], outputs: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """Return the sum of the present losses, and the output with NaN for absent ones, as gathering requires."""
        names, fixed = self.balancer._order, self.balancer.fixed
        values, _, _ = collect_losses(losses, names, (), self.args.device)
        present = dict(zip(names, values.unbind(), strict=True))
        terms = values * values.new_tensor([fixed.get(name, 1.0) for name in names])
        return torch.where(torch.isfinite(terms), terms, 0.0).sum(), {**outputs, self.losses_key: present}

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """Create the optimiser, with a group for the balancer's parameters."""
        is_new = self.optimizer is None
        optimizer: torch.optim.Optimizer = super().create_optimizer(*args, **kwargs)
        if is_new:
            for group in self.balancer.param_groups():
                optimizer.add_param_group(group)
        network = [] if self.model is None else self.model.parameters()
        advice = "add the groups balancer.param_groups() to the optimiser that you pass to BalancedTrainer"
        check_optimisers(self.balancer, [optimizer], network, advice)
        return optimizer

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the scalars of the balancer together with the loss."""
        scalars = readings(self.balancer)
        if "loss" in logs and scalars:
            device = self.args.device  # a fixed loss may be on another one
            values = torch.stack([value.to(device, torch.float32) for value in scalars.values()]).tolist()
            logs = logs | dict(zip(scalars, values, strict=True))
        super().log(logs, *args, **kwargs)

    def train(
        self, resume_from_checkpoint: str | os.PathLike[str] | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train, and restore the state of the balancer if a run is resumed.

        Args:
            resume_from_checkpoint (str, os.PathLike or bool, optional): As in `Trainer.train`. Default: `None`.
            *args: Further arguments of `Trainer.train`.
            **kwargs: Further arguments of `Trainer.train`.

        Returns:
            TrainOutput: The result of `Trainer.train`.

        Raises:
            FileNotFoundError: If the checkpoint was not written by a BalancedTrainer.
        """
        if isinstance(resume_from_checkpoint, os.PathLike):
            resume_from_checkpoint = os.fspath(resume_from_checkpoint)
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            from transformers.trainer_utils import get_last_checkpoint

            checkpoint = get_last_checkpoint(self.args.output_dir)
        if isinstance(checkpoint, str):
            path = Path(checkpoint) / BALANCER_FILE
            if not path.exists():
                raise FileNotFoundError(f"{path} is missing: this checkpoint was not written by a BalancedTrainer")
            self.balancer.load_state_dict(torch.load(path, map_location=self.args.device, weights_only=True))
        return super().train(resume_from_checkpoint, *args, **kwargs)


class _BalancerCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Save the balancer with every checkpoint, clear its gradients, call `epoch_end`, and show the weights."""

    def __init__(self, trainer: BalancedTrainer) -> None:
        self.trainer = trainer

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not args.should_save:
            return
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / BALANCER_FILE
        with atomic_path(path) as temporary:
            torch.save(self.trainer.balancer.state_dict(), temporary)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.balancer.zero_grad()  # the Trainer clears the gradients of the model only

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End the previous epoch, even if it ran before the run was resumed.

        A run resumed within an epoch has a fractional `state.epoch`.
        """
        if state.epoch and state.epoch == int(state.epoch):
            self.trainer.balancer.epoch_end()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not self.trainer.weights_on_progress_bar:
            return
        weights = {name: f"{value:.3g}" for name, value in (logs or {}).items() if name.startswith("weight/")}
        for callback in self.trainer.callback_handler.callbacks:
            bar = callback.training_bar if isinstance(callback, ProgressCallback) else None
            if bar is not None and weights:
                bar.set_postfix(weights, refresh=False)
