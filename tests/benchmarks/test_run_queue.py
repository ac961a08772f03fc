"""The queue of runs: order, interruption, resumption in another process, and what is brought back."""

import importlib
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.engine_runs import result_files
from helpers.paths import ROOT

from counterpoise.lab.engine import Run, spec
from counterpoise.lab.engine.archive import ArchivedRun, read_archive
from counterpoise.lab.studies import STUDIES, Condition, Study
from counterpoise.lab.studies import qm9 as qm9_study
from counterpoise.lab.studies.select import select_runs

pytestmark = pytest.mark.filterwarnings("ignore::counterpoise.BalanceWarning")
FOREVER = 1e6


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("run_queue")


def tiny_pinn() -> Study:
    """Return a study with two rates and one shown seed, in two epochs of two steps."""
    condition = Condition("main", (("boundary", 4), ("form", "two"), ("interior", 8), ("steps", 2)))
    study = STUDIES["pinn-helmholtz"]
    methods = {name: study.methods[name] for name in ("Sum", "LRA", "PCGrad")}
    schedule = replace(study.schedule, epochs=2)
    study = replace(study, conditions=(condition,), methods=methods, schedule=schedule, seeds=(5,), ten_seeds=(5,))
    return replace(study, rates=(1e-3, 1e-4), rate_seeds=(100,), model=spec("pinn", width=8))


def tiny_qm9() -> Study:
    """Return a study of three methods on synthetic molecules."""
    schedule = replace(qm9_study.SCHEDULE, epochs=2, batch_size=12, precision="fp32")
    condition = qm9_study.condition("main", qm9_study.COMPARED, molecules=50)
    model = spec("mpnn", width=4, edge_width=4)
    study = replace(qm9_study.STUDY, conditions=(condition,), schedule=schedule, seeds=(42,), model=model)
    return replace(study, problem="synthetic-molecules")


STUDY_FORMS = {"pinn": tiny_pinn, "qm9": tiny_qm9}
METHODS = {"pinn": ["Sum", "LRA", "PCGrad"], "qm9": ["Sum", "FAMO", "BPGS"]}


def selection(scripts: Any, name: str, largest: int | None = None) -> Any:
    study = STUDY_FORMS[name]()
    return scripts.Selection(study, tuple(select_runs(study, seeds=study.seeds, methods=METHODS[name])), largest)


def resume(folder: str) -> None:
    """Work through the queues from what another process brought back. Called in a process of its own."""
    scripts = importlib.import_module("run_queue")
    for name in METHODS:
        out, back = (Path(folder) / f"{part}-{name}" for part in ("second", "back"))
        other = back.with_name("other")  # files can be in several folders
        other.mkdir(exist_ok=True)
        (back / "checkpoint.00").rename(other / "checkpoint.00")
        scripts.prepare(out, [], [back, other])
        assert scripts.RunQueue([selection(scripts, name, 3)], out, FOREVER, back, together=2).work()


