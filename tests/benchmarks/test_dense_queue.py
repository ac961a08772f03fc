"""The queue of NYUv2: its order, and a run that is interrupted and resumed on the same machine."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

from counterpoise.lab.engine.archive import ArchivedRun, read_archive
from counterpoise.lab.studies.dense import SMALL_ROOMS


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("dense")


def test_queue_trains_one_run_after_another_and_begins_with_the_claims_that_wait(script: Any) -> None:
    main, beyond = script.selections(script.parse_options(["queue", "--device", "cuda"]))
    stacks = [list(selection.stacks({}.get)) for selection in (main, beyond)]
    assert [run.seed for stack in stacks[0] for run in stack.runs] == [42, 43, 44]
    assert {stack.runs[0].recipe.name for stack in stacks[0]} == {"nash-authors"}
    assert len(stacks[1]) == 18
    assert stacks[1][0].runs[0].recipe.name == "famo"
    (chosen,) = script.selections(
        script.parse_options(["queue", "--device", "cuda", "--methods", "UW-O", "--seeds", "43-44"])
    )
    assert [(cell.method, cell.run.seed) for cell in chosen.cells] == [("UW-O", 43), ("UW-O", 44)]


def test_interrupted_run_is_resumed_and_its_checkpoint_stays(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train", "held_out"):
        monkeypatch.setitem(SMALL_ROOMS, name, 8)
    out, back = tmp_path / "out", tmp_path / "back"
    chosen = ["queue", "--quick", "--device", "cpu", "--methods", "First loss", "--seeds", "42", "--out", str(out)]
    for seconds, start in (("0.001", "-inf"), ("1e6", "0")):
        assert not list(back.glob("*"))
        options = script.parse_options(
            [*chosen, "--bring", str(back), "--seconds", seconds, f"--start-seconds={start}"]
        )
        assert script.run_queue(script.selections(options), options, bring_checkpoints=False) == 0
        checkpoints = list(out.glob("nyuv2/stack-*/checkpoint.pt"))
        assert len(checkpoints) == (seconds == "0.001")
    (run,) = read_archive(back / "runs.jsonl.xz")
    assert isinstance(run, ArchivedRun)
    assert (run.result["epochs"], run.circumstances["resumed"]) == (2, True)
