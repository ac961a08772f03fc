"""How dense prediction is stepped: rates, scale and overflows stay on the device, and the host never looks."""

from typing import Any

import torch
from torch import Tensor, nn

import counterpoise as cp

from .config import Run
from .optim import schedule_factor

UNDECAYED = ("normals",)  # heads without weight decay: the authors spared names that contain "norm"


class DenseOptimizers:
    """AdamW for the network, another for what the method learns, and the GradScaler between them."""

    def __init__(self, run: Run, network: nn.Module, balancer: cp.Balancer, steps: int) -> None:
        self.run, self.network, self.balancer = run, network, balancer
        self.recipe = run.recipe.weighting or run.recipe
        if run.schedule.optimizer != "adamw" or self.recipe.optimizer != "adam":
            raise ValueError(f"{run}: dense prediction is trained by AdamW, not by {run.schedule.optimizer}")
        kind = torch.device(run.device).type
        self.scaler = torch.amp.GradScaler(kind) if run.schedule.precision == "fp16" else None
        total, lr = run.schedule.epochs * steps, run.network_lr
        rates = [lr * schedule_factor(run.schedule, step, total, lr) for step in range(total)]
        self.lr_table = torch.tensor(rates).to(run.device)
        self.taken = torch.zeros(1, dtype=torch.long, device=run.device)  # steps that no overflow has skipped
        options: dict[str, Any] = {"fused": True, "capturable": True} if kind == "cuda" else {}
        groups = [self._network_groups()]
        self.shares = [1.0]  # what each optimiser takes of the network's rate
        coordinates = list(balancer.parameters())
        if coordinates:
            groups.append([{"params": coordinates, "weight_decay": self.recipe.weight_decay}])
            self.shares.append(1.0 if self.recipe.lr is None else self.recipe.lr / lr)
        # Rates are tensors on the device: changing them waits for nothing.
        self.each = [torch.optim.AdamW(g, lr=torch.zeros((), device=run.device), **options) for g in groups]

    def _network_groups(self) -> list[dict[str, Any]]:
        decayed: list[nn.Parameter] = []
        spared: list[nn.Parameter] = []
        for name, module in self.network.named_modules():
            for own, parameter in module.named_parameters(recurse=False):
                plain = isinstance(module, nn.BatchNorm2d) or own == "bias"
                spare = plain or any(f"heads.{head}." in f"{name}." for head in UNDECAYED)
                (spared if spare else decayed).append(parameter)
        decay = self.run.schedule.weight_decay
        return [{"params": decayed, "weight_decay": decay}, {"params": spared, "weight_decay": 0.0}]

    def zero_grad(self) -> None:
        for optimizer in self.each:
            optimizer.zero_grad()

    def step(self) -> None:
        """Unscales, clips, steps; after an overflow neither the parameters nor the schedule move."""
        at = self.taken.clamp_max(len(self.lr_table) - 1)
        rate = self.lr_table.index_select(0, at).squeeze(0)
        for optimizer, share in zip(self.each, self.shares, strict=True):
            for group in optimizer.param_groups:
                group["lr"].copy_(rate * share)
            if self.scaler is not None:
                self.scaler.unscale_(optimizer)
        self._clip()
        if self.scaler is None:
            for optimizer in self.each:
                optimizer.step()
            self.taken += 1
            return
        before = self._scale().clone()
        for optimizer in self.each:
            self.scaler.step(optimizer)
        self.scaler.update()
        self.taken += (self._scale() >= before).long()

    def _scale(self) -> Tensor:
        assert self.scaler is not None
        scale = self.scaler._get_scale_async()
        assert scale is not None, "backward scales before a step"
        return scale

    def _clip(self) -> None:
        run, recipe, own = self.run, self.recipe, list(self.balancer.parameters())
        network = list(self.network.parameters())
        if run.recipe.network_gain != 1.0:
            torch._foreach_mul_([p.grad for p in network if p.grad is not None], run.recipe.network_gain)
        if recipe.joined:
            network, own = [*network, *own], []
        if run.network_clip is not None:
            nn.utils.clip_grad_norm_(network, run.network_clip)
        if own and recipe.clip is not None:
            nn.utils.clip_grad_norm_(own, recipe.clip)

    def forget_scaling(self) -> None:
        """After a step that broke off: it may have unscaled already."""
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "taken": self.taken,
            "each": [optimizer.state_dict() for optimizer in self.each],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken.copy_(state["taken"])
        for optimizer, saved in zip(self.each, state["each"], strict=True):
            optimizer.load_state_dict(saved)
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
