"""Errors and warnings that name the hooks of an integration."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from torch import nn
from torch.optim import Optimizer

from ..balancer import Balancer
from ..inputs import format_names
from ..registry import describe, methods


def check_needs(balancer: Balancer, supported: Collection[str], framework: str) -> None:
    """Raise an error for a method that needs more than a framework provides."""
    needs = {method.build: set(method.needs) for method in map(describe, methods())}
    for method in (balancer, getattr(balancer, "weighting", None)):
        missing = needs.get(type(method), set()).difference(supported)  # type: ignore[arg-type]
        if missing:
            raise ValueError(
                f"{type(method).__name__} needs {format_names(tuple(sorted(missing)))}, which {framework} does not "
                f"provide"
            )


@contextmanager
def explain_shared(balancer: Balancer, source: str, advice: str) -> Iterator[None]:
    """Name the source of the shared parameters in errors about them, and say how to set them if they are missing."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, message = type(balancer).__name__, str(error)
        if "needs shared=" in message:
            message = f"{name} compares task gradients on the parameters that all tasks share: {advice}"
        elif message.startswith("shared "):
            message = f"{message} ({source})"
        else:
            raise
        raise type(error)(message) from error


def check_optimisers(
    balancer: Balancer, optimisers: Iterable[Optimizer], network: Iterable[nn.Parameter], advice: str
) -> None:
    """Warn once if an optimiser decays the balancer's parameters, or if none contains them.

    Args:
        balancer: the balancer.
        optimisers: all optimisers of the training.
        network: the parameters of the network. Optimisers of others, for example sharded ones, are not checked.
        advice: how to pass the parameters to the optimiser.
    """
    learned = {id(parameter) for parameter in balancer.parameters() if parameter.requires_grad}
    known = learned | {id(parameter) for parameter in network}
    groups = [group for optimiser in optimisers for group in optimiser.param_groups]
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    if not learned or not trained <= known:
        return
    method: Balancer = getattr(balancer, "weighting", None) or balancer
    name, checks = type(method).__name__, method._checks
    if not learned <= trained:
        checks.warn(
            "untrained",
            f"no optimiser contains the learned parameter of {name}, so its weights are not learned: {advice}, or "
            f"call balancer.requires_grad_(False)",
        )
    for group in groups:
        decay = group.get("weight_decay", 0.0)
        if decay and any(id(parameter) in learned for parameter in group["params"]):
            checks.warn(
                "decay",
                f"the learned parameter of {name} is in an optimiser group with weight_decay={decay}, which pulls the "
                f"weights of the tasks together: {advice}",
            )
