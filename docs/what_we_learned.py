"""Write what-we-learned.md, leaderboard.md, and the tables on which method to use of the README and other pages.

python docs/what_we_learned.py

Every number is computed from results/ and benchmarks/results/. Run it after new results are recorded.
"""

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from penalty_table import penalty_table, tasks_table
from pinn_findings import EQUATIONS, equations, findings, plate_of_the_authors, reversed_order, search_result
from pinn_published import (
    best_published,
    burgers_schedules,
    inexact_solvers,
    klein_gordon_points,
    other_rates,
    published_table,
)
from pinn_recommendation import exceptions, pinn_gains, pinn_table
from recorded_leaderboard import (
    VERDICTS,
    against,
    compared,
    decided,
    gain,
    ledgers,
    method_and_gain,
    recorded_board,
    recorded_checks,
    recorded_costs,
    table_link,
    unknown_case,
    verdicts,
    world,
)
from which_method import which_method

from counterpoise.lab.report.leaderboard import Standing, WorldStandings
from counterpoise.lab.report.leaderboard_page import how_compared, with_checks, world_table
from counterpoise.lab.report.leaderboard_text import (
    check_name,
    collapsed_methods,
    format_estimate,
    join,
    other_methods,
    verdict,
)
from counterpoise.lab.report.leaderboard_worlds import PLAIN_SUM, TUNED_SUM, WORLDS
from counterpoise.lab.report.ranks import markdown
from counterpoise.lab.studies import STUDIES

ROOT = Path(__file__).parent.parent
PAGE, LEADERBOARD = ROOT / "docs" / "what-we-learned.md", ROOT / "docs" / "leaderboard.md"
STEPS = ROOT / "benchmarks" / "results" / "gradient_space_cuda.json"
INTRODUCTION = """\
# Leaderboard

Every method in every world (group of similar problems), computed from the recorded runs by
`python docs/what_we_learned.py`. [What we learned](what-we-learned.md) draws conclusions. Each method is compared with
the plain sum on the same problems and seeds; brackets are 95 % intervals over seeds, from a paired bootstrap or, with
fewer than five seeds, Student's t. One or two seeds have none. Mean ranks are over single runs.
"""
LEVEL = re.compile(r"^(error 1\.0 ×|\+0\.0 %)")
"""A comparison without a difference at its precision, for example of two methods that both collapse."""
LEADERS = ("Nash-MTL", "CAGrad", "Gradient normalisation", "FAMO", "UW-O", "First loss", "BPGS", "Kendall", PLAIN_SUM)
RIVALS = ("Kendall", "UW-O", "First loss", "FAMO")
"""Methods of similar cost with which BPGS is compared in every world."""
SIMPLER = ("UW-O", "First loss", "FAMO")
HYBRIDS = (
    ("BPGS + CAGrad", "CAGrad"),
    ("BPGS + CAGrad", "BPGS"),
    ("BPGS + CAGrad", "First loss + CAGrad"),
    ("BPGS + PCGrad", "PCGrad"),
)
"""BPGS before gradient-space methods, and what it is compared with."""
DECAY = ("BPGS + CAGrad", "Kendall+ℓ1")
"""Methods whose lead without rescaling may be an effect of the weight decay."""


def tuned(key: str, method: str) -> str:
    """Return a method relative to the hand-tuned sum."""
    standing = recorded_board()[key].find(method)
    assert standing is not None
    return format_estimate(world(key), standing.against_tuned)


