"""Checks of devices and folders before anything is trained or written."""

import tempfile
from pathlib import Path

import torch

from ..errors import UsageError


def check_device(name: str) -> str:
    """Return the name of a device, which need not exist on this machine.

    Raises:
        UsageError: If the name is not cpu, cuda or cuda:N.
    """
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise UsageError(f"unknown device {name!r}: expected cpu, cuda or cuda:N") from error
    if kind != "cuda" and name != "cpu":
        raise UsageError(f"device {name!r} is not supported: expected cpu, cuda or cuda:N")
    return name


def check_available(name: str) -> str:
    """Return the name of a device that this machine has.

    Raises:
        UsageError: If the machine does not have the device.
    """
    if check_device(name).startswith("cuda"):
        if not torch.cuda.is_available():
            raise UsageError("no CUDA device found: omit --device to train on the CPU")
        if (torch.device(name).index or 0) >= torch.cuda.device_count():
            raise UsageError(f"device {name!r} not found: expected an index below {torch.cuda.device_count()}")
    return name


def make_writable(folder: Path) -> None:
    """Create a folder and check that files can be written to it, before hours of training.

    Raises:
        UsageError: If the path is a file or the folder is not writable.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, expected a folder to write to")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
