"""Contexts that change global settings of torch and restore them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Return an autocast context for "bf16" and "fp16", and an empty one for "fp32"."""
    dtype = AUTOCAST_DTYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.split(":")[0], dtype)


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Seed the global random streams of the CPU and of `device`, and restore them afterwards."""
    devices = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN measure which convolution algorithm is fastest."""
    settings: Any = torch.backends.cudnn
    before, settings.benchmark = settings.benchmark, True
    try:
        yield
    finally:
        settings.benchmark = before


@contextmanager
def disable_onednn() -> Iterator[None]:
    """Use torch's own kernels: for matrices of 64 × 64, oneDNN is up to 18 times slower."""
    settings: Any = torch.backends.mkldnn
    before, settings.enabled = settings.enabled, False
    try:
        yield
    finally:
        settings.enabled = before


@contextmanager
def allow_tf32() -> Iterator[None]:
    """Let float32 matrix products on CUDA use TF32, which rounds their factors to eleven bits."""
    settings: Any = torch.backends.cuda.matmul
    before, settings.allow_tf32 = settings.allow_tf32, True
    try:
        yield
    finally:
        settings.allow_tf32 = before


@contextmanager
def num_threads(count: int) -> Iterator[None]:
    """Set the number of threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
