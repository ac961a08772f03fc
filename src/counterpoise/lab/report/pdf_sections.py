"""The parts of the PDF report: abstract, leaderboard, studies, ledger and sources. Numbers are those of the page."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from reportlab.lib.enums import TA_LEFT
from reportlab.platypus import Flowable, Paragraph

import counterpoise as cp

from ..data.images import CLASSES
from ..data.visualisation import CLASS_COLOURS, COLUMNS, PREDICTED
from .html import TASK_NAMES, Page
from .html_ledger import LedgerRow, ledger_groups
from .html_sections import StudySection, printed_table
from .leaderboard_page import LeaderboardSection
from .leaderboard_text import join, keep_together
from .ledger import Verdict
from .pdf_document import PORTRAIT, WIDTHS, Contents
from .pdf_figures import figure_content, prediction_table, reflow
from .pdf_story import Story
from .pdf_tables import PADDING, ruled_table
from .pdf_text import (
    ABSTRACT,
    ABSTRACT_TITLE,
    BODY,
    BOLD,
    BYLINE,
    CONTENTS_TITLE,
    FACTS,
    GREY,
    ITEM,
    NOTE,
    QUESTION,
    REGULAR,
    TITLE,
    VERDICT_COLOURS,
    VERDICT_MARKS,
    coloured,
    markup,
    paragraph,
    paragraph_style,
    text_width,
)
from .run_collection import CollectedRuns

LEDGER_HEADS = ("verdict", "claim", "paper", "ours [95 % interval]", "seeds")
LEAST_CLAIM = 120.0
SOURCES_WIDTHS = (87.0, 28.0, 62.0, 196.0, 98.0)
SHEETS_PER_FIGURE = 6
MAX_TEXT = 800
SMALL = paragraph_style("small", fontSize=8.0, leading=9.8, spaceAfter=0, alignment=TA_LEFT)
VERBS: dict[Verdict, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "undecided": ("is undecided", "are undecided"),
    "does not hold": ("does not hold", "do not hold"),
    "not run": ("was not run", "were not run"),
}
"""Verdicts on one claim and on several."""


def link(text: str, anchor: str) -> str:
    """Return markup that links to a heading."""
    return f'<a href="#{escape(anchor)}">{text}</a>'


def add_title(story: Story, title: str, page: Page, collected: CollectedRuns) -> None:
    """Add the title, what was reported, the abstract, and the contents."""
    studies = len(page.sections)
    runs = sum(section.count for section in page.sections)
    story.add(Paragraph(markup(title, BOLD).replace(": ", ":<br/>"), TITLE))
    noun = "study" if studies == 1 else "studies"
    story.add(paragraph(f"{runs:,} recorded runs in {studies} {noun}", BYLINE))
    story.add(paragraph(provenance_line(collected), BYLINE))
    story.add(paragraph("Abstract", ABSTRACT_TITLE))
    for text in abstract(page):
        story.add(Paragraph(text, ABSTRACT))
    story.add(paragraph("Contents", CONTENTS_TITLE), Contents())


def provenance_line(collected: CollectedRuns) -> str:
    """Return when the runs were made and with which versions, as far as it was recorded."""
    recorded = [finished.circumstances for finished in collected.runs.values()]
    days = sorted({str(one["finished"])[:10] for one in recorded if "finished" in one})
    versions = sorted({f"counterpoise {one['counterpoise']}" for one in recorded if "counterpoise" in one})
    versions += sorted({f"torch {one['torch']}" for one in recorded if "torch" in one})
    dates = [f"runs finished {_range(days)}"] if days else []
    text = ", ".join([*dates, *(versions or [f"counterpoise {cp.__version__}"])])
    return text[0].upper() + text[1:]


def abstract(page: Page) -> list[str]:
    """Return the findings as markup: the answers of the leaderboard, and how many claims hold."""
    found, cards = [], page.leaderboard.cards
    if cards:
        methods = len({row[0] for part in page.leaderboard.tables for row in part.table.rows})
        worlds = f"{len(cards)} world{'s' if len(cards) > 1 else ''}: {join([card.title for card in cards], 'and')}"
        found.append(
            f"{methods} methods that weight losses or combine task gradients are compared with the plain sum of the "
            f"losses, on the same problems and seeds. The problems form {markup(worlds)}. "
            f"Brackets are 95 % intervals over seeds."
        )
    found += [
        f"<b>{markup(answer.question)}</b> {markup(answer.short)} {markup(keep_together(answer.note))}"
        for answer in page.leaderboard.answers
        if answer.anchor  # of a table or figure with its numbers
    ]
    if page.rows:
        text = f"Of {len(page.rows)} claims of papers and of this project, {count_verdicts(page.rows)}"
        found.append(f"<b>Do the claims hold?</b> {text} {link('Appendix A', 'ledger')} lists them.")
    return found or ["The tables and figures of all studies follow."]


def count_verdicts(rows: Sequence[LedgerRow]) -> str:
    """Return how many claims have each verdict, in a sentence."""
    counts = Counter(row.verdict for row in rows)
    order = [verdict for verdict in VERBS if counts[verdict]]
    return join([f"{counts[verdict]} {VERBS[verdict][counts[verdict] > 1]}" for verdict in order], "and") + "."


def add_leaderboard(story: Story, leaderboard: LeaderboardSection, folder: Path) -> None:
    """Add the details of the answers, the comparison of all methods in each world, and of BPGS with Kendall."""
    if not leaderboard.cards:
        return
    story.heading("Which method?", "leaderboard")
    story.text(
        "Each method is compared with the plain sum on the same problems and seeds. Intervals are from a paired "
        "bootstrap over seeds or, with fewer than five seeds, Student's t; one or two seeds have none. Where it was "
        "run, the hand-tuned sum has the fixed weights that undo all loss factors, or those that were best of several "
        "at seeds that are not counted."
    )
    for answer in leaderboard.answers:
        story.add(
            Paragraph(f"<b>{markup(answer.question)}</b> {markup(keep_together(answer.text or answer.note))}", BODY)
        )
    for name, spec in leaderboard.figures.items():
        file = folder / "figures" / f"{name}.pdf"
        reflowed = reflow(spec)
        story.figure(file.read_bytes() if reflowed is spec else figure_content(reflowed), spec.alt_text)
    if leaderboard.head_to_head:
        story.table(printed_table(leaderboard.head_to_head))
    if leaderboard.step_times:
        story.table(printed_table(leaderboard.step_times))
    for part in leaderboard.tables:
        story.subheading(part.title, f"world-{part.anchor}")
        story.text(f"{part.situation}. {' '.join(part.notes)}")
        story.table(printed_table(part.table))


def add_study(story: Story, section: StudySection, title: str, rows: Sequence[LedgerRow], folder: Path) -> None:
    """Add a study: question, claims, tables and figures."""
    story.heading(title, section.anchor)
    story.text(section.question, QUESTION)
    story.text(" · ".join(dict.fromkeys(filter(None, (section.variant, *section.facts)))), FACTS)
    _add_claims_summary(story, section, rows)
    shown = []
    for table in section.tables:
        if table not in shown:  # a part of a study may have the same seeds in two tables
            story.table(table)
            shown.append(table)
    if section.tables:
        story.add(Paragraph(_table_key(section), NOTE))
    for note in section.notes:
        story.text(note)
    for figure in section.figures:
        file = folder / section.folder / "figures" / f"{figure.name}.pdf"
        story.figure(file.read_bytes(), figure.alt_text)
    _add_predictions(story, section)


def _add_claims_summary(story: Story, section: StudySection, rows: Sequence[LedgerRow]) -> None:
    if not rows:
        return
    failed = [row for row in rows if row.verdict == "does not hold"]
    several = f"Of {len(rows)} claims" if len(rows) > 1 else "Of one claim"
    details = link("Appendix A", f"ledger-{section.anchor}")
    end = " Those that do not hold:" if failed else ""
    story.add(Paragraph(f"{several} ({details}), {count_verdicts(rows)}{end}", BODY))
    for row in failed:
        results = [result for result in row.results if result["verdict"] == row.verdict]
        ours = "; ".join(f"{result['ours']} ({result['seeds']})" for result in results)
        paper = results[0]["paper"] if results else ""
        found = f"ours {ours}" + (f", paper {paper}" if paper else "")
        source = coloured(markup(f" ({row.source}): {found}"), GREY)
        story.add(Paragraph(markup(row.claim) + source, ITEM, bulletText="•"))


def _table_key(section: StudySection) -> str:
    """Explain the marks of the section's tables, as markup."""
    cells = [cell for table in section.tables for _, row in table.rows for cell in row]
    parts = []
    if any(cell["mark"] for cell in cells):
        parts.append("<b>Best</b> and <u>second best</u> of each column")
    if any("±" in cell["text"] for cell in cells):
        parts.append("± one standard deviation over seeds")
    if any(cell["paper"] for cell in cells):
        marked = f", marked ≠ where {section.marked_where}" if section.has_differences else ""
        parts.append(f"published values below ours{marked}")
    text = "; ".join(parts)
    return f"{text[0].upper() if text[0] != '<' else text[0]}{text[1:]}." if text else ""


