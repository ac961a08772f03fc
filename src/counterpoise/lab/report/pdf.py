"""The report as a PDF document, typeset like a paper, with the content of the page."""

from collections import Counter
from pathlib import Path

import counterpoise as cp

from ..files import write_atomic
from .html import DOCUMENT, Page
from .html_ledger import ledger_groups
from .pdf_document import build_document
from .pdf_figures import embed_figures
from .pdf_sections import add_leaderboard, add_ledger, add_saturation, add_sources, add_study, add_title
from .pdf_story import Story
from .run_collection import CollectedRuns

TITLE = "Balancing several losses: which method, when, and on what evidence"


def write_pdf(page: Page, collected: CollectedRuns, folder: Path) -> Path:
    """Write report.pdf from the content of the page and the figures beside it. Equal content gives equal bytes.

    Args:
        page: The content of the page.
        collected: The runs and scores.
        folder: The folder of the page, with all figures.
    """
    path = folder / DOCUMENT
    write_atomic(path, render_pdf(page, collected, folder), durable=False, to_pipes=False)
    return path


def render_pdf(page: Page, collected: CollectedRuns, folder: Path) -> bytes:
    """Return the document."""
    story, titles = Story(), section_titles(page)
    add_title(story, TITLE, page, collected)
    add_leaderboard(story, page.leaderboard, folder)
    claims = {group.first.anchor: group.rows for group in ledger_groups(page.rows)}
    for section in page.sections:
        add_study(story, section, titles[section.anchor], claims.get(section.anchor, []), folder)
    add_saturation(story, page)
    add_ledger(story, page, titles)
    add_sources(story, collected, page)
    metadata = {"/Title": TITLE, "/Creator": f"counterpoise {cp.__version__}"}
    return embed_figures(build_document(TITLE, story.parts), story.slots, metadata)


def section_titles(page: Page) -> dict[str, str]:
    """Return the title of each section by its anchor, with the variant where studies share a title."""
    counts = Counter(section.title for section in page.sections)
    return {
        section.anchor: f"{section.title} ({section.variant})"
        if counts[section.title] > 1 and section.variant
        else section.title
        for section in page.sections
    }
