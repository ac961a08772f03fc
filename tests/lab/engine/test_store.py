"""Interrupted runs resume with bit-identical results, and damaged files are detected and rewritten."""

import multiprocessing
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.engine_runs import result_files

from counterpoise.lab.engine import (
    Run,
    RunBatch,
    Store,
    execute,
    make_run_batches,
    plan,
    recipe,
    spec,
)
from counterpoise.lab.engine.config import parse_run
from counterpoise.lab.errors import CorruptWarning
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.base import BPGS, KENDALL, SYNTHETIC_SCHEDULE, UWSO

METHODS = [BPGS, KENDALL, UWSO, recipe("rlw"), recipe("dwa"), recipe("famo")]  # with all kinds of state


def run_batch(epochs: int = 6, seeds: int = 2) -> RunBatch:
    data, schedule = spec("scale-stress", scale=10.0), replace(SYNTHETIC_SCHEDULE, epochs=epochs, patience=4)
    runs = [Run("test", data, spec("mlp"), m, seed, schedule) for m in METHODS for seed in range(seeds)]
    (batch,) = make_run_batches(runs)
    return batch


def test_killed_runs_end_with_bit_identical_results(tmp_path: Path) -> None:
    batch, rng, kills = run_batch(), random.Random(0), 0
    execute(batch, tmp_path / "uninterrupted")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["counterpoise.lab.engine.batching"])
    for attempt in range(1, 80):
        worker = context.Process(
            target=execute, args=(batch, tmp_path / "killed"), kwargs={"checkpoint_seconds": 0.0}, daemon=True
        )
        worker.start()
        worker.join(rng.uniform(0.0, 0.05 * attempt))  # increasing, to make progress on slow machines too
        worker.kill()
        worker.join()
        if worker.exitcode == 0:
            break
        kills += 1
    assert worker.exitcode == 0
    assert kills >= 3
    assert result_files(tmp_path / "killed") == result_files(tmp_path / "uninterrupted")


def test_a_batch_resumes_from_each_of_its_checkpoints(tmp_path: Path) -> None:
    batch = run_batch(epochs=4)
    execute(batch, tmp_path / "uninterrupted")
    for stop in range(1, 4):
        root = tmp_path / f"stopped{stop}"

        def interrupt(trainer: object, stop: int = stop) -> None:
            if trainer.epoch == stop:  # type: ignore[attr-defined]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            execute(batch, root, checkpoint_seconds=0.0, after_epoch=interrupt)
        assert Store(root).has_checkpoint(batch.study, batch.key)
        seen: list[int] = []
        execute(batch, root, after_epoch=lambda trainer, seen=seen: seen.append(trainer.epoch))  # type: ignore[misc]
        assert seen == list(range(stop + 1, 5))
        assert result_files(root) == result_files(tmp_path / "uninterrupted")


def test_finished_runs_are_not_repeated(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=1), Store(tmp_path)
    assert [b.key for b in plan(batch.runs, store)] == [batch.key]
    execute(batch, tmp_path)
    assert plan(batch.runs, store) == []
    more = [replace(batch.runs[0], seed=99), *batch.runs]
    assert [b.runs for b in plan(more, store)] == [(more[0],)]


def test_a_batch_killed_while_writing_results_resumes_as_a_whole(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=2), Store(tmp_path)
    execute(batch, tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        execute(batch, tmp_path, checkpoint_seconds=0.0, after_epoch=_interrupt)
    uninterrupted = Store(tmp_path / "uninterrupted")
    result = uninterrupted.result(batch.runs[0])
    assert result is not None
    store.finish(batch.runs[0], uninterrupted.history(batch.runs[0]), result)  # as if killed after the first result
    assert plan(batch.runs, store) == [batch]
    execute(batch, tmp_path)
    resumed = {
        name: content for name, content in result_files(tmp_path).items() if not name.startswith("uninterrupted")
    }
    assert resumed == result_files(tmp_path / "uninterrupted")


def _interrupt(trainer: object) -> None:
    raise KeyboardInterrupt


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "one bit": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["run.json", "history.json", "result.json"])
def test_a_damaged_folder_warns_and_is_repeated(tmp_path: Path, name: str, damage: str) -> None:
    batch, store = run_batch(epochs=1, seeds=1), Store(tmp_path)
    execute(batch, tmp_path)
    before, damaged = result_files(tmp_path), batch.runs[2]
    path = store.folder(damaged) / name
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.warns(CorruptWarning, match=damaged.key):
        remaining = plan(batch.runs, store)
    assert [b.runs for b in remaining] == [(damaged,)]
    execute(remaining[0], tmp_path)
    assert result_files(tmp_path) == before


def test_a_missing_file_counts_as_damage(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=1, seeds=1), Store(tmp_path)
    execute(batch, tmp_path)
    (store.folder(batch.runs[0]) / "history.json").unlink()
    with pytest.warns(CorruptWarning, match=r"history\.json"):
        assert store.result(batch.runs[0]) is None


