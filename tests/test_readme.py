"""The README's commands run when they are pasted, in order, in an empty folder."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.parts import readme_commands
from pliant.schemas.io import write_profile
from pliant.schemas.profile import Profile, ProfileRow
from tests.pasting import Block, blocks, paste

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
INSTALL, *BLOCKS = blocks(TEXT)
TRAINS = "pliant profile"


def test_the_readme_names_extras_that_exist() -> None:
    assert INSTALL.commands == "pip install .\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {extra for group in re.findall(r"'\.\[(.*?)\]'", TEXT) for extra in group.split(",")}
    tabled = set(re.findall(r"^\| `(\w+)` \|", TEXT.partition("## First replay")[0], re.MULTILINE))
    assert named <= tabled <= set(project["optional-dependencies"])


def test_the_commands_run_up_to_those_that_train(tmp_path: Path) -> None:
    before = [block for block in BLOCKS if TRAINS not in block.commands]
    assert BLOCKS[: len(before)] == before
    paste(before, tmp_path)


@pytest.mark.torch
def test_the_commands_that_train_run_after_those_before_them(tmp_path: Path) -> None:
    """But for the profile: a tutorial, which has a test, measures one by the same command."""
    first = BLOCKS[0].commands.splitlines(keepends=True)[0]
    assert first == "pliant examples .\n"
    [trains] = [block.commands for block in BLOCKS if TRAINS in block.commands]
    [measures] = [line for line in trains.splitlines() if TRAINS in line]
    tutorial = (ROOT / "docs/tutorials/profile-your-first-job.md").read_text().replace("\\\n ", "")
    [measured] = [line for line in tutorial.splitlines() if line.startswith(TRAINS) and "-o" in line]
    assert measured.split() == measures.replace("64,128", "512,1024").split()
    rows = [ProfileRow("train", "mlp", "cpu", 1, gpus, str(gpus), 128, step_seconds=0.1) for gpus in (1, 2)]
    write_profile(
        Profile(tuple(replace(row, samples_per_second=1280.0 * row.gpus) for row in rows)),
        tmp_path / "measured",
    )
    trains = trains.replace(measures, f"cp {shlex.quote(str(tmp_path / 'measured'))} profile.parquet")
    paste([Block(first), Block(trains)], tmp_path)
    assert '"event":"finish"' in (tmp_path / "home" / "events.jsonl").read_text()


def test_commands_count_up_to_the_first_that_fails() -> None:
    block = "cat > a <<'END'\nfalse\nEND\npliant --version\nfalse\ntrue\n"
    assert len(readme_commands.commands_of(block)) == 4
    assert [row.value for row in readme_commands.figures([block])] == [0.5]
