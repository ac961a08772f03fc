"""Details of the runs of a study for the page: options, seeds, machines, versions and times."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..engine import Recipe, Run
from ..engine.trainers import is_function
from ..studies import Cell
from .run_collection import CollectedRuns
from .tables import format_number


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ only in their seed."""

    method: str
    condition: str
    options: dict[str, str]
    runs: list[dict[str, str]]


def run_groups(cells: Sequence[Cell], collected: CollectedRuns) -> list[RunGroup]:
    groups: dict[tuple[str, str, str], RunGroup] = {}
    for cell in cells:
        rate = f"{cell.run.network_lr:g}"
        group = groups.setdefault(
            (cell.method, cell.condition.key, rate),
            RunGroup(cell.method, cell.condition.head or cell.condition.key, _options(cell.run), []),
        )
        group.runs.append(_run_details(cell, collected))
    return list(groups.values())


def _run_details(cell: Cell, collected: CollectedRuns) -> dict[str, str]:
    finished = collected.runs[cell.run]
    circumstances, score = finished.circumstances, finished.result.get("macro")
    value = score if score is not None else finished.result["best"]["value"]
    seconds = circumstances.get("seconds")
    versions = [
        f"{name} {circumstances[name]}" for name in ("counterpoise", "torch", "python") if name in circumstances
    ]
    return {
        "seed": str(cell.run.seed),
        "score": format_number(float("nan") if value is None else value),
        "epochs": str(finished.result.get("epochs", "–")),
        "device": str(circumstances.get("machine", cell.run.device)),
        "time": "–" if seconds is None else f"{seconds} s for {circumstances.get('runs', 1)}",
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