def test_stacks_in_turn_that_are_resumed_in_another_process_equal_uninterrupted_ones_one_after_another(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in METHODS:
        chosen = [selection(scripts, name, 3)]
        assert scripts.RunQueue(chosen, tmp_path / f"whole-{name}", FOREVER).work()
        with monkeypatch.context() as patch:
            patch.setattr(scripts, "PART_BYTES", 4000)
            patch.setattr(scripts, "MAX_PARTS", 1000)
            back = tmp_path / f"back-{name}"
            # Train one epoch, although there is no time.
            late = scripts.RunQueue(chosen, tmp_path / f"first-{name}", 0.0, back, together=2, start_seconds=-math.inf)
            assert late.work()
        assert {path.name for path in back.iterdir()} >= {"checkpoint.00", "checkpoint.01"}
        assert not (back / "runs.jsonl.xz").exists()
    folders = [str(ROOT / "tests"), str(ROOT / "tests" / "benchmarks"), str(ROOT / "benchmarks")]
    code = f"import sys; sys.path[:0] = {folders}; import test_run_queue as t; t.resume({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, stdout=subprocess.DEVNULL)
    for name in METHODS:
        whole, found = (result_files(tmp_path / f"{part}-{name}") for part in ("whole", "second"))
        assert whole == found
        assert len(whole) == 3 * len(archived(tmp_path / f"back-{name}" / "runs.jsonl.xz"))
        assert [path.name for path in (tmp_path / f"back-{name}").iterdir()] == ["runs.jsonl.xz"]


def archived(archive: Path) -> list[ArchivedRun]:
    runs = list(read_archive(archive))
    assert all(isinstance(run, ArchivedRun) for run in runs)
    return runs  # type: ignore[return-value]


def test_rates_are_chosen_before_the_shown_seeds_and_stacks_keep_their_runs(scripts: Any) -> None:
    chosen = selection(scripts, "pinn")
    results: dict[Run, dict[str, float]] = {}
    (first,) = chosen.stacks(results.get)
    assert {(run.seed, run.network_lr) for run in first.runs} == {(100, 1e-3), (100, 1e-4)}
    results |= {run: {"macro": run.network_lr} for run in first.runs}
    (second,) = chosen.stacks(results.get)
    assert {(run.seed, run.network_lr) for run in second.runs} == {(5, 1e-3)}
    results |= {run: {} for run in second.runs}
    assert list(chosen.stacks(results.get)) == []
    pairs = selection(scripts, "qm9", largest=2)
    stacks = list(pairs.stacks({}.get))
    assert [len(stack.runs) for stack in stacks] == [2, 1]
    (rest,) = pairs.stacks({run: {} for run in stacks[0].runs}.get)
    assert rest == stacks[1]


def test_a_stack_that_another_process_trains_is_left_to_it(scripts: Any, tmp_path: Path) -> None:
    chosen = selection(scripts, "qm9", largest=1)
    first, *others = chosen.stacks({}.get)
    with scripts.locked(tmp_path, first.key):
        queue = scripts.RunQueue([chosen], tmp_path, FOREVER)
        assert queue.work()
        assert list(queue.unfinished()) == [first]
    assert all(queue.store.result(run) is not None for stack in others for run in stack.runs)
    assert queue.work()
    assert list(queue.unfinished()) == []


def test_a_stack_that_fails_is_not_tried_again_and_uncaptured_methods_are_left_out(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe(run: Run) -> None:
        if run.recipe.name == "lra":
            raise UserWarning("could not capture")

    def fail(stack: Any, *_: Any, **__: Any) -> None:
        raise UserWarning("could not capture") if any(run.recipe.name == "lra" for run in stack.runs) else OSError

    monkeypatch.setattr(scripts, "execute_in_steps", fail)
    queue = scripts.RunQueue([selection(scripts, "pinn")], tmp_path, FOREVER, probe=probe)
    assert not queue.work()  # without LRA there is another error
    assert list(queue.unfinished()) == []
    assert "lra" not in str(list(queue.selections[0].stacks({}.get, queue._failed()["methods"])))


@pytest.mark.parametrize("script", ["pinn_stack", "qm9_stack"])
def test_queues_begin_with_the_runs_that_matter_most(script: str, scripts: Any) -> None:
    module = importlib.import_module(script)
    found = module.selections("cuda") if script == "pinn_stack" else module.selections(qm9_study.STUDY, "cuda")
    first = next(found[0].stacks({}.get))
    if script == "pinn_stack":
        assert {run.data.name for run in first.runs} == {"burgers"}
        assert {run.seed for run in first.runs} == {100, 101}
    else:
        assert [run.recipe for run in first.runs] == list(module.MAIN_METHODS.values())
        assert {run.seed for run in first.runs} == {42}
        (with_gradients,) = (
            part for part in found if qm9_study.FEATURES in {cell.condition.key for cell in part.cells}
        )
        assert {cell.condition.key for cell in with_gradients.cells} == {qm9_study.FEATURES, qm9_study.FURTHER_SEEDS}
        assert len(list(with_gradients.stacks({}.get))) == 1
        grid = {(cell.method, cell.condition.key) for cell in qm9_study.STUDY.grid()}
        queued = {(cell.method, cell.condition.key) for selection in found for cell in selection.cells}
        assert {key for _, key in grid - queued} == {qm9_study.PARAMETERS}
