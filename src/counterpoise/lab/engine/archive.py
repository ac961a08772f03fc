"""Archives: many finished runs in one compressed file of JSON lines.

Each line holds one run: its description (`run`), `history`, `result`, the `digests` of these three, its
`circumstances` (machine, versions, times), and `pictures` as base64. Description and result are those of the run
folder. The history is thinned: curves need neither every epoch nor every digit.
"""

import base64
import json
import lzma
import warnings
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..data.visualisation import PREDICTED
from ..errors import CorruptWarning
from ..files import parse_json, read_regular, refuse_constant, write_atomic
from .config import Run, parse_run
from .run_content import check_content
from .store import (
    DESCRIPTION,
    HISTORY,
    RESULT,
    Store,
    digest,
    encode,
    read_circumstances,
    read_run_folder,
)

SUFFIX = ".jsonl.xz"
MAX_EPOCHS = 40
"""About as many epochs of a history are kept, evenly spaced."""
HISTORY_DIGITS = 4
"""Significant digits of the numbers in a history."""
PARTS = {DESCRIPTION: "run", HISTORY: "history", RESULT: "result"}
"""What a line holds of the files of a run folder, by file."""
DECODER = json.JSONDecoder(parse_constant=refuse_constant)
READ_ERRORS = (
    OSError,
    EOFError,
    lzma.LZMAError,
    zlib.error,
    RecursionError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)
"""What reading a damaged archive or run folder can raise."""


@dataclass(frozen=True)
class ArchivedRun:
    """A finished run read from an archive. Its methods mirror those of `RunFolder`."""

    description: str
    result: dict[str, Any]
    epochs: list[dict[str, Any]]
    circumstances: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, str] = field(default_factory=dict)

    def history(self) -> list[dict[str, Any]]:
        return self.epochs

    def picture(self, name: str) -> bytes | None:
        try:
            return base64.b64decode(self.pictures[name]) if name in self.pictures else None
        except (TypeError, ValueError):  # pictures are not verified
            return None


@dataclass(frozen=True)
class RunFolder:
    """A finished run in its own folder. Only the description and the result are read at once."""

    path: Path
    description: str
    result: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "RunFolder":
        """Read and verify a run folder; raise one of `READ_ERRORS` if a file is missing or damaged."""
        return cls(path, *read_run_folder(path)[:2])

    @property
    def circumstances(self) -> dict[str, Any]:
        return read_circumstances(self.path)

    def history(self) -> list[dict[str, Any]]:
        return read_run_folder(self.path)[2]

    def picture(self, name: str) -> bytes | None:
        try:
            return read_regular(self.path / name)
        except OSError:
            return None


@dataclass(frozen=True)
class DamagedLine:
    """A line of an archive that could not be used, and why."""

    number: int
    reason: str


def pack(runs: Path, archive: Path) -> int:
    """Write the finished runs below a folder into one archive, and return how many there are.

    The runs are sorted by their key, so the same runs always give the same file. Histories are thinned. Predictions are
    kept only for the lowest seed of each setting, which is what a page shows. Photographs of the data set
    (`truth.webp`) are never packed: their licence may not allow it.

    Raises:
        ValueError: if the folder holds no finished run, or a run that is damaged.
    """
    folders = sorted({path.parent for path in runs.rglob(RESULT)}, key=lambda folder: folder.name)
    if not folders:
        raise ValueError(f"{runs} holds no finished run")
    found = []
    for folder in folders:
        try:
            found.append(RunFolder.read(folder))
        except READ_ERRORS as error:
            raise ValueError(f"{folder} is damaged: {error}") from error
    pictured = set(_lowest_seeds(found))
    write_archive(archive, [archive_line(run, picture=run.description in pictured) for run in found])
    return len(found)


def _lowest_seeds(runs: Iterable[RunFolder]) -> Iterator[str]:
    """Yield, for runs that differ only in their seed, the description with the lowest seed."""
    groups: dict[str, tuple[int, str]] = {}
    for run in runs:
        setting = json.loads(run.description)
        seed = setting.pop("seed")
        setting = encode(setting)
        groups[setting] = min(groups.get(setting, (seed, run.description)), (seed, run.description))
    return (description for _, description in groups.values())


def archive_line(run: RunFolder | ArchivedRun, *, picture: bool = True) -> str:
    """Return the line of a run in an archive. The line of an archived run is equal to the one that it was read from.

    Args:
        run: The run.
        picture: Whether to keep the predictions, if there are any. Default: True.
    """
    predicted = run.picture(PREDICTED) if picture else None
    description = json.loads(run.description)
    history = thin_history(run.history(), description["schedule"]["epochs"])
    texts = {DESCRIPTION: run.description, HISTORY: encode(history), RESULT: encode(run.result)}
    content = {
        "run": description,
        "history": history,
        "result": run.result,
        "digests": {name: digest(text.encode()) for name, text in texts.items()},
        "circumstances": run.circumstances,
        "pictures": {} if predicted is None else {PREDICTED: base64.b64encode(predicted).decode()},
    }
    line = encode(content)
    _verified(line)  # an error now, not when it is read
    return line


