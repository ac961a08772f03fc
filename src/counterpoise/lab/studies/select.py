"""Choosing runs out of a study's grid, by what a person types."""

from collections.abc import Iterable
from difflib import get_close_matches

from .base import Cell, Study


def parse_seeds(text: str | None, study: Study) -> list[int] | None:
    """ "42-51", "42,43,44", "paper" (the study's own), or None: the paper's and ten."""
    if text is None:
        return None
    if text == "paper":
        return list(study.seeds)
    seeds: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f'seeds are {text!r}, expected such as "42-51", "42,43,44" or "paper"')
        seeds += range(int(first), int(last if dash else first) + 1)
    if not seeds:
        raise ValueError(f"seeds {text!r} name none")
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
