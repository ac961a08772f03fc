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
    optimisation call `self.manual_backward(self.balance(losses))`. Weights and chart go to the module's logger, from
    `on_after_backward`.

    Lightning scales the loss (16-mixed), divides it (accumulation), clips and steps as always; it clips the network
    alone, never θ together with it. Under DDP a gradient-space balancer reaches each parameter T times, which DDP does
    not allow: its own averaging is switched off, and gradients are averaged here, in `backward`.
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

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(loss, *args, **kwargs)  # type: ignore[misc]
        if self._ddp() is not None:
            # What the balancer has averaged stays as it is; what came by another way (a plain loss) is averaged now.
            average_gradients(self.parameters())  # type: ignore[attr-defined]

    def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
        learned = [(parameter, parameter.grad) for parameter in self.balancer.parameters()]
        for parameter, _ in learned:
            parameter.grad = None
        try:
            super().clip_gradients(*args, **kwargs)  # type: ignore[misc]
        finally:
            for parameter, grad in learned:
                parameter.grad = grad

    def on_after_backward(self) -> None:
        super().on_after_backward()  # type: ignore[misc]
        every = self.trainer.log_every_n_steps
        if self.trainer.loggers and every and (self.trainer.global_step + 1) % every == 0:
            self.log_dict(readings(self.balancer))  # type: ignore[attr-defined]

    def _ddp(self) -> DistributedDataParallel | None:
        wrapper = self.trainer.strategy.model
        wrapped = isinstance(wrapper, DistributedDataParallel) and isinstance(self.balancer, Aggregation)
        return wrapper if wrapped else None

    def _before_step(self) -> None:
        """Ends an epoch with the first batch of the next: a run resumed between the two tells the balancer, too."""
        wrapper = self._ddp()
        if wrapper is not None:
            wrapper.require_backward_grad_sync = False
        if self.trainer.training:
            loop, epoch = self.trainer.fit_loop, self.trainer.current_epoch
            if epoch > 0 and loop.epoch_loop.batch_idx == 0 and self.__dict__.get("_epoch") != epoch:
                self.balancer.epoch_end()
            self.__dict__["_epoch"] = epoch


def _balanced(step: Callable[..., Any]) -> Callable[..., Any]:
    """All that must happen is here and in `backward`: hooks of Lightning are overridden without a call of super()."""

    @functools.wraps(step)
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__.get("_in_step"):
            return step(self, *args, **kwargs)  # of a parent class: what it returns is for its child
        if self._trainer is not None:  # without one it is a plain call
            self._before_step()
        self.__dict__["_in_step"] = True
        try:
            found = step(self, *args, **kwargs)
        finally:
            del self.__dict__["_in_step"]
        several = isinstance(found, Mapping) and ("loss" not in found or set(found) <= set(self.balancer.tasks))
        return self.balance(found) if several and self.automatic_optimization else found

    return training_step
