"""A page's commands, called as a reader pastes them, and held against the output that the page shows.

Commands are blocks of ``sh``. A block of ``text`` below one is what it prints; ``…`` there stands for any
text, and alone on its line for any lines.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.leftovers import DYING_S

_BLOCK = re.compile(
    r"^```sh\n(?P<commands>.*?)^```$(?:\n\n(?:<!--[^\n]*-->\n)?```text\n(?P<shown>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_ANY = "…"


@dataclass(frozen=True)
class Block:
    """Commands, and what they print; None where the page does not show it."""

    commands: str
    shown: str | None = None


def blocks(text: str) -> list[Block]:
    return [Block(found["commands"], found["shown"]) for found in _BLOCK.finditer(text)]


def paste(pasted: Sequence[Block], folder: Path) -> list[str]:
    """Call the blocks in one shell, in an empty folder ``home``. Returns what each printed.

    ``pliant`` and ``python`` are those of the test. Every command must succeed and leave no process behind.
    """
    home, out = folder / "home", folder / "out"
    home.mkdir()
    out.mkdir()
    paths = [out / f"{number}.txt" for number in range(len(pasted))]
    script = [
        "export COLUMNS=80",
        f'pliant() {{ {shlex.join([sys.executable, "-m", "pliant.cli"])} "$@"; }}',
        f'python() {{ {shlex.quote(sys.executable)} "$@"; }}',
    ]
    for path, block in zip(paths, pasted, strict=True):
        script += [f"exec >{shlex.quote(str(path))} 2>&1", block.commands]
    try:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(script)],
            cwd=home,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    finally:
        left = _end_all_in(home)
    printed = [path.read_text() for path in paths if path.exists()]
    assert done.returncode == 0, "".join(printed)
    assert left == [], "left behind by the page's commands"
    return printed


def check(pasted: Sequence[Block], folder: Path) -> None:
    for block, printed in zip(pasted, paste(pasted, folder), strict=True):
        if block.shown is not None:
            assert fits(block.shown, printed), f"{block.commands}\nprints\n{printed}"


def fits(shown: str, printed: str) -> bool:
    pattern = "".join(map(_line_pattern, shown.splitlines()))
    trimmed = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    return re.fullmatch(pattern, trimmed) is not None


def _line_pattern(line: str) -> str:
    return r"(?:.*\n)*" if line == _ANY else ".*".join(map(re.escape, line.rstrip().split(_ANY))) + r"\n"


def _end_all_in(folder: Path) -> list[str]:
    """End the processes that work in a folder. Returns those that do not end by themselves."""
    _, left = psutil.wait_procs(_all_in(folder), timeout=DYING_S)
    names = []
    for process in left:
        with suppress(psutil.Error):
            names.append(" ".join(process.cmdline()))
            process.kill()
    psutil.wait_procs(left, timeout=DYING_S)
    return names


def _all_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            where = Path(process.cwd())
            if (where == folder or folder in where.parents) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