def test_reading_a_damaged_result_deletes_nothing(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=1, seeds=1), Store(tmp_path)
    execute(batch, tmp_path)
    path = store.folder(batch.runs[0]) / "result.json"
    path.write_text('{"digests":1,"result":2}')
    before = result_files(tmp_path)
    with pytest.warns(CorruptWarning, match="counts as not finished"):
        assert store.result(batch.runs[0]) is None
    assert result_files(tmp_path) == before


def test_only_old_temporary_files_are_deleted(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=1, seeds=1), Store(tmp_path)
    temporaries = [store.folder(batch.runs[0]) / f".{digit * 16}.history.json" for digit in "01"]
    temporaries[0].parent.mkdir(parents=True)
    for temporary in temporaries:
        temporary.touch()
    os.utime(temporaries[1], (0, 0))
    execute(batch, tmp_path)
    assert [temporary.exists() for temporary in temporaries] == [True, False]


def test_unrelated_files_in_run_folders_are_kept_and_ignored(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=1, seeds=1), Store(tmp_path / "unrelated")
    folder = store.folder(batch.runs[0])
    for path in (store.root, folder.parent, folder):
        (path / "stray").mkdir(parents=True)
        (path / ".DS_Store").write_bytes(b"\0Bud1")
        os.utime(path / ".DS_Store", (0, 0))
    store.batch_folder(batch.study, batch.key).mkdir(parents=True)
    (store.batch_folder(batch.study, batch.key) / "progress.json").write_text("[]")
    assert store.load_progress(batch.study, batch.key) is None
    execute(batch, tmp_path / "uninterrupted")
    execute(batch, store.root)
    assert store.result(batch.runs[0]) == Store(tmp_path / "uninterrupted").result(batch.runs[0])
    assert all((path / ".DS_Store").exists() for path in (store.root, folder.parent, folder))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_warns_and_its_batch_starts_over(tmp_path: Path, damage: str) -> None:
    batch, store = run_batch(epochs=2, seeds=1), Store(tmp_path)
    execute(batch, tmp_path / "uninterrupted")
    with pytest.raises(KeyboardInterrupt):
        execute(batch, tmp_path / "damaged", checkpoint_seconds=0.0, after_epoch=_interrupt)
    store = Store(tmp_path / "damaged")
    path = store.batch_folder(batch.study, batch.key) / "checkpoint.pt"
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    with pytest.warns(CorruptWarning, match="starts over"):
        execute(batch, tmp_path / "damaged")
    assert result_files(tmp_path / "damaged") == result_files(tmp_path / "uninterrupted")


def test_a_pipe_in_place_of_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=1, seeds=1), Store(tmp_path)
    path = store.batch_folder(batch.study, batch.key) / "checkpoint.pt"
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.warns(CorruptWarning, match="starts over"):
        execute(batch, tmp_path, checkpoint_seconds=0.0)
    assert plan(batch.runs, store) == []


def test_checkpoints_of_finished_runs_are_deleted(tmp_path: Path) -> None:
    """A process can be killed after its last result, and its runs can be finished in other batches."""
    first, second = run_batch(epochs=1, seeds=1).runs[:2]
    store = Store(tmp_path)
    batches = {"finished": [first], "half": [first, second], "unfinished": [second], "unknown": [], "starting": []}
    for key, runs in batches.items():
        if runs:
            store.start_batch("test", key, runs)
        store.batch_folder("test", key).mkdir(exist_ok=True)
        if key != "starting":
            store.save_progress("test", key, 1, 0.0)
    execute(RunBatch((first,)), tmp_path)
    store.delete_finished_batches("test")
    assert sorted(path.name for path in (tmp_path / "test").glob("stack-*")) == [
        "stack-half",
        "stack-starting",
        "stack-unfinished",
    ]


def test_the_result_of_another_run_is_rejected(tmp_path: Path) -> None:
    batch, store = run_batch(epochs=1, seeds=2), Store(tmp_path)
    execute(batch, tmp_path)
    first, second = store.folder(batch.runs[0]), store.folder(batch.runs[1])
    for path in second.iterdir():
        os.replace(path, first / path.name)
    with pytest.warns(CorruptWarning, match="belongs to another run"):
        assert store.result(batch.runs[0]) is None


def test_all_runs_have_distinct_folders() -> None:
    runs = [cell.run for study in STUDIES.values() for cell in study.grid(seeds=[42])]
    assert len({run.key for run in runs}) == len(set(runs)) > 1000
    assert runs[0].key == replace(runs[0], seed=runs[0].seed).key


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_a_configuration_survives_a_round_trip(study: Study) -> None:
    for cell in study.grid(seeds=[42]):
        assert parse_run(cell.run.canonical()) == cell.run


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":1}', '{"version":0,"study":"<b>"}', "null"])
def test_invalid_configurations_raise_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected the configuration of a run"):
        parse_run(text)


def test_each_run_records_its_circumstances(tmp_path: Path) -> None:
    batch = run_batch(epochs=1, seeds=1)
    execute(batch, tmp_path)
    for run in batch.runs:
        circumstances = Store(tmp_path).circumstances(run)
        assert circumstances["runs"] == len(batch.runs)
        assert circumstances["torch"] == torch.__version__
