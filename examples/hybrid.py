"""Weight the losses with BPGS, then combine their gradients with PCGrad, and diagnose the loop.

python examples/hybrid.py
"""

import torch
from problem import TASKS, Network, batch, losses

import counterpoise as cp


def main(steps: int = 500) -> None:
    torch.manual_seed(0)
    network = Network()
    balancer = cp.PCGrad(TASKS, weighting=cp.BPGS(TASKS))
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    with cp.diagnose(balancer, shared=network.encoder.parameters()) as monitor:
        for _ in range(steps):
            x, targets = batch()
            optimizer.zero_grad()
            balancer.backward(losses(network(x), targets), shared=network.encoder.parameters())
            optimizer.step()
    monitor.diagnosis.print()


if __name__ == "__main__":
    main()
