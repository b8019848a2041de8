"""The README's commands, pasted in order in an empty folder: how many of them run.

What it installs is there already. A command may have several lines, up to the end of its here-document.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import ROOT, Figure
from benchmarks.parts.used_cpu import PLIANT
from docs.generate import README_COMMANDS

INSTALL: Final = "pip install "
_HERE_DOCUMENT: Final = re.compile(r"<<-?\s*['\"]?(\w+)")


def blocks() -> list[str]:
    """The README's blocks of commands, those that install first."""
    found: list[str] = README_COMMANDS.findall((ROOT / "README.md").read_text())
    return found


def figures(pasted: Sequence[str] | None = None) -> list[Figure]:
    """The share of them that run.

    :param pasted: blocks to paste; None: all but those that install.
    """
    chosen = [block for block in blocks() if not block.startswith(INSTALL)] if pasted is None else pasted
    commands = [command for block in chosen for command in commands_of(block)]
    with tempfile.TemporaryDirectory() as folder:
        ran, _ = paste(commands, Path(folder))
    return [Figure("readme_commands_pasted", ran / len(commands), "fraction", 1.0, at_least=True)]


def commands_of(block: str) -> list[str]:
    """The commands of a block, each with its here-document."""
    found: list[str] = []
    end = ""
    for line in block.splitlines():
        if end or (found and found[-1].endswith("\\")):
            found[-1] += f"\n{line}"
            end = "" if line == end else end
        elif line.strip():
            found.append(line)
            begins = _HERE_DOCUMENT.search(line)
            end = begins[1] if begins else ""
    return found


def paste(commands: Sequence[str], folder: Path) -> tuple[int, str]:
    """How many commands run before one fails, called as a shell does whose ``pliant`` is this one; and what
    they print.

    They run in ``home``, a folder that is made for them.
    """
    (folder / "home").mkdir()
    counted = [f"{command}\necho >> ../ran" for command in commands]
    script = "\n".join(["cd home", f'pliant() {{ {shlex.join(PLIANT)} "$@"; }}', ": > ../ran", *counted])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return len((folder / "ran").read_text().splitlines()), done.stdout + done.stderr
