"""Archives: packing keeps every run and thins its history, reading verifies it, damage is reported and not fatal."""

import json
import lzma
from pathlib import Path

import pytest
from helpers.commands import app
from helpers.fake_runs import fake_run
from typer.testing import CliRunner

from counterpoise.lab.data.visualisation import PREDICTED, TRUTH
from counterpoise.lab.engine import CorruptWarning, Store
from counterpoise.lab.engine.archive import (
    MAX_EPOCHS,
    SUFFIX,
    ArchivedRun,
    ArchivedStore,
    DamagedLine,
    archive_line,
    pack,
    read_archive,
    thin_history,
)
from counterpoise.lab.report import collect_runs
from counterpoise.lab.studies import STUDIES

STUDY = STUDIES["scale-stress"]
CIRCUMSTANCES = {"machine": "a machine", "seconds": 1.5}
NAME = f"scale-stress{SUFFIX}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with the runs of a study at two seeds, one of them with circumstances."""
    store = Store(tmp_path / "runs")
    for cell in STUDY.grid(seeds=[42, 43]):
        store.finish(cell.run, *fake_run(cell.run, ("a", "b")), {TRUTH: b"truth", PREDICTED: b"predicted"})
    store.write_circumstances(cell.run, CIRCUMSTANCES)
    return store


def test_packed_runs_are_those_of_the_store(store: Store, tmp_path: Path) -> None:
    runs = [cell.run for cell in STUDY.grid(seeds=[42, 43])]
    assert pack(store.root, tmp_path / "packed" / NAME) == len(runs)
    packed = ArchivedStore(tmp_path / "packed")
    for run in runs:
        assert packed.result(run) == store.result(run)
        assert packed.history(run) == thin_history(store.history(run), run.schedule.epochs)
        assert packed.circumstances(run) == store.circumstances(run)
    assert packed.circumstances(runs[-1]) == CIRCUMSTANCES
    assert packed.devices("scale-stress") == ["cpu"]
    assert packed.devices("rescaling") == []


def test_histories_keep_both_ends_and_shared_epochs_with_four_digits() -> None:
    run = next(STUDY.grid(seeds=[42])).run
    whole, _ = fake_run(run, ("a", "b"), epochs=100)
    thinned = thin_history(whole, 100)
    epochs = [row["epoch"] for row in thinned]
    assert epochs == [1, *range(3, 100, 3), 100]
    assert len(epochs) <= MAX_EPOCHS + 2
    stopped = [row["epoch"] for row in thin_history(whole[:50], 100)]
    assert stopped == [*(epoch for epoch in epochs if epoch < 50), 50]
    for row in thinned:
        original = whole[row["epoch"] - 1]
        assert row.keys() == original.keys()
        assert row["weight"] == pytest.approx(original["weight"], rel=5e-4)
        assert all(float(f"{value:.4g}") == value for value in row["metrics"].values())
    assert thin_history(thinned, 100) == thinned


def test_the_line_of_an_archived_run_is_the_one_in_the_archive(store: Store, tmp_path: Path) -> None:
    pack(store.root, tmp_path / NAME)
    lines = lzma.decompress((tmp_path / NAME).read_bytes()).decode().splitlines()
    assert [archive_line(run) for run in read_archive(tmp_path / NAME) if isinstance(run, ArchivedRun)] == lines


def test_lines_with_other_spaces_and_order_are_read_too(store: Store, tmp_path: Path) -> None:
    pack(store.root, tmp_path / NAME)
    contents = [json.loads(line) for line in lzma.decompress((tmp_path / NAME).read_bytes()).splitlines()]
    text = "".join(f"{json.dumps(dict(reversed(content.items())))}\n" for content in contents)
    (tmp_path / f"other{SUFFIX}").write_bytes(lzma.compress(text.encode()))
    assert list(read_archive(tmp_path / f"other{SUFFIX}")) == list(read_archive(tmp_path / NAME))


def test_the_same_runs_give_the_same_file(store: Store, tmp_path: Path) -> None:
    for name in ("first", "second"):
        pack(store.root, tmp_path / name)
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_predictions_are_kept_at_the_lowest_seed_and_photographs_never(store: Store, tmp_path: Path) -> None:
    pack(store.root, tmp_path / NAME)
    for run in read_archive(tmp_path / NAME):
        assert isinstance(run, ArchivedRun)
        assert run.picture(TRUTH) is None
        assert (run.picture(PREDICTED) == b"predicted") == (json.loads(run.description)["seed"] == 42)


