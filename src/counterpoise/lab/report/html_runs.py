"""Details of the runs of a study for the page: options, seeds, machines, versions and times."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..engine import Recipe, Run
from ..engine.trainers import is_function
from ..studies import Cell
from .run_collection import CollectedRuns
from .tables import format_number

IDENTIFYING = ("seed", "score")
"""Details that belong to a single run, even if all runs have the same."""


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed: what they share, and a row for those that were trained together."""

    method: str
    condition: str
    count: int
    facts: dict[str, str]
    heads: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class RunDetails:
    """The runs of a study: what all of them share, and the groups."""

    facts: dict[str, str]
    groups: list[RunGroup]


def run_details(cells: Sequence[Cell], collected: CollectedRuns) -> RunDetails:
    """Return the details of finished runs. A page has thousands of them, so what runs share is said once."""
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for cell in cells:
        place = cell.method, cell.condition.head or cell.condition.key, f"{cell.run.network_lr:g}"
        groups.setdefault(place, []).append(_options(cell.run) | _details(cell, collected))
    facts = _shared(details for runs in groups.values() for details in runs)
    return RunDetails(
        facts, [_group(method, condition, runs, facts) for (method, condition, _), runs in groups.items()]
    )


def _group(method: str, condition: str, runs: Sequence[dict[str, str]], known: Mapping[str, str]) -> RunGroup:
    shared = _shared(runs)
    rest = [name for name in runs[0] if name not in shared and name not in IDENTIFYING]
    rows: dict[tuple[str, ...], list[str]] = {}
    for details in runs:
        rows.setdefault(tuple(details[name] for name in rest), []).append(f"{details['seed']}: {details['score']}")
    facts = {name: value for name, value in shared.items() if name not in known}
    lines = [[", ".join(scores), *values] for values, scores in rows.items()]
    return RunGroup(method, condition, len(runs), facts, ["score by seed", *rest], lines)


def _shared(runs: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the details that are equal for all runs."""
    first, *others = list(runs) or [{}]
    return {
        name: value
        for name, value in first.items()
        if name not in IDENTIFYING and all(details.get(name) == value for details in others)
    }


def _details(cell: Cell, collected: CollectedRuns) -> dict[str, str]:
    """Return the score of a run, and where and when it was trained."""
    finished = collected.runs[cell.run]
    circumstances, score = finished.circumstances, finished.result.get("macro")
    value = score if score is not None else finished.result["best"]["value"]
    seconds = circumstances.get("seconds")
    since = " since the last start" if circumstances.get("resumed") else ""
    versions = [
        f"{name} {circumstances[name]}" for name in ("counterpoise", "torch", "python") if name in circumstances
    ]
    return {
        "seed": str(cell.run.seed),
        "score": format_number(float("nan") if value is None else value),
        "epochs": str(finished.result.get("epochs", "–")),
        "device": str(circumstances.get("machine", cell.run.device)),
        "time (runs together)": "–" if seconds is None else f"{seconds} s for {circumstances.get('runs', 1)}{since}",
        "finished": str(circumstances.get("finished", "–")),
        "versions": ", ".join(versions),
        "source": str(finished.source),
    }


def _options(run: Run) -> dict[str, str]:
    """Return everything that determines the result of a run, except its seed."""
    if is_function(run):
        return {"function": _format_options(run.data.kwargs), "method": _format_recipe(run.recipe)}
    return {
        "data": _named(run.data.name, run.data.kwargs),
        "network": _named(run.model.name, run.model.kwargs),
        "method": _format_recipe(run.recipe),
        "schedule": _format_options(asdict(run.schedule)),
    }


def _format_recipe(recipe: Recipe) -> str:
    """Format the options of a recipe that differ from the defaults."""
    default = Recipe(recipe.name)
    changed = {
        k: v for k, v in vars(recipe).items() if k not in ("name", "options", "weighting") and v != getattr(default, k)
    }
    text = _named(recipe.name, recipe.kwargs | changed)
    return f"{text} after {_format_recipe(recipe.weighting)}" if recipe.weighting else text


def _named(name: str, options: Mapping[str, Any]) -> str:
    return f"{name} ({_format_options(options)})" if options else name


def _format_options(options: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} = {value:g}" if isinstance(value, float) else f"{name} = {value}" for name, value in options.items()
    )
