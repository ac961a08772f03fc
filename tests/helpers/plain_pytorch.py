"""Training of a single synthetic run with nn.Linear, DataLoader and torch.optim, as a reference for the trainer."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import counterpoise as cp
from counterpoise.lab.data import PROBLEMS, training_factors
from counterpoise.lab.engine import Run


class Network(nn.Module):
    def __init__(self, inputs: int, widths: list[int]) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(64, width) for width in widths)

    def forward(self, x: Tensor) -> list[Tensor]:
        features = self.trunk(x)
        return [head(features) for head in self.heads]


def loss(task_type: str, out: Tensor, y: Tensor) -> Tensor:
    if task_type == "squared":
        return F.mse_loss(out.squeeze(-1), y)
    if task_type == "smooth-l1":
        return F.smooth_l1_loss(out.squeeze(-1), y)
    if task_type == "absolute":
        return F.l1_loss(out, y)
    if task_type == "binary":
        return F.binary_cross_entropy_with_logits(out.squeeze(-1), y)
    if task_type == "classes":
        return F.cross_entropy(out, y)
    return F.cosine_similarity(out, y).clamp(-1 + 1e-6, 1 - 1e-6).arccos().mean()


def train(run: Run) -> Tensor:
    """Train a run and return all parameters of the network in one vector."""
    problem = PROBLEMS[run.data.name]
    data = problem.draw(run.seed, **run.data.kwargs)
    factors = training_factors(run.data.name, run.data.kwargs)
    torch.manual_seed(run.seed)
    network = Network(data.x.shape[1], [task.width for task in problem.tasks])
    balancer = cp.make(run.recipe.name, [task.name for task in problem.tasks], **dict(run.recipe.options))
    schedule, balancer_parameters = run.schedule, list(balancer.parameters())
    optimizer = torch.optim.Adam(network.parameters(), lr=schedule.lr, weight_decay=schedule.weight_decay)
    balancer_optimizer = None
    if balancer_parameters:
        balancer_optimizer = torch.optim.Adam(balancer_parameters, lr=schedule.lr, weight_decay=run.recipe.weight_decay)
    train_set, held_out = (TensorDataset(data.x[p], *(y[p] for y in data.y)) for p in (data.train, data.held_out))
    batches: DataLoader[tuple[Tensor, ...]] = DataLoader(train_set, batch_size=schedule.batch_size, shuffle=True)
    validation: DataLoader[tuple[Tensor, ...]] = DataLoader(held_out, batch_size=schedule.batch_size)
    for _ in range(schedule.epochs):
        for x, *y in batches:
            each = zip(problem.tasks, network(x), y, strict=True)
            losses = torch.stack([loss(task.task_type, out, target) for task, out, target in each]) * factors
            network.zero_grad()
            balancer.zero_grad()
            balancer(losses).backward()
            for parameter in network.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(run.recipe.network_gain)
            if schedule.clip is not None:
                nn.utils.clip_grad_norm_(network.parameters(), schedule.clip)
            if run.recipe.clip is not None:
                nn.utils.clip_grad_norm_(balancer_parameters, run.recipe.clip)
            optimizer.step()
            if balancer_optimizer is not None:
                balancer_optimizer.step()
        for _ in validation:  # iterating over the loader draws from the global stream
            pass
    return nn.utils.parameters_to_vector(network.parameters()).detach()
