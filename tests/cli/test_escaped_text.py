"""What a job prints cannot command the terminal that it is shown on."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pliant.cli import common, console
from pliant.cli.console import Shown
from pliant.schemas.event import Event
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State
from tests.builders import job
from tests.leftovers import started

LOG = (sys.executable, "-m", "pliant.cli", "log", "a")
HOSTILE = b"\x1b]0;owned\x07 \xff na\xc3\xafve\tok\r\n"
HARMLESS = "\\x1b]0;owned\\x07 \\xff naïve\tok\n"


def test_control_characters_are_shown_and_line_ends_and_tabs_obeyed() -> None:
    assert Shown().of(HOSTILE) == HARMLESS.encode()
    assert Shown().of("\x9b31m \u202egpj.exe\x7f".encode()) == b"\\x9b31m \\u202egpj.exe\\x7f"


def test_a_character_that_is_cut_in_two_comes_whole() -> None:
    shown = Shown()
    assert b"".join(shown.of(bytes([byte])) for byte in "naïve 日本".encode()).decode() == "naïve 日本"


def test_a_terminal_without_a_character_gets_its_number() -> None:
    assert Shown("ascii").of("naïve\n".encode()) == b"na\\xefve\n"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    with State(tmp_path / "state") as opened:
        opened.record([submit_event(job("a"), 1.0), Event(2.0, "cancel", "a", gpus=0, placement=())])
        path = opened.dirs.job("a").attempt(1).launcher_log(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(HOSTILE)
    return tmp_path / "state"


def test_a_pipe_gets_every_byte_as_it_was_printed(state: Path) -> None:
    told = subprocess.run([*LOG, "--state", str(state)], capture_output=True, check=True)
    assert told.stdout == b"==> jobs/a/attempts/1/logs/launcher-0.log\n" + HOSTILE


def test_a_terminal_gets_it_escaped(state: Path) -> None:
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        env = {**os.environ, "PYTHONUTF8": "1"}
        process = subprocess.Popen([*LOG, "--state", str(state)], stdout=theirs, env=env)
        assert process.wait() == 0
        os.close(theirs)
        shown = terminal.read(1 << 16).replace(b"\r\n", b"\n").decode()
    assert shown == "==> jobs/a/attempts/1/logs/launcher-0.log\n" + HARMLESS


@pytest.mark.parametrize(
    "words", [["log", "--tail", "9"], ["log", "--tail", "9", "-f"], ["schedule", "--policy", "fifo"]]
)
def test_what_is_data_in_a_pipe_does_not_act_on_a_terminal(words: list[str], tmp_path: Path) -> None:
    """JSON escapes no character above 0x7f, and some of these begin a command as ESC does."""
    spec = job("a", model="m\x9b31m")
    with State(tmp_path / "state") as opened:
        opened.record([submit_event(spec, 1.0)])
    (tmp_path / "cluster.json").write_text('{"nodes": [{"name": "n0", "gpus": 1}], "slots": "cpu"}')
    (tmp_path / "jobs.jsonl").write_text(spec.model_dump_json() + "\n")
    where = ["--state", str(tmp_path / "state")]
    if words[0] == "schedule":
        where = ["--jobs", str(tmp_path / "jobs.jsonl"), "--cluster", str(tmp_path / "cluster.json")]
    line = [sys.executable, "-m", "pliant.cli", *words, *where]
    ours, theirs = os.openpty()
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        started(line, stdout=theirs, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONUTF8": "1"}),
    ):
        os.close(theirs)
        seen = b""
        while b'31m"' not in seen:
            seen += terminal.read(1 << 16)
        assert b'"m\\x9b31m"' in seen


NAMES = {
    "escape": "a\x1b[31m",
    "c1": "a\x9b31m",
    "bidi": "a\u202egpj",
    "newline": "a\nb",
    "line separator": "a\u2028b",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_hostile_name_or_key_is_one_harmless_line_of_an_error(name: str, tmp_path: Path) -> None:
    """A file of that name that is not there, one that holds such a key, and an option of that name."""
    (tmp_path / f"{name}.jsonl").write_text(
        json.dumps({"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 1}, name: 1}) + "\n"
    )
    escaped = name.encode("unicode_escape").decode()
    for arguments, said in (
        (["validate", name], f"pliant: {escaped}: no such file\n"),
        (["status", "--state", name], f"pliant: {escaped}: no state directory"),
        (["validate", "--kind", "job", f"{name}.jsonl"], f"pliant: {escaped}.jsonl:1: /{escaped}: is not a"),
        (["validate", f"--{name}"], "No such option: --a\\"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pliant.cli", *arguments], cwd=tmp_path, capture_output=True, check=False
        )
        text = done.stderr.decode()
        assert done.returncode in (2, 3)
        assert said in text
        assert [each for each in text if not each.isprintable() and each != "\n"] == []


def test_a_warning_that_quotes_a_name_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    common._log_to_stderr(quiet=False, debug=False)
    logging.getLogger("pliant").warning("%s is odd", "a\x1b[2J")
    console.stderr().print("a\x1b[2J", markup=False)
    assert capsys.readouterr().err == "pliant: WARNING: a\\x1b[2J is odd\na\\x1b[2J\n"
