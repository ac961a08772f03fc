"""Train a policy with a value function and an entropy bonus: the losses are terms of one objective, with fixed factors.

    python examples/entropy_bonus.py

Policy losses and entropy terms may be negative, and a method that takes logarithms or inverses cannot weight them.
Shifting the entropy term above zero does not help: log A − H is zero for the uniform policy and takes all the weight.
"""

import math
import warnings

import torch
from torch import Tensor, nn

import counterpoise as cp

ACTIONS = 4


class Policy(nn.Module):
    """A trunk with a policy and a value head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 32), nn.Tanh())
        self.actions, self.value = nn.Linear(32, ACTIONS), nn.Linear(32, 1)

    def forward(self, states: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        z = self.trunk(states)
        return torch.distributions.Categorical(logits=self.actions(z)), self.value(z)[:, 0]


def train(balancer: cp.Balancer, steps: int, shift: float = 0.0, seed: int = 0) -> float:
    """Train on a contextual bandit, and return the mean reward of the policy, which is at most 1."""
    torch.manual_seed(seed)
    best_action = nn.Linear(8, ACTIONS)
    model = Policy()
    optimizer = torch.optim.Adam([{"params": model.parameters()}, *balancer.param_groups()], lr=5e-3)
    for _ in range(steps):
        states = torch.randn(128, 8)
        policy, value = model(states)
        reward = policy.probs.gather(1, best_action(states).argmax(1, keepdim=True))[:, 0]  # its expectation
        losses = {
            "policy": 1 - reward.mean(),
            "value": (value - reward.detach()).square().mean(),
            "entropy": shift - policy.entropy().mean(),
        }
        optimizer.zero_grad()
        balancer.backward(losses, shared=model.trunk.parameters())
        optimizer.step()
    states = torch.randn(2048, 8)
    policy, _ = model(states)
    return float(policy.probs.gather(1, best_action(states).argmax(1, keepdim=True)).mean().detach())


def main(steps: int = 400) -> None:
    tasks = ["policy", "value"]
    balancers = {
        "fixed factors": (cp.Static(tasks, weights=[1.0, 0.5], fixed={"entropy": 0.01}), 0.0),
        "PCGrad, entropy fixed": (cp.PCGrad(tasks, fixed={"entropy": 0.01}), 0.0),
        "BPGS with shifted entropy (collapses)": (cp.BPGS([*tasks, "entropy"]), math.log(ACTIONS)),
    }
    for name, (balancer, shift) in balancers.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cp.BalanceWarning)
            print(f"{name}: mean reward {train(balancer, steps, shift):.2f}")


if __name__ == "__main__":
    main()
