"""The fixed half of NYUv2's training images, as the paper's authors drew it."""

import random
from collections import defaultdict

import torch
from torch import Tensor

from .images import CLASSES, IGNORED, Images

SIZE, SEED = 398, 11
EDGES = (0.25, 0.5, 0.75)  # of the share of pixels whose depth is known


def half(images: Images, size: int = SIZE, seed: int = SEED) -> Tensor:
    """Training images drawn from strata: majority class × bin of the share of pixels with depth.

    The paper calls the second one a depth quartile; its authors' code bins the share of valid pixels, and so does this.
    Each stratum gets its largest-remainder share of `size`, ties by its key; Python's Random draws from the strata in
    the order of their keys.
    """
    strata: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in sorted(images.train.tolist()):
        strata[_stratum(images.label[number], images.depth[number])].append(number)
    total = len(images.train)
    size = min(size, total)
    exact = {key: size * len(members) / total for key, members in strata.items()}
    share = {key: int(value) for key, value in exact.items()}
    left = size - sum(share.values())
    for key in sorted(strata, key=lambda k: (-(exact[k] - share[k]), k))[:left]:
        share[key] += 1
    source = random.Random(seed)
    chosen = [number for key in sorted(strata) for number in source.sample(strata[key], share[key])]
    return torch.tensor(sorted(chosen), dtype=torch.long)


def _stratum(label: Tensor, depth: Tensor) -> tuple[int, int]:
    counts = torch.bincount(label[label != IGNORED].long(), minlength=len(CLASSES))
    known = float((depth > 0).float().mean())
    return int(counts.argmax()), sum(known >= edge for edge in EDGES)