def summary() -> str:
    """Return the table of the worlds, and which of them have no runs."""
    heads = ["world", "problems", "seeds", "best mean rank", "BPGS against the plain sum", "BPGS against Kendall"]
    lines = [f"| {' | '.join([*heads, 'recorded in'])} |", "| --- |" + " ---: |" * 2 + " --- |" * 4]
    for key, standings in recorded_board().items():
        best = next(s for s in standings.ranked if s.method != PLAIN_SUM)
        compared_studies = [study for study in world(key).studies if STUDIES[study].title in titles(standings)]
        cells = [world(key).title, str(len(standings.problems)), str(len(standings.seeds)), method_and_gain(best, key)]
        cells += [gain(key, "BPGS"), compared(key, "BPGS", "Kendall")]
        cells.append(", ".join(table_link(study, study) for study in compared_studies))
        lines.append(f"| {' | '.join(cells)} |")
    missing = [w for w in WORLDS if w.name not in recorded_board()]
    data = {w.name: f" ({w.situation.split(':')[0]})" if ":" in w.situation else "" for w in missing}
    note = f"\n\nNot measured yet: {'; '.join(w.title + data[w.name] for w in missing)}." if missing else ""
    return "\n".join(lines) + note


def titles(standings: WorldStandings) -> set[str]:
    """Return the titles of the studies of the problems that are compared."""
    return {problem.split(": ")[0] for problem in standings.problems}


def first_of(found: list[Standing], key: str, count: int = 2) -> str:
    """Name the first methods, and say how many there are besides."""
    more = [f"{len(found) - count} more methods"] if len(found) > count else []
    return join([*(method_and_gain(standing, key) for standing in found[:count]), *more], "and")


def helps() -> str:
    """Say how much is lost without weights, and which methods recover it."""
    board = recorded_board()
    rescaled, nyu = board["tables-rescaled"], board["nyuv2"]
    level = [s for s in decided(rescaled, 1) if verdict(rescaled.world, s.against_tuned) >= 0]
    level.sort(key=lambda s: -s.against_sum.value if s.against_sum else 0.0)
    recovering = first_of(level, "tables-rescaled", 4)
    pinns = [table_link(study.name, equations([title])) for title, study in EQUATIONS.items()]
    but = f" But {join(exceptions(), 'and')} than the plain sum." if exceptions() else ""
    return f"""\
**Losses of different units.** On {table_link("tabular", "seventeen tables")} with loss factors from 1 to 1000, the
plain sum scores {tuned("tables-rescaled", PLAIN_SUM)} against weights that undo the factors. {recovering} recover
this: none of them is shown to be worse than the weights set by hand. Kendall gains only
{gain("tables-rescaled", "Kendall", interval=False)}.

**Tasks of different difficulty.** On {table_link("nyuv2", "NYUv2")}, without any factor,
{join([method_and_gain(s, "nyuv2") for s in decided(nyu, 1)], "and")} are better than the plain sum over
{len(nyu.seeds)} seeds. They trade segmentation for surface normals, in which the plain sum is weak. On [QM9](qm9.md),
{first_of(decided(board["molecules"], 1), "molecules")} are better.

**Gradients of different size.** On differential equations ({join(pinns, "and")}), methods that compare
gradients reduce the error of the plain sum: {pinn_gains()}{but} A fixed factor on the boundary and initial
conditions, chosen for each equation at two other seeds, has an {gain("physics", TUNED_SUM)}."""


def harms() -> str:
    """Say where methods are worse than the plain sum."""
    tables = recorded_board()["tables"]
    better, worse = (join([method_and_gain(s, "tables") for s in decided(tables, sign)], "and") for sign in (1, -1))
    synthetic = join([method_and_gain(s, "synthetic") for s in decided(recorded_board()["synthetic"], -1)], "and")
    failing = collapsed_methods(recorded_board()["physics"])
    known = [method for method in RIVALS if method in failing]
    return f"""\
**Losses of similar scale.** On the same {table_link("tabular", "seventeen tables")} without factors,
{worse or "no method"} scored lower than the plain sum, and {f"only {better}" if better else "none"} higher.
{len(decided(tables, 0))} methods do not differ detectably from it.

**A loss that can reach zero.** On the four differential equations {len(failing)} methods end with more than five times
the error of the plain sum, among them {join([*known, f"BPGS ({gain('physics', 'BPGS')})"], "and")}. They give
nearly all the weight to terms that a trivial function solves. Do not weight [the terms of one
objective](choosing.md#do-not-weight-the-terms-of-one-objective-by-their-values) by their values.

**A penalty.** On {table_link("penalties", "four objectives with a penalty")}, {penalties()}

**Some methods lose on the synthetic problems**, at the best of three learning rates: {synthetic}."""


