from __future__ import annotations

import pytest

from benchmarks import io
from pliant.schemas.file_io import limits


def test_files_are_read_whose_size_leaves_no_room_for_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 0)
    assert len(io.figures(jobs=1000, events=30_000)) == 6
