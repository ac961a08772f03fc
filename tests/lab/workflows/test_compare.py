"""Comparisons in a user's own training function: calls, resuming, choice of rates, tables, page and errors."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.commands import app
from helpers.empty_figures import write_empty_figures
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.lab.engine import RunBatch, RunError, Store, recipe
from counterpoise.lab.errors import UsageError
from counterpoise.lab.report import collect_runs
from counterpoise.lab.workflows import Comparison, compare
from counterpoise.lab.workflows._training import ProgressCallback

SCRIPT = """
import functools
import os
import torch

def train(balancer, *, seed, lr=0.1, log=""):
    if log:
        with open(log, "a") as file:
            file.write(f"{type(balancer).__name__} {seed} {lr} {os.getpid()}\\n")
    weight = torch.ones(2, requires_grad=True)
    balancer(weight.square() * torch.tensor([1.0, 100.0])).backward()
    factor = {"Static": 3.0, "BPGS": 1.0}.get(type(balancer).__name__, 2.0)
    return {"error": factor * (1 + abs(lr - 0.1)) + 0.01 * seed, "hits": torch.tensor(10.0 - factor)}

def no_scores(balancer):
    return 0.5

def text_score(balancer):
    return {"error": "low"}

def unequal_scores(balancer, seed):
    return {"a": 1.0, **({"b": 2.0} if seed == 0 else {})}

def needs_epochs(balancer, epochs):
    return {"a": float(epochs)}

def fails(balancer, seed, flag, lr=0.1, log=""):
    with open(log, "a") as file:
        file.write(f"{type(balancer).__name__} {seed} {lr}\\n")
    if type(balancer).__name__ == "BPGS" and seed in (1, 7) and lr == 0.1 and not os.path.exists(flag):
        open(f"{flag}/labels.csv")
    return {"a": 1.0 + seed}

def diverges(balancer, seed):
    return {"a": float("nan") if seed and type(balancer).__name__ == "BPGS" else 1.0}

def diverges_at_choice(balancer, seed, lr):
    return {"a": float("nan") if seed >= 100 and type(balancer).__name__ == "BPGS" else lr}

class Callable:
    def __call__(self, balancer):
        return {"a": 1.0}

