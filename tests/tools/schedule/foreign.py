"""A policy of somebody else, installed as pip would leave it: a module and an entry point."""

import sys
from pathlib import Path
from textwrap import indent

import pytest

HEAD = "from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target\n\n\n"
CLASS = 'class Mine(Policy):\n    """Mine."""\n\n    name = "mine"\n\n'


class Foreign:
    """The package ``mine`` in a folder, with the policy ``mine``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.file = folder, folder / "mine.py"
        self._monkeypatch = monkeypatch
        self._info = folder / "mine-1.0.dist-info"
        self._info.mkdir()
        (self._info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        self.offers("mine", "mine:Mine")
        monkeypatch.syspath_prepend(str(folder))

    def offers(self, name: str, value: str) -> None:
        (self._info / "entry_points.txt").write_text(f"[pliant.policies]\n{name} = {value}\n")

    def is_written(self, body: str, marked: str, after: str = "") -> int:
        """Write the class's body; returns the line number of the first line that holds ``marked``."""
        text = f"{HEAD}{CLASS}{indent(body.strip(), ' ' * 4)}\n{after}\n"
        self.file.write_text(text)
        self._monkeypatch.delitem(sys.modules, "mine", raising=False)
        lines = text.splitlines()
        wanted = after or marked
        return next(number for number, line in enumerate(lines, 1) if wanted in line)
