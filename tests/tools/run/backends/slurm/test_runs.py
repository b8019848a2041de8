"""Whole runs on a real Slurm: policies decide, nodes go and come, and every sample is trained once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster, write_jobs
from pliant.tools.run.backends.slurm.commands import lease_prefix
from tests.slurm_cluster import SlurmCluster
from tests.tools.run.backends.slurm.conftest import slurm_nodes
from tests.tools.run.site import Site, in_order, until
from tests.tools.run.test_run_process import ROOT
from tests.tools.run.test_training import ELASTIC

PLAIN = ("-m", "tests.tools.run.runner_process")
"""Starts Python where a run starts torchrun."""
REAL = ("-m", "pliant.cli")


class SlurmSite(Site):
    """A state directory on the tests' Slurm, and the runs that a test has started on it."""

    def __init__(self, folder: Path, *names: str, gpus: int = 2) -> None:
        super().__init__(folder)
        self.cluster = slurm_nodes(*names, gpus=gpus)
        self.runs: list[subprocess.Popen[str]] = []

    def run(self, *words: object, program: Sequence[str] = PLAIN) -> subprocess.Popen[str]:
        """A command in a process of its own; what it says goes to a file."""
        with (self.folder / "said").open("a") as said:
            run = subprocess.Popen(
                [sys.executable, *program, *map(str, words), "--state", str(self.state)],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                text=True,
            )
        self.runs.append(run)
        return run

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def samples(self) -> dict[str, float]:
        return {name: job.samples_done for name, job in self.log().jobs.items()}


