"""Atomic replacement of files and folders."""

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

STALE_SECONDS = 3600.0  # age after which a temporary path has been abandoned by a killed process
TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{16}\..+", re.DOTALL)

_swept: set[Path] = set()  # folders that this process has searched for abandoned temporary paths


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, and rename it to `target` if the block succeeds.

    The block creates a file or a folder at the temporary path. A reader sees the old content or the new one, never a
    part of it. The temporary name is random, so several processes or machines can write the same target. If the block
    raises, `target` is unchanged and the temporary path is deleted. The first write of a process to a folder also
    deletes the temporary paths that killed processes have left there.
    """
    temporary = target.with_name(f".{uuid.uuid4().hex[:16]}.{target.name}")
    try:
        yield temporary
        os.replace(temporary, target)
        if target.parent not in _swept:
            _swept.add(target.parent)
            with contextlib.suppress(OSError):
                _delete_abandoned(target.parent, now=target.stat().st_mtime)  # the clock of the file system
    finally:
        _delete(temporary)


def _delete_abandoned(folder: Path, now: float) -> None:
    """Delete temporary paths in which nothing has been written for `STALE_SECONDS`; others may still be in use."""
    for path in folder.iterdir():
        if TEMPORARY_NAME.fullmatch(path.name):
            with contextlib.suppress(OSError):
                inner = () if path.is_symlink() or not path.is_dir() else path.rglob("*")
                if now - max(each.lstat().st_mtime for each in (path, *inner)) > STALE_SECONDS:
                    _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
