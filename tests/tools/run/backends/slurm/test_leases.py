"""Nodes and their leases, without a Slurm: what is submitted, kept and given back by what one says."""

import shlex
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.schemas.cluster import Node
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.backends.protocol import Handle, Unit, UnitStatus
from pliant.tools.run.backends.slurm import backend as leases
from pliant.tools.run.backends.slurm import commands, parsing
from pliant.tools.run.backends.slurm.backend import Addresses, SlurmBackend
from pliant.tools.run.backends.slurm.commands import ControllerView, lease_prefix
from pliant.tools.run.backends.slurm.parsing import SlurmJob
from pliant.tools.run.backends.slurm.units import SlurmUnit
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.backends.slurm.conftest import kept_attempt, slurm_nodes
from tests.tools.run.site import until

RUNNING = UnitStatus("running")


class FakeSlurm:
    """What Slurm's commands say of two nodes, and of jobs that run as soon as they are submitted."""

    def __init__(self) -> None:
        self.states = {"n0": "IDLE", "n1": "IDLE"}
        self.jobs: dict[str, str] = {}
        self.submitted: list[str] = []
        self.refusal = ""
        self.looks = 0
        self.gate = threading.Event()
        """Until then no submission ends."""
        self.gate.set()

    def ask(self, argv: Sequence[str], **_: object) -> str:
        if argv[0] == "sbatch":
            name = next(word for word in argv if word.startswith("--job-name=")).removeprefix("--job-name=")
            self.submitted.append(name)
            self.gate.wait()
            if self.refusal:
                raise ServiceMissingError(self.refusal)
            self.jobs[f"1{name[-1]}"] = name
        elif argv[0] == "scancel":
            for job_id in argv[2:]:
                self.jobs.pop(job_id, None)
        elif argv[0] == "scontrol":
            self.looks += 1
            words = "CPUTot=8 Gres=gpu:4 Reason=new disks"
            return "".join(f"NodeName={n} State={state} {words}\n" for n, state in self.states.items())
        elif "--steps" not in argv:
            return "".join(f"{i}|RUNNING|n|None|0|{name}\n" for i, name in dict(self.jobs).items())
        return ""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    result = FakeSlurm()
    for asking in (commands, leases):
        monkeypatch.setattr(asking, "ask", result.ask)
    monkeypatch.setattr(leases, "_address", lambda *_: "127.0.0.1")
    monkeypatch.setattr(commands, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(commands, "NODES_S", 0.0)
    monkeypatch.setattr(leases, "LEASE_AGAIN_S", 0.0)
    return result


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def backend(dirs: StateDir) -> SlurmBackend:
    result = SlurmBackend(slurm_nodes("n0", "n1"), dirs)
    result.nodes()
    return result


def look(fake: FakeSlurm, result: SlurmBackend, handle: Handle) -> tuple[UnitStatus, ...]:
    """Poll an attempt until what Slurm says now has come to its backend."""
    seen = fake.looks
    until(lambda: (result.poll([handle]), fake.looks >= seen + 3)[1])
    return result.poll([handle])[handle]


def test_a_node_that_drains_keeps_its_lease_while_a_job_may_run(fake: FakeSlurm, dirs: StateDir) -> None:
    """A launcher that takes over looks at one attempt after the other, and at Slurm meanwhile."""
    fake.jobs = {"8": f"{lease_prefix(dirs.path)}n0", "9": f"{lease_prefix(dirs.path)}n1"}
    fake.states["n1"] = "IDLE+DRAIN"
    a, b = kept_attempt(dirs, "a", "n0"), kept_attempt(dirs, "b", "n1")
    result = backend(dirs)
    assert result.adopt() == [a, b]
    assert look(fake, result, a) == (RUNNING,)
    assert look(fake, result, b) == (RUNNING,)
    assert list(fake.jobs) == ["8", "9"]
    b.files.exit_code(0).write_text("0\n")
    until(lambda: (result.poll([b]), list(fake.jobs) == ["8"])[1])
    assert [node.reason for node in result.nodes()] == ["", "Slurm says DRAIN+IDLE: new disks"]
    fake.states["n1"] = "IDLE"
    until(lambda: [node.up for node in result.nodes()] == [True, True])


def test_a_second_lease_of_a_node_is_given_back_by_a_run(fake: FakeSlurm, dirs: StateDir) -> None:
    """A look alone, as in a dry run, gives nothing back, nor the lease of a node that drains."""
    fake.jobs = dict.fromkeys("78", f"{lease_prefix(dirs.path)}n0")
    fake.jobs["9"] = f"{lease_prefix(dirs.path)}n1"
    fake.states["n1"] = "IDLE+DRAIN"
    result, looks = backend(dirs), fake.looks
    assert result.adopt() == []
    until(lambda: (result.nodes(), fake.looks >= looks + 3)[1])
    assert list(fake.jobs) == ["7", "8", "9"]
    handle, runs = kept_attempt(dirs, "a", "n0"), backend(dirs)
    assert runs.adopt() == [handle]
    until(lambda: (runs.poll([handle]), "8" not in fake.jobs)[1])
    assert "7" in fake.jobs
    fake.jobs.clear()
    looks = fake.looks
    until(lambda: (result.nodes(), fake.looks >= looks + 3)[1])
    assert not fake.submitted, "without jobs no node is asked for"


def test_a_lease_is_held_while_it_waits_or_may_be_in_use(fake: FakeSlurm, dirs: StateDir) -> None:
    """A unit that was lost has no exit code, and a new process has not seen it silent."""
    fake.jobs = {"8": f"{lease_prefix(dirs.path)}n0", "9": f"{lease_prefix(dirs.path / 'other')}n0"}
    kept_attempt(dirs, "a", "n0")
    assert backend(dirs).release() == 0
    assert backend(dirs).release({"a"}) == 1
    assert list(fake.jobs) == ["9"], "that of another directory"
    result = leases.Leases(slurm_nodes("n0", "n1"), dirs.path)
    waits = SlurmJob("7", "PENDING", "", "Resources", 0, f"{lease_prefix(dirs.path)}n0")
    result.look(ControllerView(0.0, (waits,)))
    assert (result.id_of("n0"), result.held) == (None, 1)


def test_a_lease_that_is_still_being_submitted_is_given_back(fake: FakeSlurm, dirs: StateDir) -> None:
    fake.gate.clear()
    result, handle = backend(dirs), kept_attempt(dirs, "a", "n0")
    result.adopt()
    until(lambda: (result.poll([handle]), len(fake.submitted) == 2)[1])
    threading.Timer(0.1, fake.gate.set).start()
    assert result.release({"a"}) == 2
    assert not fake.jobs


def test_a_lease_that_ends_is_asked_for_less_often(dirs: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's rules may end or rename it, and its controller keeps each of them for minutes."""
    now_s = [0.0]
    made: list[object] = []
    ended = SimpleNamespace(done=True, failure="")
    monkeypatch.setattr(leases, "Later", lambda argv: (made.append(argv), ended)[1])
    result = leases.Leases(slurm_nodes("n0"), dirs.path, lambda: now_s[0])
    node = parsing.nodes("NodeName=n0 State=IDLE CPUTot=8")[0]

    def hour(*jobs: SlurmJob) -> int:
        before = len(made)
        for _ in range(3600):
            now_s[0] += 1.0
            result.look(ControllerView(now_s[0], jobs, {}, {"n0": node}))
        return len(made) - before

    assert 12 < hour() < 24
    assert "ends at once" in result.why_not("n0")
    assert hour(SlurmJob("7", "RUNNING", "n0", "None", 0, f"{lease_prefix(dirs.path)}n0")) == 0
    made.clear()
    for _ in range(10):
        now_s[0] += 1.0
        result.look(ControllerView(now_s[0], (), {}, {"n0": node}))
    assert len(made) == 3, "one that has run for long is replaced soon"


def test_a_node_on_which_nothing_starts_gets_no_work_for_a_while(
    fake: FakeSlurm, dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = UnitStatus("lost", displaced="nothing starts on node n0")
    monkeypatch.setattr(SlurmUnit, "starting", lambda *_, **__: lost)
    handle = kept_attempt(dirs, "a", "n0")
    handle.files.supervisor(0).unlink()
    result = backend(dirs)
    assert result.poll([handle]) == {handle: (lost,)}
    assert [(node.up, node.reason) for node in result.nodes()] == [
        (False, "nothing is heard of it"),
        (True, ""),
    ]


def test_a_lease_that_slurm_refuses_is_why_its_node_is_down(
    fake: FakeSlurm, dirs: StateDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "WAIT_S", 0.0)
    fake.refusal = "sbatch: error: invalid partition"
    result, handle = backend(dirs), kept_attempt(dirs, "a", "n0")
    result.adopt()
    until(lambda: (result.poll([handle]), "no lease" in caplog.text)[1])
    expected = f"Slurm refuses its lease: {fake.refusal}"
    until(lambda: [node.reason for node in result.nodes()] == [expected] * 2)


def test_what_is_stopped_before_its_lease_runs_is_not_started(fake: FakeSlurm, dirs: StateDir) -> None:
    fake.gate.clear()
    result, handle = backend(dirs), Handle("a", 1, dirs.job("a").attempt(1).path)
    handle.folder.mkdir(parents=True)
    result.start(handle, [Unit(node, ("true",), "/", {"CUDA_VISIBLE_DEVICES": ""}) for node in ("n0", "n1")])
    assert result.poll([handle])[handle] == (RUNNING, RUNNING)
    ended = UnitStatus("exited", -15)
    for only, expected in (([0], (ended, RUNNING)), (None, (ended, ended))):
        result.stop(handle, "term", only)
        assert result.poll([handle])[handle] == expected
    fake.gate.set()
    assert not handle.files.supervisor(0).exists()


def test_the_cluster_file_says_what_slurm_says(fake: FakeSlurm, dirs: StateDir) -> None:
    for wrong, problem in (
        (slurm_nodes("n9"), "Slurm knows no node n9"),
        (slurm_nodes("n0", gpus=5, slots="gpu"), "5 GPUs on node n0, Slurm says 4"),
    ):
        with pytest.raises(BadInputError, match=problem):
            SlurmBackend(wrong, dirs).nodes()


def test_a_dry_run_shows_each_lease_and_each_step(fake: FakeSlurm, dirs: StateDir) -> None:
    result = SlurmBackend(slurm_nodes("n0", slots="gpu"), dirs)
    result.nodes()
    handle = Handle("a", 1, dirs.path / "jobs/a/attempts/1")
    unit = Unit("n0", ("python", "train it.py"), "/work", {"CUDA_VISIBLE_DEVICES": "2", "SEED": "1 2"})
    lease, step = result.shown(handle, [unit])
    assert lease.startswith(f"sbatch --parsable --job-name={lease_prefix(dirs.path)}n0 ")
    assert step.startswith(
        "env CUDA_VISIBLE_DEVICES=2 'SEED=1 2' srun --quiet --jobid=LEASE_OF_n0 --job-name=a.1.0 "
    )
    *_, supervisor, folder, number, slots, workdir, program, script = shlex.split(step)
    assert Path(supervisor).name == "step.py"
    assert (folder, number, slots, workdir) == (str(handle.folder), "0", "2", "/work")
    assert (program, script) == ("python", "train it.py")
    assert not handle.folder.exists()
    assert not fake.submitted


@pytest.mark.parametrize("answer", ["8.8.8.8", socket.EAI_AGAIN])
def test_a_node_that_gets_its_name_later_is_down_until_then(monkeypatch: pytest.MonkeyPatch, answer) -> None:
    known: dict[str, str | int] = {}

    def look_up(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        answer = known.get(name, socket.EAI_NONAME)
        if isinstance(answer, int):
            raise socket.gaierror(answer, "it is said why")
        return [(0, 0, 0, "", (answer, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(leases, "NAME_AGAIN_S", 0.0)
    result, node = Addresses(), Node(name="n1", gpus=1)
    assert result.look_up(node, None) == "its address n1 is not known on this machine"
    assert result.of("n1") == "n1"
    known["n1"] = "10.0.0.2"
    assert (result.look_up(node, None), result.of("n1")) == ("", "10.0.0.2")
    known["n1"] = answer
    with pytest.raises(BadInputError, match="n1"):
        Addresses().look_up(node, None)
