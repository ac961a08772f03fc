"""Read and validate recorded scores: the table of a study's runs as a report writes it, possibly compressed."""

from pathlib import Path

import pandas as pd

from ..engine.archive import READ_ERRORS
from ..metrics.dense import HIGHER_IS_BETTER
from ..studies import Study
from .run_scores import COLUMNS

PLACE = ["method", "condition", "seed", "lr"]
"""The columns that identify a run."""
PATTERN = "*.csv*"
SUFFIXES = (".csv", ".csv.gz", ".csv.xz")


def is_score_table(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def study_name(path: Path) -> str:
    """Return the study that a table of scores is named after."""
    return path.name.partition(".")[0]


class ScoresError(ValueError):
    """Raised for a table that cannot be used; `kind` is that of a `Problem`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def read_scores(path: Path, study: Study) -> pd.DataFrame:
    """Return the scores of a study's runs, with every column that a report uses, as numbers.

    Raises:
        ScoresError: if the file is damaged, or is not a table of this study's scores.
    """
    if not path.is_file():  # reading a pipe would block
        raise ScoresError("damaged", "not a regular file")
    try:
        frame = pd.read_csv(path, dtype=dict.fromkeys(("method", "condition", "form"), "str"))
    except READ_ERRORS as error:  # includes the errors of pandas, which are ValueErrors
        raise ScoresError("damaged", str(error)) from error
    _check_place(frame, study)
    expected_columns = [*COLUMNS[2:], *study.metrics, *study.further_metrics]
    for column in [name for name in frame if name in (*expected_columns, *HIGHER_IS_BETTER)]:
        frame[column] = _to_numbers(frame[column], required=column in PLACE)
    for column in expected_columns:
        if column not in frame:
            frame[column] = float("nan")
    invalid = frame["seed"][(frame["seed"] % 1 != 0) | (frame["seed"] < 0) | (frame["seed"] >= 2**63)]
    if len(invalid):
        raise _bad_cell(invalid, "a non-negative integer")
    frame["seed"] = frame["seed"].astype("int64")
    duplicates = frame[frame.duplicated(PLACE if study.rates else PLACE[:-1])]
    if len(duplicates):
        method, condition, seed, _ = duplicates[PLACE].iloc[0]
        first = f"the first in line {_line(duplicates)} ({method}, {condition}, seed {seed})"
        raise ScoresError("damaged", f"{len(duplicates)} duplicate rows, {first}")
    return frame


def _check_place(frame: pd.DataFrame, study: Study) -> None:
    missing = [name for name in PLACE if name not in frame]
    if missing:
        raise ScoresError("unrecognised", f"expected the scores of {study.name}, found no column {missing[0]!r}")
    if not len(frame):
        raise ScoresError("partial", "has no rows")
    for column, known in (("method", set(study.methods)), ("condition", {c.key for c in study.conditions})):
        unknown = sorted(set(frame[column].fillna("")) - known)
        if unknown:
            raise ScoresError(
                "unrecognised", f"expected the scores of {study.name}, found unknown {column}s: {unknown}"
            )


def _to_numbers(cells: pd.Series, *, required: bool) -> pd.Series:
    """Convert cells to numbers, empty ones to NaN. Raise a `ScoresError` for anything else."""
    found = pd.to_numeric(cells, errors="coerce").astype("float64")
    bad = cells[(found.isna() & (required | cells.notna())) | found.abs().eq(float("inf"))]
    if len(bad):
        raise _bad_cell(bad, "a number")
    return found


def _bad_cell(bad: pd.Series, expected: str) -> ScoresError:
    value = "empty" if pd.isna(bad.iloc[0]) else str(bad.iloc[0])
    return ScoresError("damaged", f"{bad.name} is {value} in line {_line(bad)}, expected {expected}")


def _line(rows: pd.DataFrame | pd.Series) -> int:
    """Return the line of the file that holds the first of these rows; line 1 is the header."""
    return int(rows.index[0]) + 2


def recorded_form(frame: pd.DataFrame) -> str:
    """Return how the runs differ from the full form of their study, if the table says so; otherwise ""."""
    return ", ".join(frame["form"].dropna().unique()) if "form" in frame else ""


def form_from_epochs(study: Study, frame: pd.DataFrame) -> str:
    """Return "fewer epochs" or "more epochs" if the schedule rules out the epochs of some run; otherwise ""."""
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
