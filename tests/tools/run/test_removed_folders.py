"""A job that removes its own folder in the state directory: what can be known of its end is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.tools.profile.torchrun.start import kill, strays
from pliant.tools.run.service.run import run_once, run_until_done
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.site import Site, until

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
@pytest.mark.parametrize(
    ("code", "phase", "reason"),
    [(0, "finished", ""), (3, "failed", "exit code 3; its folder was removed while it ran")],
)
def test_a_rigid_one_has_ended_as_its_exit_code_says(
    tmp_path: Path, code: int, phase: str, reason: str
) -> None:
    assert ends(tmp_path, code, "none") == (phase, reason)


def test_an_elastic_one_says_nothing_of_its_end_any_more(tmp_path: Path) -> None:
    phase, reason = ends(tmp_path, 0, "size")
    assert phase == "failed"
    assert reason.endswith("; its folder was removed while it ran")
    assert "no exit code" not in reason


STAYS = """
import os, shutil, sys, time
while not os.path.exists(sys.argv[2]):  # else a start might end halfway, with its record gone
    time.sleep(0.01)
shutil.rmtree(os.environ["PLIANT_JOB_DIR"])
with open(sys.argv[1], "a") as began:
    began.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


@pytest.mark.torch
def test_a_launcher_that_finds_no_folder_starts_no_second_one_beside_the_first(tmp_path: Path) -> None:
    """Each call from cron is a launcher that knows of the first one by its processes alone."""
    site, began, started = Site(tmp_path), tmp_path / "began", tmp_path / "started"
    site.job("a", began, started, text=STAYS, elastic="none")
    mark = ENV_JOB_DIR, str(StateDir(site.state.resolve()).job("a").path)

    def pids() -> list[int]:
        return [int(line) for line in began.read_text().split()] if began.exists() else []

    try:
        for count in (1, 2):
            started.unlink(missing_ok=True)
            run_once(site.options("fifo"))
            started.touch()
            until(lambda count=count: len(pids()) == count)
        running = {process.pid for process in strays(mark)} & {*pids()}
        assert running == {pids()[-1]}
    finally:
        kill(strays(mark))
        until(lambda: not list(strays(mark)))
