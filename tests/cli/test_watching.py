"""What is shown again and again: in a pipe, until its reader or Ctrl-C ends it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from pliant.cli.log import log
from pliant.cli.status import Form, status
from pliant.cli.top import top
from pliant.cli.watching import repeat
from pliant.schemas.errors import UsageError
from pliant.tools.run.watch import output as logs
from tests.tools.run.stories import Story


@pytest.fixture
def state(tmp_path: Path) -> Path:
    story = Story(3)
    story.go_on(30)
    return story.write(tmp_path / "state").path


def test_each_time_or_only_what_has_changed_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for every_s, printed in ((None, "a\n\nb\n"), (0.1, "a\n\na\n\nb\n")):
        marks = iter("aab")
        monkeypatch.setattr("pliant.cli.watching.time.sleep", lambda _: None)
        looks = iter([False, False, False, True])
        monkeypatch.setattr("pliant.cli.watching.reader_left", lambda _, left=looks: next(left))

        def look(marks=marks):
            mark = next(marks)
            return mark, lambda: (f"{mark}\n", ["beside it"])

        with pytest.raises(BrokenPipeError):
            repeat(look, every_s)
        shown = capsys.readouterr()
        assert shown.out == printed
        assert "beside it" in shown.err


@pytest.mark.parametrize("command", [status, top])
def test_an_interval_goes_with_watch_and_json_does_not(command, state: Path) -> None:
    with pytest.raises(UsageError, match="--every goes with --watch"):
        command(state=state, every=1.0)
    with pytest.raises(UsageError, match="leave -o json out"):
        command(state=state, watch=True, output=Form.json)


@pytest.mark.parametrize(
    "words", [["status", "--watch", "--every", "0.1"], ["top", "--watch"], ["log", "-f", "--tail", "1"]]
)
def test_ctrl_c_ends_it_with_130_and_without_a_traceback(words: list[str], state: Path) -> None:
    default_sigint = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    begins = f"{default_sigint}; from pliant.cli.main import main; main()"
    done = subprocess.Popen(
        [sys.executable, "-c", begins, *words, "--state", str(state)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert done.stdout is not None
    assert done.stdout.read(1), "it has begun"
    os.kill(done.pid, signal.SIGINT)
    _, said = done.communicate(timeout=60)
    assert done.returncode == 130
    assert said.decode().splitlines()[-1] == "pliant: interrupted"
    assert b"Traceback" not in said


@pytest.mark.parametrize("words", [["status", "--watch"], ["top", "--watch", "--every", "0.1"]])
def test_on_a_terminal_it_stays_in_place_until_q(words: list[str], state: Path) -> None:
    terminal, own = pty.openpty()
    line = [sys.executable, "-m", "pliant.cli", *words, "--state", str(state)]
    child = subprocess.Popen(line, stdin=own, stdout=own, stderr=own, start_new_session=True)
    os.close(own)
    shown = b""
    with suppress(OSError):  # the terminal is gone with its last process
        while data := os.read(terminal, 1 << 16):
            asked, shown = b"q leaves" in shown, shown + data
            if not asked and b"q leaves" in shown:
                os.write(terminal, b"q")
    os.close(terminal)
    assert child.wait(timeout=60) == 0
    assert b"q leaves" in shown


def test_a_reader_that_has_enough_ends_it(state: Path) -> None:
    line = f"{sys.executable} -m pliant.cli top --watch --every 0.1 --state {state} | head -n 3 | wc -l"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "3"
    assert "Traceback" not in done.stderr


def test_events_are_followed_over_a_log_that_comes_late_is_cut_and_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    story = Story(3)
    story.go_on(30)
    whole = (story.write(tmp_path / "other").path / "events.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    path = folder / "events.jsonl"

    def replaced() -> None:
        (folder / "new").write_bytes(b"".join(lines[:3]))
        (folder / "new").replace(path)

    happenings = iter(
        [
            lambda: path.write_bytes(b"".join(lines[:4]) + lines[4][:10]),
            lambda: path.write_bytes(b"".join(lines[:5])),
            lambda: path.write_bytes(b"".join(lines[:2])),
            replaced,
            lambda: None,
        ]
    )

    def pause(_: float) -> None:
        try:
            next(happenings)()
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(logs.time, "sleep", pause)
    monkeypatch.setattr("pliant.cli.log.reader_left", lambda _: False)
    with pytest.raises(KeyboardInterrupt):
        log(state=folder, follow=True, tail=7)

    def names(found: list[bytes]) -> list[bytes]:
        return [line.split(b'"event"')[1].split(b'"')[1] for line in found]

    told = names(capsysbinary.readouterr().out.splitlines()[1:])
    assert told == [*names(lines[1:5]), *names(lines[1:2]), *names(lines[1:3])]


def test_the_last_events_come_first(
    state: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    def leave(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", leave)
    monkeypatch.setattr("pliant.cli.log.reader_left", lambda _: False)
    with pytest.raises(KeyboardInterrupt):
        log(state=state, follow=True, tail=2)
    assert len(capsysbinary.readouterr().out.splitlines()) == 3
