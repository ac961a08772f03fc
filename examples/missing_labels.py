"""Train on a table of labels (B, T) in which single labels are missing (NaN).

python examples/missing_labels.py
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import counterpoise as cp


def masked_losses(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean squared error of each task over its labelled samples, (T,), and their number, (T,)."""
    mask = ~labels.isnan()
    # Replace NaN in the labels, not in the errors: the gradient of a NaN error is NaN even if the error is masked.
    errors = F.mse_loss(outputs, labels.nan_to_num(), reduction="none")
    return (errors * mask).sum(0) / mask.sum(0).clamp(min=1), mask.sum(0)


def train(steps: int, missing: float = 0.7) -> tuple[float, Tensor]:
    """Return the mean error of the tasks relative to their variance, and the weights, after training."""
    torch.manual_seed(0)
    inputs = torch.randn(512, 8)
    complete = (inputs @ torch.randn(8, 3) + torch.randn(512, 3)) * torch.tensor([0.1, 1.0, 10.0])
    labels = torch.where(torch.rand_like(complete) < missing, torch.nan, complete)
    network, balancer = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), cp.BPGS(3)
    optimizer = torch.optim.Adam([{"params": network.parameters()}, *balancer.param_groups()], lr=1e-2)
    for _ in range(steps):
        batch = torch.randint(512, (8,))  # so small that tasks without any label occur
        losses, counts = masked_losses(network(inputs[batch]), labels[batch])
        loss = balancer(losses, counts=counts)  # a task with a count of 0 is absent
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert balancer.weights is not None
    return ((network(inputs) - complete).var(0) / complete.var(0)).mean().item(), balancer.weights


def main(steps: int = 600) -> None:
    error, weights = train(steps)
    print(f"error relative to the variance: {error:.2f}, weights {weights.tolist()}")


if __name__ == "__main__":
    main()
