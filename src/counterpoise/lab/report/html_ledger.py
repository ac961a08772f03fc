"""The claims ledger of the page: one row per claim."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..studies import Study
from ..studies.base import BPGS_RAW_LABEL
from .ledger import Finding, Judgement, Verdict
from .report import Report
from .tables import format_number, format_seeds
from .variants import ReportVariant

VERDICT_ORDER: tuple[Verdict, ...] = ("does not hold", "undecided", "holds", "not run")
"""Claims that fail come first."""


@dataclass(frozen=True)
class LedgerRow:
    """A claim, with our result at each set of seeds and for each form of BPGS."""

    name: str  # of the study
    study: str  # its title
    variant: str
    anchor: str
    claim: str
    source: str
    verdict: Verdict
    results: list[dict[str, str]]
    parts: list[str]

    @property
    def paper_values(self) -> list[str]:
        """The paper's value of each result; a single one if all are the same."""
        values = [result["paper"] for result in self.results]
        return values[:1] if len(set(values)) == 1 else values


@dataclass(frozen=True)
class LedgerGroup:
    """The claims of a study in one variant, failed ones first."""

    rows: list[LedgerRow]

    @property
    def first(self) -> LedgerRow:
        return self.rows[0]

    @property
    def counts(self) -> dict[Verdict, int]:
        """The number of claims with each verdict that occurs."""
        counts = {verdict: sum(row.verdict == verdict for row in self.rows) for verdict in VERDICT_ORDER}
        return {verdict: count for verdict, count in counts.items() if count}


def ledger_groups(rows: Iterable[LedgerRow]) -> list[LedgerGroup]:
    """Group claims by study and variant, in the order in which these first appear."""
    groups: dict[str, list[LedgerRow]] = {}
    for row in rows:
        groups.setdefault(row.anchor, []).append(row)
    return [LedgerGroup(sorted(group, key=lambda row: VERDICT_ORDER.index(row.verdict))) for group in groups.values()]


def ledger_rows(report: Report, study: Study, variant: ReportVariant, anchor: str) -> Iterator[LedgerRow]:
    for claim in study.claims:
        found = [j for column in report.judgements[study.name] for j in column if j.claim is claim]
        released = (j for j in found if j.reading != BPGS_RAW_LABEL)
        verdicts: list[Verdict] = [j.verdict for j in released if j.verdict != "not run"]
        several = [j for j in found if len(j.findings) > 1 and j.verdict != "not run"]
        yield LedgerRow(
            study.name,
            study.title,
            variant.label,
            anchor,
            claim.text,
            claim.source,
            min(verdicts or ["not run"], key=VERDICT_ORDER.index),
            [_result(judgement) for judgement in found],
            [f"{_seeds_and_form(j)}: {'; '.join(_format_finding(f) for f in j.findings)}" for j in several],
        )


def _seeds_and_form(judgement: Judgement) -> str:
    return format_seeds(judgement.seeds) + (", raw ω" if judgement.reading == BPGS_RAW_LABEL else "")


def _result(judgement: Judgement) -> dict[str, str]:
    decisive = judgement.decisive
    return {
        "seeds": _seeds_and_form(judgement),
        "verdict": judgement.verdict,
        "ours": _format_finding(decisive) if judgement.verdict != "not run" else "",
        "paper": "" if decisive.paper != decisive.paper else _signed(decisive.paper, decisive.decimals),
    }


def _format_finding(finding: Finding) -> str:
    ours, low, high = (_signed(value, finding.decimals) for value in (finding.ours, finding.low, finding.high))
    text = ours if finding.low != finding.low else f"{ours} [{low}, {high}]"
    return f"{text}, {finding.note}" if finding.note else text


def _signed(value: float, decimals: int) -> str:
    return format_number(value, decimals).replace("-", "−")
