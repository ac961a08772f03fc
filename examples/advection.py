"""Solve u_t + u_x = 0 with a physics-informed network: a case in which the plain sum is better than balancing.

    python examples/advection.py

Every constant solves the residual and the periodic boundary condition. Methods that give short gradients a large weight
find such a constant, and the initial condition, which excludes it, keeps a small weight.
"""

import math

import torch
from torch import Tensor, nn

import counterpoise as cp

TASKS = ("residual", "initial", "boundary")
POINTS = torch.cartesian_prod(torch.linspace(0, 1, 41), torch.linspace(0, 1, 41))
SOLUTION = (2 * math.pi * (POINTS[:, :1] - POINTS[:, 1:])).sin()


def losses(network: nn.Module) -> dict[str, Tensor]:
    """Return the mean squared violations of the equation, of u(x, 0) = sin 2πx and of u(0, t) = u(1, t)."""
    inside = torch.rand(128, 2).requires_grad_()
    (slope,) = torch.autograd.grad(network(inside).sum(), inside, create_graph=True)
    x, t = torch.rand(64, 1), torch.rand(64, 1)
    start = network(torch.cat([x, torch.zeros_like(x)], 1))
    left, right = (network(torch.cat([torch.full_like(t, end), t], 1)) for end in (0.0, 1.0))
    return {
        "residual": slope.sum(-1).square().mean(),
        "initial": (start - (2 * math.pi * x).sin()).square().mean(),
        "boundary": (left - right).square().mean(),
    }


def train(balancer: cp.Balancer, steps: int, seed: int = 0) -> float:
    """Train with Adam, and return the relative error of the solution."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        balancer.backward(losses(network), shared=network.parameters())
        optimizer.step()
    with torch.no_grad():
        return float((network(POINTS) - SOLUTION).norm() / SOLUTION.norm())


def main(steps: int = 1500) -> None:
    balancers = {
        "Static": cp.Static(TASKS),
        "NashMTL": cp.NashMTL(TASKS),
        "BPGS(statistic='gradient')": cp.BPGS(TASKS, statistic="gradient"),
        "LRA(reference='residual')": cp.LRA(TASKS, reference="residual"),
    }
    for name, balancer in balancers.items():
        print(f"{name}: relative error {train(balancer, steps):.2f}")


if __name__ == "__main__":
    main()
