"""LaTeX tables are well-formed for any text, and compile where LaTeX is installed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.paper_scores import paper_scores
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.lab.report import latex, tables
from counterpoise.lab.studies import STUDIES, Study

TABLED = [study for study in STUDIES.values() if study.paper and not study.rates and "macro" in study.paper]


def written(study: Study) -> str:
    return latex.tables(study, tables.table_entries(study, paper_scores(study, noise=0.01), study.seeds), study.seeds)


@pytest.mark.parametrize("study", TABLED, ids=lambda study: study.name)
def test_rows_have_a_cell_per_head(study: Study) -> None:
    text = written(study)
    assert text.isascii()
    for block in text.split("\n\n"):
        heads = len(re.search(r"\\begin\{tabular\}\{l(c*)\}", block).group(1))  # type: ignore[union-attr]
        rows = [line for line in block.splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {heads}
        assert block.count("{") - block.count(r"\{") == block.count("}") - block.count(r"\}")
        assert [line for line in block.splitlines() if "rule" in line] == [r"\toprule", r"\midrule", r"\bottomrule"]


def test_best_cell_is_bold_and_paper_row_follows() -> None:
    lines = latex.tables(
        STUDIES["rescaling"],
        tables.table_entries(STUDIES["rescaling"], paper_scores(STUDIES["rescaling"]), (42, 43, 44)),
        (42, 43, 44),
    ).splitlines()
    place = lines.index(next(line for line in lines if line.startswith("Kendall &")))
    assert lines[place].startswith(r"Kendall & \textbf{0.780 $\pm$ 0.000} & \underline{0.769 $\pm$ 0.000} &")
    assert lines[place + 1].startswith(r"\quad the paper's & \textbf{0.780 $\pm$ 0.007} &")
    assert any(line.startswith(r"BPGS (raw $\omega$) & 0.700 $\pm$ 0.000") for line in lines)


@given(st.text(max_size=30))
def test_escape_handles_any_text(text: str) -> None:
    escaped = latex.escape(text)
    assert escaped.isascii()
    bare = re.sub(r"\\[a-z]+\{\}|\$[^$]*\$|\\[{}&%$#_]", "", escaped)
    assert not set(bare) & set("\\{}&%$#_~^")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs LaTeX")
def test_tables_compile(tmp_path: Path) -> None:
    for study in TABLED:
        (tmp_path / f"{study.name}.tex").write_text(written(study))
    names = ("a & b", "50 % of_it", "x#1 {~^}", "τ × ½, θ ÷ 10 → ℓ1 ≤ σ²")
    odd = latex.table("Odd $names$ \\ all", ["method", *names], [[latex.escape(n) for n in ("m", *names)]])
    (tmp_path / "odd.tex").write_text(odd)
    (tmp_path / "all.tex").write_text(latex.document([*(study.name for study in TABLED), "odd"]))
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10_000
