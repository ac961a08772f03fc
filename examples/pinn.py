"""Solve u'' = f with a physics-informed network: Adam first, then L-BFGS with the last weights of the balancer.

    python examples/pinn.py

The residual and the boundary condition are terms of one objective. BPGS divides by the losses and gives all its weight
to the boundary, which u = 0 satisfies. Fixed weights and PCGrad train both terms.
"""

import math
import warnings

import torch
from torch import Tensor, nn

import counterpoise as cp

TASKS = ("residual", "boundary")
FREQUENCY = 2 * math.pi
INSIDE = torch.linspace(0, 1, 65)[:, None]
ENDS = torch.tensor([[0.0], [1.0]])
SOLUTION = (FREQUENCY * INSIDE).sin()


def losses(network: nn.Module) -> dict[str, Tensor]:
    """Return the mean squared residual of u'' = −ω² sin ωx, and the mean squared violation of u(0) = u(1) = 0."""
    x = INSIDE.clone().requires_grad_()
    u = network(x)
    (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    residual = curvature + FREQUENCY**2 * SOLUTION
    return {"residual": residual.square().mean(), "boundary": network(ENDS).square().mean()}


def train(balancer: cp.Balancer, steps: int, seed: int = 0) -> float:
    """Train with Adam and then L-BFGS, and return the relative error of the solution."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        balancer.backward(losses(network), shared=network.parameters())
        optimizer.step()

    fixed = balancer.frozen()  # cp.Static with the last weights: a line search needs one fixed objective
    second = torch.optim.LBFGS(network.parameters(), max_iter=steps // 4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        second.zero_grad()
        loss: Tensor = fixed(losses(network))
        loss.backward()
        return loss

    second.step(closure)
    with torch.no_grad():
        return float((network(INSIDE) - SOLUTION).norm() / SOLUTION.norm())


def main(steps: int = 400) -> None:
    for balancer in (cp.Static(TASKS), cp.PCGrad(TASKS), cp.BPGS(TASKS)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", cp.BalanceWarning)
            error = train(balancer, steps)
        print(f"{type(balancer).__name__}: relative error {error:.4f}")
        for warning in caught:
            print(f"  {warning.message}")


if __name__ == "__main__":
    main()
