import os
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.backends import supervisor, write_output
from pliant.tools.run.backends.write_output import Copies


class Unit:
    """One unit with a worker, and the files that its job names."""

    def __init__(self, folder: Path, name: str = "0", **order: Any) -> None:
        self.output, self.error = folder / "out" / "a.out", folder / "out" / "a.err"
        paths = {"output": [str(self.output)], "error": [str(self.error)]}
        self.logs = folder / name
        self.worker = self.logs / "worker" / "attempt_0" / "0"
        self.worker.mkdir(parents=True)
        self.copies = Copies(str(self.logs), {**paths, "owner": True, "truncate": True, **order})

    def prints(self, text: str, *, last: bool = False, to: str = "stdout.log") -> str:
        """What is in the file of output after a look."""
        with (self.worker / to).open("a") as file:
            file.write(text)
        self.copies.look(last=last)
        return self.output.read_bytes().decode() if self.output.is_file() else ""


def test_whole_lines_go_to_the_files_that_a_job_names(tmp_path: Path) -> None:
    unit = Unit(tmp_path)
    unit.copies.open_all()
    assert unit.prints("one\ntw") == "one\n"
    assert unit.prints("o\n50 %\r60") == "one\ntwo\n50 %\r"
    assert unit.prints("") == "one\ntwo\n50 %\r60"  # it waits for an answer, as input() does
    unit.prints("bad", to="stderr.log", last=True)
    assert unit.error.read_text() == "bad"
    # With one file for both, standard output comes first.
    unit = Unit(tmp_path / "2", error=[str(tmp_path / "2" / "out" / "a.out")])
    unit.prints("err\n", to="stderr.log")
    assert unit.prints("out\n", last=True).splitlines() == ["err", "out"]


def test_a_first_attempt_empties_its_file_unless_others_write_it(tmp_path: Path) -> None:
    first = Unit(tmp_path)
    first.output.parent.mkdir()
    first.output.write_text("old\n")
    first.copies.open_all()
    assert first.prints("a\n") == "a\n"
    second = Unit(tmp_path, "1")
    second.copies.open_all()
    assert second.prints("b\n") == "a\nb\n"
    del first, second
    again = Unit(tmp_path, "2", truncate=False)
    again.copies.open_all()
    assert again.prints("c\n") == "a\nb\nc\n"
    # Whoever does not own the file only appends.
    assert Unit(tmp_path, "3", owner=False).prints("d\n") == "a\nb\nc\nd\n"


def test_an_unwritable_file_is_said_once_and_written_later(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = Unit(tmp_path)
    (tmp_path / "out").write_text("no folder")
    monkeypatch.setattr(write_output, "RETRY_INTERVAL_S", 0.0)
    unit.copies.open_all()
    assert unit.prints("one\n") == unit.prints("two\n") == ""
    assert capfd.readouterr().err.count(f"{unit.output} cannot be written: File exists") == 1
    (tmp_path / "out").unlink()
    assert unit.prints("three\n") == "one\ntwo\nthree\n"
    # /dev/null takes it all, a pipe without a reader nothing, a link leads where its owner wants.
    for path, problem in ((Path(os.devnull), ""), (tmp_path / "pipe", "No such device or address")):
        unit = Unit(tmp_path, f"for {path.name}", output=[str(path)])
        path.exists() or os.mkfifo(path)
        unit.prints("x\n", last=True)
        assert problem in capfd.readouterr().err
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # one that does not keep up
    unit = Unit(tmp_path, "slow", output=[str(tmp_path / "pipe")])
    for until_s in (0.0, float("inf")):
        unit.prints("x" * 50_000)
        unit.copies.look(last=True, until_s=until_s)
        unit.copies.note_rest()
    assert (left := 100_000 - len(os.read(reader, 100_000))) > 0
    assert capfd.readouterr().err.splitlines()[-1] == f"pliant: {left:,} bytes not copied to {tmp_path}/pipe"


def test_output_that_the_supervisor_has_thrown_away_is_counted(tmp_path: Path) -> None:
    unit = Unit(tmp_path)
    lines = b"".join(b"%07d\n" % number for number in range(1 << 18))
    (unit.worker / "stdout.log").write_bytes(lines)
    supervisor.trim(str(unit.worker / "stdout.log"), 1 << 20)
    note, _, rest = unit.prints("").partition("\n")
    gone = len(lines) - len(rest)
    assert note == f"==> {gone} bytes printed before this are not kept (--log-bytes)"
    assert lines.endswith(rest.encode())
    assert 0 < gone < len(lines)
