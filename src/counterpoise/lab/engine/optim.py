"""Optimisers for a stack of replicas: each has its own rate, decay, clip and gradient norm."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .config import Schedule

BETAS, EPS = (0.9, 0.999), 1e-8
CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class Group:
    """The parameters of R replicas as one (R, P) matrix, and the optimiser that moves it.

    The parameters become views of the matrix, so a step is a dozen operations however many there are. The update is
    that of `torch.optim.Adam` (decay coupled), `AdamW` (decoupled) or `SGD`, row by row.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        replicas: int,
        *,
        optimizer: str,
        lr: Sequence[float],
        weight_decay: Sequence[float],
        clip: Sequence[float | None],
        gain: Sequence[float] | None = None,
        decaying: Sequence[bool] | None = None,
    ) -> None:
        self.parameters, self.replicas, self.optimizer = list(parameters), replicas, optimizer
        self.value = torch.cat([p.detach().reshape(replicas, -1) for p in self.parameters], 1)
        for parameter, part in zip(self.parameters, self.split(self.value), strict=True):
            parameter.data = part
        self.lr, self.weight_decay = self._column(lr), self._column(weight_decay)
        if decaying is not None and not all(decaying):  # some parameters are spared
            parts = zip(self.parameters, decaying, strict=True)
            spared = torch.cat([torch.full((p.numel() // replicas,), float(decays)) for p, decays in parts])
            self.weight_decay = self.weight_decay * spared.to(self.value)
        self.clip = self._column([math.inf if c is None else c for c in clip])
        self.gain = None if gain is None or set(gain) == {1.0} else self._column(gain)
        self.mean, self.square = torch.zeros_like(self.value), torch.zeros_like(self.value)
        self.steps = 0
        self.gradient: Tensor | None = None
        self.norm = torch.zeros_like(self.lr)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """What a GradScaler looks at."""
        return [{"params": self.parameters}]

    def split(self, matrix: Tensor) -> list[Tensor]:
        """An (R, P) matrix cut into the shapes of the parameters."""
        sizes = [p.numel() // self.replicas for p in self.parameters]
        return [part.view(p.shape) for p, part in zip(self.parameters, matrix.split(sizes, 1), strict=True)]

    @torch.no_grad()
    def gather(self) -> None:
        """Takes the gradients over as one matrix, with the norm of each row; the parameters give theirs up."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.gradient = torch.cat([part.reshape(self.replicas, -1) for part in parts], 1)
        for parameter in self.parameters:
            parameter.grad = None
        if self.gain is not None:
            self.gradient.mul_(self.gain)
        self.norm = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True)

    @torch.no_grad()
    def step(self, factor: Tensor | float = 1.0) -> None:
        """One step at lr × factor; `factor` may be a column (R, 1), 0 for a replica that has stopped.

        Gradients are clipped row by row by `norm`, which whoever gathered them may have widened to further groups.
        """
        if self.gradient is None:
            self.gather()
        assert self.gradient is not None
        gradient, self.gradient = self.gradient, None
        gradient.mul_((self.clip / (self.norm + CLIP_EPS)).clamp_max(1.0))
        lr = self.lr * factor
        if self.optimizer != "adamw":
            gradient.addcmul_(self.value, self.weight_decay)
        else:
            self.value.mul_(1 - lr * self.weight_decay)
        self.steps += 1
        if self.optimizer == "sgd":
            self.value.addcmul_(gradient, lr, value=-1)
            return
        self.mean.lerp_(gradient, 1 - BETAS[0])
        self.square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        spread = self.square.sqrt().div_(math.sqrt(1 - BETAS[1] ** self.steps)).add_(EPS)
        self.value.addcdiv_(self.mean * (lr / (1 - BETAS[0] ** self.steps)), spread, value=-1)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=self.value.dtype, device=self.value.device).unsqueeze(1)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "mean": self.mean, "square": self.square, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("value", "mean", "square"):
            getattr(self, name).copy_(state[name])
        self.steps = state["steps"]


def schedule_factor(schedule: Schedule, step: int, total: int, lr: float) -> float:
    """The share of `lr` that step number `step` (from 0) of `total` takes: linear warm-up, then constant or cosine."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.decay == "constant":
        return 1.0
    done = (step - schedule.warmup_steps) / max(total - schedule.warmup_steps, 1)
    end = schedule.lr_end / lr if lr else 0.0
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
