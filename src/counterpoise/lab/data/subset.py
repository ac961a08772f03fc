"""The fixed half of the training images of NYUv2 that the paper's authors used."""

import random
from collections import defaultdict

import torch
from torch import Tensor

from .images import CLASSES, IGNORED, Images

SIZE, SEED = 398, 11
BIN_EDGES = (0.25, 0.5, 0.75)  # of the share of pixels with known depth


def half_subset(images: Images, size: int = SIZE, seed: int = SEED) -> Tensor:
    """Draw training images from strata: majority class × bin of the share of pixels with known depth.

    The paper calls the bin a depth quartile, but its authors' code bins the share of valid pixels, which is repeated
    here. Each stratum gets its share of `size` by largest remainders, with ties in the order of the keys. Python's
    Random samples the strata in the order of their keys.

    Returns:
        Sorted image numbers.
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
    numbers = [number for key in sorted(strata) for number in source.sample(strata[key], share[key])]
    return torch.tensor(sorted(numbers), dtype=torch.long)


def _stratum(label: Tensor, depth: Tensor) -> tuple[int, int]:
    counts = torch.bincount(label[label != IGNORED].long(), minlength=len(CLASSES))
    known = float((depth > 0).float().mean())
    return int(counts.argmax()), sum(known >= edge for edge in BIN_EDGES)