def thin_history(history: list[dict[str, Any]], epochs: int) -> list[dict[str, Any]]:
    """Return the first, the last and every n-th epoch of a history, with rounded numbers.

    Args:
        history: The epochs.
        epochs: The epochs of the schedule, which determine n. Runs that stop at different epochs still share theirs.
    """
    every = -(-epochs // MAX_EPOCHS)
    ends = (0, len(history) - 1)
    return [_round_numbers(row) for i, row in enumerate(history) if i in ends or row["epoch"] % every == 0]


def _round_numbers(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.{HISTORY_DIGITS}g}")
        case list():
            return [_round_numbers(item) for item in value]
        case dict():
            return {name: _round_numbers(item) for name, item in value.items()}
    return value


def write_archive(archive: Path, lines: Iterable[str]) -> None:
    """Write lines of runs as an archive."""
    text = "".join(f"{line}\n" for line in lines)
    write_atomic(archive, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read_archive(archive: Path) -> Iterator[ArchivedRun | DamagedLine]:
    """Yield each run of an archive, or what is wrong with its line. Corrupt compressed data end the archive."""
    number = 0
    try:
        if archive.exists() and not archive.is_file():
            raise ValueError("it is not a regular file")
        with lzma.open(archive, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield _verified(line)
                except READ_ERRORS as error:
                    yield DamagedLine(number, str(error) or type(error).__name__)
    except READ_ERRORS as error:
        yield DamagedLine(number + 1, f"cannot be read: {error}")


def _verified(line: str) -> ArchivedRun:
    """Parse a line and compare the digests."""
    try:
        content, texts = _parse_as_written(line)
        _check_digests(texts, content["digests"])
    except READ_ERRORS:  # damaged, or the same content in another form: encoding it gives the text of the digests
        content = parse_json(line)
        texts = {name: _encode_parsed(content[key]) for name, key in PARTS.items()}
        _check_digests(texts, content["digests"])
    check_content(content["result"], content["history"])
    circumstances, pictures = (
        content[name] if isinstance(content[name], dict) else {} for name in ("circumstances", "pictures")
    )
    return ArchivedRun(texts[DESCRIPTION], content["result"], content["history"], circumstances, pictures)


def _parse_as_written(line: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse a line that begins with its parts in order, and return its content and the texts of the parts.

    Encoding the parts again would take as long as parsing them.
    """
    parts, texts, place = {}, {}, 1
    for name, key in PARTS.items():
        head = f'"{key}":'
        start = place + len(head)
        if not line.startswith(head, place):
            raise ValueError(f"expected {key} at {place}")
        parts[key], end = DECODER.raw_decode(line, start)
        texts[name] = line[start:end]
        if not line.startswith(",", end):
            raise ValueError(f"expected a comma at {end}")
        place = end + 1
    return parse_json(f"{{{line[place:]}") | parts, texts


def _check_digests(texts: dict[str, str], digests: dict[str, str]) -> None:
    for name, text in texts.items():
        if digest(text.encode()) != digests[name]:
            raise ValueError(f"{name} does not match its digest")


def _encode_parsed(value: Any) -> str:
    """Return a parsed value as `encode` does. JSON has no numbers that are not finite, so none are looked for."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class ArchivedStore(Store):
    """A store that also finds the runs of archives beside its study folders: root/*.jsonl.xz."""

    def result(self, run: Run, *, clear: bool = False) -> dict[str, Any] | None:
        result = super().result(run, clear=clear)
        if result is None and self._archived and run.key in self._archived:
            return self._archived[run.key].result
        return result

    def history(self, run: Run) -> list[dict[str, Any]]:
        try:
            return super().history(run)
        except READ_ERRORS:  # then `result` comes from an archive, too
            return self._archived[run.key].history()

    def circumstances(self, run: Run) -> dict[str, Any]:
        return super().circumstances(run) or (
            self._archived[run.key].circumstances if run.key in self._archived else {}
        )

    def devices(self, study: str) -> list[str]:
        archived = {run.device for run in self._runs if run.study == study}
        return sorted({*super().devices(study), *archived})

    @cached_property
    def _archived(self) -> dict[str, ArchivedRun]:
        return {run.key: archived for run, archived in self._runs.items()}

    @cached_property
    def _runs(self) -> dict[Run, ArchivedRun]:
        found = {}
        for archive in sorted(self.root.glob(f"*{SUFFIX}")):
            for archived in read_archive(archive):
                try:
                    if isinstance(archived, DamagedLine):
                        raise ValueError(archived.reason)
                    found[parse_run(archived.description)] = archived
                except ValueError as error:
                    warnings.warn(f"{archive} holds a run that cannot be used: {error}", CorruptWarning, stacklevel=2)
        return found
