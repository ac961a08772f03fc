"""Runs survive: killed at any moment they end as if never interrupted; damage is noticed, named and mended."""

import errno
import multiprocessing
import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from counterpoise.lab.engine import (
    CorruptWarning,
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
from counterpoise.lab.engine.store import CIRCUMSTANCES
from counterpoise.lab.files import write_atomic
from counterpoise.lab.studies import STUDIES, Study
from counterpoise.lab.studies.base import AUTHORS, BPGS, KENDALL, UWSO

METHODS = [BPGS, KENDALL, UWSO, recipe("rlw"), recipe("dwa"), recipe("famo")]  # every kind of state there is


def stack(epochs: int = 6, seeds: int = 2) -> RunBatch:
    data, schedule = spec("scale-stress", scale=10.0), replace(AUTHORS, epochs=epochs, patience=4)
    runs = [Run("test", data, spec("mlp"), m, seed, schedule) for m in METHODS for seed in range(seeds)]
    (one,) = make_run_batches(runs)
    return one


def files(root: Path) -> dict[str, bytes]:
    """All but when and where, which differs between two that are the same, and young drafts of a killed process."""
    found = (p for p in sorted(root.rglob("*")) if p.is_file() and p.name != CIRCUMSTANCES and p.name[0] != ".")
    return {str(p.relative_to(root)): p.read_bytes() for p in found}


def test_a_run_killed_at_any_moment_ends_bit_identical(tmp_path: Path) -> None:
    one, draw, kills = stack(), random.Random(0), 0
    execute(one, tmp_path / "calm")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["counterpoise.lab.engine.batching"])
    for attempt in range(1, 80):
        worker = context.Process(
            target=execute, args=(one, tmp_path / "killed"), kwargs={"checkpoint_seconds": 0.0}, daemon=True
        )
        worker.start()
        worker.join(draw.uniform(0.0, 0.05 * attempt))  # longer and longer: on a slow machine too it gets somewhere
        worker.kill()
        worker.join()
        if worker.exitcode == 0:
            break
        kills += 1
    assert worker.exitcode == 0
    assert kills >= 3
    assert files(tmp_path / "killed") == files(tmp_path / "calm")


def test_a_stack_resumes_from_every_one_of_its_checkpoints(tmp_path: Path) -> None:
    one = stack(epochs=4)
    execute(one, tmp_path / "calm")
    for stop in range(1, 4):
        root = tmp_path / f"stopped{stop}"

        def interrupt(trainer: object, stop: int = stop) -> None:
            if trainer.epoch == stop:  # type: ignore[attr-defined]
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            execute(one, root, checkpoint_seconds=0.0, after_epoch=interrupt)
        assert Store(root).has_checkpoint(one.study, one.key)
        seen: list[int] = []
        execute(one, root, after_epoch=lambda trainer, seen=seen: seen.append(trainer.epoch))  # type: ignore[misc]
        assert seen == list(range(stop + 1, 5))
        assert files(root) == files(tmp_path / "calm")


def test_a_finished_run_is_never_run_twice(tmp_path: Path) -> None:
    one, store = stack(epochs=1), Store(tmp_path)
    assert [s.key for s in plan(one.runs, store)] == [one.key]
    execute(one, tmp_path)
    assert plan(one.runs, store) == []
    more = [replace(one.runs[0], seed=99), *one.runs]
    assert [s.runs for s in plan(more, store)] == [(more[0],)]


def test_a_stack_that_died_while_writing_results_goes_on_as_a_unit(tmp_path: Path) -> None:
    one, store = stack(epochs=2), Store(tmp_path)
    execute(one, tmp_path / "calm")
    with pytest.raises(KeyboardInterrupt):
        execute(one, tmp_path, checkpoint_seconds=0.0, after_epoch=_interrupt)
    calm = Store(tmp_path / "calm")
    result = calm.result(one.runs[0])
    assert result is not None
    store.finish(one.runs[0], calm.history(one.runs[0]), result)  # one of the runs got as far as its result
    assert plan(one.runs, store) == [one]
    execute(one, tmp_path)
    assert {k: v for k, v in files(tmp_path).items() if not k.startswith("calm")} == files(tmp_path / "calm")


def _interrupt(trainer: object) -> None:
    raise KeyboardInterrupt


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "one bit": lambda content: content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("name", ["run.json", "history.json", "result.json"])
def test_a_damaged_folder_is_named_and_redone(tmp_path: Path, name: str, how: str) -> None:
    one, store = stack(epochs=1, seeds=1), Store(tmp_path)
    execute(one, tmp_path)
    before, victim = files(tmp_path), one.runs[2]
    path = store.folder(victim) / name
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.warns(CorruptWarning, match=victim.key):
        left = plan(one.runs, store)
    assert [s.runs for s in left] == [(victim,)]
    execute(left[0], tmp_path)
    assert files(tmp_path) == before


