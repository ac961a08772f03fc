"""Problems on which methods that divide by the losses collapse: one loss can reach zero, and then takes all weight.

problem = PROBLEMS["poisson"](seed=0)
weights = train(problem, cp.BPGS(problem.tasks))   # (steps, T); the last rows are about 1 for problem.collapsing
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor, nn

import counterpoise as cp


@dataclass
class CollapseProblem:
    """A small training problem with two losses, one of which has a trivial solution.

    Attributes:
        tasks: Names of the losses.
        collapsing: The task whose loss can be driven to zero.
        parameters: All parameters of the network.
        shared: The parameters that both tasks share.
        losses: Return the losses for the current parameters; where data are sampled, each call draws the next batch.
        lr: Learning rate of Adam.
        steps: Number of steps after which BPGS and UW-O have collapsed.
    """

    tasks: list[str]
    collapsing: str
    parameters: list[nn.Parameter]
    shared: list[nn.Parameter]
    losses: Callable[[], dict[str, Tensor]]
    lr: float
    steps: int = 300


def poisson_pinn(seed: int = 0) -> CollapseProblem:
    """Solve u'' = f on [0, 1] with u(0) = u(1) = 0 and the solution sin 2πx: u = 0 solves the boundary alone."""
    generator = torch.Generator().manual_seed(seed)
    layers = [_linear(n, m, generator) for n, m in ((1, 16), (16, 16), (16, 1))]
    frequency = 2 * math.pi
    with torch.no_grad():
        layers[-1].bias.fill_(1.0)  # start away from u = 0

    def network(x: Tensor) -> tuple[Tensor, Tensor]:
        """Return u and u'', which are computed together, layer by layer."""
        value, first, second = x, torch.ones_like(x), torch.zeros_like(x)
        for i, layer in enumerate(layers):
            value, first, second = layer(value), first @ layer.weight.T, second @ layer.weight.T
            if i < len(layers) - 1:
                value = value.tanh()
                slope = 1 - value.square()
                second = slope * second - 2 * value * slope * first.square()
                first = slope * first
        return value, second

    inside, ends = torch.linspace(0, 1, 66)[1:-1, None], torch.tensor([[0.0], [1.0]])
    source = -(frequency**2) * (frequency * inside).sin()

    def losses() -> dict[str, Tensor]:
        u, curvature = network(torch.cat([inside, ends]))
        return {"residual": (curvature[:-2] - source).square().mean(), "boundary": u[-2:].square().mean()}

    parameters = [p for layer in layers for p in layer.parameters()]
    return CollapseProblem(["residual", "boundary"], "boundary", parameters, parameters, losses, lr=1.5e-3)


def digits_vae(seed: int = 0) -> CollapseProblem:
    """Train a variational autoencoder on scikit-learn's digits: an encoder that ignores its input has KL = 0."""
    from sklearn.datasets import load_digits

    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    generator = torch.Generator().manual_seed(seed)
    encoder = nn.Sequential(_linear(64, 32, generator), nn.ReLU(), _linear(32, 8, generator))
    decoder = nn.Sequential(_linear(4, 32, generator), nn.ReLU(), _linear(32, 64, generator))

    def losses() -> dict[str, Tensor]:
        x = images[torch.randint(len(images), (128,), generator=generator)]
        mean, log_variance = encoder(x).chunk(2, 1)
        code = mean + (log_variance / 2).exp() * torch.randn(mean.shape, generator=generator)
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        return {"reconstruction": (decoder(code) - x).square().sum(1).mean() / (2 * 0.05), "kl": kl}

    shared = list(encoder.parameters())
    return CollapseProblem(["reconstruction", "kl"], "kl", [*shared, *decoder.parameters()], shared, losses, lr=3e-3)


def shifted_entropy(seed: int = 0) -> CollapseProblem:
    """Train a policy on a contextual bandit with an entropy bonus, shifted above zero: log A − H is 0 if uniform."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(128, 8, generator=generator)
    rewards = torch.rand(128, 4, generator=generator)
    policy = nn.Sequential(_linear(8, 32, generator), nn.Tanh(), _linear(32, 4, generator, gain=1.5))

    def losses() -> dict[str, Tensor]:
        log_probabilities = policy(states).log_softmax(1)
        probabilities = log_probabilities.exp()
        regret = (rewards.amax(1) - (probabilities * rewards).sum(1)).mean()
        return {"policy": regret, "entropy": math.log(4) + (probabilities * log_probabilities).sum(1).mean()}

    parameters = list(policy.parameters())
    return CollapseProblem(["policy", "entropy"], "entropy", parameters, parameters, losses, lr=1e-2)


def overfitting_task(seed: int = 0) -> CollapseProblem:
    """Train two regressions on one trunk: the first has 8 samples, which the network memorises."""
    generator = torch.Generator().manual_seed(seed)
    few, many = torch.randn(8, 16, generator=generator), torch.randn(512, 16, generator=generator)
    few_targets = 0.5 * torch.randn(8, 1, generator=generator)
    many_targets = (many @ torch.randn(16, 1, generator=generator)).sin() + 0.5 * torch.randn(
        512, 1, generator=generator
    )
    trunk = nn.Sequential(_linear(16, 32, generator), nn.Tanh())
    heads = _linear(32, 1, generator), _linear(32, 1, generator)

    def losses() -> dict[str, Tensor]:
        errors = heads[0](trunk(few)) - few_targets, heads[1](trunk(many)) - many_targets
        return {"memorised": errors[0].square().mean(), "regression": errors[1].square().mean()}

    shared = list(trunk.parameters())
    parameters = [*shared, *heads[0].parameters(), *heads[1].parameters()]
    return CollapseProblem(["memorised", "regression"], "memorised", parameters, shared, losses, lr=1e-3)


PROBLEMS: dict[str, Callable[..., CollapseProblem]] = {
    "poisson": poisson_pinn,
    "entropy": shifted_entropy,
    "overfitting": overfitting_task,
}
"""Name → function that builds the problem for a seed."""

if find_spec("sklearn") is not None:  # the tests of the library alone run without it
    PROBLEMS["vae"] = digits_vae


def train(problem: CollapseProblem, balancer: cp.Balancer, steps: int | None = None) -> Tensor:
    """Train with Adam, and return the weights of every step, (steps, T)."""
    optimizer = torch.optim.Adam([{"params": problem.parameters}, *balancer.param_groups()], lr=problem.lr)
    weights = []
    for _ in range(steps or problem.steps):
        optimizer.zero_grad()
        balancer.backward(problem.losses(), shared=problem.shared)
        optimizer.step()
        assert balancer.weights is not None
        weights.append(balancer.weights)
    return torch.stack(weights)


def _linear(inputs: int, outputs: int, generator: torch.Generator, gain: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * gain / math.sqrt(inputs))
    return layer
