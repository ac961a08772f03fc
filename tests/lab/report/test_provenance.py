"""How long runs took, from what was noted beside each."""

import json
from pathlib import Path

from counterpoise.lab.report import machine_table

NOTED = {"machine": "a GPU", "python": "3.11", "torch": "2", "runs": 1}


def note(folder: Path, finished: str, seconds: float, **others: object) -> None:
    folder.mkdir(parents=True)
    finished = f"2026-01-01T{finished}Z"
    (folder / "circumstances.json").write_text(json.dumps(NOTED | others | {"finished": finished, "seconds": seconds}))


def test_runs_side_by_side_keep_a_machine_busy_once(tmp_path: Path) -> None:
    note(tmp_path / "one" / "a", "10:10:00", 600)
    note(tmp_path / "one" / "b", "10:15:00", 600)  # five minutes beside a
    note(tmp_path / "two" / "c", "10:14:00", 60)  # beside b
    note(tmp_path / "two" / "d", "12:00:00", 30)
    said = machine_table(tmp_path, ["one", "two"])
    assert "| `one` | 2 | a GPU | torch 2, Python 3.11 | 2026-01-01 | 20.0 |" in said
    assert "| `two` | 2 | a GPU | torch 2, Python 3.11 | 2026-01-01 | 1.5 |" in said
    assert "a GPU: busy for 15.5 minutes." in said


def test_runs_of_one_stack_share_its_time(tmp_path: Path) -> None:
    for name in "abc":
        note(tmp_path / "one" / name, "10:10:00", 180, runs=3)
    said = machine_table(tmp_path, ["one"])
    assert "| 3.0 |" in said
    assert "a GPU: busy for 3.0 minutes." in said


def test_two_machines_at_once_are_told_apart(tmp_path: Path) -> None:
    note(tmp_path / "one" / "a", "10:10:00", 600)
    note(tmp_path / "one" / "b", "10:10:00", 300, machine="a CPU")
    said = machine_table(tmp_path, ["one"])
    assert "a GPU: busy for 10.0 minutes." in said
    assert "a CPU: busy for 5.0 minutes." in said


def test_an_empty_folder_says_nothing(tmp_path: Path) -> None:
    assert "busy" not in machine_table(tmp_path, ["one"])


def test_notes_of_another_kind_and_files_that_are_not_ours_are_left_out(tmp_path: Path) -> None:
    note(tmp_path / "one" / "a", "10:10:00", 60)
    (tmp_path / "one" / ".DS_Store").write_bytes(b"\0")
    others = ({"seconds": 3.0}, {**NOTED, "finished": "yesterday", "seconds": 3.0}, {**NOTED, "seconds": "long"}, [1])
    for number, other in enumerate(others):
        (tmp_path / "one" / str(number)).mkdir()
        (tmp_path / "one" / str(number) / "circumstances.json").write_text(json.dumps(other))
    said = machine_table(tmp_path, ["one"])
    assert "| `one` | 1 | a GPU |" in said
    assert "a GPU: busy for 1.0 minutes." in said
