"""Choose the figures of a study: all that can be drawn from its finished runs."""

from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd

from ...data.dense import DENSE
from ...data.pde import EQUATIONS
from ...engine.function_trainer import FUNCTION
from ...engine.qm9_workload import MOLECULES
from ...studies import Study
from .. import ranks
from ..run_scores import without_rate_seeds
from . import comparison, dense, dynamics, pinn, qm9, ranking, scores, training
from .spec import FigureSpec, MarkStyle
from .style import indexed_style, method_style

WITHOUT_FIGURES = ("knobs",)
"""Studies with a table only: 15 settings of one method would be 15 overlapping curves."""


def study_figures(
    study: Study,
    frames: Mapping[str, pd.DataFrame],
    load_histories: Callable[[], pd.DataFrame],
    load_fields: Callable[[], pinn.Fields] = dict,
) -> dict[str, FigureSpec]:
    """Return the figures of a study by the name of their files.

    Args:
        study: the study.
        frames: the scores of this and possibly of other studies, by name.
        load_histories: returns the recorded epochs of the study's runs, none if only scores are known. Called only if
            a figure needs them.
        load_fields: returns the saved solutions of the study's runs.
    """
    frame = frames[study.name]
    if not len(frame) or study.name in WITHOUT_FIGURES:
        return {}
    if study.problem == FUNCTION:
        return comparison.figures(study, frame)
    if study.problem in EQUATIONS:
        return _equation_figures(study, frame, load_histories(), load_fields())
    if study.rates:
        return {study.name: scores.ranking(study, without_rate_seeds(study, frame))}
    if study.layout == "ranks":
        return _ranking_figures(study, frame)
    figures: dict[str, FigureSpec | None] = {}
    histories = load_histories()
    if study.problem in DENSE:
        figures = _dense_figures(study, frame, histories)
    elif study.layout == "metrics":
        figures = _training_figures(study, frame, histories)
    else:
        if study.name == "scale-stress" and len(frames.get("rescaling", ())):
            figures |= {"stress": scores.stress_curves(frames), "degradation": scores.degradation(frames)}
        if "scale" in dict(study.conditions[0].options):
            figures[study.name] = scores.curves(study, frame)
        elif study.problem == "heterogeneous":
            figures[study.name] = scores.regimes(study, frame)
        figures |= _synthetic_dynamics(study, histories)
    return {name: figure for name, figure in figures.items() if figure}


def _equation_figures(
    study: Study, frame: pd.DataFrame, histories: pd.DataFrame, fields: pinn.Fields
) -> dict[str, FigureSpec]:
    """Draw the errors of all methods, curves of each condition, and the weights and solutions of the main one."""
    main = study.conditions[0]
    figures: dict[str, FigureSpec | None] = {study.name: pinn.errors(study, frame)}
    for condition in study.conditions:
        name = _file_name(study.name, condition.key) if condition is not main else study.name
        here = histories[(histories["condition"] == condition.key) & histories["seed"].isin(study.seeds)]
        styles = pinn.shown_styles(study, frame[frame["condition"] == condition.key])
        shown = [(method, here[here["method"] == method]) for method in styles]
        if not len(here) or not shown:
            continue
        title = training.condition_title(study, condition)
        figures[f"{name}-curves"] = pinn.curves(title, shown, styles)
        if condition is main:
            figures[f"{name}-weights"] = pinn.weights(title, shown, styles)
            found = {method: fields[method, condition.key] for method in styles if (method, condition.key) in fields}
            figures[f"{name}-fields"] = pinn.fields(title, EQUATIONS[study.problem], found)
    return {name: figure for name, figure in figures.items() if figure}