def test_archives_are_collected_like_run_folders(store: Store, tmp_path: Path) -> None:
    pack(store.root, tmp_path / "packed" / NAME)
    from_folders, from_archive = collect_runs([store.root]), collect_runs([tmp_path / "packed"])
    assert from_folders.runs.keys() == from_archive.runs.keys()
    for key, finished in from_archive.runs.items():
        assert finished.result == from_folders.runs[key].result
        assert finished.circumstances == from_folders.runs[key].circumstances
        thinned = thin_history(from_folders.history(finished.run), finished.run.schedule.epochs)
        assert from_archive.history(finished.run) == thinned
    assert not from_archive.problems
    assert collect_runs([tmp_path / "packed" / NAME]).runs.keys() == from_archive.runs.keys()


def test_a_changed_number_is_reported_and_the_other_runs_are_used(store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "packed" / NAME
    count = pack(store.root, archive)
    first, *others = lzma.decompress(archive.read_bytes()).decode().splitlines()
    changed = json.loads(first)
    changed["history"][0]["macro"] += 1.0
    archive.write_bytes(lzma.compress("\n".join([json.dumps(changed), "not json", *others]).encode()))
    collected = collect_runs([archive.parent])
    assert len(collected.runs) == count - 1
    assert [problem.kind for problem in collected.problems] == ["damaged", "damaged"]
    assert "history.json does not match its digest" in collected.problems[0].reason
    assert collected.problems[0].path.endswith(f"{NAME}, line 1")
    with pytest.warns(CorruptWarning) as warned:
        assert ArchivedStore(archive.parent).devices("scale-stress") == ["cpu"]
    assert "does not match its digest" in str(warned[0].message)
    assert len(warned) == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", lzma.compress(b'{"run":{}'), lzma.compress(b'{"run":{},"history":')],
    ids=["empty", "text", "line that ends after a part", "line that ends before a part"],
)
def test_a_file_that_is_no_archive_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(content)
    (line,) = read_archive(tmp_path / NAME)
    assert isinstance(line, DamagedLine)
    (problem,) = collect_runs([tmp_path]).problems
    assert problem.kind == "damaged"


def test_a_truncated_archive_keeps_what_can_be_read(store: Store, tmp_path: Path) -> None:
    archive = tmp_path / NAME
    pack(store.root, archive)
    archive.write_bytes(archive.read_bytes()[:-100])
    *_, last = read_archive(archive)
    assert isinstance(last, DamagedLine)
    assert "cannot be read" in last.reason


def test_damaged_runs_are_not_packed(store: Store, tmp_path: Path) -> None:
    run = next(STUDY.grid(seeds=[42])).run
    (store.folder(run) / "history.json").write_text("[]")
    with pytest.raises(ValueError, match=r"is damaged: history\.json does not match its digest"):
        pack(store.root, tmp_path / NAME)
    assert not (tmp_path / NAME).exists()


def test_command_packs_a_folder_that_show_reads(store: Store, tmp_path: Path) -> None:
    archive = tmp_path / "packed" / NAME
    packed = CliRunner().invoke(app, ["pack", str(store.root), "-o", str(archive)], env={"COLUMNS": "200"})
    assert packed.exit_code == 0, packed.output
    assert "runs" in packed.output
    shown = [
        CliRunner().invoke(app, ["show", "scale-stress", "--out", str(folder)], env={"COLUMNS": "160"})
        for folder in (store.root, archive.parent)
    ]
    assert shown[0].exit_code == 0
    assert shown[0].output == shown[1].output


def test_command_refuses_other_names_and_empty_folders(tmp_path: Path) -> None:
    for out, reason in (("runs.zip", "ends in .jsonl.xz"), (NAME, "holds no finished run")):
        refused = CliRunner().invoke(app, ["pack", str(tmp_path), "-o", str(tmp_path / out)], env={"COLUMNS": "300"})
        assert refused.exit_code == 2
        assert reason in " ".join(refused.output.split())
