"""Look for the learned parameter of a balancer in the optimisers of the training loop."""

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import SGD
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

if TYPE_CHECKING:
    from .balancer import Balancer

UNTRAINED_STEPS = 100  # optimiser steps without the balancer's parameter
LARGEST_SGD_RATE = 0.1  # of lr × theta_gain; with 1, θ of BPGS leaves the region in which it can return


def watch_optimisers(balancer: "Balancer", parameter: Tensor) -> None:
    """Watch the steps of all optimisers until one contains the parameter."""
    _hook.watches.append(_OptimiserWatch(balancer, parameter))
    _hook.update()


def release_hook() -> None:
    """Remove the hook on optimisers if no parameter is being looked for."""
    if not _hook.watches:
        _hook.update()


class _OptimiserHook:
    """One hook on the steps of all optimisers, registered while a balancer's parameter is being looked for."""

    def __init__(self) -> None:
        self.watches: list[_OptimiserWatch] = []
        self._handle: Any = None

    def update(self) -> None:
        """Register or remove the hook. A hook must not remove itself: torch iterates over the hooks."""
        if self.watches and self._handle is None:
            self._handle = register_optimizer_step_pre_hook(self)
        elif not self.watches and self._handle is not None:
            self._handle.remove()
            self._handle = None

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        if self.watches and not torch.compiler.is_compiling():
            self.watches = [watch for watch in self.watches if not watch.is_done(optimizer)]


class _OptimiserWatch:
    """Look for the balancer's parameter in optimisers.

    Warn if it has weight decay, or if no optimiser contains it.
    """

    def __init__(self, balancer: "Balancer", parameter: Tensor) -> None:
        self._balancer = weakref.ref(balancer)
        self._parameter = weakref.ref(parameter)
        self._version: int | None = None
        self._steps = 0

    def is_done(self, optimizer: Optimizer) -> bool:
        """Look at the groups of an optimiser; return whether the result is known."""
        balancer, parameter = self._balancer(), self._parameter()
        if balancer is None or parameter is None or not parameter.requires_grad:
            return True
        for group in optimizer.param_groups:
            if any(other is parameter for other in group["params"]):
                self._check_decay(balancer, group)
                self._check_rate(balancer, optimizer, group)
                return True
        return self._is_untrained(balancer, parameter)

    def _check_decay(self, balancer: "Balancer", group: dict[str, Any]) -> None:
        decay = group.get("weight_decay", 0.0)
        if isinstance(decay, (int, float)) and decay != 0:
            name = type(balancer).__name__
            balancer._checks.warn(
                "decay",
                f"the learned parameter of {name} is in an optimiser group with weight_decay={decay}, which pulls the "
                f"weights of the tasks together. Give it a group of its own, *balancer.param_groups(); if the balancer "
                f"is a submodule of the model, leave its parameters out of the model's group",
            )

    def _check_rate(self, balancer: "Balancer", optimizer: Optimizer, group: dict[str, Any]) -> None:
        gain, lr = getattr(balancer, "theta_gain", 0.0), group.get("lr")
        if isinstance(optimizer, SGD) and isinstance(lr, (int, float)) and gain * lr > LARGEST_SGD_RATE:
            name = type(balancer).__name__
            balancer._checks.warn(
                "rate",
                f"the learned parameter of {name} is trained by SGD with lr={lr:g}, and its gradient is multiplied by "
                f"theta_gain={gain:g}: with a product above {LARGEST_SGD_RATE:g}, tasks can lose all their weight. Use "
                f"*balancer.param_groups(lr={LARGEST_SGD_RATE / gain:g})",
            )

    def _is_untrained(self, balancer: "Balancer", parameter: Tensor) -> bool:
        """Count the steps of optimisers without the parameter, while nothing else changes it; warn after many."""
        if self._version != parameter._version:
            self._version, self._steps = parameter._version, 0
        self._steps += 1
        if self._steps < UNTRAINED_STEPS:
            return False
        if parameter.grad is not None:
            name = type(balancer).__name__
            balancer._checks.warn(
                "untrained",
                f"no optimiser contains the learned parameter of {name}, so its weights are not learned: add "
                f"*balancer.param_groups() to the optimiser, or call balancer.requires_grad_(False)",
            )
        return True


_hook = _OptimiserHook()
