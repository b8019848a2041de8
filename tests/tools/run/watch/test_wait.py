"""``pliant wait``: jobs are named as they end, with how they ended."""

from __future__ import annotations

import subprocess

import pytest

from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.watch.output import ends_of
from tests.cli.calling import call
from tests.tools.run.conftest import site
from tests.tools.run.site import PLIANT, Site, environment

__all__ = ["site"]
pytestmark = pytest.mark.usefixtures("plain_python")


def test_each_job_is_told_once_with_its_end(site: Site) -> None:
    site.job("a", samples=10)
    site.job("b", samples=10, text="raise SystemExit('no data')")
    run_until_done(site.options(retries=0), lambda log, now_s: None)
    found = call("wait", "b", "a", "a", "--state", str(site.state))
    assert found.exit_code == 5
    assert sorted(found.stdout.splitlines()) == ["a finished", "b failed: exit code 1: no data"]
    assert "1 of 2 jobs did not finish" in found.stderr
    assert call("wait", "a", "--state", str(site.state)).exit_code == 0


def test_a_job_that_nobody_submitted_is_refused(site: Site) -> None:
    site.job("a", samples=10)
    run_until_done(site.options(), lambda log, now_s: None)
    found = call("wait", "a", "other", "--state", str(site.state))
    assert (found.exit_code, found.stdout) == (2, "")
    assert "other" in found.stderr


def test_it_waits_for_a_job_that_runs(site: Site) -> None:
    site.job("a", "--gate", site.gate, samples=10)
    run = subprocess.Popen(
        [*PLIANT, "run", site.schedule(), "--until-done", "--state", str(site.state)],
        cwd=site.folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while "a" not in site.log().jobs:
            assert run.poll() is None
        ends = ends_of(site.state, ["a"])
        assert next(ends) is None
        site.gate.touch()
        assert [job.phase for job in ends if job is not None] == ["finished"]
    finally:
        site.gate.touch()
        run.wait()
