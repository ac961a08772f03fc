"""The claims ledger: what the paper says, judged on our results."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from ..studies import Study
from ..studies.base import RAW
from ..studies.claims import Claim, Lookup, Part, Score, Statement, Values
from .results import at
from .tables import ROUNDING, spoken

Verdict = Literal["holds", "does not hold", "undecided", "not run"]
RESAMPLES = 10_000
LEVEL = 0.95  # of the intervals


@dataclass(frozen=True)
class Finding:
    """One part of a claim on our results."""

    paper: float
    ours: float
    low: float  # of the bootstrap interval over seeds
    high: float
    effect: float  # mean over standard deviation of the quantity's values at single seeds
    margin: float  # how far from failing, in units of the quantity; negative: it fails
    verdict: Verdict


@dataclass(frozen=True)
class Judgement:
    """A claim on our results at some seeds, with BPGS as released or with its raw precisions."""

    study: str
    claim: Claim
    reading: str
    seeds: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def decisive(self) -> Finding:
        """The part that the verdict hangs on: a claim holds if all its parts do."""
        order: tuple[Verdict, ...] = ("not run", "does not hold", "undecided", "holds")
        return min(self.findings, key=lambda finding: (order.index(finding.verdict), finding.margin))

    @property
    def verdict(self) -> Verdict:
        return self.decisive.verdict


def judge(study: Study, frame: pd.DataFrame, seeds: Sequence[int]) -> list[Judgement]:
    """Every claim of the study at these seeds; those about BPGS in both readings."""
    same = set(seeds) == set(study.seeds)
    frame = at(frame, seeds)
    judgements = []
    for claim in study.claims:
        about = RAW in study.methods and any(score.method == "BPGS" for score in claim.statement.scores())
        for reading in ("BPGS", RAW) if about else ("",):
            statement = claim.statement.read_as("BPGS", reading or "BPGS")
            findings = _judge(study, claim.statement, statement, frame, seeds, same)
            judgements.append(Judgement(study.name, claim, reading, tuple(seeds), findings))
    return judgements


def agreement(study: Study, frame: pd.DataFrame) -> str | None:
    """Which form of BPGS the paper's row agrees with, at the paper's seeds; None if not all of it was run."""
    row = study.paper.get("macro", {}).get("BPGS", {})
    chosen = at(frame, study.seeds)
    means = chosen.groupby(["method", "condition"])["macro"].mean()
    needed = [(method, condition) for method in ("BPGS", RAW) for condition in row]
    if not row or RAW not in study.methods or not all(cell in means.index for cell in needed):
        return None
    released, raw = (max(abs(means[m, c] - mean) for c, (mean, _) in row.items()) for m in ("BPGS", RAW))
    nearer = "as released" if released < raw else "with raw ω"
    return (
        f"The paper's BPGS row differs from BPGS as released by at most {released:.3f}, "
        f"from BPGS with raw ω by at most {raw:.3f}: it agrees better with BPGS {nearer}."
    )


def _judge(
    study: Study, said: Statement, read: Statement, frame: pd.DataFrame, seeds: Sequence[int], same: bool
) -> tuple[Finding, ...]:
    values = _values(read, frame, seeds)
    findings = []
    for part, theirs in zip(read.parts, said.parts, strict=True):
        paper = _paper(study, theirs)
        if values is None:
            findings.append(Finding(paper, np.nan, np.nan, np.nan, np.nan, 0.0, "not run"))
            continue
        with np.errstate(divide="ignore", invalid="ignore"):  # one seed alone has no deviation
            ours = float(part.quantity.evaluate(_means(values, np.arange(len(seeds)))))
            # One seed of several has no spread: nothing is decided by it.
            low, high = _interval(part, values, len(seeds)) if len(seeds) > 1 or same else (np.nan, np.nan)
        margin, verdict = _verdict(part, ours, low, high, same)
        findings.append(Finding(paper, ours, low, high, _effect(part, values), margin, verdict))
    return tuple(findings)


def _verdict(part: Part, ours: float, low: float, high: float, same: bool) -> tuple[float, Verdict]:
    """How far a part is from failing, and its verdict.

    An inequality is decided when the whole interval is on one side. That a mean is a given number is a statement about
    given seeds: at the same seeds the tolerance alone decides, at others also what chance over seeds could give.
    """
    reach = part.tolerance + ROUNDING
    if not np.isfinite(ours):
        return 0.0, "undecided"
    if not np.isfinite([low, high]).all():
        inside = {">": ours - part.bound, "<": part.bound - ours, "near": reach - abs(ours - part.bound)}
        return inside[part.relation], "undecided"
    if part.relation == "near":
        away = abs(ours - part.bound) if same else max(low - part.bound, part.bound - high, 0.0)
        return reach - away, "holds" if away <= reach else "does not hold"
    worst, best = (
        (low - part.bound, high - part.bound) if part.relation == ">" else (part.bound - high, part.bound - low)
    )
    return worst, "holds" if worst > 0 else "does not hold" if best < 0 else "undecided"


def _values(statement: Statement, frame: pd.DataFrame, seeds: Sequence[int]) -> dict[Score, Values] | None:
    """The score of every cell at every seed, in the same order: None if a run is missing, or none measured it."""
    found = {}
    for score in set(statement.scores()):
        if frame[score.metric].isna().all():
            return None
        rows = frame[(frame["method"] == score.method) & (frame["condition"] == score.condition)]
        by_seed = rows.set_index("seed")[score.metric] if len(rows) else pd.Series(dtype=float)
        if not set(seeds) <= set(by_seed.index):
            return None
        found[score] = by_seed.loc[list(seeds)].to_numpy(dtype=np.float64)
    return found


def _means(values: dict[Score, Values], chosen: np.ndarray) -> Lookup:
    """Cells by their mean (or deviation) over the chosen seeds (…, count), the same for all: pairs stay together."""

    def lookup(score: Score) -> Values:
        drawn = values[score][chosen]
        return np.asarray(drawn.mean(-1) if score.statistic == "mean" else drawn.std(-1))

    return lookup


def _interval(part: Part, values: dict[Score, Values], count: int) -> tuple[float, float]:
    """The percentile bootstrap over seeds, with a fixed stream."""
    chosen = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    found = part.quantity.evaluate(_means(values, chosen))
    finite = found[np.isfinite(found)]
    if not len(finite):
        return np.nan, np.nan
    low, high = np.percentile(finite, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return float(low), float(high)


def _effect(part: Part, values: dict[Score, Values]) -> float:
    if any(score.statistic == "sd" for score in part.quantity.scores()):
        return float("nan")
    single = part.quantity.evaluate(lambda score: values[score])
    sd = float(np.std(single, ddof=1)) if len(single) > 1 else 0.0
    return float(np.mean(single)) / sd if sd > 0 else float("nan")


def _paper(study: Study, part: Part) -> float:
    """The paper's own value of a quantity, from its tables; of a bare number, the number."""
    if part.relation == "near":
        return part.bound

    def lookup(score: Score) -> Values:
        mean, sd = study.paper.get(score.metric, {}).get(score.method, {}).get(score.condition, (np.nan, np.nan))
        return np.asarray(mean if score.statistic == "mean" else sd)

    return float(part.quantity.evaluate(lookup))


