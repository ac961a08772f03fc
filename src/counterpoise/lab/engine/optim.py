"""An optimiser for many replicas at once, each with its own learning rate, decay, clip and gradient norm."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .config import Run, Schedule

BETAS, EPS = (0.9, 0.999), 1e-8
EPOCH_DECAY = 0.9  # of an exponential schedule
CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_


class ReplicaOptimizer:
    """Optimise the parameters of R replicas as one (R, P) matrix.

    The parameters become views of the matrix, so the number of operations per step does not depend on their number.
    Each row is updated as by `torch.optim.Adam` (coupled decay), `AdamW` (decoupled decay) or `SGD`. torch has no
    optimiser with a learning rate and a clip for each row.

    Args:
        parameters: tensors of shape (R, …); any shape if R is 1.
        replicas: R.
        optimizer: "adam", "adamw" or "sgd".
        lr: the learning rate of each replica.
        weight_decay: the weight decay of each replica.
        clip: the largest gradient norm of each replica; None for no clipping.
        gain: multiplies the gradient of each replica before clipping.
        decay_mask: for each parameter whether weight decay applies to it; None for all.
        capturable: count the steps on the device, so that a CUDA graph can replay a step.
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
        decay_mask: Sequence[bool] | None = None,
        capturable: bool = False,
    ) -> None:
        self.parameters, self.replicas, self.optimizer = list(parameters), replicas, optimizer
        self.value = torch.cat([p.detach().reshape(replicas, -1) for p in self.parameters], 1)
        for parameter, part in zip(self.parameters, self.split(self.value), strict=True):
            parameter.data = part
        self.lr, self.weight_decay = self._column(lr), self._column(weight_decay)
        if decay_mask is not None and not all(decay_mask):
            parts = zip(self.parameters, decay_mask, strict=True)
            mask = torch.cat([torch.full((p.numel() // replicas,), float(decays)) for p, decays in parts])
            self.weight_decay = self.weight_decay * mask.to(self.value)
        self.clip = self._column([math.inf if c is None else c for c in clip])
        self.gain = None if gain is None or set(gain) == {1.0} else self._column(gain)
        self.mean, self.square = torch.zeros_like(self.value), torch.zeros_like(self.value)
        device = self.value.device
        self.steps: int | Tensor = torch.zeros((), dtype=torch.float64, device=device) if capturable else 0
        self.gradient: Tensor | None = None
        self.norm = torch.zeros_like(self.lr)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameters, in the form that a GradScaler reads."""
        return [{"params": self.parameters}]

    def split(self, matrix: Tensor) -> list[Tensor]:
        """Split an (R, P) matrix into tensors with the shapes of the parameters."""
        sizes = [p.numel() // self.replicas for p in self.parameters]
        return [part.view(p.shape) for p, part in zip(self.parameters, matrix.split(sizes, 1), strict=True)]

    @torch.no_grad()
    def gather_gradients(self) -> None:
        """Collect the gradients in one matrix, compute the norm of each row, and clear the parameters' gradients."""
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        gradient = torch.cat([part.reshape(self.replicas, -1) for part in parts], 1)
        for parameter in self.parameters:
            parameter.grad = None
        self.set_gradient(gradient)

    def set_gradient(self, gradient: Tensor) -> None:
        """Set the gradients (R, P) of the next step, and compute the norm of each row. The matrix is overwritten."""
        self.gradient = gradient
        if self.gain is not None:
            self.gradient.mul_(self.gain)
        self.norm = torch.linalg.vector_norm(self.gradient, dim=1, keepdim=True)

    @torch.no_grad()
    def step(self, factor: Tensor | float = 1.0) -> None:
        """Take a step with the learning rate lr × factor.

        `factor` may be a column (R, 1), with 0 for replicas that have stopped. Each row is clipped by `norm`, which the
        caller may have extended to other optimisers after `gather_gradients`.
        """
        if self.gradient is None:
            self.gather_gradients()
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
        correction = 1 - BETAS[1] ** self.steps
        root = correction.sqrt() if isinstance(correction, Tensor) else math.sqrt(correction)
        spread = self.square.sqrt().div_(root).add_(EPS)
        self.value.addcdiv_(self.mean * (lr / (1 - BETAS[0] ** self.steps)), spread, value=-1)

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(list(values), dtype=self.value.dtype, device=self.value.device).unsqueeze(1)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "mean": self.mean, "square": self.square, "steps": self.steps}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("value", "mean", "square"):
            getattr(self, name).copy_(state[name])
        if isinstance(self.steps, Tensor):
            self.steps.copy_(state["steps"])
        else:
            self.steps = state["steps"]


def network_optimizer(parameters: Sequence[nn.Parameter], runs: Sequence[Run], **options: Any) -> ReplicaOptimizer:
    """Return the optimiser of the networks of some runs, with further options of `ReplicaOptimizer`."""
    return ReplicaOptimizer(
        parameters,
        len(runs),
        optimizer=runs[0].schedule.optimizer,
        lr=[run.network_lr for run in runs],
        weight_decay=[run.schedule.weight_decay for run in runs],
        clip=[run.network_clip for run in runs],
        gain=[run.recipe.network_gain for run in runs],
        **options,
    )


def schedule_factor(schedule: Schedule, step: int, total: int, lr: float) -> float:
    """Return the factor of `lr` at `step` (from 0) of `total`: linear warm-up, then constant or decay.

    An exponential schedule counts epochs instead of steps.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.decay == "constant":
        return 1.0
    if schedule.decay == "exponential":
        return float(EPOCH_DECAY**step)
    done = (step - schedule.warmup_steps) / max(total - schedule.warmup_steps, 1)
    end = schedule.lr_end / lr if lr else 0.0
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
