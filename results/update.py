"""Write the ledgers and Markdown tables of this folder again, from the recorded runs and scores.

    python results/update.py

A test compares the files with what this script would write. Everything else, figures included, is written by
`counterpoise report results -o page`.
"""

import re
import tempfile
from pathlib import Path

from counterpoise.lab.engine.archive import SUFFIX
from counterpoise.lab.report import Report, collect_runs, machine_table
from counterpoise.lab.report.variants import report_variants, seeds_to_report

RESULTS = Path(__file__).parent
FOLDERS = ("synthetic", "synthetic/forty", "beyond", "tabular", "tabular/seventeen", "nyuv2", "physics")
LEDGER_ONLY = ("synthetic/forty",)
"""Folders that hold runs at further seeds: only their claims at all of these seeds are recorded."""
NUMBER = re.compile(r"\d+\.\d+")
LAST_DIGIT = 1.1e-3


def recorded_texts(folder: str) -> dict[Path, str]:
    """Return the Markdown files of one folder, by path."""
    source = RESULTS / folder
    archives = sorted(source.glob(f"*{SUFFIX}"))
    collected = collect_runs(archives or sorted((source / "runs").glob("*.csv.xz")))
    if collected.problems:
        raise ValueError(f"{folder}: {collected.problems}")
    (variant,) = report_variants(collected)
    last_only = folder in LEDGER_ONLY
    report = Report(
        variant.studies,
        collected,
        seeds=variant.seeds or None,
        device=variant.device or "cpu",
        recorded=variant.recorded,
        choose_seed_sets=lambda study, frame: seeds_to_report(study, frame)[-1 if last_only else 0 :],
    )
    with tempfile.TemporaryDirectory() as temporary:
        written = [path for path in report.write_texts(Path(temporary)) if path.suffix == ".md"]
        texts = {source / path.relative_to(temporary): path.read_text() for path in written}
    if last_only:
        texts = {path: text for path, text in texts.items() if path.name == "ledger.md"}
    if archives:
        texts[source / "machines.md"] = machine_table(source, [study.name for study in variant.studies])
    return {path: keep_last_digits(text, path) for path, text in texts.items()}


def keep_last_digits(text: str, path: Path) -> str:
    """Return a text with the numbers of the file, where these differ only in the last digit.

    The tables of Yeast and RF1 were written from the runs. Their recorded scores are rounded, so that means computed
    from them may differ in the third decimal.
    """
    old = NUMBER.findall(path.read_text()) if path.is_file() else []
    new = NUMBER.findall(text)
    if len(old) != len(new) or any(abs(float(a) - float(b)) > LAST_DIGIT for a, b in zip(old, new, strict=True)):
        return text
    numbers = iter(old)
    return NUMBER.sub(lambda _: next(numbers), text)


def main() -> None:
    for folder in FOLDERS:
        for path, text in recorded_texts(folder).items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)


if __name__ == "__main__":
    main()
