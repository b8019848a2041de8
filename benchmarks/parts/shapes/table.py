"""The table of shapes: table.md, a heading, a line with its decision and code for each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).with_name("table.md")
_ENTRY: Final = re.compile(r"^### ([^\n]+)\n([^\n]+)\n```python\n(.+?)^```$", re.MULTILINE | re.DOTALL)
_SETTINGS: Final = re.compile(r"`(\{.*\})`")


@dataclass(frozen=True, slots=True)
class Shape:
    """A training loop, and what the library is said to make of it."""

    name: str
    decision: str
    """right, refused, warned or documented."""
    reason: str
    """What the user is told."""
    ddp: str
    """What DistributedDataParallel makes of it."""
    code: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of ``elastic.init``, beside the batch and the seed."""

    @property
    def is_documented(self) -> bool:
        """Whether the pages say that another result is to be expected."""
        return self.decision == "documented" or "documented" in self.reason

    @property
    def plain(self) -> bool:
        """Whether it can run without the library, which alone has loops over steps and its draws."""
        return not re.search(r"job\.(steps|draw|batch_indices|carried)\b|sampler=", self.code)


def entries(path: Path) -> Iterator[tuple[str, str, str]]:
    """Of each heading: its text, the line below it, its code."""
    for match in _ENTRY.finditer(path.read_text()):
        name, line, code = match.groups()
        yield name, line, code


@cache
def shapes() -> dict[str, Shape]:
    """All shapes by name."""
    found: dict[str, Shape] = {}
    for name, line, code in entries(TABLE):
        about, _, ddp = line.partition(" | ")
        decision, _, reason = about.partition(":")
        settings = _SETTINGS.search(reason)
        words = json.loads(settings[1]) if settings else {}
        found[name] = Shape(name, decision, reason.strip(), ddp or "right", code, words)
    return found


def page_rows() -> list[str]:
    """Rows of the table in docs/training-loops.md: the loops that are not right in every way of a job."""
    names = {"refused": "refused", "warned": "a warning", "documented": "another result"}
    return [
        f"| {one.name} | {one.ddp} | {names[one.decision]}: {one.reason.replace('documented: ', '')} |"
        for one in shapes().values()
        if one.decision != "right"
    ]
