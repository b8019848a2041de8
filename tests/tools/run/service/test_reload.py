"""A living cluster changes: what a file leads to, and that a run has one cluster or the other at any time."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parts.chaos.world import World
from pliant.schemas.cluster import OF_SLURM, Cluster, NodeReservation
from pliant.schemas.errors import UsageError
from pliant.schemas.io import read_cluster
from pliant.tools.run.backends.slurm.parsing import reservations
from pliant.tools.run.service.reload import HOLDER, ClusterFile, order_reload, order_reservation
from pliant.tools.run.service.run import Interrupts
from pliant.tools.run.service.submit import order_nodes
from pliant.tools.run.statedir.directory import Account
from pliant.tools.run.statedir.state import read_log

N0, N1 = {"name": "n0", "gpus": 2}, {"name": "n1", "gpus": 2}


def nodes(*listed: dict[str, Any], **more: Any) -> Cluster:
    return Cluster.model_validate({"slots": "cpu", "nodes": listed, **more})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A loop with a job on each of two nodes."""
    found = World(tmp_path, 1, nodes=nodes(N0, N1))
    found.turn()
    found.ask("a", 2, samples=400.0)
    found.ask("b", 2, samples=400.0)
    found.turn_until(lambda: len(found.nodes.training()) == 2)
    yield found
    found.close()


def has(world: World, changed: Cluster) -> bool:
    """Whether the files, the log and the session of a run have that cluster."""
    log = read_log(world.dirs.path)
    assert log.info is not None
    assert world.loop is not None
    spec = world.loop.session.cluster.spec
    return log.info.cluster == changed == spec == read_cluster(world.dirs.cluster)


@pytest.mark.parametrize(
    ("changed", "lines", "at_once"),
    [
        (nodes(N0, N1, {"name": "n2", "gpus": 1}), ["/nodes/2: n2 with 1 GPU, which the run does"], True),
        (nodes(N0, N1, cooldown_seconds=9), ["/cooldown_seconds: 9.0, and the run has 0.0"], True),
        (nodes(N0, {**N1, "labels": {"rack": "r"}}), ['/nodes/1/labels/rack: "r", which the run'], True),
        (nodes(N0), ["/nodes: lacks n1", "node n1 is removed once it is empty: job b may end"], False),
        (
            nodes(N0, {**N1, "gpu_type": "t4"}),
            ['/nodes/1/gpu_type: "t4"', "node n1 changes as the file says once it is empty: job b"],
            False,
        ),
        (
            nodes(N0, N1, user_limits={"*": {"gpus": 3}}),
            ["/user_limits/*", "jobs of no user: 4 GPUs held, 3 allowed: what runs goes on, no other"],
            True,
        ),
    ],
)
def test_a_change_says_what_it_does_and_takes_no_gpus(
    world: World, changed: Cluster, lines: list[str], *, at_once: bool
) -> None:
    said = world.go_on_with(changed)
    assert [line for line in lines if not any(line in each for each in said)] == []
    assert len(said) == len(lines)
    world.turn()
    assert has(world, changed) == at_once
    world.turn_until(lambda: not read_log(world.dirs.path).active)
    world.turn()
    assert has(world, changed)
    assert world.attempts("a") == world.attempts("b") == [1]
    assert world.go_on_with(changed) == []
    world.check_agreement()


def test_jobs_without_a_place_are_held_until_there_is_one(world: World) -> None:
    world.ask("big", 2)
    world.turn()
    said = world.go_on_with(nodes({"name": "n0", "gpus": 1}), now=True)
    assert any(line.startswith("job big is held until a cluster has a place for it") for line in said)
    world.turn_until(lambda: not world.nodes.training())
    world.turn()
    log = read_log(world.dirs.path)
    assert {name: (job.held or ("",))[0] for name, job in log.active.items()} == dict.fromkeys(
        ("a", "b", "big"), HOLDER
    )
    world.go_on_with(nodes(N0))
    world.turn_until(lambda: len(world.nodes.training()) == 1)
    assert not any(job.held for job in read_log(world.dirs.path).active.values())
    world.check_agreement()