def test_a_missing_file_is_damage_too(tmp_path: Path) -> None:
    one, store = stack(epochs=1, seeds=1), Store(tmp_path)
    execute(one, tmp_path)
    (store.folder(one.runs[0]) / "history.json").unlink()
    with pytest.warns(CorruptWarning, match=r"history\.json"):
        assert store.result(one.runs[0]) is None


def test_who_looks_deletes_nothing(tmp_path: Path) -> None:
    one, store = stack(epochs=1, seeds=1), Store(tmp_path)
    execute(one, tmp_path)
    path = store.folder(one.runs[0]) / "result.json"
    path.write_text('{"digests":1,"result":2}')
    before = files(tmp_path)
    with pytest.warns(CorruptWarning, match="counts as not run"):
        assert store.result(one.runs[0]) is None
    assert files(tmp_path) == before


def test_the_draft_of_another_process_is_left_alone_until_it_is_old(tmp_path: Path) -> None:
    one, store = stack(epochs=1, seeds=1), Store(tmp_path)
    drafts = [store.folder(one.runs[0]) / f".history.json.{name}" for name in ("young", "old")]
    drafts[0].parent.mkdir(parents=True)
    for draft in drafts:
        draft.touch()
    os.utime(drafts[1], (0, 0))
    execute(one, tmp_path)
    assert [draft.exists() for draft in drafts] == [True, False]


def test_what_is_not_ours_stays_in_a_runs_folder_and_harms_nothing(tmp_path: Path) -> None:
    one, store = stack(epochs=1, seeds=1), Store(tmp_path / "strange")
    folder = store.folder(one.runs[0])
    for place in (store.root, folder.parent, folder):
        (place / "stray").mkdir(parents=True)
        (place / ".DS_Store").write_bytes(b"\0Bud1")
        os.utime(place / ".DS_Store", (0, 0))
    store.stack_folder(one.study, one.key).mkdir(parents=True)
    (store.stack_folder(one.study, one.key) / "progress.json").write_text("[]")
    assert store.load_progress(one.study, one.key) is None
    execute(one, tmp_path / "calm")
    execute(one, store.root)
    assert store.result(one.runs[0]) == Store(tmp_path / "calm").result(one.runs[0])
    assert all((place / ".DS_Store").exists() for place in (store.root, folder.parent, folder))


def test_a_file_that_cannot_be_written_is_named_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*/folder'"):
        write_atomic(tmp_path / "folder", b"new")
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match=r"File exists: '.*/file'"):
        write_atomic(tmp_path / "file" / "inside", b"new")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        write_atomic(tmp_path / "file", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "far" / "file")
    for content in (b"new", b"newer"):
        write_atomic(link, content)
        assert link.is_symlink()
        assert (tmp_path / "far" / "file").read_bytes() == content
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, b"new")
    assert os.read(reader, 9) == b"new"
    os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_its_stack_starts_over(tmp_path: Path, how: str) -> None:
    one, store = stack(epochs=2, seeds=1), Store(tmp_path)
    execute(one, tmp_path / "calm")
    with pytest.raises(KeyboardInterrupt):
        execute(one, tmp_path / "hurt", checkpoint_seconds=0.0, after_epoch=_interrupt)
    store = Store(tmp_path / "hurt")
    path = store.stack_folder(one.study, one.key) / "checkpoint.pt"
    path.write_bytes(DAMAGE[how](path.read_bytes()))
    with pytest.warns(CorruptWarning, match="starts over"):
        execute(one, tmp_path / "hurt")
    assert files(tmp_path / "hurt") == files(tmp_path / "calm")


def test_another_runs_result_in_a_folder_is_not_taken_for_its_own(tmp_path: Path) -> None:
    one, store = stack(epochs=1, seeds=2), Store(tmp_path)
    execute(one, tmp_path)
    ours, theirs = store.folder(one.runs[0]), store.folder(one.runs[1])
    for path in theirs.iterdir():
        os.replace(path, ours / path.name)
    with pytest.warns(CorruptWarning, match="another run"):
        assert store.result(one.runs[0]) is None


def test_no_two_runs_share_a_folder() -> None:
    runs = [cell.run for study in STUDIES.values() for cell in study.grid()]
    assert len({run.key for run in runs}) == len(set(runs)) > 10_000
    assert runs[0].key == replace(runs[0], seed=runs[0].seed).key


@pytest.mark.parametrize("study", STUDIES.values(), ids=lambda study: study.name)
def test_a_description_is_read_back(study: Study) -> None:
    for cell in study.grid(seeds=[42]):
        assert parse_run(cell.run.canonical()) == cell.run


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version":1}', '{"version":0,"study":"<b>"}', "null"])
def test_what_describes_no_run_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected the description of a run"):
        parse_run(text)


def test_every_run_says_where_it_was_made(tmp_path: Path) -> None:
    one = stack(epochs=1, seeds=1)
    execute(one, tmp_path)
    for run in one.runs:
        notes = Store(tmp_path).circumstances(run)
        assert notes["runs"] == len(one.runs)
        assert notes["torch"] == torch.__version__
