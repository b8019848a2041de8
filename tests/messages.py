"""Prose that commands print is asserted once, in golden files beside the tests' data.

A test calls ``golden_text(text)``; the text must equal its entry in tests/golden/messages/MODULE.json.
``PLIANT_WRITE_GOLDEN=1 python -m pytest -n 0 TEST`` writes these entries; read them before you commit them.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

GOLDEN: Final = Path(__file__).parent / "golden" / "messages"
WRITES: Final = bool(os.environ.get("PLIANT_WRITE_GOLDEN"))


def compare(path: Path, key: str, text: str) -> None:
    """Fail unless ``text`` is what the file holds under ``key``."""
    entries = json.loads(path.read_text()) if path.exists() else {}
    lines = text.splitlines()
    if WRITES and entries.get(key) != lines:
        entries[key] = lines
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(sorted(entries.items())), indent=1, ensure_ascii=False) + "\n")
    assert entries.get(key) == lines, f"{path.name}, {key}"


@pytest.fixture
def golden_text(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Compare a text with the golden one of this test; paths below its folder are written as TMP."""
    module = request.path.relative_to(Path(__file__).parent).with_suffix("")
    path = GOLDEN / f"{'-'.join(module.parts)}.json"

    def check(text: str, part: str = "") -> None:
        key = request.node.name + (f" ({part})" if part else "")
        compare(path, key, text.replace(str(tmp_path), "TMP"))

    return check
