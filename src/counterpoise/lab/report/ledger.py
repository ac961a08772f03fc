"""The claims ledger: each claim of the paper with our result and a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from rich.table import Table
from rich.text import Text

from ..studies import Study
from ..studies.base import BPGS_RAW_LABEL
from ..studies.claims import Claim, Comparison, Lookup, Score, Statement, Values
from .intervals import LEVEL, bootstrap_interval, seed_interval
from .markdown import markdown_table
from .run_scores import select_seeds
from .tables import DECIMALS, format_seeds, rounding

Verdict = Literal["holds", "does not hold", "undecided", "not run"]


@dataclass(frozen=True)
class Finding:
    """One comparison of a claim, evaluated on our results."""

    paper: float
    ours: float
    low: float  # of the 95 % interval over seeds
    high: float
    effect: float  # mean over standard deviation of the quantity's values at single seeds
    margin: float  # distance from failing, in units of the quantity or as a logarithm; negative if it fails
    verdict: Verdict
    decimals: int = DECIMALS  # that are printed
    note: str = ""


@dataclass(frozen=True)
class Judgement:
    """A claim evaluated on our results at some seeds, for BPGS as released or with its raw precisions."""

    study: str
    claim: Claim
    reading: str
    seeds: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def decisive(self) -> Finding:
        """The finding that decides the verdict: a claim holds only if all its parts do."""
        order: tuple[Verdict, ...] = ("not run", "does not hold", "undecided", "holds")
        return min(self.findings, key=lambda finding: (order.index(finding.verdict), finding.margin))

    @property
    def verdict(self) -> Verdict:
        return self.decisive.verdict


@dataclass(frozen=True)
class _Scores:
    """The runs of each method and condition, and the metrics that some run measured."""

    cells: dict[tuple[str, str], pd.DataFrame]
    measured: frozenset[str]

    @classmethod
    def of(cls, frame: pd.DataFrame, claims: Sequence[Claim]) -> "_Scores":
        """Return the scores that claims are about."""
        scores = {score for claim in claims for score in claim.statement.scores()}
        methods = {score.method for score in scores} | {BPGS_RAW_LABEL}
        needed = frame[frame["method"].isin(methods)]
        columns = [name for name in {score.metric for score in scores} if name in frame]
        groups = needed[["method", "condition", "seed", *columns]].groupby(["method", "condition"], sort=False)
        cells = {cell: rows.set_index("seed") for cell, rows in groups}
        return cls(cells, frozenset(name for name in columns if frame[name].notna().any()))

    def values(self, statement: Statement, seeds: Sequence[int]) -> dict[Score, Values] | None:
        """Return the score of every cell at each of the seeds, or None if a run is missing or no run measured it."""
        found = {}
        for score in set(statement.scores()):
            rows = self.cells.get((score.method, score.condition))
            if rows is None or score.metric not in self.measured or not set(seeds) <= set(rows.index):
                return None
            found[score] = rows[score.metric].loc[list(seeds)].to_numpy(dtype=np.float64)
        return found


def judge(study: Study, frame: pd.DataFrame, seeds: Sequence[int]) -> list[Judgement]:
    """Judge every claim of the study at these seeds, and claims about BPGS for both forms of it."""
    paper_seeds = set(seeds) == set(study.seeds)
    scores = _Scores.of(select_seeds(frame, seeds), study.claims)
    judgements = []
    for claim in study.claims:
        about_bpgs = BPGS_RAW_LABEL in study.methods and any(
            score.method == "BPGS" for score in claim.statement.scores()
        )
        for reading in ("BPGS", BPGS_RAW_LABEL) if about_bpgs else ("",):
            statement = claim.statement.with_method("BPGS", reading or "BPGS")
            findings = _evaluate(study, claim, statement, scores, seeds, paper_seeds)
            judgements.append(Judgement(study.name, claim, reading, tuple(seeds), findings))
    return judgements


def agreement(study: Study, frame: pd.DataFrame) -> str | None:
    """Say which form of BPGS agrees better with the paper's row, at its seeds; None unless both were run in full."""
    row = study.paper.get("macro", {}).get("BPGS", {})
    means = select_seeds(frame, study.seeds).groupby(["method", "condition"])["macro"].mean()
    needed = [(method, condition) for method in ("BPGS", BPGS_RAW_LABEL) for condition in row]
    if not row or BPGS_RAW_LABEL not in study.methods or not all(cell in means.index for cell in needed):
        return None
    released, raw = (max(abs(means[m, c] - mean) for c, (mean, _) in row.items()) for m in ("BPGS", BPGS_RAW_LABEL))
    nearer = "as released" if released < raw else "with raw ω"
    return (
        f"The paper's BPGS row differs from BPGS as released by at most {released:.3f}, "
        f"from BPGS with raw ω by at most {raw:.3f}: it agrees better with BPGS {nearer}."
    )


