from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.import_rows import MAPPINGS, WRITERS, write
from pliant.tools.replay.importers.run import FORMATS
from tests.tools.replay.importers.importing import run


def test_every_format_is_measured() -> None:
    assert set(WRITERS) == set(FORMATS)


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_measured_is_read_whole_and_strictly(kind: str, tmp_path: Path) -> None:
    path, workload = write(kind, tmp_path / "data", 200)
    summary = run(tmp_path, kind, str(path), workload=workload, mapping=MAPPINGS.get(kind)).summary
    assert summary.rows >= 200
    assert summary.jobs or summary.node_events


def test_the_same_seed_writes_the_same_rows(tmp_path: Path) -> None:
    first, second = (write("philly", tmp_path / name, 50)[0] for name in "ab")
    assert first.read_bytes() == second.read_bytes()
