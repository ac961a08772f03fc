"""Comparisons in a user's own training function: calls, resuming, choice of rates, tables, page and errors."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.commands import app
from helpers.empty_figures import write_empty_figures
from typer.testing import CliRunner

import counterpoise as cp
from counterpoise.lab.engine import RunError, recipe
from counterpoise.lab.errors import UsageError
from counterpoise.lab.report import collect_runs
from counterpoise.lab.workflows import Comparison, compare
from counterpoise.lab.workflows.compare_arguments import (
    parse_directions,
    parse_method,
    parse_options,
    parse_own_seeds,
)

SCRIPT = """
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

def fails(balancer, seed):
    raise RuntimeError("no memory left")

def diverges(balancer, seed):
    return {"a": float("nan") if seed and type(balancer).__name__ == "BPGS" else 1.0}

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
    assert differences.loc[("hits ↑", "bpgs"), ["low", "high"]].tolist() == pytest.approx([2.0, 2.0])
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


def test_runs_that_diverge_have_no_score(script: Path) -> None:
    run("mine.py:diverges", better="lower", methods=["static", "bpgs"])
    assert "| bpgs (seed 0) | **1.0000** |" in Path("runs/report/tables/mine-diverges.md").read_text()


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
        ({"function": lambda balancer: {}}, "is not the name of a function"),
        ({"function": "mine.py:needs_epochs"}, "missing a required argument: 'epochs'"),
        ({"options": {"depth": 3}}, "unexpected keyword argument 'depth'"),
        ({"function": "mine.py:no_scores", "rates": [0.1]}, "unexpected keyword argument 'lr'"),
        ({"options": {"log": ["a"]}}, "expected a number, text or a boolean"),
        ({"methods": ["bgps"]}, "unknown method 'bgps': did you mean 'bpgs'"),
        ({"methods": []}, "no method given"),
        ({"methods": ["cagrad(d=1)"]}, "has no option 'd'"),
        ({"methods": ["cagrad(alpha=)"]}, "invalid options"),
        ({"tasks": ()}, "cannot be built"),
        ({"better": ()}, "is not stated"),
        ({"better": "larger"}, "invalid direction 'larger'"),
        ({"better": "error=lower"}, "direction of the score 'hits' is not stated"),
        ({"better": BETTER | {"loss": "lower"}}, "no score 'loss'"),
        ({"choose_by": "loss"}, "no score 'loss'"),
        ({"seeds": ()}, "expected at least one integer"),
        ({"seeds": "0-x"}, "invalid seeds"),
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BPGS", recipe("bpgs")),
        ("uw_so", recipe("uw-so")),
        ("Kendall+ℓ1", recipe("kendall-l1")),
        ("Gradient normalisation", recipe("grad-normalise")),
        ("BPGS (gradient)", recipe("bpgs", statistic="gradient")),
        ("cagrad(alpha=0.2)", recipe("cagrad", alpha=0.2)),
        ("bpgs + cagrad(alpha=0.2)", recipe("cagrad", alpha=0.2, weighting=recipe("bpgs"))),
    ],
)
def test_methods_are_parsed(text: str, expected: object) -> None:
    assert parse_method(text) == expected


def test_every_method_of_the_library_is_parsed() -> None:
    assert [parse_method(name).name for name in cp.methods()] == cp.methods()


def test_directions_seeds_and_options_are_parsed() -> None:
    directions = parse_directions(["lower", "a=b=higher"])
    assert (directions.column("x"), directions.column("a=b")) == ("x ↓", "a=b ↑")
    assert parse_own_seeds("3,0-1") == (3, 0, 1)
    assert parse_options(["epochs=3", "lr=1e-3", "path=a=b"]) == {"epochs": 3, "lr": 1e-3, "path": "a=b"}
    with pytest.raises(UsageError, match="expected name=value"):
        parse_options(["epochs"])
    with pytest.raises(UsageError, match="own seeds"):
        parse_own_seeds("paper")


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
