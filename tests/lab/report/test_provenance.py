"""The table of machines and times, from what was recorded with each run."""

import json
from pathlib import Path

from helpers.fake_runs import fake_run

from counterpoise.lab.engine import Store
from counterpoise.lab.engine.archive import SUFFIX, pack
from counterpoise.lab.report import machine_table
from counterpoise.lab.studies import STUDIES

RECORD = {"machine": "a GPU", "python": "3.11", "torch": "2", "runs": 1}


def record(folder: Path, finished: str, seconds: float, **others: object) -> None:
    folder.mkdir(parents=True)
    finished = f"2026-01-01T{finished}Z"
    (folder / "circumstances.json").write_text(json.dumps(RECORD | others | {"finished": finished, "seconds": seconds}))


def test_busy_time_counts_overlapping_runs_once(tmp_path: Path) -> None:
    record(tmp_path / "one" / "a", "10:10:00", 600)
    record(tmp_path / "one" / "b", "10:15:00", 600)  # overlaps a by five minutes
    record(tmp_path / "two" / "c", "10:14:00", 60)  # during b
    record(tmp_path / "two" / "d", "12:00:00", 30)
    table = machine_table(tmp_path, ["one", "two"])
    assert "| `one` | 2 | a GPU | torch 2, Python 3.11 | 2026-01-01 | 20.0 |" in table
    assert "| `two` | 2 | a GPU | torch 2, Python 3.11 | 2026-01-01 | 1.5 |" in table
    assert "a GPU: busy for 15.5 minutes." in table


def test_runs_of_one_batch_share_its_time(tmp_path: Path) -> None:
    for name in "abc":
        record(tmp_path / "one" / name, "10:10:00", 180, runs=3)
    table = machine_table(tmp_path, ["one"])
    assert "| 3.0 |" in table
    assert "a GPU: busy for 3.0 minutes." in table


def test_resumed_runs_are_counted_since_their_last_start(tmp_path: Path) -> None:
    record(tmp_path / "one" / "a", "10:10:00", 60, resumed=False)
    assert "esumed" not in machine_table(tmp_path, ["one"])
    record(tmp_path / "one" / "b", "10:10:00", 60, resumed=True)
    assert "Resumed runs: 1. Only the time since their last start is counted." in machine_table(tmp_path, ["one"])


def test_each_machine_has_its_own_busy_time(tmp_path: Path) -> None:
    record(tmp_path / "one" / "a", "10:10:00", 600)
    record(tmp_path / "one" / "b", "10:10:00", 300, machine="a CPU")
    table = machine_table(tmp_path, ["one"])
    assert "a GPU: busy for 10.0 minutes." in table
    assert "a CPU: busy for 5.0 minutes." in table


def test_empty_folder_gives_no_busy_time(tmp_path: Path) -> None:
    assert "busy" not in machine_table(tmp_path, ["one"])


def test_incomplete_records_and_unrecognised_files_are_skipped(tmp_path: Path) -> None:
    record(tmp_path / "one" / "a", "10:10:00", 60)
    (tmp_path / "one" / ".DS_Store").write_bytes(b"\0")
    others = ({"seconds": 3.0}, {**RECORD, "finished": "yesterday", "seconds": 3.0}, {**RECORD, "seconds": "long"}, [1])
    for number, other in enumerate(others):
        (tmp_path / "one" / str(number)).mkdir()
        (tmp_path / "one" / str(number) / "circumstances.json").write_text(json.dumps(other))
    table = machine_table(tmp_path, ["one"])
    assert "| `one` | 1 | a GPU |" in table
    assert "a GPU: busy for 1.0 minutes." in table


def test_archive_gives_the_same_table_as_its_folders(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    for cell in list(STUDIES["scale-stress"].grid(seeds=[42]))[:3]:
        store.finish(cell.run, *fake_run(cell.run, ("a", "b")))
        store.write_circumstances(cell.run, RECORD | {"finished": "2026-01-01T10:10:00Z", "seconds": 60.0})
    pack(store.root, tmp_path / "packed" / f"scale-stress{SUFFIX}")
    tables = [machine_table(folder, ["scale-stress"]) for folder in (store.root, tmp_path / "packed")]
    assert tables[0] == tables[1]
    assert "| `scale-stress` | 3 | a GPU |" in tables[0]
