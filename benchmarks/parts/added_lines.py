"""Lines that a training script has more, or other, than before it was made elastic.

Those of other people's scripts are measured where ``PLIANT_SCRIPTS`` names a folder with ``NAME/before.py``
and ``NAME/after.py``: they are tried, and not a part of this project.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import ROOT, Figure, NotMeasurableError

OWN: Final = {"gan": 15.0, "get_batch": 25.0, "rnn": None, "stripes": None}
"""Pairs of examples/, and the most lines where there is a limit."""
OTHERS: Final = {"nanogpt": 25.0}


def added(before: str, after: str) -> float:
    """Lines that are new or changed."""
    pairs = difflib.ndiff(before.splitlines(), after.splitlines())
    return float(sum(line.startswith("+ ") and bool(line[2:].strip()) for line in pairs))


def own_figures() -> Sequence[Figure]:
    return [
        _row(name, ROOT / "examples/before" / f"{name}.py", ROOT / "examples/after" / f"{name}.py", limit)
        for name, limit in OWN.items()
    ]


def others_figures() -> Sequence[Figure]:
    """:raises NotMeasurableError: the scripts are not here."""
    folder = Path(os.environ.get("PLIANT_SCRIPTS", ""))
    if not os.environ.get("PLIANT_SCRIPTS") or not all((folder / name).is_dir() for name in OTHERS):
        raise NotMeasurableError(
            "the scripts of others are not a part of this project: PLIANT_SCRIPTS names a folder with "
            f"{', '.join(OTHERS)}, each with before.py and after.py"
        )
    return [
        _row(name, folder / name / "before.py", folder / name / "after.py", limit)
        for name, limit in OTHERS.items()
    ]


def _row(name: str, before: Path, after: Path, limit: float | None) -> Figure:
    return Figure(f"added_lines_{name}", added(before.read_text(), after.read_text()), "lines", limit)
