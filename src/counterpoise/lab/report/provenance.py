"""How a report and its runs were made: the command, the versions, machines, dates and times."""

import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import counterpoise as cp

from ..engine.store import read_circumstances


def provenance(studies: Sequence[str], options: Mapping[str, Any], quick: bool) -> str:
    """One line each. Folders are left out of the command: they say nothing about the numbers."""
    words = ["counterpoise", "reproduce", *studies]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            words += [name, str(one)] if one is not None and (name, one) != ("--device", "cpu") else []
    words += ["--quick"] if quick else []
    cuda = str(options.get("--device", "cpu")).startswith("cuda")
    machine = torch.cuda.get_device_name() if cuda else f"CPU ({platform.machine()})"
    versions = f"counterpoise {cp.__version__}, torch {torch.__version__}, numpy {np.__version__}"
    return (
        f"- command: `{shlex.join(words)}`\n"
        f"- versions: {versions}, Python {platform.python_version()}\n"
        f"- on: {machine}\n"
        f"- date: {datetime.now(UTC):%Y-%m-%d}\n"
    )


def workshop(root: Path, studies: Sequence[str]) -> str:
    """A table of where, when and how long the runs of a folder were trained, from what was noted beside each.

    Runs of one stack share its time. Runs side by side wait for each other: their minutes add up to more than the
    machine was busy, which is said below.
    """
    lines = ["| study | runs | on | with | when | minutes |", "| --- | ---: | --- | --- | --- | ---: |"]
    noted = {study: [one for one in map(_noted, (root / study).glob("*")) if one is not None] for study in studies}
    for study, runs in noted.items():
        for where in sorted({(one.machine, one.versions) for one in runs}):
            here = [one for one in runs if (one.machine, one.versions) == where]
            days = sorted({f"{one.finished:%Y-%m-%d}" for one in here})
            minutes = sum(one.seconds / one.runs for one in here) / 60
            when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
            lines.append(f"| `{study}` | {len(here)} | {' | '.join(where)} | {when} | {minutes:.1f} |")
    machines = {one.machine for runs in noted.values() for one in runs}
    for machine in sorted(machines):
        busy = _busy([one for runs in noted.values() for one in runs if one.machine == machine])
        lines += ["", f"{machine}: busy for {busy / 60:.1f} minutes."]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Noted:
    """How a run was made."""

    machine: str
    versions: str
    finished: datetime
    seconds: float
    runs: int  # that share the time


def _noted(folder: Path) -> Noted | None:
    """What was noted beside a run; None where nothing was, or something else."""
    given = read_circumstances(folder)
    try:
        versions = f"torch {given['torch']}, Python {given['python']}"
        times = datetime.fromisoformat(given["finished"]), float(given["seconds"])
        return Noted(str(given["machine"]), versions, *times, max(1, int(given.get("runs", 1))))
    except (KeyError, TypeError, ValueError):
        return None


def _busy(noted: Sequence[Noted]) -> float:
    """Seconds in which at least one of them was trained."""
    ends = [(one.finished.timestamp(), one.seconds) for one in noted]
    total, until = 0.0, -math.inf
    for start, end in sorted((end - seconds, end) for end, seconds in ends):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
