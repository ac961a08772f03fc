"""One thread, and double precision where chance would decide."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def double() -> Iterator[None]:
    """Adam makes a whole step of a gradient that is nearly 0, and pooling a choice between equals: chance in single."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
