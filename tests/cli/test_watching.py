import errno
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pliant.cli.common import BROKEN_PIPE
from pliant.cli.job import log
from pliant.cli.status import Form, Keys, repeat, show, status, top
from pliant.schemas.errors import UsageError
from pliant.tools.run.watch import output as logs
from tests.leftovers import started
from tests.tools.run.stories import Story


@pytest.fixture
def state(tmp_path: Path) -> Path:
    story = Story(3)
    story.go_on(30)
    return story.write(tmp_path / "state").path


def test_each_time_or_only_what_has_changed_is_printed(monkeypatch, capsys) -> None:
    for every_s, printed in ((None, "a\n\nb\n"), (0.1, "a\n\na\n\nb\n")):
        marks = iter("aab")
        monkeypatch.setattr("pliant.cli.status.time.sleep", lambda _: None)
        looks = iter([False, False, False, True])
        monkeypatch.setattr("pliant.cli.status.reader_left", lambda _, left=looks: next(left))

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
    with pytest.raises(UsageError, match="leave -f json out"):
        command(state=state, watch=True, format=Form.json)


TOP = ["top", "--watch", "--every", "0.1"]
LEAVES = b"q leaves"


@contextmanager
def on_a_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose keyboard and screen are in the hands of the test; it ends with it at the latest."""
    terminal, own = pty.openpty()
    line = [sys.executable, "-m", "pliant.cli", *words]
    with started(line, stdin=own, stdout=own, stderr=own, start_new_session=True) as child:
        os.close(own)
        with open(terminal, "rb", buffering=0):
            yield child, terminal


def screen(terminal: int) -> Iterator[bytes]:
    """All that has been shown, whenever there is more of it, until the last process of the terminal ends."""
    shown = b""
    with suppress(OSError):  # EIO: nothing has it open any more
        while data := os.read(terminal, 1 << 16):
            shown += data
            yield shown


def test_on_a_terminal_it_stays_in_place_until_q(state: Path) -> None:
    with on_a_terminal(*TOP, "--state", str(state)) as (child, terminal):
        pressed = False
        for shown in screen(terminal):
            if not pressed and LEAVES in shown:
                pressed = bool(os.write(terminal, b"q"))
        assert pressed
        assert child.wait() == 0


def test_how_to_leave_is_read_whatever_is_said_above_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr("pliant.cli.status.Keys.wait", lambda *_: "q")
    monkeypatch.setenv("COLUMNS", "80")
    for length in range(60, 90):
        show(lambda _, message="w" * length: ("table", [message]), 1.0)
        assert capsys.readouterr().out.splitlines()[-1] == LEAVES.decode(), length


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """What is written to it is typed on the terminal that is standard input."""
    terminal, own = pty.openpty()
    with os.fdopen(own) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield terminal
        os.close(terminal)


def test_keys_pressed_early_come_one_by_one(keyboard: int) -> None:
    os.write(keyboard, b"xyq")
    echo = b""
    while echo != b"xyq":  # then the terminal has them
        echo += os.read(keyboard, 3)
    with Keys() as keys:
        assert [keys.wait(60.0) for _ in range(3)] == ["x", "y", "q"]
        assert keys.wait(0.0) == ""


def test_the_end_of_the_terminal_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, own = pty.openpty()
    with os.fdopen(own) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with Keys() as keys:
            os.close(terminal)
            assert keys.wait(60.0) == "q"


def test_keys_end_with_a_terminal_that_fails(monkeypatch: pytest.MonkeyPatch, keyboard: int) -> None:

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with Keys() as keys:
        os.write(keyboard, b"x")
        monkeypatch.setattr("pliant.cli.status.os.read", fail)
        assert keys.wait(60.0) == "q"


@pytest.mark.parametrize(
    ("kind", "words"), [("xterm", ["status", "--watch", "--every", "0.1"]), ("dumb", TOP)]
)
def test_a_terminal_that_is_closed_ends_it_without_a_word(
    words: list[str], kind: str, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", kind)
    terminal, own = pty.openpty()
    line = [sys.executable, "-m", "pliant.cli", *words, "--state", str(state)]
    with (
        (tmp_path / "said").open("wb") as message,
        started(line, stdin=own, stdout=own, stderr=message) as child,
    ):
        os.close(own)
        shown = b""
        while b"\n" not in shown.partition(b"job  ")[2]:
            shown += os.read(terminal, 1 << 16)
        os.close(terminal)
        assert child.wait() == BROKEN_PIPE
    assert "bug" not in (tmp_path / "said").read_text()


def test_events_are_followed_over_cuts_and_replacements(tmp_path, monkeypatch, capsysbinary) -> None:
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
    monkeypatch.setattr("pliant.cli.job.reader_left", lambda _: False)
    with pytest.raises(KeyboardInterrupt):
        log(state=folder, follow=True, tail=7)

    def names(result: list[bytes]) -> list[bytes]:
        return [line.split(b'"event"')[1].split(b'"')[1] for line in result]

    reported = names(capsysbinary.readouterr().out.splitlines()[1:])
    assert reported == [*names(lines[1:5]), *names(lines[1:2]), *names(lines[1:3])]
