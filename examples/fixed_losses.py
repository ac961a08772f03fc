"""Balance two of four losses, and add the other two with fixed factors.

python examples/fixed_losses.py
"""

import torch
from problem import TASKS, Network, batch, losses

import counterpoise as cp


def main(steps: int = 300) -> None:
    torch.manual_seed(0)
    network = Network()
    balancer = cp.BPGS(TASKS, fixed={"l1": 1e-4, "smooth": 0.1})  # "shape" and "mass" are balanced
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    for _ in range(steps):
        x, targets = batch()
        outputs = network(x)
        nearby = network(x + 0.01 * torch.randn_like(x))
        loss = balancer(
            {
                **losses(outputs, targets),
                "l1": sum(p.abs().sum() for p in network.encoder.parameters()),
                "smooth": (outputs["shape"] - nearby["shape"]).square().mean(),
            }
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"balanced: {balancer.tasks}, weights {balancer.weights}; fixed: {balancer.fixed}")


if __name__ == "__main__":
    main()
