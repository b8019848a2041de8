"""Whether a product can be written is found out before the work, and finding out changes nothing."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.schemas.errors import PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io import files
from pliant.schemas.file_io.files import check_folder, check_output


def refused(path: Path | str, check: Callable[[Path | str], None] = check_output) -> str:
    with pytest.raises(UsageError) as caught:
        check(path)
    return str(caught.value)


def test_a_place_that_can_be_written_stays_as_it_is(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"kept")
    (tmp_path / "link").symlink_to(old)
    for name in ("old", "new", "link"):
        check_output(tmp_path / name)
    check_output(tmp_path / "a" / "b" / "new", makes_folder=True)
    check_folder(tmp_path / "a" / "b")
    check_folder(tmp_path)
    check_output("/dev/null")
    check_output("-")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "old"]
    assert old.read_bytes() == b"kept"


def test_what_is_wrong_with_a_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused(tmp_path) == f"{tmp_path}: is a directory, expected a file"
    missing = tmp_path / "gone" / "out"
    assert refused(missing) == f"{missing}: the folder {tmp_path}/gone is missing, expected it to be there"
    inside = tmp_path / "file" / "out"
    assert refused(inside) == f"{inside}: cannot be written: not a directory"
    assert refused(inside, check_folder) == f"{inside}: cannot be written: not a directory"
    assert refused(tmp_path / "file", check_folder).endswith("file: cannot be written: not a directory")
    assert refused(tmp_path / ("x" * 300)).endswith("cannot be written: file name too long")
    assert "cannot be written" in refused("a\0b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.EACCES, UsageError), (errno.EROFS, ServiceMissingError), (errno.ENOSPC, ServiceMissingError)],
)
def test_a_folder_that_takes_no_file(
    number: int, error: type[PliantError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "write_all", refuse)
    for check, name in ((check_output, "out"), (check_folder, "folder")):
        with pytest.raises(error, match=f"{name}: cannot be written: {os.strerror(number).lower()}"):
            check(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_may_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_arguments: False)
    assert refused("/dev/null") == "/dev/null: cannot be written: permission denied"


def test_a_closed_stdout_is_found_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert refused("-").startswith("stdout is closed")
