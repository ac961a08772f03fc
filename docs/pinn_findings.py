"""What the recorded runs say about physics-informed networks: published errors, and the methods compared."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd
from pinns_table import main_table, read_tables
from recorded_leaderboard import RESULTS, recorded_board, recorded_costs, recorded_scores

from counterpoise.lab.report.leaderboard_text import format_estimate, join, pinn_methods, verdict
from counterpoise.lab.report.leaderboard_worlds import WORLDS, method_labels
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.pinn import (
    BEST_PUBLISHED,
    CANDIDATE,
    COLUMNS,
    GRADIENT_SPACE,
    MAIN,
    ONE_PASS,
    SHORT,
    two_deviations,
)

EQUATIONS = {STUDIES[name].title: STUDIES[name] for w in WORLDS if w.name == "physics" for name in w.studies}
"""Title of each equation → its study."""
PUBLISHED = {title: study for title, study in EQUATIONS.items() if "rel_l2" in study.paper}
"""The equations of the published table, in its order."""
NAMES = method_labels(next(iter(EQUATIONS.values())))
"""Label of a method in the studies → its name on the leaderboard."""
FORMS = {"LRA": "the default", "LRA (mean/mean)": '`"mean-mean"`', "LRA (max/mean)": '`"max-mean"`'}
"""Forms of LRA, which are all compared with the published row of LRA."""
BURGERS, KLEIN_GORDON, PLATE = "Burgers equation", "Klein-Gordon equation", "Kirchhoff plate"
OTHER_SETTINGS = {
    BURGERS: ("Burgers, constant rate", "1280 points inside, constant learning rate"),
    KLEIN_GORDON: ("Klein-Gordon, 128 points", "128 points inside"),
}
"""Equation → the head of its further column in the table of published errors, and a part of the title of its table."""
CODE_SETTINGS = {BURGERS: (OTHER_SETTINGS[BURGERS][1], "42 on"), KLEIN_GORDON: (OTHER_SETTINGS[KLEIN_GORDON][1],)}
"""Equation → parts of the titles of its tables with settings of the public code."""
SEARCHED_EQUATIONS = ("Helmholtz equation", BURGERS)
SUMS = ("Sum", "Sum ×10", "Sum ×100", "Sum ×1000")
BENCHMARKS = RESULTS.parent / "benchmarks" / "results"
COLLAPSED = 0.8
"""A method collapses if its mean error is larger on every equation. The function u = 0 has the error 1."""


def equations(titles: Iterable[str]) -> str:
    """Join the names of equations: "Helmholtz and the Kirchhoff plate"."""
    return join([f"the {title}" if title == PLATE else title.removesuffix(" equation") for title in titles], "and")


def errors() -> pd.DataFrame:
    """Return the mean error of each method on each equation, over the seeds, by its label in the studies."""
    means = recorded_board()["physics"].scores.groupby(level="problem").mean().loc[list(EQUATIONS)]
    return means.rename(columns={name: label for label, name in NAMES.items()})


def with_errors(labels: Iterable[str], title: str) -> str:
    """Join methods with their mean errors on an equation: "LRA (0.0956) and NTK (0.2406)"."""
    return join([f"{label} ({errors()[label][title]:.4f})" for label in labels], "and")


def better_or_worse(label: str, title: str, other: str = "Sum") -> int:
    """Return 1 if a method is shown to have a lower error than another one on an equation, −1 if a higher one."""
    standings = recorded_board()["physics"]
    return verdict(standings.world, standings.compare(NAMES[label], NAMES[other], title))


def published(label: str, title: str) -> str:
    """Return the published error of a method, for all forms of LRA that of LRA."""
    mean, sd = EQUATIONS[title].paper["rel_l2"]["LRA" if label in FORMS else label][MAIN]
    return f"{mean:.4f} ± {sd:.4f}"


def against_published(label: str, title: str, error: float | None = None) -> str:
    """Return how the mean error of a method compares with the published one: "agrees", or the factor between them.

    Args:
        label: The method.
        title: The equation.
        error: The mean error. Default: that of the main condition.
    """
    row = "LRA" if label in FORMS else label
    mean, sd = EQUATIONS[title].paper["rel_l2"][row][MAIN]
    ratio = (errors()[label][title] if error is None else error) / mean
    if 1 / two_deviations(mean, sd) <= ratio <= two_deviations(mean, sd):
        return "agrees"
    factor = max(ratio, 1 / ratio)
    return f"{factor:.{0 if factor >= 9.5 else 1}f} × {'higher' if ratio > 1 else 'lower'}"


def errors_with(title: str, part: str) -> dict[str, float]:
    """Return the mean errors on an equation in the condition whose title contains a text, by method."""
    tables = read_tables(RESULTS / "physics" / "tables" / f"{EQUATIONS[title].name}.md")
    rows = next((rows for heading, rows in tables.items() if part in heading), {})
    return {label: float(next(iter(cells.values())).split()[0]) for label, cells in rows.items()}


def published_table() -> str:
    """Return which of the published errors agree with ours, and which form of LRA gives the published ones."""
    rows = [label for label in NAMES if label in FORMS or label in next(iter(PUBLISHED.values())).paper["rel_l2"]]
    cells = {label: [against_published(label, title) for title in PUBLISHED] for label in rows}
    shown = [
        [label, *(f"{published(label, t)}: {cell}" for t, cell in zip(PUBLISHED, cells[label], strict=True))]
        for label in rows
    ]
    heads = ["method", *(equations([title]) for title in PUBLISHED)]
    for title, (head, part) in OTHER_SETTINGS.items():
        here = {label: error for label, error in errors_with(title, part).items() if label in rows}
        found = {label: against_published(label, title, error) for label, error in here.items()}
        column = heads.index(equations([title])) + 1
        for row in (heads, *shown):
            row.insert(column, head if row is heads else found.get(row[0], "–"))
    everywhere = [label for label, found in cells.items() if set(found) == {"agrees"}]
    forms = {label: [t for t, cell in zip(PUBLISHED, cells[label], strict=True) if cell == "agrees"] for label in FORMS}
    parts = [f"{text} on {equations(forms[label]) or 'none'}" for label, text in FORMS.items()]
    text = (
        f"{join(everywhere, 'and') or 'No method'} {'agree' if len(everywhere) > 1 else 'agrees'} on all equations of "
        f"the table. Forms of LRA that agree with its published errors: {join(parts, 'and')}."
    )
    for title in (title for title in PUBLISHED if not any(title in agreed for agreed in forms.values())):
        nearest = min(FORMS, key=lambda label: errors()[label][title])
        mean = PUBLISHED[title].paper["rel_l2"]["LRA"][MAIN][0]
        text += (
            f" On {equations([title])} {FORMS[nearest]} is the nearest ({errors()[nearest][title]:.4f}, "
            f"published {mean:.4f})."
        )
    return f"{markdown_table(heads, shown)}\n\n{text}"


def agreement(title: str, settings: Mapping[str, Mapping[str, float]]) -> tuple[list[str], str]:
    """Say which published errors on an equation are reproduced in which setting.

    Args:
        title: The equation.
        settings: Name of a setting → mean errors by method.

    Returns:
        The methods that were run in all settings, and the text.
    """
    common = [label for label in EQUATIONS[title].paper["rel_l2"] if all(label in e for e in settings.values())]
    agree = {
        setting: [label for label in common if against_published(label, title, found[label]) == "agrees"]
        for setting, found in settings.items()
    }
    parts = [f"{join(labels, 'and') or 'none'} with {setting}" for setting, labels in agree.items()]
    never = [label for label in common if not any(label in labels for labels in agree.values())]
    number = {2: "both", 3: "all three"}[len(settings)]
    text = f"Of the {len(common)} rows that were run in {number} settings, these agree: {'; '.join(parts)}."
    text += f" {join(never, 'and')} {'agree' if len(never) > 1 else 'agrees'} in none." if never else ""
    return common, text


def burgers_schedules() -> str:
    """Say with which learning rates the published errors on Burgers are reproduced."""
    settings = {
        "the decaying learning rate of the paper": errors().loc[BURGERS].to_dict(),
        "a constant learning rate": errors_with(BURGERS, OTHER_SETTINGS[BURGERS][1]),
        "a constant learning rate and 42 points on each side, as in the public code": errors_with(BURGERS, "42 on"),
    }
    common, text = agreement(BURGERS, settings)
    decaying, constant, _ = settings.values()
    factors = sorted(decaying[label] / constant[label] for label in common)
    lower = sum(factor > 1 for factor in factors)
    return (
        f"{text} {'All' if lower == len(common) else lower} of them have lower errors with the constant learning rate "
        f"than with the decaying one, by factors of {factors[-lower]:.1f} to {factors[-1]:.1f}."
    )


def klein_gordon_points() -> str:
    """Say with which number of points the published errors on Klein-Gordon are reproduced."""
    settings = {
        "1,280 points": errors().loc[KLEIN_GORDON].to_dict(),
        "128 points": errors_with(KLEIN_GORDON, OTHER_SETTINGS[KLEIN_GORDON][1]),
    }
    common, text = agreement(KLEIN_GORDON, settings)
    many, few = settings.values()
    factors = sorted(few[label] / many[label] for label in common)
    return f"{text} With fewer points the errors are {factors[0]:.1f} to {factors[-1]:.1f} × as large."


def approximate_errors() -> list[tuple[str, str, float, float]]:
    """Return the equation, the method and its mean errors with approximate and exact solvers.

    `benchmarks/inexact_solvers.py` trains the former at three of the ten seeds of the latter.
    """
    found = []
    for path in sorted(BENCHMARKS.glob("inexact_*_cpu.json")):
        for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
            title = STUDIES[row["study"]].title
            exact = errors_with(title, f"{row['interior']} points inside (best")[row["method"]]
            found.append((title, row["method"], sum(row["errors"]) / len(row["errors"]), exact))
    return found


def inexact_solvers() -> str:
    """Say whether the approximate solvers of public codes explain the published errors."""
    parts, agreeing = [], []
    for title, method, approximate, exact in approximate_errors():
        place = f"{method} on {equations([title])}"
        mean = EQUATIONS[title].paper["rel_l2"][method][MAIN][0]
        parts.append(f"{place}: {approximate:.4f} instead of {exact:.4f}, published {mean:.4f}")
        if against_published(method, title, approximate) == "agrees":
            agreeing.append(place)
    explained = f"Only {join(agreeing, 'and')} agrees" if agreeing else "None agrees"
    return f"Mean errors with these solvers at three seeds: {'; '.join(parts)}. {explained} with the published error."


def other_rates() -> str:
    """Say which published errors that we do not reproduce agree at a learning rate that was not chosen."""
    found, left = [], []
    for title, study in PUBLISHED.items():
        scores = recorded_scores()[study.name]
        scores = scores[scores["seed"].isin(study.rate_seeds) & (scores["condition"] != SHORT)]
        means = scores.groupby(["method", "condition", "lr"])["rel_l2"].mean()
        settings = [errors_with(title, part) for part in ("(best", *CODE_SETTINGS.get(title, ()))]
        for label in COLUMNS:
            if any(against_published(label, title, setting[label]) == "agrees" for setting in settings):
                continue
            agreeing = [
                f"{label} on {equations([title])} in the condition `{condition}` at {rate:g} ({error:.4f})"
                for (condition, rate), error in means[label].sort_index(level="lr", ascending=False).items()
                if against_published(label, title, error) == "agrees"
            ]
            found += agreeing[:1]
            left += [f"{label} on {equations([title])}"] if not agreeing else []
    return (
        "Of the rows that agree in no setting, these agree at a learning rate that was not chosen, at the two seeds "
        f"of the choice: {join(found, 'and') or 'none'}. These do not agree at any: {join(left, 'and')}."
    )


def claim_result(claim: str, title: str, ledger: Path = RESULTS / "physics" / "ledger.md") -> tuple[str, str]:
    """Return the verdict on a claim about an equation, and our value with its interval."""
    for line in ledger.read_text(encoding="utf-8").splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[0].startswith(claim) and cells[1].endswith(title):
            return cells[4].strip("*"), cells[-1]
    raise ValueError(f"{ledger} has no claim {claim!r} about the {title}")


def best_published() -> str:
    """Compare the best method with the best published row, and with our runs of that row at the same seeds."""
    words = {"holds": "lower", "undecided": "undecided", "does not hold": "higher"}
    claim = f"{CANDIDATE} has a lower error than"
    values = [f"{study.paper['rel_l2'][BEST_PUBLISHED][MAIN][0]:.4f}" for study in PUBLISHED.values()]
    found = {title: claim_result(f"{claim} the best published row", title) for title in PUBLISHED}
    parts = [f"{ours} on {equations([title])} ({words[holds]})" for title, (holds, ours) in found.items()]
    ahead = [title for title, (holds, _) in found.items() if holds == "holds"]
    paired = {title: claim_result(f"{claim} {BEST_PUBLISHED}", title)[0] for title in PUBLISHED}
    groups = {word: [t for t in PUBLISHED if words[paired[t]] == word] for word in words.values()}
    seeds = len(recorded_board()["physics"].seeds)
    return (
        f"**Against the best published row.** The lowest published errors are those of {BEST_PUBLISHED}: "
        f"{join(values, 'and')}. {CANDIDATE} has {join(parts, 'and')}. It is shown to be ahead of the published row on "
        f"{len(ahead)} of {len(PUBLISHED)} equations. Against our runs of {BEST_PUBLISHED} at the same {seeds} seeds, "
        f"its error is {join([f'{word} on {equations(t)}' for word, t in groups.items() if t], 'and')}."
    )


def search_result() -> str:
    """Say which method the search chose, and what became of it on the equations that were not searched."""
    tables = [main_table(read_tables(RESULTS / "physics/search/tables" / f"{EQUATIONS[title].name}.md"))
              for title in SEARCHED_EQUATIONS]  # fmt: skip
    means = {
        label: math.prod(float(cells[label].split()[0]) for cells in tables) ** (1 / len(tables))
        for label in set.intersection(*map(set, tables))
    }
    chosen, *others = sorted(means, key=lambda label: means[label])
    text = (
        f"**The search.** Of {len(means)} methods at seeds 0 to 4, {chosen} has the lowest geometric mean error on "
        f"{equations(SEARCHED_EQUATIONS)} ({means[chosen]:.4f}), before {others[0]} ({means[others[0]]:.4f}) and "
        f"{others[1]} ({means[others[1]]:.4f}). The other equations took no part in the choice."
    )
    for title in (title for title in EQUATIONS if title not in SEARCHED_EQUATIONS):
        found = errors().loc[title].dropna()
        compared = [label for label in NAMES if label in found and label != chosen]
        signs = {label: better_or_worse(chosen, title, label) for label in compared}
        lower, undecided = ([label for label in compared if signs[label] == sign] for sign in (-1, 0))
        text += (
            f" On {equations([title])} its mean error at seeds 5 to 14 is {found[chosen]:.4f}. It is shown to be lower "
            f"than those of {len(compared) - len(lower) - len(undecided)} of the {len(compared)} other methods"
        )
        text += f", and higher than those of {with_errors(lower, title)}" if lower else ""
        text += f"; against {join(undecided, 'and')} it is undecided." if 0 < len(undecided) < 4 else "."
    return text


def reversed_order() -> str:
    """Say on which equation several methods are worse than the plain sum that are better on all others; "" on none."""
    parts = []
    for title in EQUATIONS:
        others = [other for other in EQUATIONS if other != title]
        better = [label for label in NAMES if all(better_or_worse(label, other) > 0 for other in others)]
        worse = [label for label in better if better_or_worse(label, title) < 0]
        if len(worse) > 1:
            parts.append(
                f"Of {len(better)} methods that are better than the plain sum on {equations(others)}, {len(worse)} are "
                f"worse on {equations([title])}."
            )
    return " ".join(parts)


def findings() -> str:
    """Compare the methods with each other, as a list."""
    parts = (_best(), _factors(), _scales(), _collapse(), _slow(), _gradient_space(), _plate())
    return "\n".join(f"- {text}" for text in parts)


def _best() -> str:
    standings, found = recorded_board()["physics"], errors()
    lowest = [title for title in EQUATIONS if found.loc[title].idxmin() == CANDIDATE]
    others = [s.method for s in standings.ranked if s.method != CANDIDATE]
    behind = [name for name in others if verdict(standings.world, standings.compare(CANDIDATE, name)) > 0]
    margin = format_estimate(standings.world, standings.compare(CANDIDATE, others[0]))
    text = (
        f"**{CANDIDATE}** has the lowest mean error on {equations(lowest)}. Over all equations its error is shown to "
    )
    text += (
        f"be lower than that of {len(behind)} of the {len(others)} other methods. Against {others[0]}, the next one "
    )
    text += f"by mean rank: {margin}."
    labels = [label for label, name in NAMES.items() if name in others]
    for title in EQUATIONS:
        level = [label for label in labels if better_or_worse(CANDIDATE, title, label) <= 0]
        text += f" On {equations([title])} alone it is not shown to lead {join(level)}." if level else ""
    return f"{text} It needs one backward pass per term in every step."


def _factors() -> str:
    found = errors().loc[list(PUBLISHED), list(SUMS)]
    best: dict[str, list[str]] = {}
    for title in PUBLISHED:
        best.setdefault(str(found.loc[title].idxmin()), []).append(title)
    lowest = [f"{label} has the lowest error on {equations(titles)}" for label, titles in best.items()]
    largest = [f"{found[label].max():.4f} on {equations([str(found[label].idxmax())])} ({label})" for label in SUMS]
    return (
        f"**Fixed factors** on all terms but the residual: {join(lowest, 'and')}. The largest errors are "
        f"{join(largest, 'and')}. Of the methods of the second table, {join(safe_methods(), 'and') or 'none'} is "
        f"shown to be better than the plain sum on each equation."
    )


def safe_methods() -> list[str]:
    """Return the methods with one backward pass that are shown to be better than the plain sum on each equation."""
    return [label for label in ONE_PASS if all(better_or_worse(label, title) > 0 for title in EQUATIONS)]


def _scales() -> str:
    standings = recorded_board()["physics"]
    cheap = pinn_methods(standings, recorded_costs())[0].method
    measuring = [label for label, name in NAMES.items() if recorded_costs()[name].passes == "some"]
    parts = [
        f"{format_estimate(standings.world, standings.compare(cheap, problem=title))} on {equations([title])}"
        for title in EQUATIONS
    ]
    text = (
        f"**{cheap}** has the best mean rank of the methods of the second table that need no factor. Against the sum: "
    )
    text += f"{join(parts, 'and')}."
    for title in EQUATIONS:
        worse = [label for label in measuring if better_or_worse(label, title) < 0]
        if len(worse) == len(measuring):
            text += f" On {equations([title])} all weights from gradients are worse than the plain sum: "
            text += f"{with_errors(sorted(worse, key=lambda label: errors()[label][title]), title)}; "
            text += f"the sum has {errors()['Sum'][title]:.4f}."
    return text


def _collapse() -> str:
    found = errors()
    collapsed = [label for label in ONE_PASS if (found[label].dropna() > COLLAPSED).all()]
    partly = [label for label in collapsed if found[label].isna().any()]
    least = found[collapsed].min().min()
    note = "".join(f" {label} was run on {equations(found[label].dropna().index)} only." for label in partly)
    return (
        f"**Methods that divide by a loss** collapse on all equations: {join(collapsed, 'and')} have mean errors of at "
        f"least {least:.2f}. The function u = 0 has the error 1.{note}"
    )


def _slow() -> str:
    labels = ("Kendall", "IMTL-L")
    signs = {title: {better_or_worse(label, title) for label in labels} for title in PUBLISHED}
    words = {1: "lower", -1: "higher"}
    parts = [
        f"{word} on {equations(titles)}" for sign, word in words.items()
        if (titles := [title for title in PUBLISHED if signs[title] == {sign}])
    ]  # fmt: skip
    return (
        f"**{join(labels, 'and')}**, which approach 1/L slowly, do not collapse within 50,000 steps on "
        f"{equations(PUBLISHED)}. Against the plain sum, their errors are {join(parts, 'and') or 'undecided'}."
    )


def _gradient_space() -> str:
    found = errors()
    parts = []
    for title in EQUATIONS:
        worse = [label for label in GRADIENT_SPACE if label in found and better_or_worse(label, title) < 0]
        if worse:
            parts.append(f"{with_errors(worse, title)} on {equations([title])}")
    return f"**Methods that combine gradients** and are worse than the plain sum: {'; '.join(parts) or 'none'}."


def authors_plate() -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean squared and the relative errors on the plate with the losses of the authors' code, by method."""
    tables = read_tables(RESULTS / "physics/tables/pinn-kirchhoff.md")
    rows = next(rows for title, rows in tables.items() if "authors" in title)
    squared, relative = (
        {label: float(list(cells.values())[column].split()[0].replace(",", "")) for label, cells in rows.items()}
        for column in (0, 1)
    )
    return squared, relative


