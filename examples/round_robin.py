"""Balance two tasks whose batches alternate, as with one data set per task.

    python examples/round_robin.py

Without `memory=True`, every batch has one task, which gets weight 1, and nothing is balanced.
"""

import torch
from problem import TASKS, Network, batch, losses
from torch import Tensor

import counterpoise as cp


def train(balancer: cp.Weighting, steps: int) -> list[Tensor]:
    """Train on one task per batch, and return the weights of all steps."""
    torch.manual_seed(0)
    network = Network()
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    history = []
    for step in range(steps):
        task = TASKS[step % len(TASKS)]
        x, targets = batch()
        loss = balancer({task: losses(network(x), targets)[task]})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert balancer.weights is not None
        history.append(balancer.weights)
    return history


def main(steps: int = 200) -> None:
    for memory in (False, True):
        weights = torch.stack(train(cp.BPGS(TASKS, memory=memory), steps)[-len(TASKS) :]).amax(0)
        text = ", ".join(f"{task} {weight:.2g}" for task, weight in zip(TASKS, weights.tolist(), strict=True))
        print(f"memory={memory}: weights {text}")


if __name__ == "__main__":
    main()
