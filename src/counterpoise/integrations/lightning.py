"""Lightning: a LightningModule whose training step returns a dict of losses."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..aggregation import Aggregation
from ..balancer import Balancer
from ..distributed import average_gradients
from .readings import readings


class Balanced:
    """A mixin: `class Model(Balanced, LightningModule)`. Works with `lightning` and with `pytorch_lightning`.

    Set `self.balancer`, return a dict of losses by task from `training_step`, and pass `self.balancer.param_groups()`
    to the optimiser. For a gradient-space balancer say what all tasks share (`shared_parameters`). Under manual
    optimisation call `self.manual_backward(self.balance(losses))`. Weights and chart go to the module's logger.

    Lightning scales the loss (16-mixed), divides it (accumulation), clips and steps as always. Under DDP a
    gradient-space balancer reaches each parameter T times, which DDP does not allow: its own averaging is switched off,
    the balancer averages what is shared, and the rest is averaged here.
    """

    balancer: Balancer
    trainer: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "training_step" in cls.__dict__:
            cls.training_step = _balanced(cls.__dict__["training_step"])  # type: ignore[attr-defined]

    def shared_parameters(self) -> Iterable[nn.Parameter] | None:
        """The parameters that all tasks share; only gradient-space balancers need them."""
        return None

    def balance(self, losses: Mapping[str, Tensor | None], **needs: Any) -> Tensor:
        """One loss from many, to be differentiated once."""
        shared = self.shared_parameters() if isinstance(self.balancer, Aggregation) else None
        if shared is not None:
            needs.setdefault("shared", shared)
        return self.balancer.loss(losses, **needs)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        wrapper = self._ddp()
        if wrapper is not None:
            wrapper.require_backward_grad_sync = False
        return super().on_train_batch_start(batch, batch_idx)  # type: ignore[misc]

    def on_after_backward(self) -> None:
        super().on_after_backward()  # type: ignore[misc]
        if self._ddp() is not None:
            exact = isinstance(self.balancer, Aggregation) and self.balancer.ranks == "exact"
            done = {id(p) for p in self.shared_parameters() or ()} if exact else set()
            average_gradients(p for p in self.parameters() if id(p) not in done)  # type: ignore[attr-defined]
        if self.trainer.loggers and (self.trainer.global_step + 1) % self.trainer.log_every_n_steps == 0:
            self.log_dict(readings(self.balancer))  # type: ignore[attr-defined]

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()  # type: ignore[misc]
        self.balancer.epoch_end()

    def _ddp(self) -> DistributedDataParallel | None:
        wrapper = self.trainer.strategy.model
        wrapped = isinstance(wrapper, DistributedDataParallel) and isinstance(self.balancer, Aggregation)
        return wrapper if wrapped else None


def _balanced(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = step(self, *args, **kwargs)
        losses = isinstance(found, Mapping) and bool(found) and set(found) <= set(self.balancer.tasks)
        return self.balance(found) if losses else found

    return training_step