instance = Callable()
part = functools.partial(diverges, seed=0)
CONSTANT = 3
"""
BETTER = {"error": "lower", "hits": "higher"}


@pytest.fixture(autouse=True)
def _empty_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    write_empty_figures(monkeypatch)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # of another test
    path = tmp_path / "mine.py"
    path.write_text(SCRIPT)
    return path


def run(function: str = "mine.py:train", **changes: Any) -> Comparison:
    arguments: dict[str, Any] = {"tasks": ("a", "b"), "methods": ["static", "bpgs", "uw-so"], "better": BETTER}
    return compare(function, **arguments | {"executor": "inline", "out": "runs", "seeds": (0, 1)} | changes)


def calls(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def test_tables_ranks_and_page_are_written(script: Path) -> None:
    done = run()
    assert [path for path in done.files if not path.exists()] == []
    assert done.files[0] == Path("runs/report/index.html")
    names = {path.name for path in done.files}
    assert {
        "mine-train.md",
        "mine-train-ranks.md",
        "mine-train-ranks.csv",
        "mine-train.png",
        "mine-train-ranks.pdf",
    } <= names
    scores = Path("runs/report/tables/mine-train.md").read_text()
    assert "| bpgs | **1.0050 ± 0.0071** | **9.0000 ± 0.0000** |" in scores
    ranks = Path("runs/report/tables/mine-train-ranks.md").read_text()
    assert "| bpgs | 1.00 | 1.00 | 1.00 |" in ranks
    assert "Difference to static" in ranks
    differences = pd.read_csv("runs/report/tables/mine-train-ranks.csv").set_index(["metric", "method"])
    assert differences.loc[("error ↓", "bpgs"), "mean"] == pytest.approx(-2.0)
    assert differences.loc[("hits ↑", "bpgs"), "mean"] == pytest.approx(2.0)
    assert differences.loc[("hits ↑", "bpgs"), ["low", "high"]].isna().all(), "two seeds have no interval"
    reasons = {problem.reason for problem in collect_runs([Path("runs")]).problems}
    assert reasons == {"belongs to the comparison 'mine-train': counterpoise compare writes its page"}
    page = done.files[0].read_text()
    assert "mine.py:train" in page
    assert "Claims" not in page


def test_finished_runs_are_kept_until_the_file_changes(script: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    arguments: dict[str, Any] = {"options": {"log": str(log)}, "methods": ["bpgs"]}
    run(**arguments)
    assert len(calls(log)) == 2
    run(**arguments | {"seeds": (0, 1, 2), "better": {"error": "higher", "hits": "lower"}})
    assert [call[1] for call in calls(log)] == ["0", "1", "2"], "other directions need no runs"
    script.write_text(SCRIPT + "\n# edited\n")
    run(**arguments)
    assert len(calls(log)) == 5


def test_rates_are_chosen_at_seeds_that_are_not_shown(script: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    done = run(rates=(0.1, 0.5), rate_seeds="7,8", options={"log": str(log)}, methods=["static", "bpgs"])
    made = [(method, int(seed), float(lr)) for method, seed, lr, _ in calls(log)]
    choice = [(method, seed, lr) for method in ("Static", "BPGS") for lr in (0.1, 0.5) for seed in (7, 8)]
    assert sorted(made) == sorted(choice + [(m, s, 0.1) for m in ("Static", "BPGS") for s in (0, 1)])
    table = Path("runs/report/tables/mine-train.md").read_text()
    assert "| bpgs (0.1) |" in table
    assert "seeds 0, 1" in table
    assert done.report.seed_sets == {"mine-train": [(0, 1)]}


def test_choose_by_selects_the_score_that_decides_the_rate(script: Path) -> None:
    done = run(rates=(0.1, 0.5), choose_by="error", better={"error": "higher", "hits": "higher"}, methods=["bpgs"])
    (frame,) = done.report.frames.values()
    assert set(frame["lr"]) == {0.5}


def test_processes_resume_after_a_failure(script: Path, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    script.write_text(
        "from pathlib import Path\n"
        "def train(balancer, seed, flag):\n"
        "    if seed == 1 and not Path(flag).exists():\n"
        "        raise RuntimeError('out of memory')\n"
        "    return {'error': 1.0 + seed}\n"
    )
    arguments: dict[str, Any] = {
        "methods": ["static"], "better": "lower", "executor": "processes", "jobs": 1, "options": {"flag": str(flag)}
    }  # fmt: skip
    with pytest.raises(RunError, match="out of memory"):
        run(**arguments)
    results = list(Path("runs").glob("mine-train/*/result.json"))
    flag.touch()
    done = run(**arguments)
    assert all(path.exists() for path in results)
    (frame,) = done.report.frames.values()
    assert frame["error ↓"].tolist() == [1.0, 2.0]


@pytest.fixture
def failing(tmp_path: Path) -> dict[str, Any]:
    """Arguments of a comparison whose function opens a missing file for one method and seed, until the flag exists."""
    options = {"flag": str(tmp_path / "flag"), "log": str(tmp_path / "calls")}
    return {"function": "mine.py:fails", "better": "lower", "options": options, "executor": "processes", "jobs": 1}


def test_a_failed_run_does_not_stop_the_others(script: Path, tmp_path: Path, failing: dict[str, Any]) -> None:
    with pytest.raises(RunError) as raised:
        run(**failing)
    message = str(raised.value)
    assert message.startswith("1 run failed. Finished runs are kept")
    assert "bpgs, seed 1 failed: " in message
    assert 'mine.py", line' in message, "the traceback of the function"
    assert "mine.py:fails raised FileNotFoundError: [Errno 2] No such file or directory" in message
    assert len(calls(tmp_path / "calls")) == 6
    assert len(list(Path("runs").glob("mine-fails/*/result.json"))) == 5
    (tmp_path / "flag").touch()
    run(**failing)
    assert [call[:2] for call in calls(tmp_path / "calls")[6:]] == [["BPGS", "1"]]


def test_the_inline_executor_stops_at_the_first_error(script: Path, tmp_path: Path, failing: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="raised FileNotFoundError") as raised:
        run(**failing | {"executor": "inline", "jobs": None})
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_other_methods_are_trained_at_their_rates_if_one_fails(
    script: Path, tmp_path: Path, failing: dict[str, Any]
) -> None:
    with pytest.raises(RunError, match="1 run failed") as raised:
        run(**failing | {"rates": (0.2, 0.1), "rate_seeds": (7,), "methods": ["static", "bpgs"]})
    assert "bpgs, seed 7, rate 0.1 failed: " in str(raised.value)
    made = calls(tmp_path / "calls")
    choice = [[method, "7", rate] for method in ("BPGS", "Static") for rate in ("0.1", "0.2")]
    assert sorted(made) == sorted([*choice, ["Static", "0", "0.1"], ["Static", "1", "0.1"]])


def test_runs_that_diverge_have_no_score(script: Path) -> None:
    run("mine.py:diverges", better="lower")
    scores = Path("runs/report/tables/mine-diverges.md").read_text()
    assert "| bpgs | 1.0000 (1 of 2 seeds) |" in scores
    assert "| static | **1.0000 ± 0.0000** |" in scores
    page = Path("runs/report/index.html").read_text()
    assert "Runs that diverged (a ↓ is not ranked, because fewer than three methods finished at the same seeds)" in page
    assert "1.0000 (1 of 2 seeds)" in page


def test_a_method_that_diverges_at_all_rates_has_the_lowest(script: Path) -> None:
    done = run("mine.py:diverges_at_choice", better="higher", rates=(0.5, 0.1), methods=["static", "bpgs"])
    (frame,) = done.report.frames.values()
    assert dict(zip(frame["method"], frame["lr"], strict=True)) == {"static": 0.5, "bpgs": 0.1}
    ranks = Path("runs/report/tables/mine-diverges_at_choice-ranks.md").read_text()
    assert "| method | choice of the rate |" in ranks
    assert "| bpgs | at every rate: the lowest is used |" in ranks
    scores = Path("runs/report/tables/mine-diverges_at_choice.md").read_text()
    assert "mine-diverges_at_choice (learning rate in parentheses)" in scores


def test_a_rate_that_the_function_chose_is_not_recorded(script: Path) -> None:
    (frame,) = run(methods=["static"], seeds=[0]).report.frames.values()
    assert frame["lr"].isna().all()
    assert pd.read_csv("runs/report/runs/mine-train.csv")["lr"].isna().all()
    (frame,) = run(methods=["static"], seeds=[0], rates=[0.5]).report.frames.values()
    assert set(frame["lr"]) == {0.5}


def test_a_single_method_is_named_in_its_row(script: Path) -> None:
    done = run(methods=["bpgs"], seeds=[0])
    assert "| bpgs | 1.0000 | 9.0000 |" in Path("runs/report/tables/mine-train.md").read_text()
    assert done.report.studies[0].question == "What does bpgs score in mine.py:train on a, b?"


def test_text_is_split_at_commas(script: Path) -> None:
    text = run(tasks="a, b", methods="static,bpgs", better="error=lower,hits=higher", seeds="0,1", rates="0.5")
    (folder, *_) = sorted(Path("runs/mine-train").iterdir())
    assert json.loads((folder / "run.json").read_text())["data"]["options"][3] == ["tasks", ["a", "b"]]
    lists = run(methods=["static", "bpgs"], seeds=np.arange(2), rates=np.array([0.5]))
    assert len(list(Path("runs/mine-train").iterdir())) == 4
    pd.testing.assert_frame_equal(*(done.report.frames["mine-train"] for done in (text, lists)))


def test_runs_are_described_by_method_seed_and_rate(script: Path) -> None:
    lines: list[str] = []

    @contextmanager
    def follow(store: Store, runs: int, batches: Sequence[RunBatch]) -> Iterator[ProgressCallback]:
        yield lambda running, ended: lines.extend(map(str, ended))

    methods = ["bpgs + cagrad(alpha=0.2)"]
    run("mine.py:diverges_at_choice", better="lower", methods=methods, seeds=[3], rates=[0.5], progress=follow)
    assert lines == ["mine-diverges_at_choice: bpgs + cagrad(alpha=0.2), seed 3, rate 0.5"]


def test_a_module_and_a_mapping_of_recipes_are_accepted(script: Path) -> None:
    done = run("mine:train", methods={"raw": recipe("bpgs", normalise=False)}, name="own", seeds=[3])
    assert list(done.report.frames) == ["own"]
    (folder,) = Path("runs/own").iterdir()
    described = json.loads((folder / "run.json").read_text())
    assert described["recipe"]["options"] == [["normalise", False]]
    weights = json.loads(json.loads((folder / "result.json").read_text())["result"])["weights"]
    assert list(weights) == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"function": "mine.py"}, "expected package.module:function or file.py:function"),
        ({"function": "other.py:train"}, "other.py not found"),
        ({"function": "nowhere:train"}, "no module 'nowhere'"),
        ({"function": "mine.py:trains"}, "did you mean 'train'"),
        ({"function": "mine.py:CONSTANT"}, "expected a function"),
        ({"function": "mine.py:part"}, r"expected a function \(def\) at the top level"),
        ({"function": "mine.py:instance"}, r"expected a function \(def\) at the top level"),
        ({"function": lambda balancer: {}}, "is not the name of a function"),
        ({"function": "mine.py:needs_epochs"}, "missing a required argument: 'epochs'"),
        ({"options": {"depth": 3}}, "unexpected keyword argument 'depth'"),
        ({"function": "mine.py:no_scores", "rates": [0.1]}, "unexpected keyword argument 'lr'"),
        ({"options": {"log": ["a"]}}, "expected a number, text or a boolean"),
        ({"options": {"seed": 7}}, "option seed is set for each run: omit it, and pass --seeds"),
        ({"options": {"device": "cuda"}}, "option device is set for each run"),
        ({"options": {"lr": 0.1}, "rates": [0.2]}, "option lr is set for each run"),
        ({"options": ["log=a"]}, "expected a dictionary"),
        ({"methods": ["bgps"]}, "unknown method 'bgps': did you mean 'bpgs'"),
        ({"methods": []}, "no method given"),
        ({"methods": [cp.BPGS(["a", "b"])]}, "is of type BPGS, expected names such as 'bpgs'"),
        ({"methods": {"mine": cp.BPGS}}, "expected recipes"),
        ({"methods": ["cagrad(d=1)"]}, "has no option 'd'"),
        ({"methods": ["cagrad(alpha=)"]}, "invalid options"),
        ({"tasks": ()}, "cannot be built"),
        ({"tasks": 2}, "tasks is 2, expected a list, or text with commas"),
        ({"tasks": [1, 2]}, "expected the names of the losses"),
        ({"better": ()}, "is not stated"),
        ({"better": "larger"}, "invalid direction 'larger'"),
        ({"better": "error=lower"}, "direction of the score 'hits' is not stated"),
        ({"better": BETTER | {"loss": "lower"}}, "no score 'loss'"),
        ({"choose_by": "loss"}, "no score 'loss'"),
        ({"seeds": ()}, "expected at least one integer"),
        ({"seeds": "0-x"}, "invalid seeds"),
        ({"seeds": 3}, "seeds is 3, expected a list"),
        ({"seeds": [0.5]}, "expected at least one integer"),
        ({"seeds": [True]}, "expected at least one integer"),
        ({"rates": 0.1}, "rates is 0.1, expected a list"),
        ({"rates": "fast"}, "expected numbers"),
        ({"rates": [float("nan")]}, "expected numbers"),
        ({"rates": (0.1, 0.2), "rate_seeds": "1-2"}, "seeds 1 are reported and choose the rates"),
        ({"name": "rescaling"}, "invalid name"),
        (
            {"function": "mine.py:unequal_scores", "better": "lower"},
            "score 'b' is missing in the run of static, seed 1",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_invalid_arguments_raise_usage_errors(script: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(**{"seeds": (0, 1)} | changes)


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_scores", "returned 0.5, expected a dictionary"), ("text_score", "returned 'low' as the score 'error'")],
)
def test_wrong_return_types_fail_in_one_line(script: Path, name: str, message: str) -> None:
    with pytest.raises(RunError, match=message) as raised:
        run(f"mine.py:{name}")
    assert "\n" not in str(raised.value)


def test_command_shows_tables_and_reports_errors(script: Path) -> None:
    command = ["compare", "mine.py:train", "--tasks", "a,b", "--method", "static", "--method", "bpgs", "--seeds", "0,1"]
    command += ["--executor", "inline", "--out", "runs"]
    shown = CliRunner().invoke(app, [*command, "--better", "error=lower", "--better", "hits=higher"])
    assert shown.exit_code == 0, shown.output
    assert "Difference to static" in shown.output
    assert "runs/report/index.html" in shown.output
    failed = CliRunner().invoke(app, [*command, "--better", "lowest"])
    assert failed.exit_code == 2
    assert "invalid direction 'lowest'" in failed.output
    command[1] = "mine.py:part"
    part = CliRunner().invoke(app, [*command, "--better", "lower"])
    assert part.exit_code == 2
    assert "is not defined in a file" in part.output


def test_command_reports_failed_runs(script: Path, failing: dict[str, Any]) -> None:
    options = [f"--option={name}={value}" for name, value in failing["options"].items()]
    command = ["compare", "mine.py:fails", "--tasks", "a,b", "--method", "static", "--method", "bpgs", "--seeds", "0,1"]
    ran = CliRunner().invoke(app, [*command, "--better", "lower", "--jobs", "1", "--out", "runs", *options])
    assert ran.exit_code == 2
    assert "done: mine-fails: static, seed 1\n" in ran.output
    assert "failed: mine-fails: bpgs, seed 1\n" in ran.output
    assert "error: 1 run failed." in ran.output


def test_a_function_of_this_file_is_imported_by_its_path(tmp_path: Path) -> None:
    def in_a_function(balancer: object) -> dict[str, float]:
        return {"a": 1.0}

    arguments: dict[str, Any] = {"tasks": ["a", "b"], "methods": ["static"], "better": "lower", "executor": "inline"}
    done = compare(constant_score, out=tmp_path, seeds=[0], **arguments)
    assert "test_compare-constant_score" in done.report.frames
    wrong: Callable[..., Any] = in_a_function
    with pytest.raises(UsageError, match="is not the name of a function"):
        compare(wrong, out=tmp_path, **arguments)


def constant_score(balancer: object) -> dict[str, float]:
    return {"a": 1.0}
