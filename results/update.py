"""Write the ledgers and Markdown tables of this folder again, from the recorded runs and scores.

    python results/update.py
    python results/update.py merge ARCHIVE…
    python results/update.py merge-scores RUNS/report/runs/STUDY.csv…

The second form first adds the runs of archives of physics-informed networks, NYUv2 and molecules to this folder. The
third one adds scores that `counterpoise reproduce` wrote to those of the other studies. All forms then write the pages
of the documentation that show recorded runs. A test compares the files with what this script would write. Everything
else, figures included, is written by `counterpoise report results -o page`.
"""

import argparse
import io
import lzma
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from counterpoise.lab.engine import Run
from counterpoise.lab.engine.archive import SUFFIX, DamagedLine, archive_line, read_archive, write_archive
from counterpoise.lab.engine.config import parse_run
from counterpoise.lab.files import write_atomic
from counterpoise.lab.report import Report, collect_runs, machine_table
from counterpoise.lab.report.variants import report_variants, seeds_to_report
from counterpoise.lab.studies import PINN_STUDIES, STUDIES
from counterpoise.lab.studies.pinn import SEARCH_SEEDS

RESULTS = Path(__file__).parent
NYUV2, PHYSICS, SEARCH, MOLECULES = "nyuv2", "physics", "physics/search", "molecules"
FOLDERS = (
    *("synthetic", "synthetic/forty", "beyond", "tabular", "tabular/seventeen", "penalties"),
    *(NYUV2, PHYSICS, SEARCH, MOLECULES),
)  # fmt: skip
FOLDER_OF = {"qm9": MOLECULES} | {name: NYUV2 for name in STUDIES if name.startswith("nyuv2")}
LEDGER_ONLY = ("synthetic/forty",)
"""Folders that hold runs at further seeds: only their claims at all of these seeds are recorded."""
TABLES_ONLY = (SEARCH,)
"""Folders that hold runs by which methods were chosen. The claims are about other seeds."""
PAGES = (("pinns_table.py", "--recorded"), ("qm9_table.py",))
"""Scripts in docs/ that write recorded runs into a page, with their arguments."""
SCORE_KEYS = ["method", "condition", "seed", "lr"]
NUMBER = re.compile(r"\d+\.\d+")
LAST_DIGIT = 1.1e-3


def recorded_texts(folder: str) -> dict[Path, str]:
    """Return the Markdown files of one folder, by path."""
    source = RESULTS / folder
    archives = sorted(source.glob(f"*{SUFFIX}"))
    if not archives and not (source / "runs").is_dir():
        return {}  # nothing has been recorded yet
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
    if folder in TABLES_ONLY:
        texts = {path: text for path, text in texts.items() if path.name != "ledger.md"}
    if archives:
        return texts | {source / "machines.md": machine_table(source, [study.name for study in variant.studies])}
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


def folder_of(run: Run) -> str:
    """Return the folder in which a run is recorded.

    Raises:
        ValueError: If runs of its study cannot be merged.
    """
    if run.study in {study.name for study in PINN_STUDIES}:
        return SEARCH if run.seed in SEARCH_SEEDS else PHYSICS
    if run.study in FOLDER_OF:
        return FOLDER_OF[run.study]
    raise ValueError(f"expected runs of physics-informed networks, NYUv2 or QM9, got one of {run.study!r}")


def read_lines(archive: Path) -> Iterator[tuple[Run, str]]:
    """Yield each run of an archive and its line, with the history thinned.

    Raises:
        ValueError: If a line is damaged.
    """
    for found in read_archive(archive):
        if isinstance(found, DamagedLine):
            raise ValueError(f"{archive}, line {found.number} is damaged: {found.reason}")
        yield parse_run(found.description), archive_line(found)


def merge(archives: Iterable[Path], root: Path = RESULTS) -> dict[Path, int]:
    """Add the runs of archives to the recorded ones, and return the number of new runs by file.

    A run that is recorded already is kept as it is. All archives are read and verified before a file is written.

    Args:
        archives: The archives.
        root: The folder of recorded results.

    Raises:
        ValueError: If a line is damaged, or if a run belongs to another study.
    """
    given: dict[Path, dict[str, str]] = {}
    for archive in archives:
        for run, line in read_lines(archive):
            given.setdefault(root / folder_of(run) / f"{run.study}{SUFFIX}", {})[run.key] = line
    old = {path: {r.key: line for r, line in read_lines(path)} if path.is_file() else {} for path in given}
    for path, lines in given.items():
        write_archive(path, [line for _, line in sorted((lines | old[path]).items())])
    return {path: len(lines.keys() - old[path].keys()) for path, lines in given.items()}


def merge_scores(tables: Iterable[Path], root: Path = RESULTS) -> dict[Path, int]:
    """Add the rows of files of scores, each named after its study, and return the number of new rows by recorded file.

    A score that is recorded already is kept as it is. New ones are rounded to five digits. Columns that no recorded
    score has are left out.

    Args:
        tables: The files of scores.
        root: The folder of recorded results.

    Raises:
        ValueError: If a study has no recorded scores, or several files of them, or if keys of the runs are missing.
    """
    merged = {}
    for table in tables:
        found = sorted(root.rglob(f"runs/{table.stem}.csv.xz"))
        if len(found) != 1:
            raise ValueError(f"expected one file of recorded scores of {table.stem!r}, got {len(found)}")
        rounded = io.StringIO(pd.read_csv(table).to_csv(index=False, float_format="%.5g"))
        old, given = pd.read_csv(found[0], dtype=str), pd.read_csv(rounded, dtype=str)
        if not set(SCORE_KEYS) <= set(given.columns):
            raise ValueError(f"{table}: expected the columns {', '.join(SCORE_KEYS)}")
        merged[found[0]] = old, pd.concat([old, given.reindex(columns=old.columns)]).drop_duplicates(SCORE_KEYS)
    for path, (_, rows) in merged.items():
        write_atomic(path, lzma.compress(rows.to_csv(index=False).encode()))
    return {path: len(rows) - len(old) for path, (old, rows) in merged.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("merge").add_argument("archives", type=Path, nargs="+")
    commands.add_parser("merge-scores").add_argument("archives", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.command:
        add = merge if options.command == "merge" else merge_scores
        for path, count in add(options.archives).items():
            print(f"{path}: {count} new runs, {path.stat().st_size / 2**20:.2f} MB")
    for folder in FOLDERS:
        for path, text in recorded_texts(folder).items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    for script, *given in PAGES:
        subprocess.run([sys.executable, str(RESULTS.parent / "docs" / script), *given], check=True)


if __name__ == "__main__":
    main()
