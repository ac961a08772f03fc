"""Capture a whole training step as one CUDA graph: forward pass, BPGS, backward pass and optimiser.

python examples/cuda_graph.py
"""

import torch
from problem import TASKS, Network, batch, losses

import counterpoise as cp


def main(steps: int = 500) -> None:
    if not torch.cuda.is_available():
        print("This example needs a CUDA device.")
        return
    torch.manual_seed(0)
    network, balancer = Network().cuda(), cp.BPGS(TASKS).cuda()
    parameters = [{"params": network.parameters()}, *balancer.param_groups()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, fused=True, capturable=True)
    x, targets = batch(device="cuda")

    def step() -> torch.Tensor:
        loss: torch.Tensor = balancer(losses(network(x), targets))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # the first step calibrates BPGS; a few more warm up the allocator
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for count in range(steps):
        new_x, new_targets = batch(device="cuda")
        x.copy_(new_x)  # the graph reads its inputs from these tensors
        for task in TASKS:
            targets[task].copy_(new_targets[task])
        graph.replay()
        if count % 100 == 0:
            print(f"step {count}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
