"""Leases of nodes, without a Slurm: what is submitted, kept and given back by what one says."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.backends.slurm import controller, leases
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.backends.slurm.command_lines import lease_prefix
from pliant.tools.run.statedir.layout import StateDir
from tests.tools.run.backends.slurm.conftest import kept_attempt, slurm_nodes
from tests.tools.run.site import until

RUNNING = UnitStatus("running")


class SaidSlurm:
    """What Slurm's commands say of two nodes, and of jobs that run as soon as they are submitted."""

    def __init__(self) -> None:
        self.states = {"n0": "IDLE", "n1": "IDLE"}
        self.jobs: dict[str, str] = {}
        """Names by id."""
        self.submitted: list[str] = []
        self.looks = 0
        self.gate = threading.Event()
        """Until then no submission ends."""
        self.gate.set()

    def ask(self, argv: Sequence[str], **_: object) -> str:
        if argv[0] == "sbatch":
            name = next(word for word in argv if word.startswith("--job-name=")).removeprefix("--job-name=")
            self.submitted.append(name)
            self.gate.wait()
            self.jobs[f"1{name[-1]}"] = name
        elif argv[0] == "scancel":
            for job_id in argv[2:]:
                self.jobs.pop(job_id, None)
        elif argv[0] == "scontrol":
            self.looks += 1
            return "".join(f"NodeName={n} State={state} CPUTot=8\n" for n, state in self.states.items())
        elif "--steps" not in argv:
            return "".join(f"{i}|RUNNING|n|None|{name}\n" for i, name in dict(self.jobs).items())
        return ""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> SaidSlurm:
    found = SaidSlurm()
    monkeypatch.setattr(controller, "ask", found.ask)
    monkeypatch.setattr(leases, "ask", found.ask)
    monkeypatch.setattr(controller, "LOOK_S", 0.0)
    monkeypatch.setattr(controller, "NODES_S", 0.0)
    monkeypatch.setattr(leases, "AGAIN_S", 0.0)
    return found


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def backend(dirs: StateDir) -> SlurmBackend:
    found = SlurmBackend(slurm_nodes("n0", "n1"), dirs)
    found._addresses = dict.fromkeys(("n0", "n1"), "127.0.0.1")
    found.nodes()
    return found


def look(said: SaidSlurm, found: SlurmBackend, handle: Handle) -> tuple[UnitStatus, ...]:
    """Poll an attempt until what Slurm says now has come to its backend."""
    seen = said.looks
    until(lambda: (found.poll([handle]), said.looks >= seen + 3)[1])
    return found.poll([handle])[handle]


def test_a_node_that_drains_keeps_its_lease_until_all_that_may_run_there_was_looked_at(
    said: SaidSlurm, dirs: StateDir
) -> None:
    """A launcher that takes over looks at one attempt after the other, and at Slurm meanwhile."""
    said.jobs = {"8": f"{lease_prefix(dirs.path)}n0", "9": f"{lease_prefix(dirs.path)}n1"}
    said.states["n1"] = "IDLE+DRAIN"
    a, b = kept_attempt(dirs, "a", "n0"), kept_attempt(dirs, "b", "n1")
    found = backend(dirs)
    assert found.adopt() == [a, b]
    assert look(said, found, a) == (RUNNING,)
    assert look(said, found, b) == (RUNNING,)
    assert list(said.jobs) == ["8", "9"]
    b.files.exit_code(0).write_text("0\n")
    until(lambda: (found.poll([b]), list(said.jobs) == ["8"])[1])


def test_a_look_alone_gives_back_nothing(said: SaidSlurm, dirs: StateDir) -> None:
    """As in a dry run: neither the lease of a node that drains, nor the second one of another."""
    said.jobs = {"7": f"{lease_prefix(dirs.path)}n0", "8": f"{lease_prefix(dirs.path)}n0"}
    said.jobs["9"] = f"{lease_prefix(dirs.path)}n1"
    said.states["n1"] = "IDLE+DRAIN"
    found, looks = backend(dirs), said.looks
    until(lambda: (found.nodes(), said.looks >= looks + 3)[1])
    assert list(said.jobs) == ["7", "8", "9"]


def test_a_unit_that_was_lost_holds_no_node_once_its_job_is_over(said: SaidSlurm, dirs: StateDir) -> None:
    """It has left no exit code, and a new process has not seen it silent for long enough."""
    said.jobs = {"8": f"{lease_prefix(dirs.path)}n0"}
    kept_attempt(dirs, "a", "n0")
    assert backend(dirs).release() == 0
    assert backend(dirs).release({"a"}) == 1
    assert not said.jobs


def test_a_lease_that_is_still_being_submitted_is_given_back(said: SaidSlurm, dirs: StateDir) -> None:
    said.gate.clear()
    found, handle = backend(dirs), kept_attempt(dirs, "a", "n0")
    found.adopt()
    until(lambda: (found.poll([handle]), len(said.submitted) == 2)[1])
    threading.Timer(0.1, said.gate.set).start()
    assert found.release({"a"}) == 2
    assert not said.jobs


def test_without_jobs_no_node_is_asked_for(said: SaidSlurm, dirs: StateDir) -> None:
    found, looks = backend(dirs), said.looks
    assert found.adopt() == []
    until(lambda: (found.nodes(), said.looks >= looks + 3)[1])
    assert not said.submitted
