"""All executors write identical results, and replace workers that crash."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import app
from helpers.engine_runs import result_files, small_batches
from typer.testing import CliRunner

from counterpoise.lab.engine import RunBatch, RunError, Store, make_executor, recipe, run_batches
from counterpoise.lab.engine.executors import ProcessExecutor
from counterpoise.lab.engine.jobs import Job


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    for name, jobs in (("inline", None), ("processes", 1), ("processes", 2)):
        with make_executor(name, jobs=jobs) as executor:  # type: ignore[arg-type]
            run_batches(small_batches(), tmp_path / f"{name}{jobs}", executor)
    inline, one_process, two_processes = (
        result_files(tmp_path / name) for name in ("inlineNone", "processes1", "processes2")
    )
    assert inline == one_process == two_processes
    assert len(inline) == 8 * 3


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    killed: list[int] = []
    with make_executor("inline") as executor:
        run_batches(small_batches(8), tmp_path / "uninterrupted", executor)
    pool = ProcessExecutor(2)

    def kill_one(running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
        started = [s for s in running if Store(tmp_path / "killed").load_progress(s.study, s.key)]
        alive = [job.process.pid for job in pool.jobs if job.process.is_alive()]
        if started and alive and not killed:
            killed.append(alive[0])
            os.kill(alive[0], signal.SIGKILL)

    try:
        run_batches(small_batches(8), tmp_path / "killed", pool, kill_one)
    finally:
        pool.stop()
    assert len(killed) == 1
    assert len(pool.jobs) == len(small_batches()) + 1
    assert result_files(tmp_path / "killed") == result_files(tmp_path / "uninterrupted")


def start_long_batch(root: Path, sender: Connection) -> None:
    """Start a batch that takes hours, send the id of its process, and wait."""
    job: Any = ProcessExecutor(1).start(small_batches(10**6)[0], root)
    sender.send(job.process.pid)
    time.sleep(600)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_exit_when_their_parent_is_killed(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")  # a forked parent needs no imports
    receiver, sender = context.Pipe(duplex=False)
    parent = context.Process(target=start_long_batch, args=(tmp_path, sender))
    parent.start()
    worker = receiver.recv()
    assert alive(worker)
    parent.kill()
    parent.join()
    for _ in range(600):
        if not alive(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker is still running without its parent")


def test_a_batch_whose_worker_crashes_three_times_fails(tmp_path: Path) -> None:
    pool = ProcessExecutor(1)

    def kill(running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
        for job in pool.jobs:
            job.process.kill()

    with pytest.raises(RunError, match="crashed 3 times"):
        run_batches(small_batches(50)[:1], tmp_path, pool, kill)


def test_the_error_of_a_worker_is_raised(tmp_path: Path) -> None:
    run = small_batches()[0].runs[0]
    broken = RunBatch((replace(run, recipe=recipe("bpgs", margin=-9.0)),))
    with make_executor("processes", jobs=1) as executor, pytest.raises(RunError, match="margin is -9"):
        run_batches([broken], tmp_path, executor)


def test_a_failed_batch_does_not_stop_the_others(tmp_path: Path) -> None:
    batch = small_batches()[0]
    broken = RunBatch((replace(batch.runs[0], recipe=recipe("bpgs", margin=-9.0)),))
    failures: dict[RunBatch, RunError] = {}
    with make_executor("processes", jobs=1) as executor:
        run_batches([broken, batch], tmp_path, executor, on_failure=failures.__setitem__)
    assert list(failures) == [broken]
    assert "margin is -9" in str(failures[broken])
    assert all(Store(tmp_path).has_result(run) for run in batch.runs)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster of one node, to which a test can add others."""
    pytest.importorskip("ray", reason="needs Ray")
    from ray.cluster_utils import Cluster

    # A lost node is noticed after a fraction of a second instead of 15 seconds. With the low priority that Ray gives
    # its workers, they would hardly run beside other tests.
    config = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 100, "health_check_failure_threshold": 5}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": config | {"worker_niceness": 0}}
    started = Cluster(initialize_head=True, head_node_args=head)
    yield started
    started.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["inline", "processes", "ray"])
def test_disk_errors_are_reported_in_one_line(
    name: Any, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "ray":  # with this variable, Ray uses the cluster instead of starting one
        monkeypatch.setenv("RAY_ADDRESS", request.getfixturevalue("cluster").address)
    (tmp_path / "file").touch()
    batch = small_batches()[0]
    with make_executor(name) as executor, pytest.raises(RunError, match=r"Not a directory: '.*/file/") as raised:
        run_batches([batch], tmp_path / "file", executor)
    assert str(raised.value).startswith(f"{batch} failed: ")
    assert "\n" not in str(raised.value)


def run_command(arguments: list[str], errors: Path) -> None:
    """Run a command. Its standard error, and that of the workers it starts, goes to a file."""
    os.environ["COLUMNS"] = "1000"
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    app(arguments)


def test_data_errors_are_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "rf1").mkdir()
    (tmp_path / "rf1" / "rf1.arff").write_text("@relation cut\n@attribute a num")
    command = ["reproduce", "rf1", "--epochs", "1", "--seeds", "42", "--data", str(tmp_path), "--method", "Static"]
    command += ["--out", str(tmp_path / "runs"), "--executor"]
    inline = CliRunner().invoke(app, [*command, "inline"], env={"COLUMNS": "1000"})
    # A process of its own, because workers write to its standard error, not to a replacement within Python.
    arguments = ([*command, "processes"], tmp_path / "errors")
    process = multiprocessing.get_context("forkserver").Process(target=run_command, args=arguments)
    process.start()
    process.join()
    for code, errors in ((inline.exit_code, inline.stderr), (process.exitcode, arguments[1].read_text())):
        assert code == 2
        (line,) = errors.strip().splitlines()
        assert f"{tmp_path}/rf1/rf1.arff: expected a complete ARFF table" in line


def test_an_unreachable_cluster_is_reported() -> None:
    pytest.importorskip("ray", reason="needs Ray")
    with pytest.raises(RunError, match="cannot reach Ray at 'nowhere'"), make_executor("ray", address="nowhere"):
        pass


def crash(node: Any) -> None:
    """Kill a node of a local Ray cluster abruptly: its raylet and all its workers."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children")
    workers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    for pid in (raylet, *workers):
        os.kill(pid, signal.SIGKILL)


def test_a_ray_cluster_loses_a_node_but_no_result(cluster: Any, tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray")
    batches, started = small_batches(25), []
    killed: list[Any] = []
    with make_executor("inline") as executor:
        run_batches(batches, tmp_path / "uninterrupted", executor)
    second_node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)

    def kill_the_second_node(running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
        store = Store(tmp_path / "ray")
        busy = sum(store.load_progress(s.study, s.key) is not None for s in running)
        if busy == 2 and not killed:  # both nodes are training
            killed.append(second_node)
            crash(second_node)

    class CountingExecutor:
        slots = 10_000

        def start(self, batch: RunBatch, root: Path) -> Job:
            started.append(batch)
            return ray_executor.start(batch, root)

    try:
        with make_executor("ray", address=cluster.address) as ray_executor:
            run_batches(batches, tmp_path / "ray", CountingExecutor(), kill_the_second_node)
    finally:
        ray.shutdown()
    assert killed
    assert len(started) == len(batches) + 1
    assert result_files(tmp_path / "ray") == result_files(tmp_path / "uninterrupted")
