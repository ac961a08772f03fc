"""Compute the leaderboard of the recorded results, for the generated parts of the documentation."""

from collections import Counter
from functools import cache
from pathlib import Path

import pandas as pd

from counterpoise.lab.report import collect_runs
from counterpoise.lab.report.leaderboard import Estimate, Standing, WorldStandings, compare_scores, leaderboard
from counterpoise.lab.report.leaderboard_answers import OVERVIEW, Answer, answers
from counterpoise.lab.report.leaderboard_cost import Cost, step_costs
from counterpoise.lab.report.leaderboard_text import format_estimate, unequal_settings, verdict
from counterpoise.lab.report.leaderboard_worlds import PLAIN_SUM, World
from counterpoise.lab.report.run_scores import collect_scores
from counterpoise.lab.report.variants import report_variants
from counterpoise.lab.studies import STUDIES

RESULTS = Path(__file__).parent.parent / "results"
LEDGERS = {
    "BPGS paper, synthetic problems": "synthetic",
    "the same at forty seeds": "synthetic/forty",
    "BPGS paper, Yeast and RF1": "tabular",
    "BPGS paper, NYUv2": "nyuv2",
    "DCGD paper, and ours, on physics": "physics",
    "published Δm of QM9, and ours": "molecules",
    "our questions on BPGS": "beyond",
    "our questions on seventeen tables": "tabular/seventeen",
    "our questions on penalties": "penalties",
}
"""Title → folder of recorded results with a ledger."""
VERDICTS = ("holds", "undecided", "does not hold", "not run")


@cache
def recorded_scores() -> dict[str, pd.DataFrame]:
    """Return the scores of all recorded runs of each study, at all learning rates."""
    collected, scores = collect_runs([RESULTS]), dict[str, pd.DataFrame]()
    for variant in report_variants(collected):
        for study in variant.studies:
            if variant.recorded is not None:
                frame = variant.recorded[study.name]
            else:
                chosen = {"seeds": variant.seeds, "epochs": variant.epochs, "device": variant.device or "cpu"}
                frame = collect_scores(study, collected, **chosen)  # type: ignore[arg-type]
            if not study.form and len(frame) > len(scores.get(study.name, ())):
                scores[study.name] = frame
    return scores


@cache
def recorded_board() -> dict[str, WorldStandings]:
    """Return the standings of each world by its name."""
    return {standings.world.name: standings for standings in leaderboard(recorded_scores())}


def recorded_checks() -> dict[str, WorldStandings]:
    """Return the standings of each check of a world by its name."""
    return {check.world.name: check for standings in recorded_board().values() for check in standings.checks}


def find_standings(name: str) -> WorldStandings:
    """Return the standings of a world or of a check."""
    return (recorded_board() | recorded_checks())[name]


@cache
def recorded_costs() -> dict[str, Cost]:
    return step_costs(recorded_scores())


def against(world: str, method: str, other: str = PLAIN_SUM, study: str = "") -> Estimate | None:
    """Return a method relative to another one, on all problems of a world or check, or on those of one study."""
    standings = find_standings(world)
    scores = standings.scores
    if study:
        scores = scores[scores.index.get_level_values("problem").str.startswith(f"{STUDIES[study].title}: ")]
    if method not in scores or other not in scores:
        return None
    return compare_scores(standings.world, scores[method], scores[other])


def compared(world: str, method: str, other: str = PLAIN_SUM, study: str = "", *, interval: bool = True) -> str:
    """Return `against` as text, with its interval and the settings in which the methods differ, or without these."""
    found = find_standings(world).world
    text = format_estimate(found, against(world, method, other, study))
    if not interval:
        return text.split(" [")[0]
    return text + "".join(f" ({note})" for note in unequal_settings(found, method, other) if text != "–")


def table_link(study: str, title: str) -> str:
    """Return a link to the recorded table of a study, from a page of the documentation; the title if there is none."""
    found = [*RESULTS.rglob(f"tables/{study}-ranks.md"), *RESULTS.rglob(f"tables/{study}.md")]
    return f"[{title}](../results/{found[0].relative_to(RESULTS).as_posix()})" if found else title


def ledgers() -> dict[str, str]:
    """Return the title and folder of each recorded ledger. One that has no title yet is called after its folder."""
    folders = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("ledger.md"))
    return LEDGERS | {folder: folder for folder in folders if folder not in LEDGERS.values()}


def verdicts(folder: str) -> dict[str, int]:
    """Count the claims of a ledger by verdict: for the released form of BPGS, the worst at several sets of seeds."""
    order = ("does not hold", "undecided", "holds", "not run")
    worst: dict[tuple[str, str, int], str] = {}
    times: Counter[tuple[str, ...]] = Counter()  # two studies can have the same claim
    text = (RESULTS / folder / "ledger.md").read_text(encoding="utf-8").replace(r"\|", "/")
    rows = (line.strip("| ").split(" | ") for line in text.splitlines() if "**" in line and line.startswith("|"))
    for claim, where, reading, seeds, marked, *_ in rows:
        if "raw" not in reading:
            verdict = marked.strip("*")
            times[claim, where, reading, seeds] += 1
            key = claim, where, times[claim, where, reading, seeds]
            worst[key] = min(worst.get(key, verdict), verdict, key=order.index)
    return {verdict: list(worst.values()).count(verdict) for verdict in VERDICTS}


def world(key: str) -> World:
    return find_standings(key).world


def gain(key: str, method: str, *, interval: bool = True) -> str:
    """Return a method relative to the plain sum."""
    return compared(key, method, interval=interval)


def decided(standings: WorldStandings, sign: int) -> list[Standing]:
    """Return the ranked methods that are better (1), worse (−1) or undecided (0) against the plain sum, best first."""
    found = [s for s in standings.ranked if s.method != PLAIN_SUM and verdict(standings.world, s.against_sum) == sign]
    return sorted(found, key=lambda s: -s.against_sum.value if s.against_sum else 0.0)


def method_and_gain(standing: Standing, key: str) -> str:
    """Return a method with its comparison with the plain sum: "Nash-MTL (+3.0 %)"."""
    return f"{standing.method} ({gain(key, standing.method, interval=False)})"


def unknown_case() -> Answer:
    """Return the answer of the report for readers who do not know which case applies."""
    found = answers(list(recorded_board().values()), recorded_costs())
    return next(answer for answer in found if answer.anchor == OVERVIEW)
