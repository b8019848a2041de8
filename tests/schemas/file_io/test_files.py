import errno
import io as stdio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest

from pliant.schemas import io
from pliant.schemas.errors import BadInputError, ServiceMissingError, UsageError
from pliant.schemas.file_io import files, limits
from pliant.schemas.file_io.files import check_folder, check_output
from pliant.schemas.kinds import validate_file
from pliant.schemas.profile import Profile
from pliant.tools.replay.engine.failures import read_failures
from pliant.tools.replay.importers.reading import first_line
from pliant.tools.replay.sweep_recipe import read_sweep
from pliant.tools.replay.synthetic_recipe import read_recipe
from pliant.tools.report.expectations import read_expectations
from pliant.tools.report.read_run import read_run
from tests.builders import cluster, job


def fail_with(number: int) -> Any:
    def fail(*_arguments: object, **_more: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(call, tmp_path, monkeypatch) -> None:
    path = tmp_path / "cluster.json"
    io.write_cluster(cluster(4), path)
    before = path.read_bytes()
    monkeypatch.setattr(os, call, fail_with(errno.ENOSPC))
    with pytest.raises(ServiceMissingError, match=r"^.*cluster\.json: cannot be written: no space left"):
        io.write_cluster(cluster(8), path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.write, []

    def write_some(descriptor: int, data: Any) -> int:
        calls.append(len(data))
        return real(descriptor, data[:5]) if len(calls) == 1 else fail_with(errno.ENOSPC)()

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(ServiceMissingError):
        files.atomic_write(tmp_path / "out", b"0123456789")
    assert calls == [10, 5]
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:3]))
    files.atomic_write(tmp_path / "out", b"0123456789")
    assert (tmp_path / "out").read_bytes() == b"0123456789"


def test_a_file_made_in_place_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")

    def fill(stream: IO[bytes], *, fails: bool = False) -> None:
        stream.write(b"too long")
        stream.seek(0)
        stream.truncate()
        stream.write(b"new")
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert path.read_bytes() == b"old"

    with pytest.raises(ServiceMissingError, match="out: cannot be written: no space left"):
        files.write_with(path, partial(fill, fails=True))
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"old", [path])
    files.write_with(path, fill)
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (b"new", [path])


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


def test_modes_are_kept_and_unwritable_places_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file or directory"):
        files.atomic_write(tmp_path / "none" / "out", b"data")
    with pytest.raises(UsageError, match="is a directory"):
        files.atomic_write(tmp_path, b"data")
    assert list(tmp_path.iterdir()) == []
    # Modes are kept and new files obey the umask.
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch(0o640)
    old.chmod(0o640)
    files.atomic_write(old, b"data")
    files.atomic_write(new, b"data")
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    (tmp_path / "plain").touch()
    assert new.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_links_stay_pipes_are_written_a_full_device_is_reported(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    files.atomic_write(tmp_path / "link", b"data")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"data"
    # A named pipe is written and not replaced.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.atomic_write(pipe, b"data")
    files.write_with(pipe, lambda stream: stream.write(b"more") and None)
    assert os.read(reader, 10) == b"datamore"
    os.close(reader)
    assert pipe.is_fifo()
    with pytest.raises(ServiceMissingError, match="no space left"):
        files.atomic_write("/dev/full", b"data")


def test_parquet_goes_through_a_pipe_but_never_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = Profile(())
    out = SimpleNamespace(buffer=stdio.BytesIO(), isatty=lambda: False, flush=lambda: None)
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
    line = [sys.executable, "-c", "import sys, pliant.schemas.io; print(*sys.modules)"]
    loaded = set(subprocess.run(line, capture_output=True, text=True, check=True).stdout.split())
    assert "pydantic" in loaded
    assert not {"numpy", "pandas", "pyarrow", "torch"} & loaded


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
def test_a_folder_that_takes_no_file(number, error, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "write_all", fail_with(number))
    for check, name in ((check_output, "out"), (check_folder, "folder")):
        with pytest.raises(error, match=f"{name}: cannot be written: {os.strerror(number).lower()}"):
            check(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_devices_and_a_closed_stdout_are_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_arguments: False)
    assert refused("/dev/null") == "/dev/null: cannot be written: permission denied"
    monkeypatch.setattr(sys, "stdout", None)
    assert refused("-").startswith("stdout is closed")


ADVICE = "PLIANT_INPUT_LIMITS=10 in the environment makes all such limits ten times as large"
READERS = [
    io.read_cluster,
    io.read_convergence,
    io.read_events,
    io.read_jobs,
    io.read_metrics,
    io.read_predictor,
    io.read_profile,
    io.read_schedule,
    read_expectations,
    read_failures,
    partial(read_recipe, overrides={}),
    read_run,
    read_sweep,
    validate_file,
]


def refusal(read: Callable[[Any], Any], path: str | Path) -> str:
    with pytest.raises(BadInputError) as caught:
        read(path)
    return str(caught.value)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "STREAM_BYTES", 5000)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.usefixtures("small")
def test_a_device_without_an_end_is_refused_by_every_reader(read: Callable[[Any], Any]) -> None:
    assert refusal(read, "/dev/zero") == f"/dev/zero: has more than 5,000 bytes; {ADVICE}"


@pytest.mark.usefixtures("small")
def test_the_environment_raises_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.FACTOR, "3")
    assert "has more than 15,000 bytes" in refusal(io.read_jobs, "/dev/zero")


def test_large_documents_and_pipes_without_a_writer_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cluster.json"
    with path.open("wb") as file:
        file.truncate(limits.DOCUMENT_BYTES + 1)
    assert refusal(io.read_cluster, path) == f"{path}: has more than 268,435,456 bytes; {ADVICE}"
    monkeypatch.setattr(files, "WRITER_S", 0.1)
    os.mkfifo(tmp_path / "jobs")
    expected = f"{tmp_path}/jobs: is a pipe, and no process has opened it for writing within 0.1 s"
    for read in (validate_file, io.read_jobs, first_line):
        assert refusal(read, str(tmp_path / "jobs")) == expected


def test_pipes_are_read_to_the_end_of_their_writers(tmp_path: Path) -> None:
    path, source = tmp_path / "pipe", tmp_path / "jobs.jsonl"
    os.mkfifo(path)
    io.write_jobs([job("a"), job("b")], source)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            for byte in source.read_bytes():
                pipe.write(bytes([byte]))

    writer = threading.Timer(0.2, write)
    writer.start()
    assert [each.id for each in io.read_jobs(path)] == ["a", "b"]
    writer.join()
    # A process substitution is read after its writer ended.
    io.write_cluster(cluster(4), tmp_path / "c.json")
    ours, theirs = os.pipe()
    os.write(theirs, (tmp_path / "c.json").read_bytes())
    os.close(theirs)
    try:
        assert io.read_cluster(f"/dev/fd/{ours}") == cluster(4)
    finally:
        os.close(ours)
