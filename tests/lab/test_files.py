"""Atomic replacement of files and folders."""

import errno
import os
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
