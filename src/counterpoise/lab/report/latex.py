"""LaTeX tables (booktabs): the best bold, the second underlined, the paper's row below ours."""

from collections.abc import Iterable, Sequence

import pandas as pd

from ..studies import Study
from .ranks import Ranking, summary
from .saturation import HEADS, format_row
from .tables import Entry, Highlight, caption, mark_best, table_grids

CHARACTERS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\to$", "²": "$^2$", "°": r"$^\circ$", "½": r"$\frac12$",
    "×": r"$\times$", "÷": r"$\div$", "±": r"$\pm$", "−": "$-$", "≤": r"$\le$", "≥": r"$\ge$", "χ": r"$\chi$",
    "α": r"$\alpha$", "θ": r"$\theta$", "ε": r"$\varepsilon$", "τ": r"$\tau$", "ω": r"$\omega$", "σ": r"$\sigma$",
    "ς̄": r"$\bar\varsigma$", "Δ": r"$\Delta$", "ℓ": r"$\ell$", "–": "--", "…": r"\dots{}", "’": "'",
}  # fmt: skip
EMPHASIS: dict[Highlight, str] = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
FIT_TO_TEXT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
"""Scales down a table that is wider than the text."""


def escape(text: str) -> str:
    """Escape text for LaTeX. A character without an equivalent becomes a question mark."""
    return "".join(CHARACTERS.get(c, c if c.isascii() else "?") for c in text)


def tables(study: Study, cells: Sequence[Entry], seeds: Sequence[int]) -> str:
    blocks = []
    for grid in table_grids(study, cells):
        our_marks, paper_marks = mark_best(grid), mark_best(grid, paper=True)
        rows = []
        for method, entries in grid.rows.items():
            rows.append([escape(method), *_emphasise(our_marks[method], (entry.ours() for entry in entries))])
            if any(entry.paper() for entry in entries):
                paper = _emphasise(paper_marks[method], (entry.paper() for entry in entries))
                rows.append([r"\quad the paper's", *paper])
        blocks.append(table(caption(study, grid, seeds), ["Method", *grid.heads], rows))
    return "\n\n".join(blocks) + "\n"


def ranks(rankings: Sequence[Ranking]) -> str:
    blocks = []
    for ranking in rankings:
        means = ranking.scores.mean()
        rows = [[escape(str(m)), f"{value:.2f}", f"{means[m]:.3f}"] for m, value in ranking.ranks.items()]
        heads = ["Method", "average rank", "mean score"]
        blocks.append(table(f"{ranking.part}: {summary(ranking)}", heads, rows))
    return "\n\n".join(blocks) + "\n"


def saturation(frame: pd.DataFrame) -> str:
    rows = [[escape(text) for text in format_row(row)] for _, row in frame.iterrows()]
    return table("Saturation of BPGS", HEADS, rows) + "\n"


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a floating table. The title and the heads are plain text, the cells LaTeX."""
    frame = pd.DataFrame(list(rows), columns=list(map(escape, heads)))
    tabular = frame.style.hide(axis="index").to_latex(hrules=True, column_format=f"l{'c' * (len(heads) - 1)}")
    lines = [r"\begin{table}[htbp]", r"\centering", rf"\caption{{{escape(title)}.}}", FIT_TO_TEXT]
    return "\n".join([*lines, f"{tabular.strip()}}}", r"\end{table}"])


def document(parts: Sequence[str]) -> str:
    """Return a document with all tables, for `pdflatex all.tex`."""
    lines = [r"\documentclass{article}", r"\usepackage{booktabs,graphicx}", r"\begin{document}"]
    lines += [rf"\input{{{part}.tex}}\clearpage" for part in parts]
    return "\n".join([*lines, r"\end{document}", ""])


def _emphasise(marks: Sequence[Highlight], texts: Iterable[str]) -> list[str]:
    return [EMPHASIS[mark].format(escape(text)) for mark, text in zip(marks, texts, strict=True)]
