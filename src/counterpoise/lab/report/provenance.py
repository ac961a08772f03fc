"""How a report and its runs were made: command, versions, machines, dates and times."""

import math
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import counterpoise as cp

from ..engine.archive import SUFFIX, ArchivedRun, read_archive
from ..engine.store import read_circumstances
from .markdown import markdown_table


def provenance(studies: Sequence[str], options: Mapping[str, Any], quick: bool) -> str:
    """Return the command, versions, machine and date as a Markdown list. Folders are omitted from the command."""
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
        f"- machine: {machine}\n"
        f"- date: {datetime.now(UTC):%Y-%m-%d}\n"
    )


def machine_table(root: Path, studies: Sequence[str]) -> str:
    """Return a Markdown table of where, when and how long the runs of each study were trained.

    Runs of one batch share its time. Runs trained side by side wait for each other, so their minutes add up to more
    than the time in which the machine was busy, which is given below the table. For runs that were resumed, the time
    since their last start is counted. Runs without a complete record are skipped.

    Args:
        root: a folder with the run folders of each study, or with its archive.
        studies: their names.
    """
    sessions = {study: list(filter(None, map(_session, _circumstances(root, study)))) for study in studies}
    rows = []
    for study, runs in sessions.items():
        for machine, versions in sorted({(run.machine, run.versions) for run in runs}):
            here = [run for run in runs if (run.machine, run.versions) == (machine, versions)]
            days = sorted({f"{run.finished:%Y-%m-%d}" for run in here})
            minutes = sum(run.seconds / run.batch for run in here) / 60
            dates = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
            rows.append([f"`{study}`", str(len(here)), machine, versions, dates, f"{minutes:.1f}"])
    heads = ["study", "runs", "machine", "versions", "dates", "minutes"]
    lines = [markdown_table(heads, rows, right={1, 5})]
    for machine in sorted({run.machine for runs in sessions.values() for run in runs}):
        busy = _busy_seconds([run for runs in sessions.values() for run in runs if run.machine == machine])
        lines += ["", f"{machine}: busy for {busy / 60:.1f} minutes."]
    resumed = sum(run.resumed for runs in sessions.values() for run in runs)
    if resumed:
        lines += ["", f"Resumed runs: {resumed}. Only the time since their last start is counted."]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class _Session:
    """Where and when a run was trained."""

    machine: str
    versions: str
    finished: datetime
    seconds: float
    batch: int  # the number of runs that share the time
    resumed: bool


def _circumstances(root: Path, study: str) -> Iterator[Mapping[str, Any]]:
    yield from map(read_circumstances, (root / study).glob("*"))
    archive = root / f"{study}{SUFFIX}"
    if archive.is_file():
        yield from (run.circumstances for run in read_archive(archive) if isinstance(run, ArchivedRun))


def _session(recorded: Mapping[str, Any]) -> _Session | None:
    try:
        versions = f"torch {recorded['torch']}, Python {recorded['python']}"
        times = datetime.fromisoformat(recorded["finished"]), float(recorded["seconds"])
        times[0].timestamp()  # some dates have none
        batch, resumed = max(1, int(recorded.get("runs", 1))), bool(recorded.get("resumed"))
        return _Session(str(recorded["machine"]), versions, *times, batch, resumed)
    except (KeyError, OverflowError, TypeError, ValueError):
        return None


def _busy_seconds(sessions: Sequence[_Session]) -> float:
    """Return for how many seconds at least one run was being trained."""
    ends = [(run.finished.timestamp(), run.seconds) for run in sessions]
    total, until = 0.0, -math.inf
    for start, end in sorted((end - seconds, end) for end, seconds in ends):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
