"""Check that an optimiser that evaluates the loss several times per step sees a single objective."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .balancer import Balancer
    from .weighting import Weighting


def check_lbfgs(balancer: "Balancer", weighting: "Weighting | None") -> None:
    """Refuse or warn if the current call is an evaluation of L-BFGS, which needs one objective per step.

    Args:
        balancer: the balancer, whose weights change in every call.
        weighting: the loss-space method that computes the value, if any; the balancer itself in loss space.
    """
    if not inside_lbfgs():
        return
    advice = "train with balancer.frozen()"
    if balancer is weighting:
        advice = f"pass balancer.closure(closure) to the optimiser's step, or {advice}"
    if weighting is not None and weighting.constant_value:
        raise RuntimeError(
            f"the value of {type(weighting).__name__}'s objective is always the number of tasks, so that L-BFGS cannot "
            f"see whether a step decreases the losses: {advice}"
        )
    balancer._checks.warn(
        "closure",
        f"{type(balancer).__name__} changes its weights in every evaluation of L-BFGS, which compares values of "
        f"different objectives: {advice}",
    )


def inside_lbfgs() -> bool:
    """Return whether the current call is an evaluation of the closure of `torch.optim.LBFGS`."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "step" and frame.f_globals.get("__name__") == "torch.optim.lbfgs":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
