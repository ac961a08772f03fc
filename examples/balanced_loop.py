"""Balance the losses of a plain training loop with BPGS.

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
        if step % 100 == 0 and balancer.weights is not None:
            weights = zip(TASKS, balancer.weights.tolist(), strict=True)
            print(f"step {step}: " + ", ".join(f"{task} has weight {weight:.4f}" for task, weight in weights))


if __name__ == "__main__":
    main()
