"""The README's commands run when they are pasted, in order, in an empty folder."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from benchmarks.parts import readme_commands
from tests.pasting import Block, blocks, paste

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()
INSTALL, *BLOCKS = blocks(TEXT)
TRAINS = "pliant profile"


def test_what_is_installed_first_has_the_extras_that_the_readme_names() -> None:
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
    first = BLOCKS[0].commands.splitlines(keepends=True)[0]
    assert first == "pliant examples .\n"
    [trains] = [block for block in BLOCKS if TRAINS in block.commands]
    paste([Block(first), trains], tmp_path)
    assert '"event":"finish"' in (tmp_path / "home" / "events.jsonl").read_text()


def test_the_benchmark_counts_commands_up_to_the_first_that_fails() -> None:
    block = "cat > a <<'END'\nfalse\nEND\npliant --version\nfalse\ntrue\n"
    assert len(readme_commands.commands_of(block)) == 4
    assert [row.value for row in readme_commands.figures([block])] == [0.5]
