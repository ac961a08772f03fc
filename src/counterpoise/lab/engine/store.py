"""Results on disk. Files are written atomically, and verified by a digest when they are read."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..._json import replace_nonfinite
from ..errors import CorruptWarning
from ..files import parse_json, read_regular, write_atomic
from .config import Run
from .run_content import check_content

DESCRIPTION, HISTORY, RESULT, CHECKPOINT, PROGRESS, CIRCUMSTANCES, MEMBERS = (
    "run.json",
    "history.json",
    "result.json",
    "checkpoint.pt",
    "progress.json",
    "circumstances.json",
    "members.json",
)


class Store:
    """A folder of runs.

    A run has the files root/study/key/{run,history,result}.json. The checkpoint, the progress and the run keys of a
    batch are in root/study/stack-key/ until the batch is finished.
    """

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
        """Write the files of a finished run.

        The result, which contains the digests of the other files, is written last: a run is finished if it exists.
        Pictures are optional and not verified.
        """
        folder = self.folder(run)
        for name, picture in (pictures or {}).items():
            write_atomic(folder / name, picture, to_pipes=False)
        texts = {DESCRIPTION: run.canonical(), HISTORY: encode(history)}
        for name, text in texts.items():
            write_atomic(folder / name, text.encode(), to_pipes=False)
        body = encode(result)
        digests = {name: digest(text.encode()) for name, text in {**texts, RESULT: body}.items()}
        write_atomic(folder / RESULT, encode({"digests": digests, "result": body}).encode(), to_pipes=False)

    def write_circumstances(self, run: Run, circumstances: dict[str, Any]) -> None:
        """Write when, where and with which versions a run was made. Its results do not depend on this file."""
        body = encode(circumstances).encode()
        write_atomic(self.folder(run) / CIRCUMSTANCES, body, durable=False, to_pipes=False)

    def circumstances(self, run: Run) -> dict[str, Any]:
        return read_circumstances(self.folder(run))

    def result(self, run: Run, *, clear: bool = False) -> dict[str, Any] | None:
        """Return the result of a run; None if it is not finished.

        A damaged folder raises a `CorruptWarning` and counts as not finished.

        Args:
            run: the run.
            clear: delete a damaged result. Set it only if the run will be repeated.
        """
        if not (self.root / run.study).exists():
            return None  # without the key of the run, which takes longer to compute
        folder = self.folder(run)
        if not (folder / RESULT).exists():
            return None
        try:
            return self._read_verified(run)[0]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(f"{folder} is damaged ({error}): {run} counts as not finished", CorruptWarning, stacklevel=2)
            if clear:
                with contextlib.suppress(OSError):  # a folder: writing the new result reports it
                    (folder / RESULT).unlink(missing_ok=True)
            return None

    def has_result(self, run: Run) -> bool:
        """Return whether a result was written, which may be damaged."""
        return (self.folder(run) / RESULT).exists()

    def history(self, run: Run) -> list[dict[str, Any]]:
        """Return the epochs of a finished run.

        Raises:
            OSError, ValueError, KeyError, TypeError, AttributeError: if a file of the run is missing or damaged.
        """
        return self._read_verified(run)[1]

    def _read_verified(self, run: Run) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        found, result, history = read_run_folder(self.folder(run))
        if found != run.canonical():
            raise ValueError(f"{DESCRIPTION} belongs to another run")
        return result, history

    def devices(self, study: str) -> list[str]:
        """Return the devices on which the runs of a study were made."""
        devices = set()
        for path in (self.root / study).glob(f"*/{DESCRIPTION}"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # `result` warns about damage
                devices.add(str(parse_json(read_regular(path))["device"]))
        return sorted(devices)

    def batch_folder(self, study: str, key: str) -> Path:
        return self.root / study / f"stack-{key}"

    def start_batch(self, study: str, key: str, runs: Sequence[Run]) -> None:
        """Write which runs a batch consists of, before any other file of the batch."""
        body = encode([run.key for run in runs]).encode()
        write_atomic(self.batch_folder(study, key) / MEMBERS, body, durable=False, to_pipes=False)

    def save_checkpoint(self, study: str, key: str, state: dict[str, Any]) -> None:
        buffer = io.BytesIO()
        torch.save(state, buffer)
        payload = buffer.getvalue()
        path = self.batch_folder(study, key) / CHECKPOINT
        write_atomic(path, digest(payload).encode() + payload, to_pipes=False)

    def load_checkpoint(self, study: str, key: str) -> dict[str, Any] | None:
        """Return the saved state of a batch; None without a checkpoint, or with a warning if it is damaged."""
        path = self.batch_folder(study, key) / CHECKPOINT
        if not path.exists():
            return None
        content = path.read_bytes() if path.is_file() else b""  # reading a pipe could block
        saved, payload = content[:64], content[64:]
        if digest(payload).encode() != saved:
            warnings.warn(f"{path} is damaged: its batch of runs starts over", CorruptWarning, stacklevel=2)
            path.unlink()
            return None
        state: dict[str, Any] = torch.load(io.BytesIO(payload), weights_only=True)
        return state

    def has_checkpoint(self, study: str, key: str) -> bool:
        return (self.batch_folder(study, key) / CHECKPOINT).exists()

    def save_progress(self, study: str, key: str, epoch: int, value: float) -> None:
        """Write the epoch and the monitored value that a batch has reached."""
        body = encode({"epoch": epoch, "live": value}).encode()
        write_atomic(self.batch_folder(study, key) / PROGRESS, body, durable=False, to_pipes=False)

    def load_progress(self, study: str, key: str) -> tuple[int, float] | None:
        """Return the epoch and the monitored value that a batch has reached; None if it has not started."""
        try:
            body = parse_json(read_regular(self.batch_folder(study, key) / PROGRESS))
            return int(body["epoch"]), float(body["live"] or 0.0)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def delete_checkpoint(self, study: str, key: str) -> None:
        shutil.rmtree(self.batch_folder(study, key), ignore_errors=True)

    def delete_finished_batches(self, study: str) -> None:
        """Delete the checkpoints of batches whose runs are all finished, and those of unknown runs.

        They remain if a process was killed before it deleted them, or if the runs were finished in other batches.
        """
        for folder in (self.root / study).glob("stack-*"):
            if not any(os.path.lexists(folder / name) for name in (MEMBERS, PROGRESS, CHECKPOINT)):
                continue  # empty: its batch may be about to start in another process
            try:
                members = [str(key) for key in parse_json(read_regular(folder / MEMBERS))]
            except (OSError, ValueError, TypeError):
                members = []
            if all((self.root / study / key / RESULT).exists() for key in members):
                shutil.rmtree(folder, ignore_errors=True)


def read_run_folder(folder: Path) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """Return the configuration, as JSON text, the result and the history of a finished run.

    Raises:
        OSError, ValueError, KeyError, TypeError, AttributeError: if a file is missing or damaged.
    """
    outer = parse_json(read_regular(folder / RESULT))
    digests, body = outer["digests"], outer["result"]
    contents = {name: read_regular(folder / name) for name in (DESCRIPTION, HISTORY)} | {RESULT: body.encode()}
    for name, content in contents.items():
        if digest(content) != digests[name]:
            raise ValueError(f"{name} does not match its digest")
    result, history = parse_json(body), parse_json(contents[HISTORY])
    check_content(result, history)
    return contents[DESCRIPTION].decode(), result, history


def read_circumstances(folder: Path) -> dict[str, Any]:
    """Return when, where and with which versions a run was made; empty if unknown."""
    try:
        circumstances = parse_json(read_regular(folder / CIRCUMSTANCES))
    except (OSError, ValueError):
        return {}
    return circumstances if isinstance(circumstances, dict) else {}


def digest(content: bytes) -> str:
    """Return the SHA-256 hash of a file's content."""
    return hashlib.sha256(content).hexdigest()


def encode(value: Any) -> str:
    """Return a value as standard JSON, with null for numbers that are not finite."""
    return json.dumps(replace_nonfinite(value), separators=(",", ":"), allow_nan=False)
