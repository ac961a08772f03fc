"""Read the recorded tables of results/ for figures and tests."""

import re
from pathlib import Path
from typing import NamedTuple

CELL = re.compile(r"(\d+\.\d+) ± (\d+\.\d+)(?:\D*\((\d+\.\d+) ± (\d+\.\d+)\))?")


class Score(NamedTuple):
    """Mean and standard deviation over seeds, and the paper's as text; None where the paper has none."""

    mean: float
    sd: float
    paper: str | None


def read_first_table(path: Path) -> dict[tuple[str, str], Score]:
    """Return the scores of the first table of a Markdown file by method and column."""
    _, _, text = path.read_text(encoding="utf-8").partition("\n|")
    header, _, *rows = (line.strip("| ").split(" | ") for line in f"|{text}".split("\n\n")[0].splitlines())
    scores = {}
    for method, *cells in rows:
        name = re.sub(r" \(0\.\d+\)$", "", method)  # the learning rate of the method
        for column, cell in zip(header[1:], cells, strict=True):
            if match := CELL.search(cell):
                mean, sd, paper_mean, paper_sd = match.groups()
                paper = f"{paper_mean} ± {paper_sd}" if paper_mean else None
                scores[name, column] = Score(float(mean), float(sd), paper)
    return scores
