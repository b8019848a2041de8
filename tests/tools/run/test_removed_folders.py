"""A job that removes its own folder in the state directory: what can be known of its end is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.tools.run.service.run import run_until_done
from tests.tools.run.site import Site

REMOVES = """
import os, shutil, sys
shutil.rmtree(os.environ["PLIANT_JOB_DIR"])
sys.exit(int(sys.argv[1]))
"""


def ends(folder: Path, code: int, elastic: str) -> tuple[str, str]:
    site = Site(folder)
    site.job("a", code, text=REMOVES, elastic=elastic)
    log, _ = run_until_done(site.options("fifo", retries=0), lambda _log, _now_s: None)
    assert site.of("a")[:2] == ["submit a", "start a 1"]
    return log.jobs["a"].phase, log.jobs["a"].reason


@pytest.mark.torch
def test_a_rigid_one_that_ends_well_has_ended_well(tmp_path: Path) -> None:
    assert ends(tmp_path, 0, "none") == ("finished", "")


@pytest.mark.torch
def test_a_rigid_one_that_fails_has_its_exit_code_as_its_reason(tmp_path: Path) -> None:
    assert ends(tmp_path, 3, "none") == ("failed", "exit code 3; its folder was removed while it ran")


def test_an_elastic_one_says_nothing_of_its_end_any_more(tmp_path: Path) -> None:
    phase, reason = ends(tmp_path, 0, "size")
    assert phase == "failed"
    assert reason.endswith("; its folder was removed while it ran")
    assert "no exit code" not in reason