@pytest.fixture
def site(live: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:
    found = SlurmSite(tmp_path, "n0", "n1")
    yield found
    for run in found.runs:
        run.kill()
        run.wait()


def leases(slurm: SlurmCluster) -> list[str]:
    return slurm.command("squeue", "-h", "-o", "%N").split()


def test_jobs_train_on_slurm_under_a_policy_and_their_samples_are_exact(
    site: SlurmSite, live: SlurmCluster
) -> None:
    site.cluster = slurm_nodes("n0", "n1", gpus=1)
    for name, epochs in (("a", 3), ("b", 2), ("c", 1)):
        site.job(name, epochs, 0.02, text=ELASTIC, samples=epochs * 64, high=2)
    write_cluster(site.cluster, site.folder / "cluster.json")
    write_jobs(site.jobs, site.folder / "jobs.jsonl")
    live_run = ("run", "--follow", "--backend", "slurm", "--policy", "ares")
    follow = site.run(*live_run, "--cluster", site.folder / "cluster.json", program=REAL)
    until(lambda: (site.state / "schedule.json").exists() or follow.poll() is not None)
    assert site.run("submit", site.folder / "jobs.jsonl", program=REAL).wait() == 0, site.said()
    until(lambda: len(site.log().jobs) == 3 and not site.log().active)
    assert {name: job.phase for name, job in site.log().jobs.items()} == dict.fromkeys("abc", "finished")
    assert site.samples() == {"a": 3 * 64, "b": 2 * 64, "c": 64}
    follow.send_signal(signal.SIGTERM)
    follow.wait()
    assert leases(live), "the next run goes on with the nodes that this one had"
    assert "2 nodes are kept for the next run" in site.said()
    assert site.run("cluster", "release", program=REAL).wait() == 0, site.said()
    until(lambda: not leases(live))


def test_a_run_that_dies_leaves_its_jobs_to_the_next_one(site: SlurmSite, live: SlurmCluster) -> None:
    """Nothing is started twice, and all nodes are given back at the end."""
    site.job("a", "--gate", site.gate, gpus=2)
    site.job("b", "--gate", site.gate)
    schedule = site.schedule("fifo")
    first = site.run("run", schedule, "--until-done")
    until(lambda: all(site.samples().get(name, 0.0) > 0 for name in "ab"))
    first.kill()
    first.wait()
    assert sorted(leases(live)) == ["n0", "n1"]
    second = site.run("run", "--until-done")
    until(lambda: "second" in site.said() or second.poll() is not None or site.gate.touch() is None)
    assert second.wait() == 0, site.said()
    assert site.samples() == {"a": 200.0, "b": 200.0}
    assert [path.name for path in sorted(site.state.glob("jobs/*/attempts/*"))] == ["1", "1"]
    until(lambda: not leases(live))


def test_calls_from_cron_start_jobs_once_their_leases_run_and_wait_for_no_queue(
    site: SlurmSite, live: SlurmCluster
) -> None:
    """A call sees what it starts through to its first process, for the next one comes a minute later."""
    other = ("--job-name=other", "--exclusive", "--nodelist=n1", "--output=/dev/null")
    live.command("sbatch", *other, "--wrap", "exec sleep 600")
    until(lambda: leases(live) == ["n1"])
    site.job("a", "--gate", site.gate, gpus=2)
    site.job("b", "--gate", site.gate, gpus=2)
    turn = ("run", site.schedule("fifo"))
    started = [site.state / f"jobs/{name}/attempts/1/unit-0.alive" for name in "ab"]
    assert site.run(*turn).wait() == 0, site.said()
    assert [path.exists() for path in started] == [True, False]
    live.command("scancel", "--name=other")
    until(lambda: sorted(leases(live)) == ["n0", "n1"])
    assert site.run(*turn).wait() == 0, site.said()
    assert [path.exists() for path in started] == [True, True]
    site.gate.touch()
    until(lambda: site.run(*turn).wait() == 0 and not site.log().active)
    assert site.samples() == {"a": 200.0, "b": 200.0}
    until(lambda: not leases(live))


def test_a_lease_that_slurm_ends_costs_no_job_a_failure(site: SlurmSite, live: SlurmCluster) -> None:
    """No retry is allowed here; once the node has another lease, the job goes on."""
    site.job("a", "--gate", site.gate, gpus=2)
    run = site.run("run", site.schedule("fifo"), "--until-done", "--retries", 0)
    until(lambda: site.samples().get("a", 0.0) > 0)
    (node,) = dict(site.log().jobs["a"].placement)
    live.command("scancel", f"--name={lease_prefix(site.state)}{node}")
    until(lambda: any(event.event == "requeue" for event in site.events()))
    (requeue,) = [event for event in site.events() if event.event == "requeue"]
    reason = f"Slurm has ended what ran on node {node}"
    assert requeue.detail == {"over": 1, "reason": reason, "displacements": 1, "wait_seconds": 1.0}
    site.gate.touch()
    assert run.wait() == 0, site.said()
    found = site.log().jobs["a"]
    assert (found.phase, found.failures, found.failed_attempt, found.over_attempt) == ("finished", 0, 0, 1)


def test_jobs_leave_a_node_that_goes_down_and_come_back_to_it(site: SlurmSite, live: SlurmCluster) -> None:
    site.job("a", "--gate", site.gate, "--rate", 1e6, gpus=4, low=1, high=4, samples=1e5)
    run = site.run("run", site.schedule("fair-share"), "--until-done")
    until(lambda: site.samples().get("a", 0.0) > 0)
    live.command("scontrol", "update", "nodename=n1", "state=drain", "reason=new disks")
    until(lambda: "n1" in site.log().down)
    assert "new disks" in site.log().down["n1"]
    until(lambda: dict(site.log().jobs["a"].placement) == {"n0": 2})
    until(lambda: live.states()["n1"] == "drain")  # nothing is left there
    live.command("scontrol", "update", "nodename=n1", "state=resume")
    until(lambda: dict(site.log().jobs["a"].placement) == {"n0": 2, "n1": 2})
    site.gate.touch()
    assert run.wait() == 0, site.said()
    wanted = ["start a 4", "shrink a 2", "node_down None", "node_up None", "grow a 4", "finish a 0"]
    assert in_order(wanted, site.story()), site.story()
    assert site.samples() == {"a": 1e5}


ENDS_ITS_GROUP = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(0, signal.SIGTERM)
sys.exit(3)
"""


def test_a_script_that_signals_its_whole_group_as_it_fails_ends_after_four_attempts(site: SlurmSite) -> None:
    """Its keeper takes that for a signal of Slurm."""
    site.job("a", text=ENDS_ITS_GROUP, elastic="none")
    run = site.run("run", site.schedule("fifo"), "--until-done", "--retries", 0)
    assert run.wait() == 5, site.said()
    (end,) = [event for event in site.events() if event.event == "fail"]
    assert (end.detail or {})["displacements"] == 4
