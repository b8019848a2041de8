"""Leases of nodes, without a Slurm: what is submitted, kept and given back by what one says."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.backends.slurm import backend as leases
from pliant.tools.run.backends.slurm import commands, parsing
from pliant.tools.run.backends.slurm.backend import SlurmBackend
from pliant.tools.run.backends.slurm.commands import ControllerView, lease_prefix
from pliant.tools.run.backends.slurm.parsing import SlurmJob
from pliant.tools.run.backends.slurm.units import SlurmUnit
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.backends.slurm.conftest import kept_attempt, slurm_nodes
from tests.tools.run.site import until

RUNNING = UnitStatus("running")


class SaidSlurm:
    """What Slurm's commands say of two nodes, and of jobs that run as soon as they are submitted."""

    def __init__(self) -> None:
        self.states = {"n0": "IDLE", "n1": "IDLE"}
        self.jobs: dict[str, str] = {}
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
            return "".join(f"{i}|RUNNING|n|None|0|{name}\n" for i, name in dict(self.jobs).items())
        return ""


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> SaidSlurm:
    found = SaidSlurm()
    for asking in (commands, leases):
        monkeypatch.setattr(asking, "ask", found.ask)
    monkeypatch.setattr(leases, "_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(commands, "LOOK_S", 0.0)
    monkeypatch.setattr(commands, "NODES_S", 0.0)
    monkeypatch.setattr(leases, "LEASE_AGAIN_S", 0.0)
    return found


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def backend(dirs: StateDir) -> SlurmBackend:
    found = SlurmBackend(slurm_nodes("n0", "n1"), dirs)
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
    assert found.adopt() == []
    until(lambda: (found.nodes(), said.looks >= looks + 3)[1])
    assert list(said.jobs) == ["7", "8", "9"]
    said.jobs.clear()
    until(lambda: (found.nodes(), said.looks >= looks + 6)[1])
    assert not said.submitted, "without jobs no node is asked for"


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


def test_a_lease_that_ends_at_once_is_asked_for_less_and_less_often(
    dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site's rules may end or rename it, and its controller keeps each of them for minutes."""
    now_s = [0.0]
    made: list[object] = []
    ended = SimpleNamespace(done=True, failure="")
    monkeypatch.setattr(leases, "Later", lambda argv: (made.append(argv), ended)[1])
    found = leases.Leases(slurm_nodes("n0"), dirs.path, lambda: now_s[0])
    node = parsing.nodes("NodeName=n0 State=IDLE CPUTot=8")[0]

    def hour(*jobs: SlurmJob) -> int:
        before = len(made)
        for _ in range(3600):
            now_s[0] += 1.0
            found.look(ControllerView(now_s[0], jobs, {}, {"n0": node}))
        return len(made) - before

    assert 12 < hour() < 24
    assert "ends at once" in found.why_not("n0")
    assert hour(SlurmJob("7", "RUNNING", "n0", "None", 0, f"{lease_prefix(dirs.path)}n0")) == 0
    made.clear()
    for _ in range(10):
        now_s[0] += 1.0
        found.look(ControllerView(now_s[0], (), {}, {"n0": node}))
    assert len(made) == 3, "one that has run for long is replaced soon"


def test_a_lease_that_waits_is_held_too(dirs: StateDir) -> None:
    """Or it would run one day, and nobody would know that it has to be given back."""
    found = leases.Leases(slurm_nodes("n0", "n1"), dirs.path)
    waits = SlurmJob("7", "PENDING", "", "Resources", 0, f"{lease_prefix(dirs.path)}n0")
    found.look(ControllerView(0.0, (waits,)))
    assert (found.id_of("n0"), found.held) == (None, 1)


def test_a_node_on_which_nothing_starts_gets_no_work_for_a_while(
    said: SaidSlurm, dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = UnitStatus("lost", displaced="nothing starts on node n0")
    monkeypatch.setattr(SlurmUnit, "starting", lambda *_, **__: lost)
    handle = kept_attempt(dirs, "a", "n0")
    handle.files.keeper(0).unlink()
    found = backend(dirs)
    assert found.poll([handle]) == {handle: (lost,)}
    assert [(node.up, node.reason) for node in found.nodes()] == [
        (False, "nothing is heard of it"),
        (True, ""),
    ]
