"""What commands print: lines that fit and are whole in a pipe, and nothing that commands the terminal."""

import io
import json
import logging
import os
import shlex
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cli import common, console
from pliant.cli.console import UNKNOWN_WIDTH, Escaping, entry, note_sentence, width_for, write_plainly
from pliant.cli.main import app
from pliant.cli.profile import profile
from pliant.cli.reference import page, policies
from pliant.schemas.event import Event
from pliant.schemas.io import write_cluster, write_jobs
from pliant.schemas.text import fitted, flowing, width_of
from pliant.tools.profile.measuring import run as sweep
from pliant.tools.run.statedir.log.events import submit_event
from pliant.tools.run.statedir.state import State
from pliant.tools.run.watch import output
from pliant.tools.schedule.registry import describe, policy_names
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.effort import examples


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_widths_of_terminals_and_of_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    assert (width_for(io.StringIO()), width_for(None)) == (None, None)
    # Columns come before the width of the terminal.
    monkeypatch.setenv("COLUMNS", "50")
    assert width_for(Terminal()) == 50
    monkeypatch.delenv("COLUMNS")
    assert width_for(Terminal()) == UNKNOWN_WIDTH
    ours, theirs = os.openpty()
    with open(ours, "rb"), open(theirs, "w") as screen:
        assert width_for(screen) == UNKNOWN_WIDTH


def test_prose_is_broken_between_words_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "ares: 160 of 160 jobs finished, ends at 880640 s, 1234 decisions"
    monkeypatch.setenv("COLUMNS", "48")
    for stream, lines in (
        (io.StringIO(), [f"pliant: {text}"]),
        (
            Terminal(),
            ["pliant: ares: 160 of 160 jobs finished, ends at", "pliant:   880640 s, 1234 decisions"],
        ),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        note_sentence(text)
        assert stream.getvalue().splitlines() == lines


@settings(max_examples=examples(50))
@given(text=st.text(), encoding=st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8"]))
def test_any_text_can_be_written_in_any_encoding(text: str, encoding: str) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="surrogatepass")
    if encoding != "utf-8":
        write_plainly(stream)
    stream.write(json.dumps({"why": text}, ensure_ascii=False) + "\n")
    stream.flush()
    written = stream.buffer.getvalue().decode(encoding, "surrogatepass")  # type: ignore[attr-defined]
    plain = {"…": "...", "·": "*", "×": "x", "−": "-", "–": "-", "─": "-", "≤": "<=", "≥": ">=", "→": "->"}
    kept = text
    for sign, alike in plain.items():
        if encoding == "ascii" or not sign.encode(encoding, "ignore"):
            kept = kept.replace(sign, alike)
    assert json.loads(written)["why"] == kept


NAMES = policy_names()


@settings(max_examples=examples(25))
@given(st.integers(40, 200))
def test_no_line_of_policies_is_wider_than_the_terminal(width: int) -> None:
    longest = max(map(len, NAMES))
    for name in NAMES:
        listed = entry(name, describe(name).summary, longest, width)
        reported = fitted(page(describe(name)), width)
        assert max(map(width_of, [*listed, *reported])) <= width
        assert "".join("".join(listed).split()) == "".join(f"{name}{describe(name).summary}".split())
        assert "".join("".join(reported).split()) == "".join("".join(page(describe(name))).split())


def test_policies_fill_a_terminal_and_are_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    text = "First\nline.\n\nmost, least: what\nit means.\n- an item\n  and more\n\n    code\n    stays"
    shown = "First line.\n\nmost, least: what it means.\n- an item and more\n\n    code\n    stays"
    assert flowing(text) == shown
    policies()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)


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


HOSTILE_NAMES = {
    "escape": "a\x1b[31m",
    "c1": "a\x9b31m",
    "bidi": "a\u202egpj",
    "newline": "a\nb",
    "line separator": "a\u2028b",
}


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
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


CAUSE = "nothing came in: the command before this one wrote nothing; what it says is the cause"
FILES = "jobs.jsonl --cluster cluster.json"


@pytest.fixture
def here(here: Path) -> Path:
    write_jobs([job("a", gpus=1, gpu_seconds=20, command=("a.py",))], "jobs.jsonl")
    (here / "a.py").touch()
    write_cluster(cluster(2, slots="cpu", gpu_type="cpu"), "cluster.json")
    return here


def shell(line: str) -> subprocess.CompletedProcess[str]:
    text = line.replace("pliant", shlex.join([sys.executable, "-m", "pliant.cli"]))
    return subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"pliant replay {FILES} | pliant report", "pliant: --policy missing: a replay needs"),
        (f"pliant schedule {FILES} </dev/null | pliant run --state s", "pliant: --policy missing: name one"),
    ],
)
def test_the_cause_is_said_first_and_what_follows_points_to_it(here: Path, line: str, message: str) -> None:
    done = shell(line)
    assert done.returncode == 3
    assert done.stderr.index(message) < done.stderr.index(CAUSE)


def test_an_empty_pipe_is_warned_of_and_an_empty_file_refused(here: Path) -> None:
    done = shell(f"pliant profile gone.jsonl | pliant schedule --policy fifo {FILES}")
    assert done.stderr.splitlines() == [
        "pliant: gone.jsonl: no such file",
        "pliant: nothing came in through the pipe: the command before this one wrote no profile",
        "pliant: no profile: every GPU is taken to train 1 sample per second",
    ]
    # An empty file as stdin has no command before it.
    done = shell("pliant report - < /dev/null")
    assert (done.returncode, done.stderr) == (3, "pliant: <stdin>: nothing came in\n")


def test_nothing_is_measured_for_a_reader_that_left(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(*_arguments: object, progress, **_named: object) -> None:
        for point in range(3):
            measured.append(point)
            progress(point, 3)

    monkeypatch.setattr(sweep, "measure", measure)
    monkeypatch.setattr("pliant.cli.profile.reader_left", lambda _stdout: len(measured) == 2)
    with pytest.raises(BrokenPipeError):
        profile("jobs.jsonl", cluster="cluster.json")
    assert measured == [0, 1]
