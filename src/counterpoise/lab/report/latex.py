"""Tables in LaTeX: booktabs, the best bold, the second underlined, the paper's row under ours."""

from collections.abc import Iterable, Sequence

import pandas as pd

from ..studies import Study
from . import saturation as charts
from .ranks import Ranking, summary
from .tables import Entry, Standing, caption, grids, standings

CHARACTERS = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "|": r"$|$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\to$", "²": "$^2$", "°": r"$^\circ$", "½": r"$\frac12$",
    "×": r"$\times$", "÷": r"$\div$", "±": r"$\pm$", "−": "$-$", "≤": r"$\le$", "≥": r"$\ge$", "χ": r"$\chi$",
    "α": r"$\alpha$", "θ": r"$\theta$", "ε": r"$\varepsilon$", "τ": r"$\tau$", "ω": r"$\omega$", "σ": r"$\sigma$",
    "ς̄": r"$\bar\varsigma$", "Δ": r"$\Delta$", "ℓ": r"$\ell$", "–": "--", "…": r"\dots{}", "’": "'",
}  # fmt: skip
EMPHASIS: dict[Standing, str] = {"": "{}", "best": r"\textbf{{{}}}", "second": r"\underline{{{}}}"}
FITTED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"  # never wider than the text


def escaped(text: str) -> str:
    """Text that LaTeX prints as it stands; a character that it has no sign for becomes a question mark."""
    return "".join(CHARACTERS.get(c, c if c.isascii() else "?") for c in text)


def tables(study: Study, cells: Sequence[Entry], seeds: Sequence[int]) -> str:
    blocks = []
    for grid in grids(study, cells):
        ours, theirs = standings(grid), standings(grid, paper=True)
        rows = []
        for method, entries in grid.rows.items():
            rows.append([escaped(method), *_emphasised(ours[method], (entry.ours() for entry in entries))])
            if any(entry.paper() for entry in entries):
                said = _emphasised(theirs[method], (entry.paper() for entry in entries))
                rows.append([r"\quad the paper's", *said])
        blocks.append(table(caption(study, grid, seeds), ["Method", *grid.heads], rows))
    return "\n\n".join(blocks) + "\n"


def ranks(found: Sequence[Ranking]) -> str:
    blocks = []
    for ranking in found:
        means = ranking.scores.mean()
        rows = [[escaped(str(m)), f"{value:.2f}", f"{means[m]:.3f}"] for m, value in ranking.ranks.items()]
        heads = ["Method", "average rank", "mean score"]
        blocks.append(table(f"{ranking.part}: {summary(ranking)}", heads, rows))
    return "\n\n".join(blocks) + "\n"


def saturation(found: pd.DataFrame) -> str:
    rows = [[escaped(text) for text in charts.texts(row)] for _, row in found.iterrows()]
    return table("The bounded chart of BPGS", charts.HEADS, rows) + "\n"


def table(said: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A floating table; captions and heads are plain text, cells LaTeX already."""
    lines = [
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{escaped(said)}.}}",
        FITTED,
        rf"\begin{{tabular}}{{l{'c' * (len(heads) - 1)}}}",
        r"\toprule",
        f"{' & '.join(map(escaped, heads))} \\\\",
        r"\midrule",
        *(f"{' & '.join(row)} \\\\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def document(parts: Sequence[str]) -> str:
    """A document with all tables: `pdflatex all.tex`."""
    lines = [r"\documentclass{article}", r"\usepackage{booktabs,graphicx}", r"\begin{document}"]
    lines += [rf"\input{{{part}.tex}}\clearpage" for part in parts]
    return "\n".join([*lines, r"\end{document}", ""])


def _emphasised(marks: Sequence[Standing], texts: Iterable[str]) -> list[str]:
    return [EMPHASIS[mark].format(escaped(text)) for mark, text in zip(marks, texts, strict=True)]
