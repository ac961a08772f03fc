"""Atomic replacement of files and folders."""

import errno
import os
import random
from pathlib import Path

import pytest

from counterpoise._files import atomic_path
from counterpoise.lab.files import write_atomic


def test_a_failed_write_names_the_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_disk_full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*/folder'"):
        write_atomic(tmp_path / "folder", b"new")
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match=r"File exists: '.*/file'"):
        write_atomic(tmp_path / "file" / "inside", b"new")
    monkeypatch.setattr("os.fsync", raise_disk_full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"):
        write_atomic(tmp_path / "file", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file"}
    assert (tmp_path / "file").read_bytes() == b"old"


def test_symbolic_links_and_pipes_are_kept(tmp_path: Path) -> None:
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


def test_a_folder_is_replaced_only_if_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "folder"

    def interrupted() -> None:
        with atomic_path(target) as temporary:
            temporary.mkdir()
            (temporary / "file").write_text("incomplete")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with atomic_path(target) as temporary:
        temporary.mkdir()
        (temporary / "file").write_text("complete")
        assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert (target / "file").read_text() == "complete"


def test_temporary_names_do_not_depend_on_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes on two machines that share a folder can have the same id, and the same state of `random`."""
    monkeypatch.setattr("os.getpid", lambda: 1)
    names = set()
    for _ in range(100):
        random.seed(0)
        with atomic_path(tmp_path / "file") as temporary:
            temporary.touch()
        names.add(temporary.name)
    assert len(names) == 100


def test_abandoned_temporary_paths_are_deleted_when_a_folder_is_written(tmp_path: Path) -> None:
    old_file, old_folder, in_use, young = (tmp_path / f".{digit * 16}.file" for digit in "0123")
    foreign = [tmp_path / ".DS_Store", tmp_path / ".0123.file", tmp_path / f"{'0' * 16}.file"]
    for folder in (old_folder, in_use):
        folder.mkdir()
        (folder / "part").touch()
    for path in (old_file, young, *foreign):
        path.touch()
    for path in (old_file, old_folder / "part", old_folder, in_use, *foreign):
        os.utime(path, (0, 0))
    write_atomic(tmp_path / "file", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in (in_use, young, *foreign)} | {"file"}


def test_sweeping_uses_the_clock_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / f".{'0' * 16}.file"
    temporary.touch()
    monkeypatch.setattr("time.time", lambda: 1e12)
    write_atomic(tmp_path / "file", b"new")
    assert temporary.exists()


def test_writing_through_a_link_to_itself_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match=r"symbolic links: '.*/loop'"):
        write_atomic(tmp_path / "loop", b"new")
