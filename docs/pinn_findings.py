"""What the recorded runs say about physics-informed networks: the methods compared."""

import math
from collections.abc import Iterable

import pandas as pd
from pinns_table import main_table, read_tables
from recorded_leaderboard import RESULTS, recorded_board, recorded_costs

from counterpoise.lab.report.leaderboard_text import format_estimate, join, pinn_methods, verdict
from counterpoise.lab.report.leaderboard_worlds import WORLDS, method_labels
from counterpoise.lab.studies import STUDIES
from counterpoise.lab.studies.pinn import (
    CANDIDATE,
    GRADIENT_SPACE,
    ONE_PASS,
)

EQUATIONS = {STUDIES[name].title: STUDIES[name] for w in WORLDS if w.name == "physics" for name in w.studies}
"""Title of each equation → its study."""
PUBLISHED = {title: study for title, study in EQUATIONS.items() if "rel_l2" in study.paper}
"""The equations of the published table, in its order."""
NAMES = method_labels(next(iter(EQUATIONS.values())))
"""Label of a method in the studies → its name on the leaderboard."""
BURGERS, KLEIN_GORDON, PLATE = "Burgers equation", "Klein-Gordon equation", "Kirchhoff plate"
SEARCHED_EQUATIONS = ("Helmholtz equation", BURGERS)
SUMS = ("Sum", "Sum ×10", "Sum ×100", "Sum ×1000")
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
    parts = (_best(), _factors(), _scales(), _constant_rate(), _collapse(), _slow(), _gradient_space(), _plate())
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
    largest = [f"{label} {found[label].max():.4f} ({equations([str(found[label].idxmax())])})" for label in SUMS]
    return (
        f"**Fixed factors** on all terms but the residual: {join(lowest, 'and')}. The largest error of "
        f"each on these equations: {join(largest, 'and')}. Of the methods of the second table, "
        f"{join(safe_methods(), 'and') or 'none'} is "
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


def _constant_rate() -> str:
    """Say how the order of the methods on the Burgers equation changes with a constant learning rate."""
    tables = read_tables(RESULTS / "physics/tables/pinn-burgers.md")
    rows = next(
        rows for title, rows in tables.items() if "inside, constant learning rate (best learning rate), " in title
    )
    constant = {label: float(next(iter(cells.values())).split()[0]) for label, cells in rows.items()}
    decaying = errors().loc[BURGERS]
    ahead = [label for label in constant if constant[label] < constant[CANDIDATE]]
    lower = [label for label in constant if label in decaying and constant[label] < decaying[label]]
    both = [label for label in constant if label in decaying.dropna()]
    missing = [
        s.method for s in pinn_methods(recorded_board()["physics"], recorded_costs()) if s.method not in constant
    ]
    shown = [f"{label} ({constant[label]:.4f})" for label in ahead]
    count = "all" if len(lower) == len(both) else f"{len(lower)} of"
    return (
        f"**The learning rate** decays in these runs. With a constant rate on {equations([BURGERS])}, {count} "
        f"{len(both)} methods that were run in both ways have lower errors, and {join(shown, 'and')} are ahead of "
        f"{CANDIDATE} ({constant[CANDIDATE]:.4f}); the plain sum has {constant['Sum']:.4f}. "
        f"{join(missing, 'and')} {'was' if len(missing) == 1 else 'were'} not run with it."
    )


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
