"""The plain loop: one balancer, one line.

python examples/balanced_loop.py
"""

import torch
from problem import TASKS, Network, batch, losses

import counterpoise as cp


def main(steps: int = 500) -> None:
    torch.manual_seed(0)
    network, balancer = Network(), cp.BPGS(TASKS)
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    for step in range(steps):
        x, targets = batch()
        loss = balancer(losses(network(x), targets))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            weights = dict(zip(TASKS, balancer.weights.tolist(), strict=True)) if balancer.weights is not None else {}
            print(f"step {step}: " + ", ".join(f"{task} has weight {w:.4f}" for task, w in weights.items()))


if __name__ == "__main__":
    main()