STYLES: dict[Verdict, str] = {"holds": "green", "does not hold": "red", "undecided": "yellow", "not run": "dim"}


def terminal(judgements: Sequence[Sequence[Judgement]]) -> Table:
    """Each claim with its verdict at each set of seeds, and the part of it that decides: the one nearest to failing."""
    table = Table(title="Claims ledger", title_justify="left", title_style="bold", show_lines=True)
    table.add_column("claim")
    for column in judgements:
        table.add_column(spoken(column[0].seeds), no_wrap=True)
    for row in zip(*judgements, strict=True):
        claim, reading = row[0].claim, row[0].reading
        text = Text(claim.text)
        text.append(f"\n{claim.where}{f', read as {reading}' if reading == RAW else ''}", style="dim")
        table.add_row(text, *(_found(judgement) for judgement in row))
    table.caption = f"ours [{LEVEL:.0%} bootstrap interval over seeds, paired]; all parts are in ledger.csv"
    return table


def _found(judgement: Judgement) -> Text:
    text = Text(judgement.verdict, style=STYLES[judgement.verdict])
    f = judgement.decisive
    if f.verdict != "not run":
        text.append(f"\n{_number(f.ours)} [{_number(f.low)}, {_number(f.high)}]", style="default")
    if not np.isnan(f.paper):
        text.append(f"\npaper {_number(f.paper)}", style="dim")
    return text


def _number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"


def rows(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """The ledger as data: a row for each part of each claim."""
    return pd.DataFrame(
        [
            {"study": j.study, "claim": j.claim.text, "where": j.claim.where, "reading": j.reading}
            | {"seeds": " ".join(map(str, j.seeds)), "verdict": j.verdict, "part_verdict": f.verdict}
            | {"paper": f.paper, "ours": f.ours, "low": f.low, "high": f.high, "effect": f.effect}
            for j in judgements
            for f in j.findings
        ]
    )


def markdown(judgements: Sequence[Judgement]) -> str:
    header = f"| claim | where | reading | seeds | verdict | paper | ours [{100 * LEVEL:.0f} % interval] |"
    lines = [header, "|" + " --- |" * 7]
    for j in judgements:
        ours = "; ".join(f"{_number(f.ours)} [{_number(f.low)}, {_number(f.high)}]" for f in j.findings)
        paper = "; ".join(_number(f.paper) for f in j.findings)
        text = j.claim.text.replace("|", "\\|")  # |z| would end the cell
        cells = (text, j.claim.where, j.reading or "–", spoken(j.seeds), f"**{j.verdict}**", paper, ours)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
