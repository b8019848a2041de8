import inspect
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from pliant.cli.main import COMMANDS, GROUPS, MODULES, app, main
from tests.cli.calling import call


@pytest.mark.parametrize(("name", "panel", "text"), [*COMMANDS, *GROUPS])
def test_the_list_of_commands_says_what_each_says_of_itself(name: str, panel: str, text: str) -> None:
    group: Any = get_command(app)
    made = group.get_command(None, name)
    assert (made.help.split("\n\n")[0], made.rich_help_panel) == (text, panel)


def test_help_shows_every_word_and_examples_on_their_own_lines() -> None:
    lines = [line.strip() for line in call("profile", "--help").stdout.splitlines()]
    assert "pliant profile jobs.jsonl --cluster cluster.json -o profile.parquet" in lines

    # What stands in brackets is not taken for a colour.
    for name, *_ in COMMANDS:
        message = inspect.getdoc(
            getattr(import_module(f"pliant.cli.{MODULES.get(name, name)}"), name.replace(" ", "_"))
        )
        shown = call(*name.split(), "--help").stdout.replace("\u2502", " ").split()
        assert not {*(message or "").replace("\b", "").split()} - {*shown}, name


needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


@needs_full_device
@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((words, 69) for words in ("--help", "run --help", "--version")),
        *((words, 2) for words in ("schedule --nope", "nope", "schedule", "run --retries x")),
    ],
)
def test_help_without_room_is_one_line_and_mistakes_exit_with_2(words, code, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["pliant", *words.split()])
    redirected = redirect_stdout if code == 69 else redirect_stderr
    with open("/dev/full", "w") as full, pytest.raises(SystemExit) as left, redirected(full):
        main()
    assert left.value.code == code
    assert code == 2 or capsys.readouterr().err == "pliant: stdout: the disk is full\n"


def test_every_command_has_a_page_with_its_options_and_examples(here: Path) -> None:
    done = call("man", "share")
    assert done.exit_code == 0, done.stderr
    pages = {path.stem: path.read_text() for path in Path("share/man1").iterdir()}
    wanted = {"pliant", *(f"pliant-{name}".replace(" ", "-") for name, *_ in (*COMMANDS, *GROUPS))}
    assert wanted | {"pliant-trace-import", "pliant-new-policy"} <= set(pages)
    assert r"pliant\-schedule(1)" in pages["pliant"].replace(r"\fB", "").replace(r"\fR", "")
    assert r"\-\-policy" in pages["pliant-replay"]
    assert r"pliant submit jobs.jsonl \-\-state live" in pages["pliant-submit"].partition(".SH EXAMPLES")[2]
    assert all(text.startswith(".TH") for text in pages.values())


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_groff_has_no_warning(here: Path) -> None:
    call("man", "share")
    pages = sorted(map(str, Path("share/man1").iterdir()))
    line = ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-z", *pages]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_begins_with_the_ten_options_that_most_people_need() -> None:
    lines = call("replay", "--help").stdout.splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("│ --")]
    named = ["--cluster", "--policy", "--profile", "--param", "--interval", "--rescale-cost", "--demand"]
    assert shown[:11] == [*named, "--preemptible", "--recipe", "--output", "--help"]
    assert "--strict" in shown
