"""Runs whose attempts are jobs of a real Slurm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.parts.slurm_cluster import SlurmCluster
from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.slurm import commands
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.run import run_until_done
from pliant.tools.run.statedir.log.fold import RunLog
from tests.tools.run.scripts import PlainJobsBackend
from tests.tools.run.site import Site, in_order, until


@pytest.fixture
def site(slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A cluster file with two nodes of two CPU slots."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    monkeypatch.setattr(commands, "POLL_INTERVAL_S", 0.1)
    monkeypatch.setattr(runner, "open_backend", lambda _name, nodes, dirs: PlainJobsBackend(nodes, dirs))
    found = Site(tmp_path)
    nodes = tuple({"name": name, "gpus": 2} for name in ("n0", "n1"))
    found.cluster = Cluster.model_validate({"nodes": nodes, "slots": "cpu", "backend": "slurm-jobs"})
    yield found
    slurm.end_jobs()
    until(lambda: set(slurm.states().values()) == {"idle"})


def test_a_change_of_size_is_another_job_of_slurm(site: Site, slurm: SlurmCluster) -> None:
    site.job("a", low=1, high=4, samples=4000.0)
    site.job("b", low=1, high=4, samples=500.0, at=2.0)
    log, received = run_until_done(site.options(), lambda _log, _now_s: None)
    assert received is None
    assert {job.phase for job in log.jobs.values()} == {"finished"}
    assert log.jobs["a"].samples_done == 4000.0
    assert in_order(
        ["start a 4", "shrink a 2", "start b 2", "finish b 0", "grow a 4", "finish a 0"], site.story()
    )
    assert (site.state / "jobs/a/attempts/3").is_dir()
    until(lambda: slurm.command("squeue", "-h", "-o", "%j").strip() == "")


def test_a_job_about_to_end_goes_on_in_another_one(site: Site, slurm: SlurmCluster) -> None:
    site.job("a", "--gate", site.gate, low=1, high=2)

    def announce(log: RunLog, _now_s: float) -> None:
        if not log.jobs["a"].samples_done:
            return
        attempts = sorted(path.name for path in (site.state / "jobs/a/attempts").iterdir())
        if attempts == ["1"] and not notice.exists():
            jobs = slurm.command("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()
            slurm.command("scancel", "--signal=USR1", *jobs)
            until(notice.exists)
        elif attempts == ["1", "2"]:
            site.gate.touch()

    notice = site.state / "jobs/a/attempts/1/unit-0.notice"
    log, _ = run_until_done(site.options(), announce)
    assert log.jobs["a"].samples_done == 200.0
    assert float((site.state / "jobs/a/saved-0").read_text()) > 0
    assert site.story() == ["submit a", "start a 2", "finish a 0"], "no failure, and no wait"