def _evaluate(
    study: Study, claim: Claim, statement: Statement, scores: "_Scores", seeds: Sequence[int], paper_seeds: bool
) -> tuple[Finding, ...]:
    """Evaluate a statement: that of the claim, or the same about another form of BPGS."""
    published = paper_seeds and not claim.is_beyond
    values = scores.values(statement, seeds)
    findings = []
    for part, in_paper in zip(statement.parts, claim.statement.parts, strict=True):
        paper = _paper_value(study, in_paper)
        if values is None:
            findings.append(Finding(paper, np.nan, np.nan, np.nan, np.nan, 0.0, "not run", study.decimals))
            continue
        with np.errstate(divide="ignore", invalid="ignore"):  # a single seed has a standard deviation of zero
            ours = float(part.quantity.evaluate(_statistics(values, np.arange(len(seeds)))))
            # A single seed has no interval, unless the paper used that seed alone.
            low = high = np.nan
            if len(seeds) > 1 or paper_seeds:
                low, high = _interval(part, values, len(seeds), published=published)
        margin, verdict = _verdict(part, ours, low, high, paper_seeds, rounding(study.decimals))
        note = _direction(part, ours) if verdict == "does not hold" else ""
        findings.append(Finding(paper, ours, low, high, _effect(part, values), margin, verdict, study.decimals, note))
    return tuple(findings)


def _verdict(
    part: Comparison, ours: float, low: float, high: float, paper_seeds: bool, rounding_error: float
) -> tuple[float, Verdict]:
    """Return the margin of a comparison and its verdict.

    An inequality is decided when the whole interval is on one side of the bound. Equality with a number of the paper is
    decided by the tolerance at the paper's seeds, and by the tolerance and the interval at other seeds.
    """
    equality = part.relation in ("near", "factor")
    reach = float(np.log(part.tolerance)) if part.relation == "factor" else part.tolerance + rounding_error
    if not np.isfinite(ours):
        return 0.0, "undecided"
    if not np.isfinite([low, high]).all():
        if equality:
            return reach - _distance(part, ours, ours), "undecided"
        return ours - part.bound if part.relation == ">" else part.bound - ours, "undecided"
    if equality:
        distance = _distance(part, ours, ours) if paper_seeds else _distance(part, low, high)
        return reach - distance, "holds" if distance <= reach else "does not hold"
    worst, best = (
        (low - part.bound, high - part.bound) if part.relation == ">" else (part.bound - high, part.bound - low)
    )
    return worst, "holds" if worst > 0 else "does not hold" if best < 0 else "undecided"


def _distance(part: Comparison, low: float, high: float) -> float:
    """Return the distance of an interval from the number of the paper, of their logarithms if a factor is allowed."""
    if part.relation == "factor":
        return float(np.log(max(low / part.bound, part.bound / high if high > 0 else np.inf, 1.0)))
    return max(low - part.bound, part.bound - high, 0.0)


def _direction(part: Comparison, ours: float) -> str:
    """Say on which side of a published error ours is; "" for other comparisons."""
    return f"{'lower' if ours < part.bound else 'higher'} than published" if part.relation == "factor" else ""


def _statistics(values: dict[Score, Values], chosen: np.ndarray) -> Lookup:
    """Return a lookup of the mean (or standard deviation) of each cell over the chosen seeds (…, count)."""

    def lookup(score: Score) -> Values:
        drawn = values[score][chosen]
        return np.asarray(drawn.mean(-1) if score.statistic == "mean" else drawn.std(-1))

    return lookup