def penalties() -> str:
    """Say how many methods fail on penalised objectives, and which of the common ones do so after many epochs."""
    standings = recorded_board()["penalties"]
    failing = collapsed_methods(standings)
    count = sum(not s.method.startswith("Sum") for s in other_methods(standings))
    text = (
        f"{len(failing)} of {count} methods are shown to lose more than half of the score of the plain sum, which "
        f"minimises the objective itself (BPGS: "
        f"{gain('penalties', 'BPGS')}; ignoring the input: −100 %)."
    )
    for check in standings.checks:
        later = [f"{s.method} ({gain(check.world.name, s.method)})" for s in decided(check, -1)]
        where = check_name(standings, check)
        text += f" {where[0].upper()}{where[1:]}, {join(later, 'and')} {'are' if later[1:] else 'is'} worse, too."
    return text


def bpgs() -> str:
    """Compare BPGS with Kendall, with methods of similar cost, and as a weighting before other methods."""
    board = recorded_board()
    lines = [
        f"| BPGS against | {' | '.join(s.world.title for s in board.values())} |",
        "| --- |" + " --- |" * len(board),
    ]

    def fail(key: str, other: str) -> bool:
        return {"BPGS", other} <= set(collapsed_methods(board[key]))

    def cell(key: str, other: str) -> str:
        return "both fail" if fail(key, other) else compared(key, "BPGS", other)

    def sign(key: str, other: str) -> int:
        level = fail(key, other) or LEVEL.search(compared(key, "BPGS", other))
        return 0 if level else verdict(world(key), against(key, "BPGS", other))

    lines += [f"| {o} | {' | '.join(cell(key, o) for key in board)} |" for o in RIVALS]

    signs = {
        other: [
            sign(key, other)
            for key in board
            if (found := against(key, "BPGS", other)) and found.low != found.high  # one or two seeds decide nothing
        ]
        for other in RIVALS
    }
    counts = {
        other: f"better in {found.count(1) or 'none'} of {len(found)} worlds and worse in {found.count(-1) or 'none'}"
        for other, found in signs.items()
    }
    table = "\n".join(lines)
    checks = "".join(
        f" ({s.world.title}: {compared(key, 'BPGS', 'Kendall')})"
        for key, s in recorded_checks().items()
        if against(key, "BPGS", "Kendall")
    )
    return f"""\
{table}

- **Against Kendall** it is {counts["Kendall"]}{checks}. **Against UW-O**, which divides by the current losses, it is
  {counts["UW-O"]}; **against First loss**, which divides by the first ones, {counts["First loss"]};
  **against FAMO**, {counts["FAMO"]} (worlds with at least three common seeds; if both methods
  fail, it counts as undecided).
- **On gradients** (`statistic="gradient"`) it does not collapse on differential equations
  ({gain("physics", "BPGS (gradient)")}), but fails on penalties ({gain("penalties", "BPGS (gradient)")}).
- **It takes no measurable time**: {recorded_costs()["BPGS"].time:.2f} times the duration of an epoch with the plain sum
  ({table_link("nyuv2-overhead", "NYUv2, overhead")}).
- **Before a gradient-space method** it removes the scales, which First loss does as well:

{hybrids()}

{conclusion()}"""


