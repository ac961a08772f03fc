"""The workload of penalised objectives: one or two errors, and a penalty that a trivial solution drives to zero."""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..data.digits import CLASSES, PIXELS, Digits, split_digits
from ..models import StackedMLP
from .config import Run
from .torch_settings import disable_onednn
from .workload import Workload, shuffled_order

CODES = 8
DECODER_SEEDS, HELD_OUT_SEEDS = 1_000_000, 2_000_000  # added to the seed of a run
VARIANCE = 0.05  # of the pixels around the decoder's output
BOTTLENECK, ENTROPY = 0.01, 0.1  # factors of the penalties, parts of the objectives
LABELLED, BLUR = 100, 0.3  # labelled images, and the noise on the pixels of two views
SPREAD = 4.69  # mean squared distance of an image from the mean image
CENTRE, CENTRE_VARIANCE = (3.57, 3.48), (0.0877, 0.1547)  # of the columns and rows of the images' centres of mass


class Objective(nn.Module):
    """R networks with the errors and the penalty that their author adds.

    Args:
        seeds: one seed per network.
        hidden: the width of the hidden layers.
    """

    tasks: tuple[str, ...] = ("error", "penalty")
    noise: int  # random numbers that each image needs
    labelled: int | None = None  # number of images with labels. None: all
    shared: StackedMLP  # the network on which all losses depend

    def __init__(self, seeds: Sequence[int], hidden: int) -> None:
        super().__init__()

    def forward(self, images: Tensor, classes: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return the errors and the penalties (R,) of images (R, n, 64), given their classes and noise (R, n, ·)."""
        raise NotImplementedError

    def trivial_errors(self, train: Digits, held_out: Digits) -> tuple[float, ...]:
        """Return the held-out errors of the best constant predictions."""
        raise NotImplementedError

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters on which all losses depend."""
        return list(self.shared.parameters())


class _Coded(Objective):
    """Stochastic codes, whose distance from the prior is the penalty, and a decoder."""

    noise = CODES
    outputs: tuple[int, ...]  # of the decoder

    def __init__(self, seeds: Sequence[int], hidden: int) -> None:
        super().__init__(seeds, hidden)
        decoder_seeds = [seed + DECODER_SEEDS for seed in seeds]
        self.shared = StackedMLP(seeds, PIXELS, (CODES, CODES), hidden)
        self.decoder = StackedMLP(decoder_seeds, CODES, self.outputs, hidden)

    def decode(self, images: Tensor, noise: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return the outputs of the decoder and the KL divergence of the codes from the prior, (R,)."""
        mean, log_variance = self.shared(images)
        outputs = self.decoder(mean + (log_variance / 2).exp() * noise)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(-1) / 2
        return outputs, divergence.mean(1)


class Autoencoder(_Coded):
    """A variational autoencoder: the negative evidence lower bound, up to a constant."""

    outputs = (PIXELS,)

    def forward(self, images: Tensor, classes: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        (output,), divergence = self.decode(images, noise)
        return (output - images).square().sum(-1).mean(1) / (2 * VARIANCE), divergence

    def trivial_errors(self, train: Digits, held_out: Digits) -> tuple[float, ...]:
        distance = (held_out.images - train.images.mean(0)).square().sum(1)
        return (distance.mean().item() / (2 * VARIANCE),)


class Bottleneck(_Coded):
    """A classifier with an information bottleneck (Alemi et al. 2017, https://arxiv.org/abs/1612.00410)."""

    outputs = (CLASSES,)

    def forward(self, images: Tensor, classes: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        (logits,), divergence = self.decode(images, noise)
        return cross_entropies(logits, classes), BOTTLENECK * divergence

    def trivial_errors(self, train: Digits, held_out: Digits) -> tuple[float, ...]:
        return (constant_cross_entropy(train, held_out),)


class _Classifier(Objective):
    """One network from images to logits."""

    def __init__(self, seeds: Sequence[int], hidden: int) -> None:
        super().__init__(seeds, hidden)
        self.shared = StackedMLP(seeds, PIXELS, (CLASSES,), hidden)


class EntropyBonus(_Classifier):
    """A policy with a reward for the right class, and an entropy bonus, shifted so that a uniform policy has 0."""

    noise = 0

    def forward(self, images: Tensor, classes: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        logs = self.shared(images)[0].log_softmax(-1)
        regret = 1 - logs.gather(-1, classes.unsqueeze(-1)).exp().squeeze(-1)
        return regret.mean(1), ENTROPY * (math.log(CLASSES) + (logs.exp() * logs).sum(-1)).mean(1)

    def trivial_errors(self, train: Digits, held_out: Digits) -> tuple[float, ...]:
        return (1 - (held_out.classes == train.classes.mode().values).float().mean().item(),)


class Consistency(_Classifier):
    """Few labels, and equal predictions for two noisy views (Laine and Aila 2017, https://arxiv.org/abs/1610.02242).

    A class of −1 marks an image without a label.
    """

    noise = 2 * PIXELS
    labelled = LABELLED

    def forward(self, images: Tensor, classes: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        views = [self.shared(images + BLUR * part)[0] for part in noise.chunk(2, -1)]
        first, second = (logits.softmax(-1) for logits in views)
        return cross_entropies(views[0], classes), (first - second).square().sum(-1).mean(1)

    def trivial_errors(self, train: Digits, held_out: Digits) -> tuple[float, ...]:
        return (constant_cross_entropy(train, held_out),)


class SharedCode(_Coded):
    """Two tasks for one code: the image and its class, each with an error of about 1 for a constant prediction."""

    tasks = ("image", "class", "penalty")
    outputs = (PIXELS, CLASSES)

    def forward(self, images: Tensor, classes: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        (output, logits), divergence = self.decode(images, noise)
        image = (output - images).square().sum(-1).mean(1) / SPREAD
        return image, cross_entropies(logits, classes) / math.log(CLASSES), BOTTLENECK * divergence

    def trivial_errors(self, train: Digits, held_out: Digits) -> tuple[float, ...]:
        distance = (held_out.images - train.images.mean(0)).square().sum(1)
        return distance.mean().item() / SPREAD, constant_cross_entropy(train, held_out) / math.log(CLASSES)


class FewLabels(Objective):
    """Two tasks with few labels, the centre of mass and the class, and equal predictions for two noisy views."""

    tasks = ("centre", "class", "penalty")
    noise = 2 * PIXELS
    labelled = LABELLED

    def __init__(self, seeds: Sequence[int], hidden: int) -> None:
        super().__init__(seeds, hidden)
        self.shared = StackedMLP(seeds, PIXELS, (2, CLASSES), hidden)

    def forward(self, images: Tensor, classes: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        (centres, logits), others = (self.shared(images + BLUR * part) for part in noise.chunk(2, -1))
        labelled = classes >= 0
        distances = (centres - standardised_centres(images)).square().mean(-1) * labelled
        centre = distances.sum(1) / labelled.sum(1).clamp_min(1)
        penalty = (logits.softmax(-1) - others[1].softmax(-1)).square().sum(-1) + (centres - others[0]).square().mean(
            -1
        )
        return centre, cross_entropies(logits, classes) / math.log(CLASSES), penalty.mean(1)

    def trivial_errors(self, train: Digits, held_out: Digits) -> tuple[float, ...]:
        distance = standardised_centres(held_out.images) - standardised_centres(train.images).mean(0)
        return distance.square().mean().item(), constant_cross_entropy(train, held_out) / math.log(CLASSES)

    def shared_parameters(self) -> list[nn.Parameter]:
        return self.shared.trunk_parameters()


def standardised_centres(images: Tensor) -> Tensor:
    """Return the column and the row of the centre of mass of images (…, 64), minus their means, in deviations."""
    rows = images.unflatten(-1, (8, 8))
    places, mass = torch.arange(8.0, device=images.device), images.sum(-1)
    found = torch.stack([(rows.sum(axis) * places).sum(-1) / mass for axis in (-2, -1)], -1)
    return (found - found.new_tensor(CENTRE)) / found.new_tensor(CENTRE_VARIANCE).sqrt()


def cross_entropies(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the mean cross-entropy of each network, (R,), over the images whose class is not −1."""
    values = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), ignore_index=-1, reduction="none")
    return values.view_as(classes).sum(1) / (classes >= 0).sum(1).clamp_min(1)


def constant_cross_entropy(train: Digits, held_out: Digits) -> float:
    """Return the held-out cross-entropy of the frequencies of the training classes."""
    frequencies = torch.bincount(train.classes, minlength=CLASSES) / len(train)
    return -frequencies[held_out.classes].log().mean().item()


OBJECTIVES: dict[str, type[Objective]] = {
    "autoencoder": Autoencoder,
    "bottleneck": Bottleneck,
    "entropy-bonus": EntropyBonus,
    "consistency": Consistency,
    "shared-code": SharedCode,
    "few-labels": FewLabels,
}


class PenalisedWorkload(Workload):
    """R small networks, each on its own split of the digits.

    The metric "objective" is the sum of all losses on held-out images, which the plain sum minimises on the training
    images. "error_share" is the sum of the held-out errors relative to those of the best constant predictions. Scores
    are relative to the latter, too, so that their means over objectives can be compared. With the option `unit`, the
    first loss is multiplied by this factor in training only.
    """

    metrics = ("objective", "error_share")

    def __init__(self, runs: Sequence[Run]) -> None:
        first, device = runs[0], runs[0].device
        self.schedule, self.replicas = first.schedule, len(runs)
        seeds = [run.seed for run in runs]
        self.objective = OBJECTIVES[first.data.name](seeds, **first.model.kwargs).to(device)
        self.network, self.streams, self.tasks = self.objective, self.objective.shared.streams, self.objective.tasks
        self.units = torch.ones(len(runs), len(self.tasks), device=device)
        self.units[:, 0] = torch.tensor([run.data.kwargs.get("unit", 1.0) for run in runs])
        splits = [split_digits(seed) for seed in seeds]
        trivial = [(*self.objective.trivial_errors(*split), 0.0) for split in splits]
        self.trivial_losses = torch.tensor(trivial, device=device)
        self.train, self.held_out = (_stack(part, device) for part in zip(*splits, strict=True))
        self.labelled = self.objective.labelled or self.train[0].shape[1]
        fixed = [torch.Generator().manual_seed(seed + HELD_OUT_SEEDS) for seed in seeds]
        self.held_out_noise = self._draw(fixed, self.held_out[0].shape[1])
        self.replica_index = torch.arange(self.replicas, device=device).unsqueeze(1)

    @classmethod
    def max_replicas(cls, run: Run) -> int | None:
        """Return 30 for methods of all spaces: calls of operations take longer than these small networks."""
        return 30

    @property
    def steps(self) -> int:
        return -(-self.train[0].shape[1] // self.schedule.batch_size)

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the encoder or the classifier: no penalty depends on a decoder."""
        return self.objective.shared_parameters()

    def batches(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield images, classes and noise. The noise belongs to the batch, so that losses can be computed again."""
        images, classes = self.train
        rows, size = images.shape[1], self.schedule.batch_size
        order = torch.stack([shuffled_order(stream, rows) for stream in self.streams]).to(images.device)
        for chosen in order.split(size, 1):
            given, known = images[self.replica_index, chosen], classes[self.replica_index, chosen]
            if self.labelled < rows:  # all labelled images, and the batch without labels
                given = torch.cat([images[:, : self.labelled], given], 1)
                known = torch.cat([classes[:, : self.labelled], torch.full_like(known, -1)], 1)
            yield given, known, self._draw(self.streams, given.shape[1])

    def losses(self, batch: tuple[Tensor, ...]) -> Tensor:
        return torch.stack(self.objective(*batch), 1) * self.units

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        losses = torch.stack(self.objective(*self.held_out, self.held_out_noise), 1)
        trivial = self.trivial_losses.sum(1, keepdim=True)
        shares = losses / trivial
        score = self.trivial_losses / trivial - shares
        return {"score": score, "loss": losses, "objective": losses.sum(1), "error_share": shares[:, :-1].sum(1)}

    def kernel_settings(self) -> AbstractContextManager[None]:
        return disable_onednn()

    def state_dict(self) -> dict[str, Any]:
        return {"streams": [stream.get_state() for stream in self.streams]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for stream, saved in zip(self.streams, state["streams"], strict=True):
            stream.set_state(saved)

    def _draw(self, streams: Sequence[torch.Generator], images: int) -> Tensor:
        """Draw the noise of some images for each network, (R, n, ·)."""
        shape = images, self.objective.noise
        return torch.stack([torch.randn(shape, generator=stream) for stream in streams]).to(self.units.device)


def _stack(parts: Sequence[Digits], device: str) -> tuple[Tensor, Tensor]:
    images, classes = ([getattr(part, name) for part in parts] for name in ("images", "classes"))
    return torch.stack(images).to(device), torch.stack(classes).to(device)
