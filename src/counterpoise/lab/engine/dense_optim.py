"""The optimisers of dense prediction. Learning rates, loss scale and overflows stay on the device."""

from typing import Any

import torch
from torch import Tensor, nn

import counterpoise as cp

from .config import Run
from .optim import schedule_factor

HEADS_WITHOUT_DECAY = ("normals",)  # the paper's code excludes parameter names that contain "norm"


class DenseOptimizers:
    """AdamW for the network, a second AdamW for the parameters of the balancer, and their common GradScaler."""

    def __init__(self, run: Run, network: nn.Module, balancer: cp.Balancer, steps: int) -> None:
        self.run, self.network, self.balancer = run, network, balancer
        self.recipe = run.recipe.weighting or run.recipe
        if run.schedule.optimizer != "adamw" or self.recipe.optimizer != "adam":
            raise ValueError(
                f"{run}: dense prediction needs the optimizer 'adamw' with 'adam' for the method, got "
                f"{run.schedule.optimizer!r} with {self.recipe.optimizer!r}"
            )
        kind = torch.device(run.device).type
        self.scaler = torch.amp.GradScaler(kind) if run.schedule.precision == "fp16" else None
        total, lr = run.schedule.epochs * steps, run.network_lr
        rates = [lr * schedule_factor(run.schedule, step, total, lr) for step in range(total)]
        self.lr_table = torch.tensor(rates).to(run.device)
        self.taken = torch.zeros(1, dtype=torch.long, device=run.device)  # steps that were not skipped by an overflow
        options: dict[str, Any] = {"fused": True, "capturable": True} if kind == "cuda" else {}
        groups = [self._network_groups()]
        self.lr_ratios = [1.0]  # learning rate of each optimiser relative to the network's
        balancer_parameters = list(balancer.parameters())
        if balancer_parameters:
            groups.append([{"params": balancer_parameters, "weight_decay": self.recipe.weight_decay}])
            self.lr_ratios.append(1.0 if self.recipe.lr is None else self.recipe.lr / lr)
        # Learning rates are tensors, so that changing them does not synchronise with the device.
        self.optimizers = [torch.optim.AdamW(g, lr=torch.zeros((), device=run.device), **options) for g in groups]

    def _network_groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups with and without weight decay."""
        decayed: list[nn.Parameter] = []
        undecayed: list[nn.Parameter] = []
        for module_name, module in self.network.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                excluded = isinstance(module, nn.BatchNorm2d) or name == "bias"
                excluded |= any(f"heads.{head}." in f"{module_name}." for head in HEADS_WITHOUT_DECAY)
                (undecayed if excluded else decayed).append(parameter)
        decay = self.run.schedule.weight_decay
        return [{"params": decayed, "weight_decay": decay}, {"params": undecayed, "weight_decay": 0.0}]

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self) -> None:
        """Unscale and clip the gradients, then step. After an overflow, parameters and schedule stay unchanged."""
        at = self.taken.clamp_max(len(self.lr_table) - 1)
        rate = self.lr_table.index_select(0, at).squeeze(0)
        for optimizer, ratio in zip(self.optimizers, self.lr_ratios, strict=True):
            for group in optimizer.param_groups:
                group["lr"].copy_(rate * ratio)
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
        self._clip()
        if self.scaler is None:
            for optimizer in self.optimizers:
                optimizer.step()
            self.taken += 1
            return
        before = self._scale().clone()
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
        self.scaler.update()
        self.taken += (self._scale() >= before).long()

    def _scale(self) -> Tensor:
        assert self.scaler is not None
        scale = self.scaler._get_scale_async()
        assert scale is not None, "the scaler is initialised by the first backward pass"
        return scale

    def _clip(self) -> None:
        run, recipe = self.run, self.recipe
        network, balancer = list(self.network.parameters()), list(self.balancer.parameters())
        if run.recipe.network_gain != 1.0:
            torch._foreach_mul_([p.grad for p in network if p.grad is not None], run.recipe.network_gain)
        if recipe.joined:
            network, balancer = [*network, *balancer], []
        if run.network_clip is not None:
            nn.utils.clip_grad_norm_(network, run.network_clip)
        if balancer and recipe.clip is not None:
            nn.utils.clip_grad_norm_(balancer, recipe.clip)

    def reset_scaler(self) -> None:
        """Forget which gradients have been unscaled, after a step that was interrupted."""
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "taken": self.taken,
            "each": [optimizer.state_dict() for optimizer in self.optimizers],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken.copy_(state["taken"])
        for optimizer, saved in zip(self.optimizers, state["each"], strict=True):
            optimizer.load_state_dict(saved)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
