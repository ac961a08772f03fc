"""Lightning: a mixin for modules whose training step returns a dict of losses."""

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .._checks import BalanceWarning
from ..aggregation import Aggregation
from ..balancer import Balancer
from ..distributed import average_gradients
from ..inputs import format_names
from ._messages import check_optimisers, explain_shared
from .readings import given_tasks, readings

OPTIMISER_ADVICE = (
    "in configure_optimizers, pass the groups [{'params': self.network_parameters()}, *self.balancer.param_groups()]"
)


class Balanced:
    """A mixin for a LightningModule whose `training_step` returns a dict of losses.

    Works with `lightning` and with `pytorch_lightning`. List it before `LightningModule` in the bases of your class;
    set `self.balancer`; return the losses by task from `training_step`; and add `self.balancer.param_groups()` to the
    optimiser. For a balancer that compares gradients, override `shared_parameters`. To return other values as well, or
    to pass further arguments to the balancer, return `{"loss": self.balance(losses, …), …}`. With manual optimisation,
    call `self.manual_backward(self.balance(losses))`.

    The scalars of `readings` are logged in `on_after_backward`: losses, weights and learned values by task. Lightning
    repeats the last values of a task that is absent in the logged step.

    Mixed precision, gradient accumulation and checkpoints work as usual. Gradient clipping applies to the network
    alone, not to the parameters of the balancer. Under DDP, a gradient-space balancer runs T backward passes through
    each parameter, which DDP does not support; DDP's gradient averaging is disabled, and `backward` averages instead.

    Attributes:
        balancer (Balancer): Any balancer. Set it in `__init__`.
        weights_on_progress_bar (bool): Whether the progress bar shows the weights of the tasks. This synchronises with
            the device whenever the bar is refreshed. Default: `False`.

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
    weights_on_progress_bar: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if any(base.__name__ == "LightningModule" for base in cls.__mro__[: cls.__mro__.index(Balanced)]):
            raise TypeError(
                f"LightningModule precedes Balanced in the bases of {cls.__name__}, so that its hooks replace those of "
                f"Balanced: list Balanced first"
            )
        if "training_step" in cls.__dict__:
            cls.training_step = _with_balancer(cls.__dict__["training_step"])  # type: ignore[attr-defined]

    def shared_parameters(self) -> Iterable[nn.Parameter] | None:
        """Return the parameters that all tasks share. Override it if the balancer compares gradients.

        Returns:
            iterable of nn.Parameter or None: The parameters; `None` by default.
        """
        return None

    def network_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the module without those of the balancer, for the groups of an optimiser.

        Returns:
            list of nn.Parameter: The parameters, in the order of `parameters()`.
        """
        learned = {id(parameter) for parameter in self.balancer.parameters()}
        return [parameter for parameter in self.parameters() if id(parameter) not in learned]  # type: ignore[attr-defined]

    def balance(self, losses: Mapping[str, Tensor | None], **needs: Any) -> Tensor:
        """Combine losses to one scalar.

        The mixin calls it if `training_step` returns a dict of losses. Call it yourself with manual optimisation, or
        for a method that takes further arguments.

        Args:
            losses (mapping of str to Tensor or None): The losses by task; None for an absent task.
            **needs: Further arguments of `Balancer.loss`, such as `features` or `kpis`.

        Returns:
            Tensor: The scalar to differentiate.

        Raises:
            ValueError: If the balancer needs shared parameters, and `shared_parameters` is not overridden.
        """
        needs.setdefault("shared", self.shared_parameters())
        source = f"returned by {type(self).__name__}.shared_parameters()"
        with explain_shared(self.balancer, source, "override shared_parameters() to return them"):
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
        """Log the scalars of the balancer every `log_every_n_steps` steps; on the progress bar, the weights always."""
        super().on_after_backward()  # type: ignore[misc]
        every = self.trainer.log_every_n_steps
        is_due = bool(self.trainer.loggers and every and (self.trainer.global_step + 1) % every == 0)
        scalars = readings(self.balancer) if is_due else {}
        if self.weights_on_progress_bar:
            weights = given_tasks(self.balancer, "weight", self.balancer.weights)
            self.log_dict(weights, prog_bar=True)  # type: ignore[attr-defined]
            scalars = {name: value for name, value in scalars.items() if name not in weights}
        self.log_dict(scalars)  # type: ignore[attr-defined]

    def _ddp(self) -> DistributedDataParallel | None:
        wrapper = self.trainer.strategy.model
        wrapped = isinstance(wrapper, DistributedDataParallel) and isinstance(self.balancer, Aggregation)
        return wrapper if wrapped else None

    def _before_step(self) -> None:
        """Prepare DDP; at the first batch of an epoch, check the optimisers and call `epoch_end` of the last epoch.

        At this point `epoch_end` is also called in a run that was resumed between two epochs.
        """
        wrapper = self._ddp()
        if wrapper is not None:
            wrapper.require_backward_grad_sync = False
        if self.trainer.training:
            loop, epoch = self.trainer.fit_loop, self.trainer.current_epoch
            if self.__dict__.get("_epoch") != epoch:
                if epoch > 0 and loop.epoch_loop.batch_idx == 0:
                    self.balancer.epoch_end()
                network = self.network_parameters()
                check_optimisers(self.balancer, self.trainer.optimizers, network, OPTIMISER_ADVICE)
            self.__dict__["_epoch"] = epoch

    def _balance_output(self, output: Any, was_balanced: bool) -> Any:
        """Balance the losses that `training_step` has returned; return any other output unchanged.

        Warn if training uses a loss that was computed without the balancer. A tensor may come from a phase that is not
        balanced, so that it is reported only if the balancer has never seen losses.
        """
        if isinstance(output, Tensor) and self.balancer._last.values is None:
            self._warn_unbalanced("a tensor", "Return the dict of losses by task, or self.balance(losses)")
        if not isinstance(output, Mapping):
            return output
        names = (*self.balancer.tasks, *self.balancer.fixed)
        unknown = [name for name in output if name not in names]
        other = "to return other values as well, return {'loss': self.balance(losses), …}"
        if not unknown:
            return self.balance(output)
        if "loss" not in output:
            near = get_close_matches(str(unknown[0]), names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            expected = f"expected losses of some of {format_names(names)}{hint}"
            raise ValueError(f"training_step returned the unknown task {unknown[0]!r}, {expected} ({other})")
        if not was_balanced:
            self._warn_unbalanced("a dict with the key 'loss'", f"Return the losses by task alone; {other}")
        return output

    def _warn_unbalanced(self, output: str, advice: str) -> None:
        """Warn once that training uses a loss that was computed without the balancer."""
        if not self.__dict__.get("_warned"):
            self.__dict__["_warned"] = True
            warnings.warn(
                f"training_step returned {output}, which was computed without the balancer: training is not balanced. "
                f"{advice}",
                BalanceWarning,
                stacklevel=4,
            )


def _with_balancer(step: Callable[..., Any]) -> Callable[..., Any]:
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
        previous = self.balancer._last.values
        try:
            output = step(self, *args, **kwargs)
        finally:
            del self.__dict__["_in_step"]
        if not self.automatic_optimization:
            return output
        return self._balance_output(output, was_balanced=self.balancer._last.values is not previous)

    return training_step
