"""Random damage to a folder of runs."""

import json
import os
import random
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise._files import STALE_SECONDS, TEMPORARY_NAME
from counterpoise.lab.engine.store import DESCRIPTION, HISTORY, RESULT, digest, encode

REPORT = "report"


@dataclass(frozen=True)
class Damage:
    """What was done to which path."""

    kind: str
    path: Path


def is_temporary(path: Path) -> bool:
    """Return whether a path or one of its folders is named like a temporary path of an atomic write."""
    return any(TEMPORARY_NAME.fullmatch(part) for part in path.parts)


def files_of(folder: Path) -> list[Path]:
    """Return everything below a folder that is not a folder, without temporary paths, in alphabetical order."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path for path in found if not is_temporary(path.relative_to(folder)))


def damage_one(folder: Path, rng: random.Random) -> Damage | None:
    """Damage one random file of a folder of runs; None if there is no file."""
    groups: dict[str, list[Path]] = {}
    for path in files_of(folder):
        if path.is_file():
            first, second = path.relative_to(folder).parts[:2]
            group = REPORT if first == REPORT else "batch" if second.startswith("stack-") else "run"
            groups.setdefault(group, []).append(path)
    if not groups:
        return None
    group = rng.choice(sorted(groups))  # otherwise most of the damage would be to the many files of the report
    path = rng.choice(groups[group])
    kinds = [kind for kind in KINDS if _applies(kind, path, group)]
    kind = rng.choice(kinds)
    KINDS[kind](path, rng)
    return Damage(kind, path)


def delete_runs(folder: Path, rng: random.Random, share: float) -> list[Damage]:
    """Delete a random share of the run folders, at least one if there is one."""
    runs = sorted({path.parent for path in folder.rglob(DESCRIPTION)})
    chosen = rng.sample(runs, min(len(runs), max(1, round(share * len(runs)))))
    for run in chosen:
        shutil.rmtree(run)
    return [Damage("missing folder", run) for run in chosen]


def remove(path: Path) -> None:
    """Delete a file, a link or a folder, as the user would do who reads an error message about it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _applies(kind: str, path: Path, group: str) -> bool:
    if kind == "odd JSON":
        return path.suffix == ".json"
    if kind == "missing folder":
        return group == "run"
    return kind != "bit flip" or path.stat().st_size > 0


def _truncate(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randint(0, max(0, path.stat().st_size - 1)))


def _flip(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def _delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def _delete_folder(path: Path, rng: random.Random) -> None:
    shutil.rmtree(path.parent)


def _pipe(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def _directory(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()
    if rng.random() < 0.5:
        (path / "file").touch()


def _link(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _odd_json(path: Path, rng: random.Random) -> None:
    """Write valid JSON of another shape; for results and histories also with valid digests."""
    odd: list[Any] = [[], None, 7, "text", {}, {"digests": [], "result": 3}, {"epoch": "x", "live": []}, [{"epoch": 1}]]
    text = rng.choice([*map(json.dumps, odd), "[" * 100_000, '{"macro": NaN}'])
    if path.name in (RESULT, HISTORY) and rng.random() < 0.5:
        result = path.with_name(RESULT)
        try:
            outer = json.loads(result.read_bytes())
            body = text if path.name == RESULT else outer["result"]
            name = path.name
            outer = {"digests": {**outer["digests"], name: digest(text.encode())}, "result": body}
        except (OSError, ValueError, KeyError, TypeError):
            pass  # damaged before
        else:
            result.write_text(encode(outer))
            if name == RESULT:
                return
    path.write_text(text)


def _temporary(path: Path, rng: random.Random) -> None:
    """Leave a temporary file beside the path, as a killed process does; every second one is old."""
    temporary = path.with_name(f".{uuid.UUID(int=rng.getrandbits(128)).hex[:16]}.{path.name}")
    temporary.write_bytes(path.read_bytes()[: rng.randint(0, 100)])
    if rng.random() < 0.5:
        then = time.time() - 2 * STALE_SECONDS
        os.utime(temporary, (then, then))


KINDS: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": _truncate,
    "bit flip": _flip,
    "missing file": _delete,
    "missing folder": _delete_folder,
    "pipe": _pipe,
    "directory": _directory,
    "looping link": _link,
    "odd JSON": _odd_json,
    "temporary file": _temporary,
}
OBSTACLES = ("directory", "looping link")
"""Damage that `reproduce` may refuse with an error that names the path, because it does not delete folders or links."""