def test_two_changes_at_once_count_in_their_order(world: World) -> None:
    first, last = nodes(N0, N1, {"name": "n2", "gpus": 2}), nodes(N0, N1, cooldown_seconds=1)
    world.go_on_with(first)
    world.ask("c", 2)
    world.go_on_with(last)
    world.turn()
    world.turn()
    world.turn()
    (one, two) = world.events("reload")
    assert [len((each.detail or {})["cluster"]["nodes"]) for each in (one, two)] == [3, 2]
    assert [each.event for each in world.events("reload", "submit")][-3:] == ["reload", "submit", "reload"]
    assert has(world, last)
    assert read_log(world.dirs.path).jobs["c"].phase == "waiting"


def test_a_node_back_before_it_is_empty_gets_work_again(world: World) -> None:
    world.go_on_with(nodes(N0))
    world.turn()
    assert set(read_log(world.dirs.path).drained) == {"n1"}
    assert "node n1 gets work again" in world.go_on_with(nodes(N0, N1))
    world.turn()
    assert has(world, nodes(N0, N1))
    assert read_log(world.dirs.path).drained == {}


def test_a_node_that_an_operator_drained_stays_drained(world: World) -> None:
    order_nodes(world.dirs.path, "drain", ["n1"], reason="fan")
    for changed in (nodes(N0), nodes(N0, N1)):
        world.go_on_with(changed)
        world.turn()
        assert read_log(world.dirs.path).drained["n1"].reason == "fan"
    world.check_agreement()


@pytest.mark.parametrize("more", [{"notify": ({"command": ("x",)},)}, {"isolation": False}])
def test_only_root_changes_what_a_run_of_root_executes(world: World, more: dict[str, Any]) -> None:
    file = ClusterFile(nodes(N0, N1, **more), "c.json")
    with pytest.raises(UsageError, match=f"c.json: /{min(more)}: .*only root changes it"):
        order_reload(world.dirs.path, file, by=Account(1001, "ops"))
    assert order_reload(world.dirs.path, file, dry_run=True, by=Account(0, "root"))


def test_what_cannot_change_is_refused_and_not_ordered(world: World) -> None:
    with pytest.raises(UsageError, match=r'/slots: "gpu", and the run has "cpu".*begin another state'):
        world.go_on_with(Cluster.model_validate({"nodes": (N0, N1)}))


def test_a_backend_that_keeps_its_nodes_keeps_the_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.loop is not None
    monkeypatch.delattr(type(world.loop.executor.backend), "change_cluster")
    world.go_on_with(nodes(N0, N1, cooldown_seconds=9))
    world.turn()
    assert has(world, nodes(N0, N1))


@pytest.mark.parametrize("calls", range(1, 24, 2))
def test_a_loop_that_is_killed_has_one_cluster_or_the_other(world: World, calls: int) -> None:
    before, after = nodes(N0, N1), nodes(N0, N1, {"name": "n2", "gpus": 2}, min_run_seconds=1)
    world.go_on_with(after)
    world.hazard.kill_after(calls)
    for _ in range(4):
        world.turn()
        world.hazard.call_off()
        if world.loop is not None:
            assert has(world, after) or has(world, before)
    assert has(world, after)
    assert world.attempts("a") == world.attempts("b") == [1]
    world.check_agreement()


def test_sighup_asks_for_the_file_again(request: pytest.FixtureRequest) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and what is ignored stays so
    request.addfinalizer(lambda: signal.signal(signal.SIGHUP, before))
    with Interrupts(reloads=True) as interrupts:
        signal.raise_signal(signal.SIGHUP)
        assert (interrupts.reload_due, interrupts.received) == (True, [])


def reserve(world: World, begin: float, *, end: float = 600.0, name: str = "new", **more: Any) -> list[str]:
    """Node n0, from and until so many seconds from now."""
    now_s = world.clock.wall()
    made = NodeReservation(name=name, nodes=("n0",), begin=now_s + begin, end=now_s + end, **more)
    return order_reservation(world.dirs.path, made)


