"""Random sampling of the synthetic problems: one seeded generator per run, used in a fixed order."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


class ProblemSampler:
    """Samples features, directions and labels of one run.

    Every method advances the generator, so the order of the calls is part of a problem's definition.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(*shape, generator=self.generator)

    def uniform(self, rows: int) -> Tensor:
        """Return uniform numbers in [0, 1)."""
        return torch.rand(rows, generator=self.generator)

    def permutation(self, rows: int) -> Tensor:
        """Return a random order of the rows."""
        return torch.randperm(rows, generator=self.generator)

    def features(self, rows: int, inputs: int, latent: int) -> tuple[Tensor, Tensor]:
        """Return inputs X and Z = tanh(XW₁) + ½ sin(XW₂), scaled to columns of unit standard deviation."""
        x = self.normal(rows, inputs)
        w1, w2 = (self.normal(inputs, latent) / math.sqrt(inputs) for _ in range(2))
        z = torch.tanh(x @ w1) + 0.5 * torch.sin(x @ w2)
        return x, z / z.std(0)

    def correlated(self, reference: Tensor, count: int, rho: float) -> list[Tensor]:
        """Return unit vectors whose cosine with the reference is ρ."""
        reference = reference / reference.norm()
        vectors = []
        for _ in range(count):
            noise = self.normal(len(reference))
            noise = noise - (noise @ reference) * reference
            vectors.append(rho * reference + math.sqrt(1 - rho**2) * noise / noise.norm())
        return vectors

    def outliers(self, rows: int, share: float, sd: float) -> Tensor:
        """Return normal noise with this standard deviation in a share of the rows, and 0 elsewhere."""
        hit = self.uniform(rows) < share
        return hit * sd * self.normal(rows)

    def binary(self, logits: Tensor, flip: float) -> Tensor:
        """Return labels sampled from logits, each inverted with probability `flip`."""
        labels = torch.bernoulli(torch.sigmoid(logits), generator=self.generator)
        return torch.where(self.uniform(len(labels)) < flip, 1 - labels, labels)

    def classes(self, logits: Tensor, flip: float) -> Tensor:
        """Return the class of the largest logit, replaced by a uniform class with probability `flip`."""
        rows, count = logits.shape
        replaced = self.uniform(rows) < flip
        return torch.where(replaced, torch.randint(count, (rows,), generator=self.generator), logits.argmax(1))

    def direction(self, means: Tensor, sd: float) -> Tensor:
        """Return unit vectors along the means plus normal noise."""
        return F.normalize(means + sd * self.normal(*means.shape), dim=1)


def logit(p: float) -> float:
    """Return log(p / (1 − p))."""
    return math.log(p / (1 - p))
