"""Scalars of a balancer for any logger."""

from torch import Tensor

from ..balancer import Balancer


def readings(balancer: Balancer) -> dict[str, Tensor]:
    """Return the scalars of the last step by name, for a logger.

    A task that was not given in the last step (key missing or None) has no loss and no weight in the result, so that
    its curve has a gap. A loss that was given and is not finite is returned as it is; that of a task without samples
    (`counts`) is NaN. Fixed losses have no weight. Learned values are returned for all tasks. In a process group, the
    losses are those of this process.

    Args:
        balancer (Balancer): Any balancer.

    Returns:
        dict of str to Tensor: `loss/<task>`, also for fixed losses, without their factors; `weight/<task>`; and the
        values of a learned parameter under its name: `theta/<task>` for BPGS, `log_vars/<task>` for Kendall,
        `log_scales/<task>` for IMTL-L. BPGS also has `z_over_tau/<task>`, where the chart ends at ±1. The values are on
        the device; reading one synchronises. Empty before the first step.

    Example:
        >>> import counterpoise as cp
        >>> balancer = cp.UWO(["seg", "depth"])
        >>> _ = balancer(torch.tensor([2.0, 4.0]))
        >>> {name: value.item() for name, value in readings(balancer).items()}
        {'loss/seg': 2.0, 'loss/depth': 4.0, 'weight/seg': 0.5, 'weight/depth': 0.25}
    """
    if balancer.losses is None:
        return {}
    scalars = given_tasks(balancer, "loss", balancer.losses)
    scalars |= {f"loss/{name}": loss.clone() for name, loss in balancer._last.fixed.items()}
    scalars |= given_tasks(balancer, "weight", balancer.weights)
    for name, values in _learned_values(balancer).items():
        scalars |= {f"{name}/{task}": value for task, value in zip(balancer.tasks, values.unbind(-1), strict=True)}
    return scalars


def given_tasks(balancer: Balancer, name: str, values: Tensor | None) -> dict[str, Tensor]:
    """Return `name/<task>` from values (…, T), for the tasks that were given in the last step."""
    if values is None:
        return {}
    return {f"{name}/{balancer.tasks[slot]}": values[..., slot] for slot in balancer._last.given}


def _learned_values(balancer: Balancer) -> dict[str, Tensor]:
    """Return the learned parameter of the method or of its weighting, (…, T), and where BPGS is in its chart."""
    method: Balancer = getattr(balancer, "weighting", None) or balancer
    geometry, learned = getattr(method, "geometry", None), getattr(method, "learned", None)
    if geometry is not None:
        return {"theta": geometry.theta, "z_over_tau": geometry.z_over_tau}
    # The optimiser changes the parameter in place, so a logger needs a copy.
    return {name: value.detach().clone() for name, value in method.named_parameters() if value is learned}
