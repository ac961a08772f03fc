"""Compare the recorded Δm of QM9 with the published ones, for qm9_table.py."""

import math
import textwrap

import pandas as pd
from scipy import stats

from counterpoise.lab.report.leaderboard_text import join
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.studies.qm9 import PUBLISHED, REPRODUCED, SHORTER, STUDY, TOLERANCE
from counterpoise.lab.studies.qm9_published import CHANGE, NTKMTL_CHANGES, RERUN_CHANGES

WIDTH = 130  # of lines of the page
LEVEL = 0.05  # of the tests
SEEDS = 3  # of the published means


def published(method: str) -> str:
    """Return the published Δm of a method, or a dash."""
    if method not in PUBLISHED:
        return "–"
    mean, deviation = PUBLISHED[method]
    return f"{mean:.1f}" if math.isnan(deviation) else f"{mean:.1f} ± {deviation:.1f}"


def format_mean(values: pd.Series, decimals: int) -> str:
    """Return the mean, with the standard deviation of two or more values, and a dash for no values."""
    if values.empty:
        return "–"
    mean = f"{values.mean():.{decimals}f}"
    return mean if len(values) == 1 else f"{mean} ± {values.std():.{decimals}f}"


def format_signed(value: float) -> str:
    """Return a number with its sign."""
    return f"{value:+.1f}".replace("-", "−")


def beside_published(main: dict[str, pd.DataFrame], kendall: pd.DataFrame) -> list[str]:
    """Return the section that compares the reproduced methods with the published Δm.

    Args:
        main: The scores of each main method.
        kendall: The Δm and the epochs of Kendall at all of its seeds.

    Returns:
        The parts of the section, or none before any of these methods is recorded at several seeds.
    """
    groups = {name: scores[CHANGE] for name, scores in main.items()}
    groups |= {"Kendall": kendall[CHANGE]}
    groups = {name: groups[name] for name in REPRODUCED if name in groups and len(groups[name]) > 1}
    if not groups:
        return []
    differences = {name: changes.mean() - PUBLISHED[name][0] for name, changes in groups.items()}
    tests = {name: welch_test(changes, *PUBLISHED[name]) for name, changes in groups.items()}
    rows = [
        [
            name,
            str(len(changes)),
            format_mean(changes, 1),
            published(name),
            format_signed(differences[name]),
            f"{tests[name]:.2f}",
        ]
        for name, changes in groups.items()
    ]
    heads = ["method", "seeds", "Δm (%)", "published", "difference", "p"]
    table = markdown_table(heads, rows, right=range(1, len(heads)))
    text = (
        f"The published Δm are means over {SEEDS} seeds. The column *p* is from Welch's t-test of the difference "
        "between the two means. The deviation of FAMO is computed from its published standard error; the ± of the "
        "others is read as a standard deviation."
    )
    by_chance = [name for name, p in tests.items() if p >= LEVEL]
    by_more = [name for name, p in tests.items() if p < LEVEL]
    if by_chance:
        text += f" For {join(by_chance, 'and')}, the difference may be due to the seeds."
    if by_more:
        text += f" For {join(by_more, 'and')}, it is larger than the seeds explain."
    if len(groups) > 1 and max(differences.values()) < 0:
        text += " All of them are lower here, so a small common difference is likely. We do not know its cause."
    p = tests.get("Kendall", 1.0)
    return ["### Beside the published results", table, textwrap.fill(text, WIDTH), *kendall_reading(kendall, p)]


def welch_test(changes: "pd.Series[float]", mean: float, deviation: float) -> float:
    """Return the p-value of Welch's t-test of the Δm of some seeds against a published mean."""
    ours = (changes.mean(), changes.std(), len(changes))
    return float(stats.ttest_ind_from_stats(*ours, mean, deviation, SEEDS, equal_var=False).pvalue)


def kendall_reading(kendall: pd.DataFrame, p: float) -> list[str]:
    """Say how far the Δm of Kendall and its published value depend on the seeds. Empty without its further seeds."""
    further = kendall[~kendall.index.isin(STUDY.seeds)]
    if further.empty:
        return []
    changes, (mean, deviation) = kendall[CHANGE], PUBLISHED["Kendall"]
    fewer = further.index[further["epochs"] < STUDY.schedule.epochs]
    at_fewer = f", {SHORTER['epochs']} epochs at {join(fewer.astype(str), 'and')}" if len(fewer) else ""
    error = deviation / math.sqrt(SEEDS)
    misses = 2 * stats.norm.sf(TOLERANCE * mean / math.hypot(error, changes.std() / math.sqrt(SEEDS)))
    text = (
        f"**Kendall** depends strongly on the seed. It was run at {len(further)} further seeds ({further.index[0]} to "
        f"{further.index[-1]}{at_fewer}), because its Δm is lower than the published one. Over all {len(changes)} "
        f"seeds, Δm is between {changes.min():.1f} and {changes.max():.1f} %. The standard error of the published mean "
        f"is {error:.1f} points, {100 * error / mean:.0f} % of its value. With the two standard deviations of the "
        f"table, the criterion of the ledger ({100 * TOLERANCE:.0f} %) would fail at {SEEDS} seeds in "
        f"{100 * misses:.0f} % of all cases even if both means had the same expected value. The difference that is "
        f"observed, {100 * abs(changes.mean() / mean - 1):.0f} %, has p = {p:.2f}."
    )
    return [textwrap.fill(text, WIDTH)]


def ntkmtl_changes(method: str) -> list[str]:
    """Return the Δm of NTKMTL relative to the single-task models of this page and to its own, or dashes."""
    return [f"{values[method]:.1f}" if method in values else "–" for values in (RERUN_CHANGES, NTKMTL_CHANGES)]


def ntkmtl_reading(changes: "pd.Series[float]") -> str:
    """Compare the Δm of each method in the set-up of NTKMTL with that of its errors."""
    theirs = pd.Series(RERUN_CHANGES)
    points = (changes - theirs).dropna().sort_values()
    first = pd.Series({name: PUBLISHED[name][0] for name in points.index})
    lower = (first - theirs).dropna().sort_values()
    text = (
        "NTKMTL reports Δm relative to its own single-task models, whose errors are lower. The column *NTKMTL* has the "
        "Δm of its errors relative to the single-task models of this page. On this scale, they are "
        f"{lower.iloc[0]:.0f} ({lower.index[0]}) to {lower.iloc[-1]:.0f} points ({lower.index[-1]}) lower than the "
        "published Δm in the set-up above. Ours, at one seed, differ from them by "
        f"{join([f'{format_signed(value)} ({name})' for name, value in points.items()], 'and')} points."
    )
    return textwrap.fill(text, WIDTH)
