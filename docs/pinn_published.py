"""How the recorded errors of physics-informed networks compare with the published ones."""

import json
from collections.abc import Mapping
from pathlib import Path

from pinn_findings import BURGERS, EQUATIONS, KLEIN_GORDON, NAMES, PUBLISHED, equations, errors
from pinns_table import read_tables
from recorded_leaderboard import RESULTS, recorded_board, recorded_scores

from counterpoise.lab.report.leaderboard_text import join
from counterpoise.lab.report.markdown import markdown_table
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.pinn import BEST_PUBLISHED, CANDIDATE, COLUMNS, MAIN, SHORT, two_deviations

FORMS = {"LRA": "the default", "LRA (mean/mean)": '`"mean-mean"`', "LRA (max/mean)": '`"max-mean"`'}
"""Forms of LRA, which are all compared with the published row of LRA."""
OTHER_SETTINGS = {
    BURGERS: ("Burgers, constant rate", "1280 points inside, constant learning rate"),
    KLEIN_GORDON: ("Klein-Gordon, 128 points", "128 points inside"),
}
"""Equation → the head of its further column in the table of published errors, and a part of the title of its table."""
CODE_SETTINGS = {BURGERS: (OTHER_SETTINGS[BURGERS][1], "42 on"), KLEIN_GORDON: (OTHER_SETTINGS[KLEIN_GORDON][1],)}
"""Equation → parts of the titles of its tables with settings of the public code."""
BENCHMARKS = RESULTS.parent / "benchmarks" / "results"


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
