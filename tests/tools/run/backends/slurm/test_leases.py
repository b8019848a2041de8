"""Nodes and their leases, without a Slurm: what is submitted, kept and given back by what one says."""

import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.parts.slurm_leases import leases_idle_over_limit, leases_left
from pliant.schemas.cluster import LeaseRule, Node
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.backends.protocol import Handle, Unit, UnitStatus
from pliant.tools.run.backends.slurm import backend as leases
from pliant.tools.run.backends.slurm import commands, parsing
from pliant.tools.run.backends.slurm.backend import Addresses, SlurmBackend
from pliant.tools.run.backends.slurm.commands import ControllerView, lease_prefix
from pliant.tools.run.backends.slurm.lease_demand import LeasedNode, LeaseState, lease_plan
from pliant.tools.run.backends.slurm.parsing import SlurmJob
from pliant.tools.run.backends.slurm.units import SlurmUnit
from pliant.tools.run.statedir.directory import StateDir
from tests.effort import examples
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


def leased(
    name: str, state: str, *, busy: bool = False, idle_s: float = 0.0, partition: str | None = None
) -> LeasedNode:
    return LeasedNode(name, partition, LeaseState[state], busy, idle_s)


@pytest.mark.parametrize(
    ("rule", "nodes", "wanted", "offered"),
    [
        ({}, [leased("a", "NONE"), leased("b", "NONE", busy=True)], "b", "ab"),
        ({}, [leased("a", "RUNNING", idle_s=299.0), leased("b", "RUNNING", idle_s=300.0)], "a", "ab"),
        ({"min_nodes": 2}, [leased(name, "NONE") for name in "abc"], "ab", "abc"),
        ({"min_nodes": 1}, [leased("a", "NONE"), leased("b", "RUNNING", idle_s=999.0)], "b", "ab"),
        ({"max_nodes": 1}, [leased("a", "NONE"), leased("b", "NONE", busy=True)], "b", "b"),
        ({"max_nodes": 1}, [leased("a", "WAITING"), leased("b", "NONE")], "", "b"),
        (
            {"max_nodes": 1},
            [leased("a", "RUNNING", busy=True), leased("b", "RUNNING", busy=True)],
            "ab",
            "ab",
        ),
        (
            {"max_nodes": 1, "partitions": {"p": {"max_nodes": 2, "idle_seconds": 0.0}}},
            [
                *(leased(name, "NONE") for name in "ab"),
                *(leased(name, "RUNNING", partition="p") for name in "cde"),
            ],
            "",
            "acd",
        ),
    ],
)
def test_leases_follow_the_jobs_within_their_limits(
    rule: dict[str, object], nodes: list[LeasedNode], wanted: str, offered: str
) -> None:
    plan = lease_plan(LeaseRule.model_validate(rule), nodes, jobs_wait=False)
    assert ("".join(sorted(plan.needed)), "".join(sorted(plan.offered))) == (wanted, offered)
    waiting = [each.name for each in nodes if each.state in (LeaseState.REQUESTED, LeaseState.WAITING)]
    plan = lease_plan(LeaseRule.model_validate(rule), nodes, jobs_wait=True)
    assert plan.needed == {*wanted, *waiting} & plan.offered | {each.name for each in nodes if each.is_busy}


def test_a_lease_given_back_gets_no_unit_and_the_next_launcher_gives_back_the_rest(
    fake: FakeSlurm, dirs: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = slurm_nodes("n0", "n1", leases={"idle_seconds": 0.0, "max_nodes": 1})
    cancelled = list[str]()
    ask = fake.ask

    def asked(argv: Sequence[str], **_: object) -> str:
        """Slurm takes its time to end a lease."""
        if argv[0] != "scancel":
            return ask(argv)
        cancelled.extend(argv[2:])
        return ""

    for place in (commands, leases):
        monkeypatch.setattr(place, "ask", asked)
    result, unit = SlurmBackend(cluster, dirs), Unit("n0", ("true",), "/", {"CUDA_VISIBLE_DEVICES": ""})
    monkeypatch.setattr(SlurmUnit, "starting", lambda *_, **__: RUNNING)
    first, second = (Handle(job, 1, dirs.job(job).attempt(1).path) for job in "ab")
    for handle in (first, second):
        handle.folder.mkdir(parents=True)
    assert [node.up for node in result.nodes()] == [True, False]
    result.start(first, [unit])
    until(lambda: (result.poll([first]), result.leases.id_of("n0"))[1])
    assert fake.submitted == [f"{lease_prefix(dirs.path)}n0"]
    first.files.exit_code(0).write_text("0\n")
    until(lambda: (result.poll([first]), cancelled)[1])
    result.start(second, [unit])
    assert (cancelled, result.leases.id_of("n0")) == (["10"], None), "nothing starts in what ends"
    fake.jobs.clear()
    until(lambda: (result.poll([second]), result.leases.id_of("n0"))[1])
    second.files.exit_code(0).write_text("0\n")
    after = SlurmBackend(cluster, dirs)  # the launcher was killed before it gave the lease back
    cancelled.clear()
    after.adopt({"a", "b"})
    until(lambda: (after.nodes(), cancelled)[1])
    assert cancelled == ["10"]


def test_a_lease_that_no_run_looks_after_ends_by_itself(tmp_path: Path) -> None:
    """Each of its looks is ten seconds after the other; a step keeps it, and a file that is renewed."""
    options = slurm_nodes("n0", leases={"idle_seconds": 30.0}).slurm
    lease = commands.lease_of(slurm_nodes("n0"), slurm_nodes("n0").nodes[0], tmp_path)
    *_, wrap = commands.sbatch_lease(lease, options, tmp_path, options.leases)
    doubles = {
        "sleep": f"read n < {tmp_path}/now; echo $((n + 10)) > {tmp_path}/now",
        "date": f"cat {tmp_path}/now",
        "stat": f"read n < {tmp_path}/now; [ $n -gt 1100 ] && echo 1100 || echo $n",
        "squeue": f"read n < {tmp_path}/now; echo 7.batch; [ $n -gt 1400 ] || echo 7.0",
    }
    for name, text in doubles.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "now").write_text("1000\n")
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", wrap.removeprefix("--wrap=")], env={"PATH": path}, check=True, timeout=60)
    # Renewed until 1100, so the first question is at 1220; a step is there then, and none at 1460.
    assert (tmp_path / "now").read_text() == "1460\n"


def test_made_up_slurms_are_left_without_idle_leases() -> None:
    assert (leases_idle_over_limit(examples(25)), leases_left(examples(25))) == (0, 0)