def conclusion() -> str:
    """Compare BPGS with simpler methods where it is meant to be used."""
    text = (
        "BPGS removes the scales of supervised losses that differ by orders of magnitude. UW-O and First loss are "
        "simpler, and FAMO needs only a second forward pass"
    )
    signs = {other: verdict(world("tables-rescaled"), against("tables-rescaled", "BPGS", other)) for other in SIMPLER}
    behind = [other for other, sign in signs.items() if sign > 0]
    names = join(behind, "and") if behind else "none of them is shown to"
    text += f": {names} score lower on rescaled tables. "
    fixed = compared("molecules", "BPGS", "First loss")
    sign = verdict(world("molecules"), against("molecules", "BPGS", "First loss"))
    seeds = len(recorded_board()["molecules"].seeds)
    finding = {
        1: "learned weights are better than fixed ones",
        0: f"{seeds} seeds do not decide between learned and fixed weights",
        -1: "learned weights are worse than fixed ones",
    }[sign]
    return (
        f"{text}On QM9, whose losses decrease to very different values, {finding} (BPGS against First loss: {fixed})."
    )


def hybrids() -> str:
    """Return the table of BPGS before gradient-space methods, in the worlds in which this was run."""
    worlds = [key for key in ("synthetic", "tables", "tables-rescaled") if key in recorded_board()]
    lines = [f"| | {' | '.join(world(key).title for key in worlds)} |", "| --- |" + " --- |" * len(worlds)]
    for method, other in HYBRIDS:
        cells = " | ".join(compared(key, method, other) for key in worlds)
        lines.append(f"| {method} against {other} | {cells} |")
    return "\n".join(lines)


def leaders() -> str:
    """Return the mean ranks of some methods in each world, and what gradient-space methods cost."""
    board = recorded_board()
    lines = [f"| mean rank | {' | '.join(s.world.title for s in board.values())} |", "| --- |" + " ---: |" * len(board)]
    for method in LEADERS:
        cells = []
        for standings in board.values():
            found = standings.find(method)
            cells.append(f"{found.rank.value:.1f} of {len(standings.ranked)}" if found and found.rank else "–")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    rows = json.loads(STEPS.read_text(encoding="utf-8"))["rows"]
    times = {row["case"]: row["ratio"] for row in rows if row["precision"] == "float32"}
    loop, features = (
        join([f"{times[f'{method}, {how}']:.2f}" for method in ("Nash-MTL", "CAGrad")], "and")
        for how in ("loop", "features")
    )
    cost = f"""
{unknown_case().text.partition(" Worse in some")[0]}

Nash-MTL and CAGrad need one backward pass per loss. With three tasks of a SegNet a step takes {loop} times as long as
a plain step, or {features} times at the shared features with `features=` ([benchmarks](../benchmarks/README.md)). FAMO
needs a second forward pass."""
    return "\n".join([*lines, cost])


def claims() -> str:
    """Return the verdicts on the claims of each ledger."""
    lines = [f"| claims | {' | '.join(VERDICTS)} | ledger |", "| --- |" + " ---: |" * len(VERDICTS) + " --- |"]
    for title, folder in ledgers().items():
        counts = verdicts(folder)
        lines.append(
            f"| {title} | {' | '.join(str(counts[v]) for v in VERDICTS)} | [{folder}](../results/{folder}/ledger.md) |"
        )
    return "\n".join(lines)


def decay() -> str:
    """Say whether two methods still lead without rescaling when the weight decay is decoupled."""
    link = table_link("beyond-heterogeneous", "heterogeneous problems")
    leads = [f"{m} ({compared('synthetic', m, study='beyond-heterogeneous')})" for m in DECAY]
    text = f"**Weight decay.** On the {link}, where nothing is rescaled, {join(leads, 'and')} lead the plain sum. "
    text += "Adam adds the decay to the gradient, so that a method with a smaller gradient is regularised more. "
    study = "beyond-heterogeneous-adamw"
    found = recorded_checks().get("synthetic-adamw")
    if found is None or STUDIES[study].title not in titles(found):
        return text + "The same grids with AdamW, whose decay does not depend on the gradient, are not recorded yet."
    words = {1: "still leads", -1: "falls behind", 0: "has no lead that can be shown"}
    signs = {m: verdict(found.world, against("synthetic-adamw", m, study=study)) for m in DECAY}
    parts = [f"{m} {words[sign]} ({compared('synthetic-adamw', m, study=study)})" for m, sign in signs.items()]
    return f"{text}With AdamW ({table_link(study, 'table')}), {join(parts, 'and')}."