def _synthetic_dynamics(study: Study, histories: pd.DataFrame) -> dict[str, FigureSpec | None]:
    """Draw the chart of BPGS in each column of the first table with runs, and all weights in its outer columns."""
    if not len(histories):
        return {}
    run = set(histories["condition"])
    tables = ([c.key for c in conditions if c.key in run] for conditions in study.conditions_by_part().values())
    keys = next(keys for keys in tables if keys)
    cells = {(m, key): selected for (m, key), selected in histories.groupby(["method", "condition"], sort=False)}
    charted = [(key, cells["BPGS", key]) for key in keys if ("BPGS", key) in cells]
    figures = {f"{study.name}-chart": dynamics.chart(study.title, charted)}
    for key in dict.fromkeys([keys[0], keys[-1]]):
        shown = [(method, cells[method, key]) for method in study.methods if (method, key) in cells]
        figures[_file_name(study.name, key, "weights")] = dynamics.weights(
            f"{study.title}, {key}", shown, {method: method_style(method) for method, _ in shown}
        )
    return figures


def _ranking_figures(study: Study, frame: pd.DataFrame) -> dict[str, FigureSpec]:
    rankings = ranks.rankings(study, frame)
    if not rankings:
        return {}
    figures = {f"{study.name}-ranks": ranking.critical_difference(rankings, study.title)}
    if ranks.comparable(rankings):
        first, second = rankings
        figures[f"{study.name}-graded"] = ranking.cost_of_factors(first, second, study.title)
    return figures


def _dense_figures(study: Study, frame: pd.DataFrame, histories: pd.DataFrame) -> dict[str, FigureSpec | None]:
    """Draw curves, weights and charts of each table that was run, and scores where there are methods to compare."""
    figures: dict[str, FigureSpec | None] = {}
    for condition in study.conditions:
        here = frame[frame["condition"] == condition.key]
        if not len(here) or "measured" in dict(condition.options):
            continue
        name = partial(_file_name, study.name, condition.key)
        if here["method"].nunique() > 1:
            figures[name("scores")] = dense.scores(study, condition, here)
            figures[name("heatmap")] = dense.heatmap(study, condition, here)
            if "delta_m" in study.metrics and here["delta_m"].notna().any():
                figures[name("delta")] = dense.delta(study, condition, here)
        selected = histories[histories["condition"] == condition.key]
        if len(selected) and len(study.methods) > 1:
            styles = training.styles_of_run_methods(study, selected)
            title = training.condition_title(study, condition)
            figures[name("curves")] = dense.curves(training.with_seeds(title, selected), selected, styles)
            figures |= _dynamics(_file_name(study.name, condition.key), title, selected, styles)
    if len(histories) and len(study.methods) == 1:  # compare the conditions instead of methods
        selected = histories.assign(method=histories["condition"])
        styles = {str(key): indexed_style(i) for i, key in enumerate(selected["method"].unique())}
        figures[f"{study.name}-curves"] = dense.curves(training.with_seeds(study.title, selected), selected, styles)
        figures |= _dynamics(study.name, study.title, selected, styles)
    return figures


def _training_figures(study: Study, frame: pd.DataFrame, histories: pd.DataFrame) -> dict[str, FigureSpec | None]:
    figures: dict[str, FigureSpec | None] = {}
    for condition in study.conditions:
        here = frame[frame["condition"] == condition.key]
        selected = histories[histories["condition"] == condition.key]
        if len(selected) and len(here):
            name = _file_name(study.name, condition.key)
            if study.problem in MOLECULES:
                figures[name] = qm9.curves_and_errors(study, condition, here, selected)
            else:
                figures[name] = training.curves(study, condition, selected)
            styles = training.styles_of_run_methods(study, selected)
            figures |= _dynamics(name, training.condition_title(study, condition), selected, styles)
    return figures


def _dynamics(
    name: str, title: str, histories: pd.DataFrame, styles: Mapping[str, MarkStyle]
) -> dict[str, FigureSpec | None]:
    """Draw the weights and charts of each method over the epochs."""
    shown = [(method, histories[histories["method"] == method]) for method in styles]
    return {
        f"{name}-weights": dynamics.weights(title, shown, styles),
        f"{name}-chart": dynamics.chart(title, shown),
    }


def _file_name(*words: str) -> str:
    """Join words to a name without characters that are special in file systems or URLs."""
    return "-".join(words).translate(str.maketrans("×= ", "x--", ",'"))
