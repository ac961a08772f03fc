"""How a report and its runs were made: the command, the versions, machines, dates and times."""

import math
import platform
import shlex
from collections.abc import Mapping, Sequence
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
    noted = {
        study: [one for one in map(read_circumstances, (root / study).glob("*")) if "seconds" in one]
        for study in studies
    }
    for study, runs in noted.items():
        for where in sorted({_where(one) for one in runs}):
            here = [one for one in runs if _where(one) == where]
            days = sorted({one["finished"][:10] for one in here})
            minutes = sum(one["seconds"] / one.get("runs", 1) for one in here) / 60
            when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
            lines.append(f"| `{study}` | {len(here)} | {' | '.join(where)} | {when} | {minutes:.1f} |")
    machines = {one["machine"] for runs in noted.values() for one in runs}
    for machine in sorted(machines):
        busy = _busy([one for runs in noted.values() for one in runs if one["machine"] == machine])
        lines += ["", f"{machine}: busy for {busy / 60:.1f} minutes."]
    return "\n".join(lines) + "\n"


def _where(noted: Mapping[str, Any]) -> tuple[str, str]:
    return noted["machine"], f"torch {noted['torch']}, Python {noted['python']}"


def _busy(noted: Sequence[Mapping[str, Any]]) -> float:
    """Seconds in which at least one of them was trained."""
    ends = [(datetime.fromisoformat(one["finished"]).timestamp(), one["seconds"]) for one in noted]
    total, until = 0.0, -math.inf
    for start, end in sorted((end - seconds, end) for end, seconds in ends):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
