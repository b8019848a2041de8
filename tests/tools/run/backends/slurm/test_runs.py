"""Whole runs on a real Slurm: policies decide, nodes go and come, and every sample is trained once."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.parts.slurm_cluster import SlurmCluster
from pliant.schemas.io import write_cluster
from pliant.tools.run.backends.slurm.commands import lease_prefix
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.run import release_nodes, run_once, run_until_done
from pliant.tools.run.service.submit import submit
from tests.builders import job
from tests.tools.run.backends.slurm.conftest import slurm_nodes
from tests.tools.run.scripts import PlainSlurmBackend
from tests.tools.run.site import PLIANT, Site, environment, in_order, until
from tests.tools.run.test_training import ELASTIC

REAL = (sys.executable, "-m", "pliant.cli")


class SlurmSite(Site):
    """A state directory on the tests' Slurm, and the processes that a test has started on it."""

    def __init__(self, folder: Path, *names: str, gpus: int = 2) -> None:
        super().__init__(folder)
        self.cluster = slurm_nodes(*names, gpus=gpus)
        self.runs: list[subprocess.Popen[str]] = []

    def run(self, *words: object, program: Sequence[str] = PLIANT) -> subprocess.Popen[str]:
        """A run in a process of its own; what it says goes to a file."""
        with (self.folder / "said").open("a") as said:
            run = subprocess.Popen(
                [*program, "run", *map(str, words), "--state", str(self.state)],
                cwd=self.folder,
                env=environment(),
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
def site(live: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSite]:
    monkeypatch.setattr(runner, "open_backend", lambda _name, nodes, dirs: PlainSlurmBackend(nodes, dirs))
    found = SlurmSite(tmp_path, "n0", "n1")
    yield found
    for run in found.runs:
        run.kill()
        run.wait()


def leases(slurm: SlurmCluster) -> list[str]:
    return slurm.command("squeue", "-h", "-o", "%N").split()


def test_jobs_train_on_slurm_and_their_samples_are_exact(site: SlurmSite, live: SlurmCluster) -> None:
    site.cluster = slurm_nodes("n0", "n1", gpus=1)
    for name, epochs in (("a", 3), ("b", 1)):
        site.job(name, epochs, 0.02, text=ELASTIC, samples=epochs * 64, high=2)
    write_cluster(site.cluster, site.folder / "cluster.json")
    submit(site.state, site.jobs, "jobs", folder=site.folder, now_s=0.0)
    words = ("--follow", "--backend", "slurm", "--policy", "ares", "--cluster", site.folder / "cluster.json")
    follow = site.run(*words, program=REAL)
    until(lambda: follow.poll() is not None or (len(site.log().jobs) == 2 and not site.log().active))
    assert {name: job.phase for name, job in site.log().jobs.items()} == dict.fromkeys("ab", "finished")
    assert site.samples() == {"a": 3 * 64, "b": 64}
    follow.send_signal(signal.SIGTERM)
    follow.wait()
    assert leases(live), "the next run goes on with the nodes that this one had"
    assert "2 nodes are kept for the next run" in site.said()
    assert release_nodes(site.state) == 2
    until(lambda: not leases(live))


@pytest.mark.parametrize("backend", ["slurm", "slurm-jobs"])
def test_jobs_without_gpus_run_beside_others(site: SlurmSite, live: SlurmCluster, backend: str) -> None:
    """In a lease of a node, or as a job of Slurm of its own: no GPU is asked for, nor seen."""
    nodes = slurm_nodes("n0", gpus=1, slots="gpu", backend=backend)
    write_cluster(nodes, site.folder / "cluster.json")
    wants = {"worker": {"cpu": 2.0, "memory": 100e6}}
    says = ("bash", "-c", 'echo "gpus [$CUDA_VISIBLE_DEVICES] cpus $SLURM_CPUS_PER_TASK" > said-by-it')
    own = {"command": says, "workdir": str(site.folder), "resources": wants, "batch": {}}
    submit(site.state, [job("prep", gpus=0, **own)], "jobs", folder=site.folder, now_s=0.0)
    words = ("--follow", "--backend", backend, "--policy", "fifo", "--cluster", site.folder / "cluster.json")
    follow = site.run(*words, program=REAL)
    until(lambda: follow.poll() is not None or (bool(site.log().jobs) and not site.log().active))
    assert site.log().jobs["prep"].phase == "finished", site.said()
    assert (site.folder / "said-by-it").read_text().startswith("gpus []")
    follow.send_signal(signal.SIGTERM)
    follow.wait()
    release_nodes(site.state)
    until(lambda: not leases(live))


def test_calls_from_cron_start_jobs_once_their_leases_run(site: SlurmSite, live: SlurmCluster) -> None:
    other = ("--job-name=other", "--exclusive", "--nodelist=n1", "--output=/dev/null")
    live.command("sbatch", *other, "--wrap", "exec sleep 600")
    until(lambda: leases(live) == ["n1"])
    site.job("a", "--gate", site.gate, gpus=2)
    site.job("b", "--gate", site.gate, gpus=2)
    options = site.options("fifo")
    started = [site.state / f"jobs/{name}/attempts/1/unit-0.alive" for name in "ab"]
    # Slurm may look at the lease that waits first: then the call leaves that of n0 to the next one, too
    until(lambda: bool(run_once(options)) and started[0].exists())
    assert not started[1].exists()
    live.command("scancel", "--name=other")
    lease = f"{lease_prefix(site.state)}n1 RUNNING"
    until(lambda: lease in live.command("squeue", "-h", "-o", "%j %T").splitlines())
    run_once(options)
    assert [path.exists() for path in started] == [True, True]
    site.gate.touch()
    until(lambda: not run_once(options)[0].active)
    assert site.samples() == {"a": 200.0, "b": 200.0}
    until(lambda: not leases(live))


def test_jobs_leave_a_node_that_goes_down_and_return(site: SlurmSite, live: SlurmCluster) -> None:
    site.job("a", "--gate", site.gate, "--rate", 1e6, gpus=4, low=1, high=4, samples=1e5)
    run = site.run(site.schedule("fair-share"), "--until-done")
    until(lambda: site.samples().get("a", 0.0) > 0)
    live.command("scontrol", "update", "nodename=n1", "state=drain", "reason=new disks")
    until(lambda: "n1" in site.log().down)
    said = site.log().down["n1"]
    assert said.startswith("Slurm says ")
    assert "DRAIN" in said
    assert said.endswith(": new disks")
    until(lambda: dict(site.log().jobs["a"].placement) == {"n0": 2})
    until(lambda: live.states()["n1"] == "drain")  # nothing is left there
    live.command("scontrol", "update", "nodename=n1", "state=resume")
    until(lambda: dict(site.log().jobs["a"].placement) == {"n0": 2, "n1": 2})
    site.gate.touch()
    assert run.wait() == 0, site.said()
    wanted = ["start a 4", "shrink a 2", "node_down None", "node_up None", "grow a 4", "finish a 0"]
    assert in_order(wanted, site.story()), site.story()
    assert site.samples() == {"a": 1e5}


@pytest.mark.torch
def test_an_elastic_job_leaves_a_node_before_its_lease_ends(site: SlurmSite, live: SlurmCluster) -> None:
    site.cluster = slurm_nodes("n0", "n1", gpus=1)
    site.job("a", 40, 0.02, text=ELASTIC, samples=40 * 64, low=1, high=2)
    run = site.run(site.schedule("fair-share"), "--until-done", program=REAL)
    until(lambda: site.samples().get("a", 0.0) > 0)
    listed = dict(line.split() for line in live.command("squeue", "-h", "-o", "%N %i").splitlines())
    live.command("scancel", "--signal=USR1", listed["n1"])
    until(lambda: "n1" in site.log().down)
    assert site.log().down["n1"] == "Slurm has announced the end of its lease"
    until(lambda: dict(site.log().jobs["a"].placement) == {"n0": 1})
    until(lambda: (site.state / "jobs/a/attempts/1/exit-1").exists() or run.poll() is not None)
    live.command("scancel", listed["n1"])
    assert run.wait() == 0, site.said()
    assert site.samples() == {"a": 40 * 64}
    assert in_order(["start a 2", "shrink a 1", "node_down None", "finish a 0"], site.story()), site.story()
    assert [path.name for path in (site.state / "jobs/a/attempts").iterdir()] == ["1"], "in place"


def test_jobs_save_at_the_notice_that_slurm_gives_of_the_end(site: SlurmSite, live: SlurmCluster) -> None:
    """Slurm's own clock for it is a minute coarse: it may come before a step is there to get it."""
    site.cluster = slurm_nodes("n0", gpus=1, lease_seconds=600.0, notice_seconds=60.0)
    site.job("a", "--gate", site.gate)
    run = site.run(site.schedule("fifo"), "--until-done")
    until(lambda: site.samples().get("a", 0.0) > 0)
    live.command("scancel", "--signal=USR1", *live.command("squeue", "-h", "-o", "%i").split())
    until(lambda: any(event.event == "requeue" for event in site.events()))
    (left,) = [event for event in site.events() if event.event == "requeue"]
    noticed = "Slurm has announced the end of"  # by the loop, or by a job that saves before the loop looks
    reasons = (f"node n0 is down: {noticed} its lease", f"{noticed} what ran on node n0")
    assert (left.detail or {})["reason"] in reasons
    until((site.state / "jobs/a/saved-0").exists)
    assert site.log().jobs["a"].retry.failures == 0
    run.send_signal(signal.SIGTERM)
    run.wait()


ENDS_ITS_GROUP = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(0, signal.SIGTERM)
sys.exit(3)
"""


def test_a_script_that_signals_its_group_ends_after_four_tries(site: SlurmSite) -> None:
    site.job("a", text=ENDS_ITS_GROUP, elastic="none")
    log, _ = run_until_done(site.options("fifo", retries=0), lambda _log, _now_s: None)
    assert log.jobs["a"].phase == "failed"
    (end,) = [event for event in site.events() if event.event == "fail"]
    assert (end.detail or {})["displacements"] == 4
    first = next(event for event in site.events() if event.event == "requeue")
    reason = "Slurm has ended what ran on node n0"
    assert (
        first.detail.items() >= {"over": 1, "reason": reason, "displacements": 1, "wait_seconds": 1.0}.items()
    )