def physics_limits() -> str:
    """Say on how many equations the comparison of physics-informed networks rests, and how they differ."""
    seeds = len(recorded_board()["physics"].seeds)
    return f"**Physics.** The comparison rests on {len(EQUATIONS)} equations and {seeds} seeds. {reversed_order()}"


def leaderboard_page() -> str:
    """Return leaderboard.md: all methods of each world, and the recorded tables behind them."""
    parts = [INTRODUCTION]
    for standings in with_checks(list(recorded_board().values())):
        key, level = standings.world.name, "##" if standings.world.name in recorded_board() else "###"
        recorded = [study for study in world(key).studies if list((ROOT / "results").rglob(f"tables/{study}*.md"))]
        links = ", ".join(table_link(study, study) for study in recorded)
        confounds = "\n".join(f"- {text}" for text in (how_compared(world(key)), *world(key).confounds))
        table = markdown([world_table(standings, recorded_costs())]).strip()
        text = f"{world(key).situation}. Recorded tables: {links}."
        parts.append(f"{level} {world(key).title}\n\n{text}\n\n{confounds}\n\n{table}\n")
    return "\n".join(parts)


def wrap(text: str) -> str:
    """Break the lines of paragraphs and list items, and leave tables as they are."""
    parts = re.split(r"\n\n|\n(?=- |\|)", text)
    wrapped = ""
    for part in parts:
        line = re.sub(r" ([%×])", "\N{NO-BREAK SPACE}\\1", " ".join(part.split()))  # keeps numbers with their unit
        indent = "  " if line.startswith("- ") else ""
        filled = textwrap.fill(line, 130, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        previous = wrapped.rsplit("\n", 1)[-1][:2].replace("  ", "- ")
        joint = "\n" if line[:2] in ("- ", "| ") and line[:2] == previous else "\n\n"
        wrapped += (joint if wrapped else "") + (line if line.startswith("|") else filled)
    return wrapped.replace("\N{NO-BREAK SPACE}", " ")


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    PAGE: {
        "worlds": summary, "helps": helps, "harms": harms, "bpgs": bpgs, "leaders": leaders, "claims": claims,
        "decay": decay, "physics": physics_limits,
    },
    ROOT / "docs" / "choosing.md": {"which method": which_method, "penalties": penalty_table, "tasks": tasks_table},
    ROOT / "docs" / "index.md": {"which method": which_method},
    ROOT / "docs" / "pinns.md": {
        "recommendation": pinn_table, "published": published_table, "best published": best_published,
        "findings": findings, "search": search_result, "burgers": burgers_schedules, "authors": plate_of_the_authors,
        "points": klein_gordon_points, "solvers": inexact_solvers, "rates": other_rates,
    },
    ROOT / "README.md": {"which method": lambda: which_method("docs/")},
}  # fmt: skip
"""The generated blocks of each page by name."""


def generate(path: Path) -> str:
    """Return a page with its generated blocks as the recorded results have them."""
    text = path.read_text(encoding="utf-8")
    for block, write in BLOCKS[path].items():
        pattern = re.compile(rf"(<!-- {block} -->\n).*?(\n<!-- /{block} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{path} has no block <!-- {block} -->")
        content = wrap(write())
        text = pattern.sub(lambda found, content=content: f"{found[1]}{content}{found[2]}", text)  # type: ignore[misc]
    return text


def main() -> None:
    LEADERBOARD.write_text(leaderboard_page(), encoding="utf-8")
    for path in BLOCKS:
        path.write_text(generate(path), encoding="utf-8")


if __name__ == "__main__":
    main()
