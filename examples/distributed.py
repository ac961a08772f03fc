"""Train two processes as one on the union of their batches, with a gradient-space balancer.

torchrun --nproc-per-node 2 examples/distributed.py
"""

import os

import torch
import torch.distributed as dist
from problem import TASKS, Network, batch, losses
from torch.nn.parallel import DistributedDataParallel

import counterpoise as cp


def main(steps: int = 200) -> None:
    if "LOCAL_WORLD_SIZE" not in os.environ:
        raise SystemExit("start this example with torchrun --nproc-per-node 2")
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = f"cuda:{os.environ['LOCAL_RANK']}" if cuda else "cpu"
    dist.init_process_group("nccl" if cuda else "gloo")
    train(steps, device)  # the DDP model must not outlive the process group: gloo may hang in its destructor
    dist.destroy_process_group()


def train(steps: int, device: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(0)  # the same initial weights on all ranks
    network = Network().to(device)
    model = DistributedDataParallel(network)
    balancer = cp.CAGrad(TASKS, weighting=cp.BPGS(TASKS)).to(device)
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    torch.manual_seed(1 + rank)  # different data on each rank
    for _ in range(steps):
        x, targets = batch(device=device)
        optimizer.zero_grad()
        with model.no_sync():  # DDP expects one gradient per parameter, not one per task
            balancer.backward(losses(model(x), targets), shared=network.encoder.parameters())
        cp.average_gradients(network.heads.parameters())  # the balancer has averaged the shared ones
        optimizer.step()
    total = torch.stack([p.detach().double().sum() for p in network.parameters()]).sum()
    print(f"rank {rank}: parameters sum to {total.item():.6f}, weights {balancer.weights}")


if __name__ == "__main__":
    main()