def _interval(part: Comparison, values: dict[Score, Values], count: int, *, published: bool) -> tuple[float, float]:
    """Return the interval of a quantity over seeds, all scores at the same seeds.

    Args:
        part: The comparison.
        values: The scores at each seed.
        count: The number of seeds.
        published: Whether the claim is about the paper's own seeds. It is then checked whether it holds there: the
            percentiles do not exceed the range of these seeds.
    """
    interval = bootstrap_interval if published else seed_interval
    return interval(lambda seeds: part.quantity.evaluate(_statistics(values, seeds)), count)


def _effect(part: Comparison, values: dict[Score, Values]) -> float:
    if any(score.statistic == "sd" for score in part.quantity.scores()):
        return float("nan")
    single = part.quantity.evaluate(lambda score: values[score])
    sd = float(np.std(single, ddof=1)) if len(single) > 1 else 0.0
    return float(np.mean(single)) / sd if sd > 0 else float("nan")


def _paper_value(study: Study, part: Comparison) -> float:
    """Return the paper's value of a quantity: the stated number, or computed from the paper's tables."""
    if part.relation in ("near", "factor"):
        return part.bound

    def lookup(score: Score) -> Values:
        mean, sd = study.paper.get(score.metric, {}).get(score.method, {}).get(score.condition, (np.nan, np.nan))
        return np.asarray(mean if score.statistic == "mean" else sd)

    return float(part.quantity.evaluate(lookup))


STYLES: dict[Verdict, str] = {"holds": "green", "does not hold": "red", "undecided": "yellow", "not run": "dim"}


def terminal(judgements: Sequence[Sequence[Judgement]]) -> Table:
    """Return a table of each claim with its verdict at each set of seeds, and the part of it that decides."""
    table = Table(title="Claims ledger", title_justify="left", title_style="bold", show_lines=True)
    table.add_column("claim")
    for column in judgements:
        table.add_column(format_seeds(column[0].seeds), no_wrap=True)
    for row in zip(*judgements, strict=True):
        claim, reading = row[0].claim, row[0].reading
        text = Text(claim.text)
        text.append(f"\n{claim.source}{f', read as {reading}' if reading == BPGS_RAW_LABEL else ''}", style="dim")
        table.add_row(text, *(_terminal_cell(judgement) for judgement in row))
    table.caption = f"ours [{LEVEL:.0%} interval over seeds, paired]; all parts are in ledger.csv"
    return table


def _terminal_cell(judgement: Judgement) -> Text:
    text = Text(judgement.verdict, style=STYLES[judgement.verdict])
    decisive = judgement.decisive
    if decisive.verdict != "not run":
        text.append(f"\n{_format_interval(decisive)}", style="default")
    if not np.isnan(decisive.paper):
        text.append(f"\npaper {_number(decisive.paper, decisive.decimals)}", style="dim")
    return text


def _format_interval(finding: Finding) -> str:
    ours, low, high = (_number(value, finding.decimals) for value in (finding.ours, finding.low, finding.high))
    return f"{ours} [{low}, {high}]" + (f", {finding.note}" if finding.note else "")


def _number(value: float, decimals: int) -> str:
    return "–" if np.isnan(value) else f"{value:.{decimals}f}"


def ledger_frame(judgements: Sequence[Judgement]) -> pd.DataFrame:
    """Return the ledger as data: a row for each part of each claim."""
    return pd.DataFrame(
        [
            {"study": j.study, "claim": j.claim.text, "where": j.claim.source, "reading": j.reading}
            | {"seeds": " ".join(map(str, j.seeds)), "verdict": j.verdict, "part_verdict": f.verdict}
            | {"paper": f.paper, "ours": f.ours, "low": f.low, "high": f.high, "effect": f.effect}
            for j in judgements
            for f in j.findings
        ]
    )


def markdown(judgements: Sequence[Judgement]) -> str:
    heads = ["claim", "where", "reading", "seeds", "verdict", "paper", f"ours [{100 * LEVEL:.0f} % interval]"]
    rows = []
    for judgement in judgements:
        ours = "; ".join(map(_format_interval, judgement.findings))
        paper = "; ".join(_number(finding.paper, finding.decimals) for finding in judgement.findings)
        claim, seeds = judgement.claim, format_seeds(judgement.seeds)
        rows.append(
            [claim.text, claim.source, judgement.reading or "–", seeds, f"**{judgement.verdict}**", paper, ours]
        )
    return markdown_table(heads, rows) + "\n"
