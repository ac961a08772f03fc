"""Recorded scores: the table of a study's runs as a book writes it, read and checked before anything is made of it."""

from pathlib import Path

import pandas as pd

from ..metrics.dense import UP
from ..studies import Study
from .results import COLUMNS

PLACE = ["method", "condition", "seed", "lr"]
"""Where a run stands: what a table has one row for."""


class ScoresError(ValueError):
    """A table that cannot be used: what kind of trouble it is, and the reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def read_scores(path: Path, study: Study) -> pd.DataFrame:
    """The scores of a study's runs; every column that a report looks at is there, and holds numbers."""
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(("method", "condition", "form"), "str"))
    except (OSError, ValueError) as error:  # pandas' own errors are ValueErrors
        raise ScoresError("damaged", str(error)) from error
    _check_place(frame, study)
    wanted = [*COLUMNS[2:], *study.metrics, *study.further]
    for column in [name for name in frame if name in (*wanted, *UP)]:
        frame[column] = _numbers(frame[column], needed=column in PLACE)
    for column in wanted:
        if column not in frame:
            frame[column] = float("nan")
    strange = frame["seed"][(frame["seed"] % 1 != 0) | (frame["seed"] < 0) | (frame["seed"] >= 2**63)]
    if len(strange):
        raise _bad_cell(strange, "a whole number from 0 on")
    frame["seed"] = frame["seed"].astype("int64")
    again = frame[frame.duplicated(PLACE if study.rates else PLACE[:-1])]
    if len(again):
        method, condition, seed, _ = again[PLACE].iloc[0]
        first = f"the first in line {_line(again)} ({method}, {condition}, seed {seed})"
        raise ScoresError("damaged", f"rows of runs that have one already: {len(again)}, {first}")
    return frame


def _check_place(frame: pd.DataFrame, study: Study) -> None:
    missing = [name for name in PLACE if name not in frame]
    if missing:
        raise ScoresError("foreign", f"expected the scores of {study.name}, found no column {missing[0]!r}")
    if not len(frame):
        raise ScoresError("partial", "has no rows")
    for column, known in (("method", set(study.methods)), ("condition", {c.key for c in study.conditions})):
        strange = sorted(set(frame[column].fillna("")) - known)
        if strange:
            what = f"{column}s that the study has not: {strange}"
            raise ScoresError("foreign", f"expected the scores of {study.name}, found {what}")


def _numbers(cells: pd.Series, *, needed: bool) -> pd.Series:
    """Cells as numbers, NaN where one is empty; what is neither is an error."""
    found = pd.to_numeric(cells, errors="coerce").astype("float64")
    bad = cells[(found.isna() & (needed | cells.notna())) | found.abs().eq(float("inf"))]
    if len(bad):
        raise _bad_cell(bad, "a number")
    return found


def _bad_cell(bad: pd.Series, expected: str) -> ScoresError:
    value = "empty" if pd.isna(bad.iloc[0]) else str(bad.iloc[0])
    return ScoresError("damaged", f"{bad.name} is {value} in line {_line(bad)}, expected {expected}")


def _line(rows: pd.DataFrame | pd.Series) -> int:
    """Of the file: the first has the names of the columns."""
    return int(rows.index[0]) + 2


def written_form(frame: pd.DataFrame) -> str:
    """In what the runs differ from their study's full form, as it was written beside them."""
    return ", ".join(frame["form"].dropna().unique()) if "form" in frame else ""


def told_by_epochs(study: Study, frame: pd.DataFrame) -> str:
    """Whether some run had fewer or more epochs than its schedule allows: then nothing need be written to tell."""
    bounds = {}
    for cell in study.grid(seeds=study.seeds[:1]):
        schedule = cell.run.schedule
        least = min(schedule.epochs, schedule.patience or schedule.epochs)
        bounds[cell.method, cell.condition.key] = least, schedule.epochs
    for method, condition, epochs in frame[["method", "condition", "epochs"]].itertuples(index=False, name=None):
        least, most = bounds.get((method, condition), (0, float("inf")))
        if epochs < least or epochs > most:
            return "fewer epochs" if epochs < least else "more epochs"
    return ""
