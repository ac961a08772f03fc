"""Training loops whose balance warnings are collected."""

import warnings
from collections.abc import Callable
from typing import Any

import counterpoise as cp


def caught(run: Callable[[], object]) -> list[str]:
    """Run a function, and return the messages of the balance warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    return [str(w.message) for w in found if issubclass(w.category, cp.BalanceWarning)]


def repeat(balancer: cp.Balancer, losses: Any, steps: int, **options: Any) -> Callable[[], None]:
    """Return a function that takes training steps, with losses by step number or the same in every step."""

    def run() -> None:
        for step in range(steps):
            balancer(losses(step) if callable(losses) else losses, **options)

    return run
