"""A loss that runs a given backward pass, for frameworks that scale and differentiate the loss themselves."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .graph import graph_nodes


class FactorScaler:
    """Scale by a fixed factor, with the `scale` method of a GradScaler."""

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor

    def scale(self, outputs: Tensor) -> Tensor:
        """Return `outputs` times the factor."""
        return outputs * self.factor


class DeferredLoss(Tensor):
    """A loss that can be differentiated by `backward()` alone; other ways raise an error that says what to do."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.autograd.grad or _has_inputs(func, args, kwargs):
            raise RuntimeError(
                "the gradient of a gradient-space method is not the derivative of its loss: call loss.backward() "
                "without inputs=, and read the gradients from .grad"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        # Sums and multiples must be differentiated in the same way; detached results are plain tensors.
        if isinstance(result, Tensor) and result.grad_fn is not None:
            return result.as_subclass(cls)
        return result


def _has_inputs(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether the call belongs to a backward pass with `inputs`, which would not reach the deferred one."""
    if func is Tensor.backward or func is torch.autograd.backward:
        return kwargs.get("inputs") is not None or (len(args) > 4 and args[4] is not None)
    # Older versions of torch do not announce `torch.autograd.backward`, but its helper reads the shape of the loss.
    caller = sys._getframe(2)
    if caller.f_code is not torch.autograd._make_grads.__code__ or caller.f_back is None:
        return False
    return bool(caller.f_back.f_locals.get("inputs"))


class DeferredBackward(torch.autograd.Function):
    """Return `value`; on backward, call `run(scaler, retain_graph)`, where the scaler holds the incoming gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        root: Tensor,
        value: Tensor,
        run: Callable[[FactorScaler, bool], object],
        outputs: Sequence[Tensor],
    ) -> Tensor:
        ctx.run, ctx.outputs = run, outputs
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a gradient-space method has no second derivatives: call backward() without create_graph"
            )
        keep = _retains_graph() or _graph_is_in_use(ctx.outputs)
        with torch.enable_grad():
            ctx.run(FactorScaler(grads[0]), keep)
        return None, None, None, None


def _retains_graph() -> bool:
    """Return whether the current backward pass was called with retain_graph=True; False if torch cannot tell."""
    query = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)
    return False if query is None else bool(query())


def _graph_is_in_use(outputs: Sequence[Tensor]) -> bool:
    """Return whether the current backward pass also runs through the graph of the outputs, for an added term.

    Leaves do not count: they hold no saved tensors.
    """
    query = getattr(torch._C, "_will_engine_execute_node", None)
    if query is None:
        return False
    return any(query(node) for node in graph_nodes(outputs, ()) if not hasattr(node, "variable"))


def defer_backward(value: Tensor, run: Callable[[FactorScaler, bool], object], outputs: Sequence[Tensor]) -> Tensor:
    """Return a loss equal to `value` whose backward pass calls `run(scaler, retain_graph)`.

    `outputs` are the tensors that `run` differentiates.
    """
    root = torch.zeros((), requires_grad=True)  # autograd skips a function none of whose inputs requires a gradient
    loss: Tensor = DeferredBackward.apply(root, value.detach(), run, outputs)  # type: ignore[no-untyped-call]
    return loss.as_subclass(DeferredLoss)
