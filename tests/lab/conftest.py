"""Fixtures that make training reproducible: one thread, and double precision on request."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def double() -> Iterator[None]:
    """Set the default dtype to float64.

    In single precision, rounding errors decide the direction of Adam's steps for gradients near 0, and which of two
    nearly equal values max-pooling selects.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
