"""What a logger wants of a balancer, whichever logger it is."""

from torch import Tensor

from ..balancer import Balancer


def readings(balancer: Balancer) -> dict[str, Tensor]:
    """What the last step did, by task: weight/…, and for BPGS theta/… and z_over_tau/… (±1 is the edge of its chart).

    The values are on the device and nothing waits for them before they are read. Empty before the first step.

    Example:
        >>> import counterpoise as cp
        >>> balancer = cp.UWO(["seg", "depth"])
        >>> _ = balancer(torch.tensor([2.0, 4.0]))
        >>> {name: value.item() for name, value in readings(balancer).items()}
        {'weight/seg': 0.5, 'weight/depth': 0.25}
    """
    chart = getattr(getattr(balancer, "weighting", None) or balancer, "chart", None)
    columns = {"weight": balancer.weights}
    if chart is not None:
        columns |= {"theta": chart.theta, "z_over_tau": chart.z_over_tau}
    return {
        f"{name}/{task}": value
        for name, values in columns.items()
        if values is not None
        for task, value in zip(balancer.tasks, values.unbind(-1), strict=True)
    }
