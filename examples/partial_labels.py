"""Omit the tasks that have no labels in a batch. The first batch has all of them, because BPGS calibrates on it.

The losses differ in scale, so memory=True keeps the weights of the other tasks if one is absent.

python examples/partial_labels.py
"""

import random

import torch
from problem import TASKS, Network, batch, losses

import counterpoise as cp


def main(steps: int = 500) -> None:
    torch.manual_seed(0)
    random.seed(0)
    network, balancer = Network(), cp.BPGS(TASKS, memory=True)
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    for step in range(steps):
        x, targets = batch()
        all_losses = losses(network(x), targets)
        subset = [task for task in TASKS if random.random() < 0.7] or [random.choice(TASKS)]
        labelled = subset if step else TASKS
        loss = balancer({task: all_losses[task] for task in labelled})  # None or NaN for the other tasks is equivalent
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and balancer.weights is not None:
            print(f"step {step}: labels for {', '.join(labelled)}; weights {balancer.weights.tolist()}")


if __name__ == "__main__":
    main()