def _add_predictions(story: Story, section: StudySection) -> None:
    """Add the predictions under all conditions, six sheets to a figure."""
    several = len(section.strips) > 1
    sheets = [
        replace(
            sheet,
            name=f"{strip.title}: {sheet.name}" if several and sheet.columns == COLUMNS[PREDICTED] else sheet.name,
        )
        for strip in section.strips
        for sheet in strip.sheets
    ]
    sheets = list({sheet.picture: sheet for sheet in sheets}.values())  # the ground truth is the same for all
    squares = " ".join(
        f"{coloured('■', colour)}\N{NO-BREAK SPACE}{name}" for name, colour in zip(CLASSES, CLASS_COLOURS, strict=True)
    )
    for start in range(0, len(sheets), SHEETS_PER_FIGURE):
        shown = sheets[start : start + SHEETS_PER_FIGURE]
        tasks = ", ".join(TASK_NAMES[column] for column in shown[-1].columns)
        caption = (
            f"Four held-out images from top to bottom: {tasks}. Normals: red to the right, green up, blue towards the "
            "viewer; grey: unknown. Classes:"
        )
        story.pictures(prediction_table(shown, WIDTHS[PORTRAIT]), caption, f" {squares}.")


def add_saturation(story: Story, page: Page) -> None:
    if page.saturation:
        story.heading("Saturation of BPGS", "saturation")
        for table in page.saturation:
            story.table(table)