def better_on_the_authors_plate() -> list[str]:
    """Return the methods whose mean error is lower than that of the plain sum with the losses of the authors' code."""
    _, relative = authors_plate()
    return [label for label in relative if relative[label] < relative["Sum"]]


def plate_of_the_authors() -> str:
    """Compare the errors with the losses of the authors' code with our others, and with the published ones."""
    squared, relative = authors_plate()
    lower = better_on_the_authors_plate()
    higher = [label for label in relative if label not in ("Sum", *lower)]
    parts = [join([f"{label} ({relative[label]:.2f})" for label in labels], "and") for labels in (lower, higher)]
    published = {label: values["authors' code"][0] for label, values in EQUATIONS[PLATE].paper["mse_e9"].items()}
    factors = sorted(squared[label] / value for label, value in published.items())
    return (
        f"With the losses of the authors' code, the plain sum has the error {relative['Sum']:.2f}, against "
        f"{errors()['Sum'][PLATE]:.2f} in the main condition. Lower: {parts[0]}. Higher: {parts[1]}. The published "
        f"mean squared errors are {factors[0]:.0f} to {factors[-1]:,.0f} times lower than ours, and their order "
        f"differs: {join(sorted(published, key=published.__getitem__), 'and')}, the lowest first; here "
        f"{join(sorted(published, key=squared.__getitem__), 'and')}."
    )


def _plate() -> str:
    found = errors().loc[PLATE].dropna().sort_values()
    return (
        f"**The Kirchhoff plate** is different: before training, the gradient of its residual is the [smallest of "
        f"all](#the-plate), so that a larger factor on the conditions makes the sum worse. The methods with the lowest "
        f"errors are {with_errors(found.index[:3], PLATE)}; with one backward pass they are "
        f"{with_errors([label for label in found.index if label in ONE_PASS][:3], PLATE)}. The sums and LRA return "
        f"nearly zero: {with_errors((*SUMS, 'LRA'), PLATE)}."
    )
