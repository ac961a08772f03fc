"""Train in half precision with a GradScaler and accumulate gradients over four batches.

python examples/mixed_precision.py
"""

import torch
from problem import TASKS, Network, batch, losses

import counterpoise as cp

ACCUMULATE = 4


def main(steps: int = 100) -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network, balancer = Network().to(device), cp.BPGS(TASKS).to(device)
    optimizer = torch.optim.AdamW([{"params": network.parameters()}, *balancer.param_groups()], lr=3e-3)
    scaler = torch.amp.GradScaler(device)
    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(ACCUMULATE):
            x, targets = batch(device=device)
            with torch.autocast(device, dtype=torch.float16):
                outputs = network(x)
            loss = balancer(losses(outputs, targets))  # in float32, outside autocast
            scaler.scale(loss / ACCUMULATE).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)  # never clip θ together with the network
        scaler.step(optimizer)
        scaler.update()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}, scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()
