"""The handwritten digits of scikit-learn: 1,797 images of 8 × 8 pixels, which need no download."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

PIXELS, CLASSES = 64, 10
TRAIN_SHARE = 0.8


@dataclass(frozen=True)
class Digits:
    """Images as rows of 64 values between 0 and 1, and their classes."""

    images: Tensor  # (n, 64)
    classes: Tensor  # (n,)

    def __getitem__(self, rows: Tensor) -> "Digits":
        return Digits(self.images[rows], self.classes[rows])

    def __len__(self) -> int:
        return len(self.images)


@cache
def load_digits() -> Digits:
    """Return all digits."""
    from sklearn import datasets  # takes a second

    found = datasets.load_digits()
    return Digits(torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target))


def split_digits(seed: int) -> tuple[Digits, Digits]:
    """Return the training and the held-out digits of a seed."""
    digits = load_digits()
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    training = round(TRAIN_SHARE * len(digits))
    return digits[order[:training]], digits[order[training:]]
