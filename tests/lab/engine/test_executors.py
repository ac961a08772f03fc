"""The same bytes wherever runs are trained; workers that die are replaced."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT

from counterpoise.lab.engine import (
    Run,
    RunBatch,
    RunError,
    Store,
    make_executor,
    make_run_batches,
    recipe,
    run_batches,
    spec,
)
from counterpoise.lab.engine.executors import Job, ProcessExecutor
from counterpoise.lab.studies.base import AUTHORS, BPGS, KENDALL

from .test_store import files


def stacks(epochs: int = 3) -> list[RunBatch]:
    schedule = replace(AUTHORS, epochs=epochs)
    data = spec("scale-stress", scale=10.0)
    runs = [Run("test", data, spec("mlp"), m, s, schedule) for m in (BPGS, KENDALL) for s in range(4)]
    return make_run_batches(runs, largest=2)


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    for name, jobs in (("inline", None), ("processes", 1), ("processes", 2)):
        with make_executor(name, jobs=jobs) as executor:  # type: ignore[arg-type]
            run_batches(stacks(), tmp_path / f"{name}{jobs}", executor)
    assert files(tmp_path / "inlineNone") == files(tmp_path / "processes1") == files(tmp_path / "processes2")
    assert len(files(tmp_path / "inlineNone")) == 8 * 3


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    victims: list[int] = []
    with make_executor("inline") as executor:
        run_batches(stacks(8), tmp_path / "calm", executor)
    pool = ProcessExecutor(2)

    def kill_one(running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
        started = [s for s in running if Store(tmp_path / "killed").load_progress(s.study, s.key)]
        alive = [job.process.pid for job in pool.jobs if job.process.is_alive()]
        if started and alive and not victims:
            victims.append(alive[0])
            os.kill(alive[0], signal.SIGKILL)

    try:
        run_batches(stacks(8), tmp_path / "killed", pool, kill_one)
    finally:
        pool.stop()
    assert len(victims) == 1
    assert len(pool.jobs) == len(stacks()) + 1
    assert files(tmp_path / "killed") == files(tmp_path / "calm")


PARENT = """
import sys, time
from pathlib import Path
from lab.test_executors import stacks
from counterpoise.lab.engine.executors import ProcessExecutor

if __name__ == "__main__":
    job = ProcessExecutor(1).start(stacks(10**6)[0], Path(sys.argv[1]))
    print(job.process.pid, flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    path = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    command = [sys.executable, str(script), str(tmp_path / "runs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        assert alive(worker)
        parent.kill()
    for _ in range(600):
        if not alive(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker goes on without its parent")


def test_a_worker_that_dies_every_time_is_given_up(tmp_path: Path) -> None:
    pool = ProcessExecutor(1)

    def kill(running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
        for job in pool.jobs:
            job.process.kill()

    with pytest.raises(RunError, match="lost 3 times"):
        run_batches(stacks(50)[:1], tmp_path, pool, kill)


def test_what_a_worker_raises_is_told(tmp_path: Path) -> None:
    one = stacks()[0].runs[0]
    broken = RunBatch((replace(one, recipe=recipe("bpgs", margin=-9.0)),))
    with make_executor("processes", jobs=1) as executor, pytest.raises(RunError, match="margin is -9"):
        run_batches([broken], tmp_path, executor)


@pytest.mark.parametrize("name", ["inline", "processes", "ray"])
def test_a_bad_disk_is_told_in_one_line(name: Any, tmp_path: Path) -> None:
    if name == "ray":
        pytest.importorskip("ray", reason="needs Ray")
    (tmp_path / "file").touch()
    one = stacks()[0]
    with make_executor(name) as executor, pytest.raises(RunError, match=r"Not a directory: '.*/file/") as told:
        run_batches([one], tmp_path / "file", executor)
    assert str(told.value).startswith(f"{one} failed: ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["inline", "processes"])
def test_bad_data_are_told_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "rf1").mkdir()
    (tmp_path / "rf1" / "rf1.arff").write_text("@relation cut\n@attribute a num")
    command = [sys.executable, "-m", "counterpoise.lab.cli.app", "reproduce", "rf1", "--epochs", "1", "--seeds", "42"]
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "runs"), "--method", "Static", "--executor", name]
    wide = {**os.environ, "COLUMNS": "1000"}
    ran = subprocess.run([*command, *options], capture_output=True, text=True, env=wide)
    assert ran.returncode == 2
    (line,) = ran.stderr.strip().splitlines()
    assert f"{tmp_path}/rf1/rf1.arff: expected a whole ARFF table" in line


def test_a_cluster_that_is_nowhere_is_named() -> None:
    pytest.importorskip("ray", reason="needs Ray")
    with pytest.raises(RunError, match="cannot reach Ray at 'nowhere'"), make_executor("ray", address="nowhere"):
        pass


def crash(node: Any) -> None:
    """Kills a node of a local Ray cluster as a power cut would: its raylet and all its workers."""
    raylet = node.all_processes["raylet"][0].process.pid
    children = Path(f"/proc/{raylet}/task/{raylet}/children")
    workers = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    for pid in (raylet, *workers):
        os.kill(pid, signal.SIGKILL)


def test_a_ray_cluster_of_two_nodes_loses_one_and_no_result(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="needs Ray")
    from ray.cluster_utils import Cluster

    todo, started = stacks(25), []
    killed: list[Any] = []
    with make_executor("inline") as executor:
        run_batches(todo, tmp_path / "calm", executor)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    doomed = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)

    def kill_the_second_node(running: Sequence[RunBatch], ended: Sequence[RunBatch]) -> None:
        store = Store(tmp_path / "ray")
        busy = sum(store.load_progress(s.study, s.key) is not None for s in running)
        if busy == 2 and not killed:  # both nodes are in the middle of a stack
            killed.append(doomed)
            crash(doomed)

    class Counted:
        slots = 10_000

        def start(self, stack: RunBatch, root: Path) -> Job:
            started.append(stack)
            return ray_executor.start(stack, root)

    try:
        with make_executor("ray", address=cluster.address) as ray_executor:
            run_batches(todo, tmp_path / "ray", Counted(), kill_the_second_node)
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]
    assert killed
    assert len(started) == len(todo) + 1
    assert files(tmp_path / "ray") == files(tmp_path / "calm")
