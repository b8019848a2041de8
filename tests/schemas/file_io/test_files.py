"""Writing happens or does not: full disks, pipes, terminals, links and devices."""

from __future__ import annotations

import errno
import io as stdio
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pliant.schemas import io
from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.schemas.file_io import files
from pliant.schemas.profile import Profile
from tests.builders import cluster, job


def fail_with(number: int) -> Any:
    def fail(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.json"
    io.write_cluster(cluster(4), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, call, fail_with(errno.ENOSPC))
    with pytest.raises(ServiceMissingError, match=r"^.*cluster\.json: cannot be written: no space left"):
        io.write_cluster(cluster(8), path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_fills_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, []

    def write_some(descriptor: int, data: Any) -> int:
        calls.append(len(data))
        return real(descriptor, data[:5]) if len(calls) == 1 else fail_with(errno.ENOSPC)()

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(ServiceMissingError):
        files.atomic_write(tmp_path / "out", b"0123456789")
    assert calls == [10, 5]
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_is_cut_short_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    files.atomic_write(tmp_path / "out", b"0123456789")
    assert (tmp_path / "out").read_bytes() == b"0123456789"


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.atomic_write(tmp_path / "out", b"data")
    assert list(tmp_path.iterdir()) == []


def test_the_file_then_its_folder_are_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, forced = os.fsync, []

    def fsync(descriptor: int) -> None:
        forced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files.atomic_write(tmp_path / "out", b"data")
    assert forced == ["file", "folder"]


def test_a_place_that_cannot_be_written_is_a_mistake_of_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or directory"):
        files.atomic_write(tmp_path / "none" / "out", b"data")
    with pytest.raises(UsageError, match="is a directory"):
        files.atomic_write(tmp_path, b"data")
    assert list(tmp_path.iterdir()) == []


def test_the_mode_of_a_file_is_kept_and_a_new_one_obeys_the_umask(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch(0o640)
    old.chmod(0o640)
    files.atomic_write(old, b"data")
    files.atomic_write(new, b"data")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    (tmp_path / "plain").touch()
    assert new.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    files.atomic_write(tmp_path / "link", b"data")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"data"


def test_a_named_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    files.atomic_write(pipe, b"data")
    reader.join()
    assert got == [b"data"]
    assert pipe.is_fifo()


def test_a_full_device_is_a_missing_service() -> None:
    with pytest.raises(ServiceMissingError, match="no space left"):
        files.atomic_write("/dev/full", b"data")


def run_python(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], text=True, stderr=subprocess.PIPE, check=False, **options
    )


FULL = """
from pliant.schemas.file_io import files
from pliant.schemas.errors import ServiceMissingError
try:
    files.write_bytes("-", b"data" * 100000)
except ServiceMissingError as error:
    raise SystemExit(str(error))
"""


def test_a_full_disk_behind_stdout_is_one_line_and_no_noise_at_exit() -> None:
    with open("/dev/full", "wb") as full:
        ended = run_python(FULL, stdout=full)
    assert ended.returncode == 1
    assert ended.stderr == "<stdout>: cannot be written: no space left on device\n"


def test_a_reader_that_has_enough_is_left_to_the_caller() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = run_python("from pliant.schemas.file_io import files; files.write_bytes('-', b'x')", stdout=write)
    os.close(write)
    assert "BrokenPipeError" in ended.stderr


def test_parquet_goes_through_a_pipe_but_never_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    profile, out = (
        Profile(()),
        SimpleNamespace(buffer=stdio.BytesIO(), isatty=lambda: False, flush=lambda: None),
    )
    monkeypatch.setattr(sys, "stdout", out)
    io.write_profile(profile, "-")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdio.BytesIO(out.buffer.getvalue())))
    assert io.read_profile("-") == profile
    out.isatty = lambda: True
    with pytest.raises(UsageError, match="not written to a terminal: give -o FILE or pipe"):
        io.write_profile(profile, "-")


def test_text_goes_through_a_pipe_and_messages_call_it_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    out = SimpleNamespace(buffer=stdio.BytesIO(), isatty=lambda: True, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", out)
    io.write_jobs([job("a")], "-")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdio.BytesIO(out.buffer.getvalue() + b"{}\n")))
    with pytest.raises(BadInputError, match=r"^<stdin>:3: /id: is missing"):
        io.read_jobs("-")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdio.BytesIO(b"")))
    with pytest.raises(BadInputError, match=r"^<stdin>: nothing came in$"):
        io.read_jobs("-")


def test_readers_are_cheap_to_import() -> None:
    """Start-up is part of every command: the large libraries come in only with a Parquet file."""
    loaded = run_python("import sys, pliant.schemas.io; print(*sys.modules)", stdout=subprocess.PIPE)
    assert "pydantic" in loaded.stdout.split()
    assert not {"numpy", "pandas", "pyarrow", "torch"} & set(loaded.stdout.split())
