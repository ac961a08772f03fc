"""Lightning: a mixin for modules whose training step returns a dict of losses."""

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
    """A mixin for a LightningModule whose `training_step` returns a dict of losses.

    Works with `lightning` and with `pytorch_lightning`. List it before `LightningModule` in the bases of your class;
    set `self.balancer`; return the losses by task from `training_step`; and add `self.balancer.param_groups()` to the
    optimiser. For a gradient-space balancer, override `shared_parameters`. With manual optimisation, call
    `self.manual_backward(self.balance(losses))`. The scalars of `readings` are logged in `on_after_backward`.

    Mixed precision, gradient accumulation and checkpoints work as usual. Gradient clipping applies to the network
    alone, not to the parameters of the balancer. Under DDP, a gradient-space balancer runs T backward passes through
    each parameter, which DDP does not support; DDP's gradient averaging is disabled, and `backward` averages instead.

    Attributes:
        balancer (Balancer): Any balancer. Set it in `__init__`.

    Example:
        >>> import counterpoise as cp
        >>> from lightning import LightningModule
        >>> class Model(Balanced, LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.encoder = nn.Linear(4, 8)
        ...         self.heads = nn.ModuleDict({"seg": nn.Linear(8, 1), "depth": nn.Linear(8, 1)})
        ...         self.balancer = cp.CAGrad(["seg", "depth"])
        ...
        ...     def shared_parameters(self):
        ...         return self.encoder.parameters()
        ...
        ...     def training_step(self, batch, batch_idx):
        ...         z = self.encoder(batch)
        ...         return {task: head(z).square().mean() for task, head in self.heads.items()}
        >>> loss = Model().training_step(torch.ones(2, 4), 0)
        >>> loss.requires_grad
        True
    """

    balancer: Balancer
    trainer: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "training_step" in cls.__dict__:
            cls.training_step = _balance_output(cls.__dict__["training_step"])  # type: ignore[attr-defined]

    def shared_parameters(self) -> Iterable[nn.Parameter] | None:
        """Return the parameters that all tasks share. Override it if the balancer is a gradient-space method.

        Returns:
            iterable of nn.Parameter or None: The parameters; `None` by default.
        """
        return None

    def balance(self, losses: Mapping[str, Tensor | None], **needs: Any) -> Tensor:
        """Combine losses to one scalar. Call it yourself only with manual optimisation.

        Args:
            losses (mapping of str to Tensor or None): The losses by task; None for an absent task.
            **needs: Further arguments of `Balancer.loss`, such as `features` or `kpis`.

        Returns:
            Tensor: The scalar to differentiate.
        """
        shared = self.shared_parameters() if isinstance(self.balancer, Aggregation) else None
        if shared is not None:
            needs.setdefault("shared", shared)
        return self.balancer.loss(losses, **needs)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass; under DDP with a gradient-space balancer, also average the gradients over ranks."""
        super().backward(loss, *args, **kwargs)  # type: ignore[misc]
        if self._ddp() is not None:
            # Gradients that the balancer has averaged do not change; others, such as those of a plain loss, do.
            average_gradients(self.parameters())  # type: ignore[attr-defined]

    def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Clip the gradients of the network, without those of the balancer."""
        learned = [(parameter, parameter.grad) for parameter in self.balancer.parameters()]
        for parameter, _ in learned:
            parameter.grad = None
        try:
            super().clip_gradients(*args, **kwargs)  # type: ignore[misc]
        finally:
            for parameter, grad in learned:
                parameter.grad = grad

    def on_after_backward(self) -> None:
        """Log the scalars of the balancer every `log_every_n_steps` steps."""
        super().on_after_backward()  # type: ignore[misc]
        every = self.trainer.log_every_n_steps
        if self.trainer.loggers and every and (self.trainer.global_step + 1) % every == 0:
            self.log_dict(readings(self.balancer))  # type: ignore[attr-defined]

    def _ddp(self) -> DistributedDataParallel | None:
        wrapper = self.trainer.strategy.model
        wrapped = isinstance(wrapper, DistributedDataParallel) and isinstance(self.balancer, Aggregation)
        return wrapper if wrapped else None

    def _before_step(self) -> None:
        """Prepare DDP, and call `epoch_end` at the first batch of the next epoch.

        At this point `epoch_end` is also called in a run that was resumed between two epochs.
        """
        wrapper = self._ddp()
        if wrapper is not None:
            wrapper.require_backward_grad_sync = False
        if self.trainer.training:
            loop, epoch = self.trainer.fit_loop, self.trainer.current_epoch
            if epoch > 0 and loop.epoch_loop.batch_idx == 0 and self.__dict__.get("_epoch") != epoch:
                self.balancer.epoch_end()
            self.__dict__["_epoch"] = epoch


def _balance_output(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `training_step` to balance the losses that it returns.

    Required steps are here and in `backward`, because users override Lightning's hooks without calling super().
    """

    @functools.wraps(step)
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.__dict__.get("_in_step"):
            return step(self, *args, **kwargs)  # a call of super().training_step(): its losses are for the subclass
        if self._trainer is not None:  # called without a trainer
            self._before_step()
        self.__dict__["_in_step"] = True
        try:
            output = step(self, *args, **kwargs)
        finally:
            del self.__dict__["_in_step"]
        is_losses = isinstance(output, Mapping) and ("loss" not in output or set(output) <= set(self.balancer.tasks))
        return self.balance(output) if is_losses and self.automatic_optimization else output

    return training_step
