"""Choosing runs out of a study's grid, by what a person types."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

from .base import Cell, Study

SEEDS = re.compile("([0-9]+)(?:-([0-9]+))?")
DIGITS, MOST = 9, 10_000  # of a seed, and seeds: more of either is a slip of the hand


def parse_seeds(text: str | None, study: Study) -> list[int] | None:
    """ "42-51", "42,43,44", "paper" (the study's own), or None: the paper's and ten."""
    if text is None:
        return None
    if text == "paper":
        return list(study.seeds)
    seeds: list[int] = []
    for piece in text.split(","):
        found = SEEDS.fullmatch(piece.strip())
        if found is None:
            raise ValueError(f'seeds are {text!r}, expected such as "42-51", "42,43,44" or "paper"')
        first, last = found[1], found[2] or found[1]
        if max(len(first), len(last)) > DIGITS:
            raise ValueError(f"seeds are {text!r}, expected numbers of at most {DIGITS} digits")
        named = range(int(first), int(last) + 1)
        if not named:
            raise ValueError(f"seeds {piece.strip()!r} name none")
        if len(seeds) + len(named) > MOST:
            raise ValueError(f"seeds {text!r} are {len(seeds) + len(named):,} or more, expected at most {MOST:,}")
        seeds += named
    return list(dict.fromkeys(seeds))


def select(
    study: Study, cells: Iterable[Cell], methods: Iterable[str] | None, conditions: Iterable[str] | None
) -> list[Cell]:
    """The cells of these methods and conditions; a name that the study does not have is an error.

    Where no condition is named, those that want to be asked for are left out.
    """
    by_method = _known("method", methods, study.methods)
    by_condition = _known("condition", conditions, [c.key for c in study.conditions])
    return [
        cell
        for cell in cells
        if (not by_method or cell.method in by_method)
        and (cell.condition.key in by_condition if by_condition else not cell.condition.asked)
    ]


def _known(what: str, given: Iterable[str] | None, known: Iterable[str]) -> set[str]:
    names = {name.lower(): name for name in known}
    chosen = set()
    for name in given or ():
        if name.lower() not in names:
            near = get_close_matches(name.lower(), names, n=1, cutoff=0.4)
            hint = f"did you mean {names[near[0]]!r}?" if near else f"expected one of {', '.join(names.values())}"
            raise ValueError(f"unknown {what} {name!r}: {hint}")
        chosen.add(names[name.lower()])
    return chosen
