"""Results on disk: every file is written whole or not at all, and checked when it is read."""

import contextlib
import hashlib
import io
import json
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..files import write_atomic as write_atomic
from .config import Run

DESCRIPTION, HISTORY, RESULT, CHECKPOINT, PROGRESS, CIRCUMSTANCES = (
    "run.json",
    "history.json",
    "result.json",
    "checkpoint.pt",
    "progress.json",
    "circumstances.json",
)

STALE = 600.0  # seconds after which nobody writes on a draft any more


class CorruptWarning(UserWarning):
    """Something on disk is not what was written; it is done again."""


class Store:
    """A folder of runs: root/study/key/{run,history,result}.json; a stack's checkpoint is root/study/stack-key/."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, run: Run) -> Path:
        return self.root / run.study / run.key

    def finish(
        self,
        run: Run,
        history: list[dict[str, Any]],
        result: dict[str, Any],
        pictures: Mapping[str, bytes] | None = None,
    ) -> None:
        """Writes a run's files. The result comes last, with the digests of the others: then the run is done.

        Pictures are to look at; the run is the same without them.
        """
        folder = self.folder(run)
        for name, picture in (pictures or {}).items():
            write_atomic(folder / name, picture)
        texts = {DESCRIPTION: run.canonical(), HISTORY: encode(history)}
        for name, text in texts.items():
            write_atomic(folder / name, text.encode())
        body = encode(result)
        digests = {name: digest(text.encode()) for name, text in {**texts, RESULT: body}.items()}
        write_atomic(folder / RESULT, encode({"digests": digests, "result": body}).encode())
        for draft in folder.glob(".*.*.*"):  # of a worker that was killed while it wrote; another may be writing now
            with contextlib.suppress(OSError):
                if draft.stat().st_mtime < time.time() - STALE:
                    draft.unlink()

    def note(self, run: Run, circumstances: dict[str, Any]) -> None:
        """When, where and with what a run was made, beside it: nothing that its numbers follow from."""
        write_atomic(self.folder(run) / CIRCUMSTANCES, encode(circumstances).encode(), durable=False)

    def circumstances(self, run: Run) -> dict[str, Any]:
        return read_circumstances(self.folder(run))

    def result(self, run: Run, *, clear: bool = False) -> dict[str, Any] | None:
        """The result of a finished run, or None. A damaged folder is named and counts as not finished.

        Who will do the run again may `clear` such a folder; who only looks must not.
        """
        folder = self.folder(run)
        if not (folder / RESULT).exists():
            return None
        try:
            return self._verified(folder, run.canonical())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(f"{folder} is damaged ({error}): {run} counts as not run", CorruptWarning, stacklevel=2)
            if clear:
                (folder / RESULT).unlink(missing_ok=True)
            return None

    def history(self, run: Run) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads((self.folder(run) / HISTORY).read_text())
        return rows

    def _verified(self, folder: Path, description: str) -> dict[str, Any]:
        text, result = read_run_folder(folder)
        if text != description:
            raise ValueError(f"{DESCRIPTION} describes another run")
        return result

    def devices(self, study: str) -> list[str]:
        """On which devices runs of a study were made."""
        found = set()
        for path in (self.root / study).glob(f"*/{DESCRIPTION}"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged: told where it is read
                found.add(str(json.loads(path.read_text())["device"]))
        return sorted(found)

    def stack_folder(self, study: str, key: str) -> Path:
        return self.root / study / f"stack-{key}"

    def save_checkpoint(self, study: str, key: str, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        payload = buffer.getvalue()
        write_atomic(self.stack_folder(study, key) / CHECKPOINT, digest(payload).encode() + payload)

    def load_checkpoint(self, study: str, key: str) -> dict[str, Any] | None:
        """The state a stack was saved in, or None: nothing saved, or damaged (which is named)."""
        path = self.stack_folder(study, key) / CHECKPOINT
        if not path.exists():
            return None
        content = path.read_bytes()
        saved, payload = content[:64], content[64:]
        if digest(payload).encode() != saved:
            warnings.warn(f"{path} is damaged: its stack starts over", CorruptWarning, stacklevel=2)
            path.unlink()
            return None
        state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
        return state

    def has_checkpoint(self, study: str, key: str) -> bool:
        return (self.stack_folder(study, key) / CHECKPOINT).exists()

    def save_progress(self, study: str, key: str, epoch: int, live: float) -> None:
        body = encode({"epoch": epoch, "live": live}).encode()
        write_atomic(self.stack_folder(study, key) / PROGRESS, body, durable=False)

    def load_progress(self, study: str, key: str) -> tuple[int, float] | None:
        try:
            body = json.loads((self.stack_folder(study, key) / PROGRESS).read_text())
            return int(body["epoch"]), float(body["live"] or 0.0)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def drop_stack(self, study: str, key: str) -> None:
        shutil.rmtree(self.stack_folder(study, key), ignore_errors=True)


def read_run_folder(folder: Path) -> tuple[str, dict[str, Any]]:
    """The description and the result of a finished run; an error if a file is missing or not what was written."""
    outer = json.loads((folder / RESULT).read_text())
    digests, body = outer["digests"], outer["result"]
    contents = {name: (folder / name).read_bytes() for name in (DESCRIPTION, HISTORY)} | {RESULT: body.encode()}
    for name, content in contents.items():
        if digest(content) != digests[name]:
            raise ValueError(f"{name} does not match its digest")
    return contents[DESCRIPTION].decode(), json.loads(body)


def read_circumstances(folder: Path) -> dict[str, Any]:
    """What was noted beside a run; empty where nothing was, or nothing that can be read."""
    try:
        noted = json.loads((folder / CIRCUMSTANCES).read_text())
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def encode(value: Any) -> str:
    """JSON that every reader accepts: a number that is not finite becomes null."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