def test_jobs_leave_before_a_reservation_and_come_back(world: World) -> None:
    world.ask("c", 1, samples=200.0)
    lines = reserve(world, 60.0, notice_seconds=30.0, end=150.0)
    assert [line for line in lines if "reservation maintenance-1: n0 from" in line]
    assert any(line.startswith("job a must leave these nodes at") for line in lines)
    begin_s = world.clock.wall() + 60.0
    world.turn_until(lambda: not world.slots("a"))
    world.kill_loop(3)
    world.turn_until(lambda: world.clock.wall() > begin_s)
    assert "n0" not in {slot.partition("/")[0] for job in "abc" for slot in world.slots(job)}
    world.turn_until(lambda: not read_log(world.dirs.path).active)
    assert "n0" in {
        name for each in world.events("start", "resume", "grow") for name, _ in each.placement or ()
    }
    world.check()


def test_a_file_keeps_what_was_reserved_by_hand(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", world.clock.wall)
    reserve(world, 1e6, end=2e6)
    reserve(world, 1e6, end=2e6, name="y", users=("ann",))
    world.turn()
    world.turn()
    world.go_on_with(nodes(N0, {**N1, "labels": {"rack": "r"}}))
    world.turn()
    spec = read_cluster(world.dirs.cluster)
    assert [(each.name, bool(each.made_by)) for each in spec.reservations] == [
        ("maintenance-1", True),
        ("y", True),
    ]
    assert world.go_on_with(nodes(N0, {**N1, "labels": {"rack": "r"}})) == []
    assert order_reservation(world.dirs.path, "y") == ["reservation y ends"]
    world.turn()
    assert [each.name for each in read_cluster(world.dirs.cluster).reservations] == ["maintenance-1"]
    world.check_agreement()


def test_team_reservations_end_with_the_teams(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", world.clock.wall)
    shared, plain = nodes(N0, N1, shares={"teams": {"vision": {}}}), nodes(N0, N1)
    world.go_on_with(shared)
    world.turn()
    reserve(world, 1.0, end=2.0, name="over", users=("ann",))
    reserve(world, 1e6, end=2e6, name="v", teams=("vision",))
    world.turn_until(lambda: len(read_cluster(world.dirs.cluster).reservations) == 2)
    world.turn_until(lambda: not read_log(world.dirs.path).active)
    said = world.go_on_with(plain)
    assert "reservation v ends: it is for team vision, and no teams share the cluster" in said
    world.turn()
    assert has(world, plain)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("x", "has no reservation x"),
        ("own", "reservation own is in the cluster file: take it out there, and pliant reload"),
        ("hers", r"reservation hers is Slurm's: scontrol delete reservation=hers"),
        (NodeReservation(name="own", nodes=("n0",), begin=1, end=2), "reservation own is there already"),
        (NodeReservation(name="z", nodes=("n9",), begin=1, end=2), "the cluster has no node n9"),
    ],
)
def test_reservations_that_make_no_sense_are_refused(
    tmp_path: Path, change: NodeReservation | str, message: str
) -> None:
    own = {"name": "own", "nodes": ("n0",), "begin": 1e10, "end": 2e10}
    world = World(
        tmp_path, 1, nodes=nodes(N0, reservations=(own, {**own, "name": "hers", "made_by": OF_SLURM}))
    )
    world.turn()
    with pytest.raises(UsageError, match=message):
        order_reservation(world.dirs.path, change)
    world.close()


def test_slurms_own_reservations_become_windows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_s = world.clock.wall() + 40.0
    line = "ReservationName={} StartTime={:.0f} EndTime={:.0f} Duration=x Nodes=n0,far Flags=MAINT Users=root"
    text = (
        line.format("m", begin_s, begin_s + 1e6)
        + "\nReservationName=lic StartTime=1 EndTime=2 Nodes=(null)\n"
    )
    said = [reservations(text, "ada")]
    monkeypatch.setattr(world.nodes, "reservations", lambda: said[0], raising=False)
    world.turn_until(lambda: read_cluster(world.dirs.cluster).reservations)
    (found,) = read_cluster(world.dirs.cluster).reservations
    assert (found.name, found.nodes, found.made_by, found.begin) == ("m", ("n0",), OF_SLURM, int(begin_s))
    world.turn_until(lambda: world.clock.wall() > begin_s and not world.slots("a"))
    said[0] = []
    world.turn_until(lambda: not read_cluster(world.dirs.cluster).reservations)
    world.turn_until(lambda: not read_log(world.dirs.path).active)
    assert len(world.events("reload")) == 2
