"""Manual pages say what --help says, in a form that man reads without complaint."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pliant.cli.main import COMMANDS, GROUPS
from tests.cli.calling import call


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
