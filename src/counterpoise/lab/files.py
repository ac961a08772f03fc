"""Atomic writing of files, and reading of files that may be anything."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

from .._files import atomic_path


def write_atomic(path: Path, content: bytes, *, durable: bool = True, to_pipes: bool = True) -> None:
    """Write a file in one step, so that a reader or a crash sees the old content or the new one.

    Parent folders are created. A symbolic link is kept, and its target is replaced.

    Args:
        path: the file to write.
        content: its new content.
        durable: whether to flush the content to the disk before the file is replaced.
        to_pipes: whether pipes and devices are written to directly, which may block. Otherwise they are replaced.

    Raises:
        OSError: if the file cannot be written. The error names `path`, not the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if to_pipes and path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    try:
        target = path.resolve() if path.is_symlink() else path
        with atomic_path(target) as temporary, open(temporary, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except RuntimeError as error:  # from `resolve`, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_regular(path: Path) -> bytes:
    """Read a regular file.

    Raises:
        OSError: if the path is missing, a folder, a link to itself, or a pipe or device, which could block.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()


def parse_json(text: str | bytes) -> Any:
    """Parse standard JSON.

    Raises:
        ValueError: if the text is not JSON, nested too deeply, or contains NaN or Infinity.
    """
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error


def refuse_constant(name: str) -> NoReturn:
    """Raise an error about NaN or Infinity in a JSON text."""
    raise ValueError(f"{name} is not standard JSON")
