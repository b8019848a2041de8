"""What a job prints cannot command the terminal that it is shown on."""

import json
import logging
import os
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest

from pliant.cli import common, console
from pliant.cli.console import Escaping
from pliant.cli.main import app
from pliant.schemas.event import Event
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State
from pliant.tools.run.watch import output
from tests.builders import job
from tests.cli.calling import call

HOSTILE = b"\x1b]0;owned\x07 \xff na\xc3\xafve\tok\r\n"
HARMLESS = "\\x1b]0;owned\\x07 \\xff naïve\tok\n"
TITLE = "==> jobs/a/attempts/1/logs/launcher-0.log\n"


def test_control_and_cut_characters_are_escaped_or_whole() -> None:
    assert Escaping().of(HOSTILE) == HARMLESS.encode()
    assert Escaping().of("\x9b31m \u202egpj.exe\x7f".encode()) == b"\\x9b31m \\u202egpj.exe\\x7f"
    shown = Escaping()
    assert b"".join(shown.of(bytes([byte])) for byte in "naïve 日本".encode()).decode() == "naïve 日本"
    assert Escaping("ascii").of("naïve\n".encode()) == b"na\\xefve\n"


def on_a_terminal(*words: str) -> bytes:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb"), os.fdopen(theirs, "w", encoding="utf-8") as stdout:
        with redirect_stdout(stdout):
            app(words, standalone_mode=False)
        os.set_blocking(ours, False)
        shown = b""
        with suppress(BlockingIOError):
            while True:
                shown += os.read(ours, 1 << 16)
        return shown


def write_state(folder: Path, model: str = "m") -> None:
    with State(folder / "state") as opened:
        cancelled = Event(2.0, "cancel", "a", gpus=0, placement=())
        opened.record([submit_event(job("a", model=model), 1.0), cancelled])
        path = opened.dirs.job("a").attempt(1).launcher_log(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(HOSTILE)


def test_a_pipe_gets_every_byte_as_it_was_printed(here: Path) -> None:
    write_state(here)
    assert call("log", "a", "--state", "state").stdout_bytes == TITLE.encode() + HOSTILE


def test_a_terminal_gets_it_escaped(here: Path) -> None:
    write_state(here)
    shown = on_a_terminal("log", "a", "--state", "state")
    assert shown.replace(b"\r\n", b"\n").decode() == TITLE + HARMLESS


@pytest.mark.parametrize("words", ["log --tail 9", "log --tail 9 -f", "schedule --policy fifo"])
def test_what_is_data_in_a_pipe_does_not_act_on_a_terminal(words, here: Path, monkeypatch) -> None:

    def leave(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output.time, "sleep", leave)
    spec = job("a", model="m\x9b31m")
    write_state(here, spec.model)
    (here / "cluster.json").write_text('{"nodes": [{"name": "n0", "gpus": 1}], "slots": "cpu"}')
    (here / "jobs.jsonl").write_text(spec.model_dump_json() + "\n")
    where = "jobs.jsonl --cluster cluster.json" if words.startswith("schedule") else "--state state"
    assert b'"m\\x9b31m"' in on_a_terminal(*words.split(), *where.split())


NAMES = {
    "escape": "a\x1b[31m",
    "c1": "a\x9b31m",
    "bidi": "a\u202egpj",
    "newline": "a\nb",
    "line separator": "a\u2028b",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_hostile_name_or_key_is_one_harmless_line_of_an_error(name, here: Path, monkeypatch) -> None:
    (here / f"{name}.jsonl").write_text(
        json.dumps({"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 1}, name: 1}) + "\n"
    )
    escaped = name.encode("unicode_escape").decode()
    for arguments, message in (
        (["validate", name], f"pliant: {escaped}: no such file\n"),
        (["status", "--state", name], f"pliant: {escaped}: no state directory"),
        (["validate", "--kind", "job", f"{name}.jsonl"], f"pliant: {escaped}.jsonl:1: /{escaped}: is not a"),
        (["validate", f"--{name}"], "No such option: --a\\"),
    ):
        monkeypatch.setattr(sys, "argv", ["pliant", *arguments])
        done = call(*arguments)
        assert done.exit_code in (2, 3)
        assert message in done.stderr
        assert [each for each in done.stderr if not each.isprintable() and each != "\n"] == []


def test_a_warning_that_quotes_a_name_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    common._log_to_stderr(quiet=False, debug=False)
    logging.getLogger("pliant").warning("%s is odd", "a\x1b[2J")
    console.stderr().print("a\x1b[2J", markup=False)
    assert capsys.readouterr().err == "pliant: WARNING: a\\x1b[2J is odd\na\\x1b[2J\n"
