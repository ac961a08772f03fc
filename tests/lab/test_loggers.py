"""Loggers write each point once, also for resumed and repeated runs, and report what is missing."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from helpers.commands import app
from typer.testing import CliRunner, Result

from counterpoise.lab.engine import Store, execute, plan
from counterpoise.lab.loggers import TAG, MLflow, RunLoggers, TensorBoard, scalars_by_epoch
from counterpoise.lab.studies import STUDIES, Cell

EPOCHS = 3
SLICE = ["--epochs", str(EPOCHS), "--method", "BPGS", "--method", "Kendall", "--condition", "×100"]


def reproduce(out: Path, *options: str) -> Result:
    arguments = ["reproduce", "scale-stress", *SLICE, "--executor", "inline", "--out", str(out), *options]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result


def cells(seeds: tuple[int, ...] = (42, 43)) -> list[Cell]:
    grid = STUDIES["scale-stress"].grid(seeds=seeds, epochs=EPOCHS)
    return [c for c in grid if c.method in ("BPGS", "Kendall") and c.condition.key == "×100"]


def train(out: Path, seeds: tuple[int, ...]) -> None:
    for batch in plan([cell.run for cell in cells(seeds)], Store(out)):
        execute(batch, out)


def events(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the points of each tag for each folder of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for file in folder.rglob("events.out.*"):
        read = EventAccumulator(str(file.parent)).Reload()
        scalars = {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}
        assert str(file.parent) not in found, "two event files in one folder"
        found[str(file.parent)] = scalars
    return found


def test_tensorboard_contains_each_point_once(tmp_path: Path) -> None:
    runs, board = tmp_path / "runs", tmp_path / "board"
    store, all_cells = Store(runs), cells()
    # A batch is killed after its first epoch and resumed by the command; then all runs and one more seed are logged.
    (batch,) = plan([cell.run for cell in all_cells], store)
    with pytest.raises(KeyboardInterrupt):
        execute(batch, runs, checkpoint_seconds=0.0, after_epoch=_interrupt)
    reproduce(runs, "--seeds", "42-43", "--tensorboard", str(board))
    first = events(board)
    train(runs, (44,))
    RunLoggers([TensorBoard(board)], cells((42, 43, 44)), store).log_finished()
    second = events(board)
    assert len(first) == 4
    assert len(second) == 6
    assert {name: second[name] for name in first} == first
    for cell in cells((42, 43, 44)):
        (name,) = (name for name in second if f"({cell.run.key[:6]})" in name)
        assert f"scale-stress/{cell.method}/×100, seed {cell.run.seed}" in name
        expected = dict(scalars_by_epoch(cell.run, store))
        tags = set(expected[EPOCHS])
        task = next(iter((store.result(cell.run) or {})["weights"]))
        assert {f"loss/{task}", f"weight/{task}", "macro"} <= tags
        assert ({f"theta/{task}", f"z_over_tau/{task}", "chart/mu"} <= tags) == (cell.method == "BPGS")
        assert set(second[name]) == tags
        for tag, values in second[name].items():
            assert [epoch for epoch, _ in values] == list(range(1, EPOCHS + 1))
            assert [value for _, value in values] == pytest.approx([row[tag] for row in expected.values()], rel=1e-6)


def _interrupt(trainer: Any) -> None:
    raise KeyboardInterrupt


def test_a_changed_result_replaces_the_old_one(tmp_path: Path) -> None:
    store, board = Store(tmp_path / "runs"), tmp_path / "board"
    cell = cells((42,))[0]
    for loss in (1.0, 2.0):
        history = [{"epoch": 1, "loss": [loss, None], "weight": [None, None], "monitor": None, "chart": {}}]
        best = {"epoch": 1, "value": None}
        store.finish(cell.run, history, {"weights": {"a": 1.0, "b": 1.0}, "chart": {}, "best": best})
        RunLoggers([TensorBoard(board)], [cell], store).log_finished()
    assert list(events(board).values()) == [{"loss/a": [(1, 2.0)]}]


def test_a_failing_logger_does_not_stop_the_runs(tmp_path: Path) -> None:
    class Broken:
        def log(self, cell: Cell, store: Store) -> None:
            raise OSError("no space left")

    train(tmp_path, (42,))
    loggers = RunLoggers([Broken()], cells((42,)), Store(tmp_path))
    with pytest.warns(UserWarning, match="Broken: no space left"):
        loggers.log_finished()
    loggers.log_finished()  # without a second warning
    assert not loggers.loggers


@pytest.mark.parametrize(("option", "module"), [("--tensorboard", "tensorboard"), ("--mlflow", "mlflow")])
def test_a_missing_package_is_reported_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, module: str
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    arguments = ["reproduce", "scale-stress", "--out", str(tmp_path / "runs"), option, str(tmp_path / "board")]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 2
    assert f"pip install 'counterpoise[{module}]'" in result.output
    assert not (tmp_path / "runs").exists()


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments = ["reproduce", "scale-stress", "--out", str(tmp_path / "runs"), "--tensorboard", str(tmp_path / "file")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "cannot write event files" in result.output


class FakeClient:
    """An in-memory replacement of those methods of MLflow's client that are used."""

    experiments: dict[str, dict[str, Any]]

    def __init__(self, tracking_uri: str) -> None:
        self.experiments = SERVERS.setdefault(tracking_uri, {})

    def search_experiments(self, max_results: int) -> list[Any]:
        return []

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = {}
        return name

    def search_runs(self, experiment_ids: list[str], max_results: int, page_token: str | None) -> Any:
        class Page(list[Any]):
            token = None

        return Page(self.experiments[experiment_ids[0]].values())

    def create_run(self, experiment_id: str, tags: dict[str, str]) -> Any:
        created = SimpleNamespace(
            info=SimpleNamespace(run_id=tags[TAG], status="RUNNING"), data=SimpleNamespace(tags=tags), metrics=[]
        )
        self.experiments[experiment_id][tags[TAG]] = created
        return created

    def delete_run(self, run_id: str) -> None:
        del self._runs_with(run_id)[run_id]

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        self._runs_with(run_id)[run_id].metrics += [(m.step, m.key, m.value) for m in metrics]

    def set_terminated(self, run_id: str) -> None:
        self._runs_with(run_id)[run_id].info.status = "FINISHED"

    def _runs_with(self, run_id: str) -> dict[str, Any]:
        return next(runs for runs in self.experiments.values() if run_id in runs)


