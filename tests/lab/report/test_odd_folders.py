"""Folders whose files are not what a trainer writes are listed and skipped, and nothing blocks."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_runs import fake_run

from counterpoise.lab.data.visualisation import PREDICTED
from counterpoise.lab.engine import CorruptWarning, Store
from counterpoise.lab.engine.archive import SUFFIX, ArchivedStore, thin_history
from counterpoise.lab.engine.config import parse_run
from counterpoise.lab.engine.store import digest
from counterpoise.lab.report import Report, collect_runs
from counterpoise.lab.report.tables import format_seeds
from counterpoise.lab.report.variants import report_variants
from counterpoise.lab.studies import STUDIES

STUDY = STUDIES["scale-stress"]
CELL, OTHER = [cell for cell in STUDY.grid(seeds=[42]) if cell.method == "BPGS"][:2]
DEEP = "[" * 100_000 + "]" * 100_000


def write(folder: Path, run: str, history: str, result: str) -> None:
    """Write a run folder whose digests match its content."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"run.json": run, "history.json": history}
    for name, text in texts.items():
        (folder / name).write_text(text)
    digests = {name: digest(text.encode()) for name, text in {**texts, "result.json": result}.items()}
    (folder / "result.json").write_text(json.dumps({"digests": digests, "result": result}))


def contents() -> tuple[str, list[Any], dict[str, Any]]:
    return CELL.run.canonical(), *fake_run(CELL.run, ("a", "b"), epochs=2)


def changed(*path: str | int, to: Any = None, delete: bool = False) -> Callable[[Any], str]:
    """Return a function that changes one value of a JSON document and returns its text."""

    def change(document: Any) -> str:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        if delete:
            del inner[path[-1]]
        else:
            inner[path[-1]] = to
        return json.dumps(document)

    return change


RESULTS: dict[str, Callable[[Any], str]] = {
    "a list": lambda _: "[]",
    "null": lambda _: "null",
    "deep": lambda _: DEEP,
    "NaN": lambda result: json.dumps(result).replace('"peak": 0.95', '"peak": NaN'),
    "infinite": lambda result: json.dumps(result).replace('"peak": 0.95', '"peak": 1e999'),
    "no best": changed("best", delete=True),
    "best without a value": changed("best", "value", delete=True),
    "best is text": changed("best", "value", to="0.7"),
    "no chart": changed("chart", delete=True),
    "chart is a list": changed("chart", to=[1, 2]),
    "chart of text": changed("chart", "z_over_tau", to=["a", "b"]),
    "chart of other tasks": changed("chart", "theta", to=[0.1, 0.2, 0.3]),
    "no weights": changed("weights", delete=True),
    "weights are a list": changed("weights", to=[0.5, 0.5]),
    "macro is text": changed("macro", to="0.7"),
    "macro is an object": changed("macro", to={}),
    "epochs are text": changed("epochs", to="20"),
    "huge integer": changed("epochs", to=10**400),
    "metrics are null": changed("metrics", to=None),
    "metrics are a list": changed("metrics", to=[1.0]),
    "metric is text": changed("metrics", "rmse", to="x"),
    "scores of lists": changed("scores", "a", to=[1]),
    "escape in a name": changed("scores", "\x1b[31m", to=0.5),
    "surrogate in a name": changed("weights", "\ud800", to=0.5),
}
HISTORIES: dict[str, Callable[[Any], str]] = {
    "an object": lambda _: "{}",
    "deep": lambda _: DEEP,
    "rows of numbers": lambda _: "[1, 2]",
    "junk rows": lambda rows: json.dumps([*rows, {"x": 1}]),
    "null row": lambda rows: json.dumps([None, *rows]),
    "repeated epoch": lambda rows: json.dumps([*rows, rows[-1]]),
    "no epoch": changed(0, "epoch", delete=True),
    "epoch is text": changed(0, "epoch", to="1"),
    "no monitor": changed(0, "monitor", delete=True),
    "monitor is text": changed(0, "monitor", to="low"),
    "no chart": changed(0, "chart", delete=True),
    "too few weights": changed(0, "weight", to=[1.0]),
    "weights of text": changed(0, "weight", to=["1", "2"]),
    "metrics are a list": changed(0, "metrics", to=[]),
    "chart without theta": changed(0, "chart", "theta", delete=True),
}
RUNS: dict[str, Callable[[Any], str]] = {
    "a list": lambda _: "[]",
    "deep": lambda _: DEEP,
    "seed is text": changed("seed", to="42"),
    "seed is huge": changed("seed", to=10**30),
    "epochs are text": changed("schedule", "epochs", to="20"),
    "study is a list": changed("study", to=["a"]),
    "device with an escape": changed("device", to="cpu\x1b[2J"),
    "options are text": changed("data", "options", to="xyz"),
    "options with an object": changed("data", "options", to=[["scale", {"a": 1}]]),
}


def odd_contents() -> dict[str, tuple[str, str, str]]:
    """Return the text of run, history and result of each odd folder."""
    found = {}
    for name, change in RESULTS.items():
        run, history, result = contents()
        found[f"result: {name}"] = run, json.dumps(history), change(result)
    for name, change in HISTORIES.items():
        run, history, result = contents()
        found[f"history: {name}"] = run, change(history), json.dumps(result)
    for name, change in RUNS.items():
        run, history, result = contents()
        text = change(json.loads(run))
        if text not in ("[]", DEEP):
            text = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
        found[f"run: {name}"] = text, json.dumps(history), json.dumps(result)
    return found


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