def add_ledger(story: Story, page: Page, titles: Mapping[str, str]) -> None:
    """Add all claims as an appendix, a table per study with failed claims first."""
    if not page.rows:
        return
    story.heading("Claims and verdicts", "ledger", appendix=True)
    story.text(
        "Claims that do not hold come first. A claim is judged at each set of seeds (✓ holds, ✗ does not hold, "
        "? undecided), and with raw ω where it is about BPGS. For a claim with several parts, the part closest to "
        "failing is shown; ledger.csv has all parts. Intervals are from a paired bootstrap over seeds; for claims of "
        "ours, with fewer than five seeds, from Student's t."
    )
    for group in ledger_groups(page.rows):
        anchor = group.first.anchor
        story.subheading(titles[anchor], f"ledger-{anchor}")
        cells = [LEDGER_HEADS, *map(_ledger_cells, group.rows)]
        story.add(ruled_table(cells, _ledger_widths(group.rows), SMALL.fontSize))


def _ledger_widths(rows: Sequence[LedgerRow]) -> list[float]:
    """Return widths of the columns at which only claims are wrapped, unless results are very long."""
    results = [result for row in rows for result in row.results]
    texts: list[list[str]] = [
        list(VERDICT_MARKS),
        [],
        [value for row in rows for value in row.paper_values],
        [f"{result['ours'] or result['verdict']} ✓" for result in results],
        [result["seeds"] for result in results],
    ]
    widths = [
        max([text_width(text, REGULAR, SMALL.fontSize) for text in [head, *column]]) + 2 * PADDING + 1
        for head, column in zip(LEDGER_HEADS, texts, strict=True)
    ]
    claims = max(WIDTHS[PORTRAIT] - sum(widths) + widths[1], LEAST_CLAIM)
    scale = (WIDTHS[PORTRAIT] - claims) / (sum(widths) - widths[1])
    return [claims if column == 1 else width * min(1.0, scale) for column, width in enumerate(widths)]


