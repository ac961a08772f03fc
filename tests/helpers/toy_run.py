"""A toy training run that can be saved, loaded and compared."""

import inspect
import io
from typing import Any

import torch
from torch import Tensor

import counterpoise as cp

from .toy import extra_arguments, problem, shared

EPOCH, PERIOD = 5, 4  # several epochs and periods pass in a short run


class ToyRun:
    """Training of the toy problem with one method, step by step."""

    def __init__(self, name: str) -> None:
        self.method = cp.describe(name)
        self.model, self.x, self.y = problem()
        period = {"every": PERIOD} if "every" in inspect.signature(self.method.build).parameters else {}
        self.balancer = cp.make(name, ["small", "large"], **period)
        groups = [{"params": self.model.parameters()}, *self.balancer.param_groups(lr=0.05)]
        self.optimizer = torch.optim.AdamW(groups, lr=0.01)
        self.step_count = 0

    def losses(self) -> Tensor:
        batch = slice(16 * (self.step_count % 8), 16 * (self.step_count % 8) + 16)
        errors: Tensor = (self.model(self.x[batch]) - self.y[batch]).square()
        return errors.mean(0)

    def backward(self, losses: Tensor, **options: Any) -> Tensor:
        extra = extra_arguments(self.method, losses, self.losses)
        return self.balancer.backward(losses, shared=shared(self.model, self.method), **extra, **options)

    def step(self) -> None:
        losses = self.losses()
        self.optimizer.zero_grad()
        self.backward(losses)
        self.optimizer.step()
        with torch.no_grad():
            self.balancer.step_end(self.losses())
        self.step_count += 1
        if self.step_count % EPOCH == 0:
            self.balancer.epoch_end()

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        parts: dict[str, Any] = {"model": self.model, "balancer": self.balancer, "optimizer": self.optimizer}
        torch.save({key: part.state_dict() for key, part in parts.items()} | {"step": self.step_count}, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.balancer.load_state_dict(state["balancer"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_count = state["step"]

    def load_network(self, other: "ToyRun") -> None:
        self.model.load_state_dict(other.model.state_dict())
        self.step_count = other.step_count

    def fingerprint(self) -> list[Tensor]:
        tensors = [*self.model.parameters(), *self.balancer.state_dict().values()]
        return [torch.nan_to_num(t.detach().float()) for t in tensors if isinstance(t, Tensor)]