SERVERS: dict[str, dict[str, Any]] = {}


def fake_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def metric(key: str, value: float, timestamp: int, step: int) -> Any:
        return SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)

    parts: dict[str, dict[str, Any]] = {
        "mlflow": {"MlflowClient": FakeClient},
        "mlflow.entities": {"Metric": metric, "Param": lambda key, value: (key, value)},
        "mlflow.exceptions": {"MlflowException": type("MlflowException", (Exception,), {})},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)


def test_mlflow_contains_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a fake client. The next test uses MLflow itself if it is installed."""
    fake_mlflow(monkeypatch)
    store, uri = Store(tmp_path), f"fake:{tmp_path}"
    train(tmp_path, (42,))
    reproduce(tmp_path, "--seeds", "42-43", "--mlflow", uri)
    RunLoggers([MLflow(uri)], cells(), store).log_finished()
    (runs,) = SERVERS[uri].values()
    assert set(runs) == {cell.run.key for cell in cells()}
    assert all(run.info.status == "FINISHED" for run in runs.values())
    for cell in cells():
        expected = [(epoch, name, v) for epoch, row in scalars_by_epoch(cell.run, store) for name, v in row.items()]
        assert runs[cell.run.key].metrics == expected
    killed = cells()[0].run.key
    runs[killed].info.status = "RUNNING"  # as left by an interrupted logger
    runs[killed].metrics = runs[killed].metrics[:5]
    RunLoggers([MLflow(uri)], cells(), store).log_finished()
    assert len(runs[killed].metrics) == len(runs[cells()[1].run.key].metrics)


def test_the_real_mlflow_contains_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("needs MLflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow import MlflowClient

    store, uri = Store(tmp_path / "runs"), (tmp_path / "ml").as_uri()
    train(tmp_path / "runs", (42,))
    for _ in range(2):
        RunLoggers([MLflow(uri)], cells((42,)), store).log_finished()
    client = MlflowClient(tracking_uri=uri)
    found = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert {run.data.tags[TAG] for run in found} == {cell.run.key for cell in cells((42,))}
    for cell in cells((42,)):
        (run,) = (run for run in found if run.data.tags[TAG] == cell.run.key)
        expected = dict(scalars_by_epoch(cell.run, store))
        history = client.get_metric_history(run.info.run_id, "macro")
        assert sorted((m.step, m.value) for m in history) == [(e, row["macro"]) for e, row in expected.items()]