def _ledger_cells(row: LedgerRow) -> list[Paragraph]:
    claim = f"{markup(row.claim)} {coloured(markup(f'({row.source})'), GREY)}"
    columns = [
        [coloured(row.verdict, VERDICT_COLOURS[row.verdict])],
        [claim],
        [markup(value or "–") for value in row.paper_values],
        [f"{_mark(result)} {markup(result['ours'] or result['verdict'])}" for result in row.results],
        [coloured(markup(result["seeds"]), GREY) for result in row.results],
    ]
    return [Paragraph("<br/>".join(lines), SMALL) for lines in columns]


def _mark(result: Mapping[str, str]) -> str:
    """Return the sign of a result's verdict as markup."""
    verdict = next(verdict for verdict in VERDICT_MARKS if verdict == result["verdict"])
    return coloured(markup(VERDICT_MARKS[verdict]), VERDICT_COLOURS[verdict])


def add_sources(story: Story, collected: CollectedRuns, page: Page) -> None:
    """Add where, when and with which versions the runs were made, and what could not be used."""
    story.heading("Runs and sources", "sources", appendix=True)
    groups: dict[tuple[str, str, str], list[str]] = {}
    titles = {section.study: section.title for section in page.sections}
    places = {study: place for place, study in enumerate(titles)}
    for finished in sorted(collected.runs.values(), key=lambda finished: places.get(finished.run.study, len(places))):
        one = finished.circumstances
        versions = ", ".join(f"{name} {one[name]}" for name in ("counterpoise", "torch", "python") if name in one)
        key = (titles.get(finished.run.study, finished.run.study), str(one.get("machine", "–")), versions or "–")
        groups.setdefault(key, []).append(str(one.get("finished", ""))[:10])
    if groups:
        rows = [
            [title, str(len(days)), machine, versions, _range(sorted(set(filter(None, days)))) or "–"]
            for (title, machine, versions), days in groups.items()
        ]
        story.text("Runs that are stored with their circumstances:")
        story.add(_text_table(["study", "runs", "machine", "versions", "finished"], rows, SOURCES_WIDTHS))
    story.text(f"Read from: {', '.join(collected.sources)}. Recorded score tables have no dates or machines.")
    if collected.problems:
        story.text("The following could not be used:")
        rows = [[problem.kind, problem.path, problem.reason] for problem in collected.problems]
        story.add(_text_table(["problem", "path", "reason"], rows, (60.0, 230.0, 181.0)))


def _text_table(heads: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[float]) -> Flowable:
    """Return a table of texts from files, which are cut off so that a row fits on a page."""
    cut = ([text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…" for text in row] for row in rows)
    return ruled_table([heads, *([paragraph(text, SMALL) for text in row] for row in cut)], widths, SMALL.fontSize)


def _range(days: Sequence[str]) -> str:
    return "" if not days else days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
