"""Solve the Helmholtz equation with DeepXDE: Adam first, then L-BFGS with the last weights.

    python examples/pinn_deepxde.py

`BalancedModel` replaces `dde.Model`. The other lines are those of any DeepXDE script.
"""

import os
from typing import Any

os.environ["DDE_BACKEND"] = "pytorch"  # before deepxde is imported

import deepxde as dde
import numpy as np
import torch

import counterpoise as cp
from counterpoise.integrations.deepxde import BalancedModel, BalancerHistory

TASKS = ("residual", "boundary")


def solution(x: Any) -> Any:
    return np.sin(np.pi * x[:, :1]) * np.sin(4 * np.pi * x[:, 1:])


def equation(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Return the residual of u_xx + u_yy + u = q."""
    second: torch.Tensor = dde.grad.hessian(u, x, i=0, j=0) + dde.grad.hessian(u, x, i=1, j=1)
    q = (1 - 17 * np.pi**2) * torch.sin(np.pi * x[:, :1]) * torch.sin(4 * np.pi * x[:, 1:])
    return second + u - q


def make_data() -> Any:
    square = dde.geometry.Rectangle([-1, -1], [1, 1])
    zero = dde.icbc.DirichletBC(square, lambda x: 0, lambda x, on_boundary: on_boundary)
    return dde.data.PDE(square, equation, zero, num_domain=400, num_boundary=200, solution=solution, num_test=2000)


def train(balancer: cp.Balancer, steps: int) -> tuple[Any, list[dict[str, float]]]:
    """Return the trained model, and the recorded losses and weights."""
    dde.config.set_random_seed(0)
    network = dde.nn.FNN([2, 50, 50, 50, 1], "tanh", "Glorot normal")
    model = BalancedModel(make_data(), network, balancer)
    history = BalancerHistory(period=max(steps // 5, 1))

    model.compile("adam", lr=1e-3, metrics=["l2 relative error"], verbose=0)
    model.train(iterations=steps, display_every=steps, callbacks=[history], verbose=0)

    lbfgs = torch.optim.LBFGS(network.parameters(), max_iter=steps // 10, line_search_fn="strong_wolfe")
    model.compile(lbfgs, metrics=["l2 relative error"], verbose=0)  # or "L-BFGS"; fixes the weights
    model.train(iterations=1, callbacks=[history], verbose=0)
    return model, history.rows


def main(steps: int = 3000) -> None:
    for balancer in (cp.Static(TASKS), cp.LRA(TASKS, reference="residual")):
        model, rows = train(balancer, steps)
        weights = ", ".join(f"{row['weight/boundary']:.3g}" for row in rows)
        print(f"{type(balancer).__name__}: weight of the boundary {weights}")
        errors = [metrics[0] for metrics in model.losshistory.metrics_test]
        print(f"  relative error {errors[1]:.4f} after Adam, {errors[-1]:.4f} after L-BFGS")


if __name__ == "__main__":
    main()
