"""Files that are written whole or not at all."""

import contextlib
import os
from pathlib import Path


def write_atomic(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Puts a file in its place in one step: a reader, or a crash, sees the old file or the new one.

    A durable file has also reached the disk before it takes its place. An OSError names the file: a full disk would
    name none, and most others the draft. A link stays one; into a pipe or a device the content is written as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_bytes(content)
        return
    target = path.resolve() if path.is_symlink() else path
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
