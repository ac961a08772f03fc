"""Select runs of a study's grid by seeds, methods and conditions given as text."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from ..data.dense import DENSE
from ..errors import UsageError
from . import find_study
from .base import Cell, Study
from .dense import on_synthetic_rooms

SCENES = "scenes"
"""The value of `data` that replaces NYUv2 by synthetic rooms."""

SEED_RANGE = re.compile("([0-9]+)(?:-([0-9]+))?")
MAX_DIGITS, MAX_SEEDS = 9, 10_000  # larger inputs are most likely typing errors


def resolve_study(name: str, *, data: str | None = None, quick: bool = False) -> Study:
    """Return a study by its name.

    Args:
        name: Name of the study.
        data: "scenes" for synthetic rooms instead of NYUv2. Data folders have no effect here.
        quick: Whether to return the quick form. Studies of NYUv2 then use small synthetic rooms.

    Raises:
        UsageError: If there is no such study, or if it has no such form.
    """
    study = find_study(name)
    if data == SCENES or (quick and study.problem in DENSE):
        return on_synthetic_rooms(study, small=quick)
    return study.quick_form() if quick else study


def select_runs(
    study: Study,
    *,
    seeds: str | Iterable[int] | None = None,
    epochs: int | None = None,
    device: str = "cpu",
    methods: Iterable[str] | None = None,
    conditions: Iterable[str] | None = None,
) -> list[Cell]:
    """Return the runs of a study's grid at the given seeds, epochs, methods and conditions.

    Raises:
        UsageError: If the seeds are invalid, or if the study has no such method or condition.
    """
    cells = study.grid(seeds=parse_seeds(seeds, study), epochs=epochs, device=device)
    return select_cells(study, cells, methods, conditions)


def report_seeds(seeds: str | Iterable[int] | None, study: Study) -> list[int] | None:
    """Return the seeds that a report is limited to: None for "paper", because those differ between studies."""
    return None if seeds == "paper" else parse_seeds(seeds, study)


def parse_seeds(text: str | Iterable[int] | None, study: Study) -> list[int] | None:
    """Parse seeds such as "42-51" or "42,43,44".

    Args:
        text: The seeds; "paper" means the study's own seeds. A list of numbers is kept.
        study: The study that the seeds are for.

    Returns:
        The seeds without duplicates, or None for None.

    Raises:
        UsageError: If the text cannot be parsed or contains too many seeds.
    """
    if text is None:
        return None
    if text == "paper":
        return list(study.seeds)
    if not isinstance(text, str):
        return list(dict.fromkeys(text))
    seeds: list[int] = []
    for piece in text.split(","):
        match = SEED_RANGE.fullmatch(piece.strip())
        if match is None:
            raise UsageError(f'invalid seeds {text!r}: expected for example "42-51", "42,43,44" or "paper"')
        first, last = match[1], match[2] or match[1]
        if max(len(first), len(last)) > MAX_DIGITS:
            raise UsageError(f"invalid seeds {text!r}: expected numbers of at most {MAX_DIGITS} digits")
        part = range(int(first), int(last) + 1)
        if not part:
            raise UsageError(f"invalid seeds {piece.strip()!r}: the range is empty")
        if len(seeds) + len(part) > MAX_SEEDS:
            count = len(seeds) + len(part)
            raise UsageError(f"invalid seeds {text!r}: {count:,} or more, expected at most {MAX_SEEDS:,}")
        seeds += part
    return list(dict.fromkeys(seeds))


def select_cells(
    study: Study, cells: Iterable[Cell], methods: Iterable[str] | None, conditions: Iterable[str] | None
) -> list[Cell]:
    """Return the cells of the given methods and conditions.

    Args:
        study: The study that the cells belong to.
        cells: The cells to choose from.
        methods: Labels of methods, in any case. Default: all.
        conditions: Keys of conditions, in any case. Default: all except those that are opt-in.

    Raises:
        UsageError: If the study has no such method or condition.
    """
    by_method = _match_names("method", methods, study.methods)
    by_condition = _match_names("condition", conditions, [c.key for c in study.conditions])
    return [
        cell
        for cell in cells
        if (not by_method or cell.method in by_method)
        and (cell.condition.key in by_condition if by_condition else not cell.condition.opt_in)
    ]


def _match_names(kind: str, given: Iterable[str] | None, known: Iterable[str]) -> set[str]:
    """Return the known names that match the given ones in any case."""
    names = {name.lower(): name for name in known}
    matched = set()
    for name in given or ():
        if name.lower() not in names:
            near = get_close_matches(name.lower(), names, n=1, cutoff=0.4)
            hint = f"did you mean {names[near[0]]!r}?" if near else f"expected one of {', '.join(names.values())}"
            raise UsageError(f"unknown {kind} {name!r}: {hint}")
        matched.add(names[name.lower()])
    return matched
