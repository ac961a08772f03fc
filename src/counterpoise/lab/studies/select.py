"""Select runs of a study's grid by seeds, methods and conditions given as text."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from .base import Cell, Study

SEED_RANGE = re.compile("([0-9]+)(?:-([0-9]+))?")
MAX_DIGITS, MAX_SEEDS = 9, 10_000  # larger inputs are most likely typing errors


def parse_seeds(text: str | None, study: Study) -> list[int] | None:
    """Parse seeds such as "42-51" or "42,43,44".

    Args:
        text: The seeds; "paper" means the study's own seeds.
        study: The study that the seeds are for.

    Returns:
        The seeds without duplicates, or None for None.

    Raises:
        ValueError: If the text cannot be parsed or contains too many seeds.
    """
    if text is None:
        return None
    if text == "paper":
        return list(study.seeds)
    seeds: list[int] = []
    for piece in text.split(","):
        match = SEED_RANGE.fullmatch(piece.strip())
        if match is None:
            raise ValueError(f'invalid seeds {text!r}: expected for example "42-51", "42,43,44" or "paper"')
        first, last = match[1], match[2] or match[1]
        if max(len(first), len(last)) > MAX_DIGITS:
            raise ValueError(f"invalid seeds {text!r}: expected numbers of at most {MAX_DIGITS} digits")
        part = range(int(first), int(last) + 1)
        if not part:
            raise ValueError(f"invalid seeds {piece.strip()!r}: the range is empty")
        if len(seeds) + len(part) > MAX_SEEDS:
            count = len(seeds) + len(part)
            raise ValueError(f"invalid seeds {text!r}: {count:,} or more, expected at most {MAX_SEEDS:,}")
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
        ValueError: If the study has no such method or condition.
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
            raise ValueError(f"unknown {kind} {name!r}: {hint}")
        matched.add(names[name.lower()])
    return matched
