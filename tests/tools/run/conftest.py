"""Every test of the launcher ends with nothing left running and nothing half-written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pliant.tools.run.plan import ENV_JOB_DIR


def left_running(folder: Path) -> list[psutil.Process]:
    """Processes of jobs whose state directory lies in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            job = process.environ().get(ENV_JOB_DIR, "")
            if job.startswith(f"{folder}/") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    left = left_running(tmp_path.resolve())
    told = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert told == []
    assert list(tmp_path.rglob(".pliant-*.tmp")) == []
