"""Solve the Helmholtz equation with a physics-informed network: Adam first, then L-BFGS with the last weights.

    python examples/helmholtz.py

BPGS divides by the losses and returns u = 0, which solves the boundary term. LRA compares the gradients.
"""

import math

import torch
from torch import Tensor, nn

import counterpoise as cp

TASKS = ("residual", "boundary")


def solution(x: Tensor) -> Tensor:
    return torch.sin(math.pi * x[:, :1]) * torch.sin(4 * math.pi * x[:, 1:])


def sample(count: int) -> tuple[Tensor, Tensor]:
    """Draw points inside the square [−1, 1]², and half as many on its sides."""
    inside, side = 2 * torch.rand(count, 2) - 1, 2 * torch.rand(count // 2, 2) - 1
    side[::2, 0], side[1::2, 1] = side[::2, 0].sign(), side[1::2, 1].sign()
    return inside, side


def losses(network: nn.Module, inside: Tensor, side: Tensor) -> dict[str, Tensor]:
    """Return the mean squares of the residual u_xx + u_yy + u − q, and of u on the boundary."""
    x = inside.clone().requires_grad_()
    u = network(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    second = [torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i : i + 1] for i in (0, 1)]
    residual = second[0] + second[1] + u - (1 - 17 * math.pi**2) * solution(inside)
    return {"residual": residual.square().mean(), "boundary": network(side).square().mean()}


def relative_error(network: nn.Module) -> float:
    grid = torch.cartesian_prod(*2 * [torch.linspace(-1, 1, 100)])
    return float((network(grid).detach() - solution(grid)).norm() / solution(grid).norm())


def train(network: nn.Module, balancer: cp.Balancer, steps: int) -> tuple[float, float]:
    """Return the relative error after Adam, and after L-BFGS."""
    optimizer = torch.optim.Adam([{"params": network.parameters()}, *balancer.param_groups()], lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        balancer.backward(losses(network, *sample(200)), shared=network.parameters())
        optimizer.step()
    error = relative_error(network)

    # A line search needs one objective: fixed weights, and the same points in all evaluations.
    fixed, points = balancer.frozen(), sample(400)
    second = torch.optim.LBFGS(network.parameters(), max_iter=steps // 10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        second.zero_grad()
        return fixed.backward(losses(network, *points))

    second.step(closure)
    return error, relative_error(network)


def main(steps: int = 3000) -> None:
    for balancer in (cp.Static(TASKS), cp.BPGS(TASKS), cp.LRA(TASKS, reference="residual")):
        torch.manual_seed(0)
        hidden = (layer for width in (2, 50, 50) for layer in (nn.Linear(width, 50), nn.Tanh()))
        network = nn.Sequential(*hidden, nn.Linear(50, 1))
        first, second = train(network, balancer, steps)
        print(f"{type(balancer).__name__}: relative error {first:.4f} after Adam, {second:.4f} after L-BFGS")


if __name__ == "__main__":
    main()
