from __future__ import annotations

import pytest

from benchmarks import io
from pliant.schemas.file_io import limits


def test_files_are_read_whose_size_leaves_no_room_for_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 0)
    monkeypatch.setattr(io, "JOBS", 1000)
    monkeypatch.setattr(io, "EVENTS", 30_000)
    assert len(io.figures()) == 6
