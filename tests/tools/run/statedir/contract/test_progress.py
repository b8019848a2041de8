"""The small file of a job: replaced as a whole, for its owner alone, and never in anybody's way."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.statedir.contract.plan import Progress, ProgressFile, write_progress


def report(samples: float = 64.0, **more: Any) -> Progress:
    known: dict[str, Any] = {"job": "a", "attempt": 1, "generation": 1, "gpus": 2, "global_batch": 8}
    return Progress(**{**known, "step": 8, "epoch": 0, "samples_done": samples, **more})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "progress.json"


def test_each_report_is_read_once(path: Path) -> None:
    """It names its schema, and only its owner reads it."""
    file = ProgressFile(path)
    assert file.fresh() is None
    write_progress(path, report())
    assert file.fresh() == report()
    assert file.fresh() is None
    write_progress(path, report(128.0, loss=0.5))
    assert file.fresh() == report(128.0, loss=0.5)
    before = os.umask(0)
    try:
        write_progress(path, report())
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b'"schema":"pliant.progress/1"' in path.read_bytes()


def test_a_torn_or_strange_file_changes_nothing(path: Path) -> None:
    file = ProgressFile(path)
    write_progress(path, report())
    file.fresh()
    whole = path.read_bytes()
    for strange in (whole[:40], b"", b"[]", whole.replace(b"progress/1", b"progress/2"), b"\xff" * 99):
        path.write_bytes(strange)
        assert file.fresh() is None
        assert file.newest == report()
    path.unlink()
    assert file.fresh() is None
    os.mkfifo(path)
    assert file.fresh() is None
    path.unlink()
    write_progress(path, report(128.0))
    assert file.fresh() == report(128.0)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(path: Path) -> None:
    write_progress(path, report())
    path.with_name("progress.json.new").mkdir()
    with pytest.raises(OSError, match=r"progress\.json\.new"):
        write_progress(path, report(128.0))
    assert ProgressFile(path).fresh() == report()
