"""Scalars of a balancer for any logger."""

from torch import Tensor

from ..balancer import Balancer


def readings(balancer: Balancer) -> dict[str, Tensor]:
    """Return the scalars of the last step by name, for a logger.

    Args:
        balancer (Balancer): Any balancer.

    Returns:
        dict of str to Tensor: `weight/<task>` and, for BPGS, `theta/<task>` and `z_over_tau/<task>`, where the chart
        ends at ±1. The values are on the device; reading one synchronises. Empty before the first step.

    Example:
        >>> import counterpoise as cp
        >>> balancer = cp.UWO(["seg", "depth"])
        >>> _ = balancer(torch.tensor([2.0, 4.0]))
        >>> {name: value.item() for name, value in readings(balancer).items()}
        {'weight/seg': 0.5, 'weight/depth': 0.25}
    """
    geometry = getattr(getattr(balancer, "weighting", None) or balancer, "geometry", None)
    columns = {"weight": balancer.weights}
    if geometry is not None:
        columns |= {"theta": geometry.theta, "z_over_tau": geometry.z_over_tau}
    return {
        f"{name}/{task}": value
        for name, values in columns.items()
        if values is not None
        for task, value in zip(balancer.tasks, values.unbind(-1), strict=True)
    }