ODD_FILES = {"pipe": make_pipe, "folder": make_folder, "loop": make_loop}


@pytest.mark.parametrize("name", odd_contents())
def test_content_of_another_shape_is_listed_and_skipped(name: str, tmp_path: Path) -> None:
    Store(tmp_path).finish(OTHER.run, *fake_run(OTHER.run, ("a", "b")))
    write(tmp_path / "odd", *odd_contents()[name])
    collected = collect_runs([tmp_path])
    variants = report_variants(collected)
    assert list(collected.runs) == [OTHER.run]
    assert [len(variant.cells[STUDY.name]) for variant in variants] == [1]
    (problem,) = collected.problems
    assert problem.path == str(tmp_path / "odd")
    assert problem.kind in ("damaged", "unrecognised")


@pytest.mark.parametrize("name", [name for name in odd_contents() if not name.startswith("run")])
def test_content_of_another_shape_counts_as_not_finished(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    write(store.folder(CELL.run), *odd_contents()[name])
    with pytest.warns(CorruptWarning, match="counts as not finished"):
        assert store.result(CELL.run, clear=True) is None
    assert not (store.folder(CELL.run) / "result.json").exists()


@pytest.mark.parametrize("kind", ODD_FILES)
@pytest.mark.parametrize("file", ["run.json", "history.json", "result.json"])
def test_pipes_folders_and_loops_are_listed_and_skipped(file: str, kind: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    for cell in (CELL, OTHER):
        store.finish(cell.run, *fake_run(cell.run, ("a", "b")))
    path = store.folder(CELL.run) / file
    path.unlink()
    ODD_FILES[kind](path)
    collected = collect_runs([tmp_path])
    assert list(collected.runs) == [OTHER.run]
    (problem,) = collected.problems
    assert (problem.path, problem.kind) == (str(path.parent), "damaged")
    assert problem.reason.startswith(f"{file}: ")


@pytest.mark.parametrize("kind", ODD_FILES)
def test_files_beside_a_run_may_be_anything(kind: str, tmp_path: Path) -> None:
    store, make = Store(tmp_path), ODD_FILES[kind]
    store.finish(CELL.run, *fake_run(CELL.run, ("a", "b")))
    for name in ("circumstances.json", PREDICTED):
        make(store.folder(CELL.run) / name)
    make(tmp_path / f"rescaling{SUFFIX}")
    (tmp_path / "runs").mkdir()
    make(tmp_path / "runs" / "rescaling.csv")
    store.batch_folder(STUDY.name, "abc").mkdir()
    make(store.batch_folder(STUDY.name, "abc") / "progress.json")
    collected = collect_runs([tmp_path])
    (found,) = collected.runs.values()
    assert found.circumstances == {}
    assert found.picture(PREDICTED) is None
    kinds = [problem.kind for problem in collected.problems]
    assert kinds == ["damaged", "damaged", "partial"]
    assert store.load_progress(STUDY.name, "abc") is None
    assert store.devices(STUDY.name) == ["cpu"]


def test_a_run_with_a_pipe_in_place_of_a_file_is_repeated(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = store.folder(CELL.run)
    folder.mkdir(parents=True)
    for name in ("run.json", "history.json", "result.json", "circumstances.json"):
        make_pipe(folder / name)
    with pytest.warns(CorruptWarning, match="not a regular file"):
        assert store.result(CELL.run, clear=True) is None
    store.finish(CELL.run, *fake_run(CELL.run, ("a", "b")))
    store.write_circumstances(CELL.run, {"machine": "x"})
    assert store.result(CELL.run) is not None
    assert store.circumstances(CELL.run) == {"machine": "x"}


def test_a_damaged_folder_does_not_hide_the_history_of_an_archive(tmp_path: Path) -> None:
    from counterpoise.lab.engine.archive import pack

    store = ArchivedStore(tmp_path)
    store.finish(CELL.run, *fake_run(CELL.run, ("a", "b")))
    expected = thin_history(store.history(CELL.run), CELL.run.schedule.epochs)
    pack(tmp_path, tmp_path / f"scale-stress{SUFFIX}")
    (store.folder(CELL.run) / "history.json").write_text("[1]")
    with pytest.warns(CorruptWarning):
        assert store.result(CELL.run) is not None
    assert store.history(CELL.run) == expected


def test_names_of_tasks_do_not_replace_the_place_of_a_run(tmp_path: Path) -> None:
    history, result = fake_run(CELL.run, ("seed", "method"))
    Store(tmp_path).finish(CELL.run, history, result | {"metrics": {"seed": 0.5, "condition": None}})
    report = Report([STUDY], Store(tmp_path), seeds=[42])
    assert report.frames[STUDY.name]["seed"].tolist() == [42]
    assert report.figures(STUDY)


def test_seeds_far_apart_are_formatted_without_listing_the_range() -> None:
    assert format_seeds([1, 2, 10**18]) == "seeds 1, 2, 1000000000000000000"
    assert format_seeds([44, 42, 43]) == "seeds 42–44"


def test_a_configuration_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_run(DEEP)
