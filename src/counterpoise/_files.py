"""Atomic replacement of files and folders."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, and rename it to `target` if the block succeeds.

    The block creates a file or a folder at the temporary path. A reader sees the old content or the new one, never a
    part of it. The temporary name is unique, so several processes or machines can write the same target. If the block
    raises, `target` is unchanged and the temporary path is deleted.
    """
    temporary = target.with_name(f".{uuid.uuid4().hex[:16]}.{target.name}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                temporary.unlink()
