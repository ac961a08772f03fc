"""Atomic writing of files."""

import os
from pathlib import Path

from .._files import atomic_path


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file in one step, so that a reader or a crash sees the old content or the new one.

    Parent folders are created. A symbolic link is kept, and its target is replaced. Pipes and devices are written
    directly.

    Args:
        path: the file to write.
        content: its new content.
        durable: whether to flush the content to the disk before the file is replaced.

    Raises:
        OSError: if the file cannot be written. The error names `path`, not the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    target = path.resolve() if path.is_symlink() else path
    try:
        with atomic_path(target) as temporary, open(temporary, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
