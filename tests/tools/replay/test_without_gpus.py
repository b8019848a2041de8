"""Jobs that need no GPU, beside jobs that do."""

import json

import pytest

from pliant.schemas.checks import oversized
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import parse_jobs
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.explain import explanations
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.assignment import Demands
from pliant.tools.schedule.session.session import Session
from tests.builders import FREE_CHANGES, cluster, job
from tests.tools.replay.world import ends

GB = 10**9
NODES = Cluster.model_validate(
    {
        "nodes": (
            {"name": "gpus", "gpus": 2, "cpus": 8.0, "memory": 64 * GB},
            {"name": "cores", "gpus": 0, "cpus": 4.0, "memory": 16 * GB, "labels": {"ssd": ""}},
        )
    }
)


def prepare(name: str, cpu: float, at: float = 0.0, seconds: float = 100.0, **more: object) -> Job:
    demand = {"worker": {"cpu": cpu, "memory": 8.0 * GB}}
    return job(name, gpus=0, at=at, gpu_seconds=seconds, resources=demand, **more)


def starts(done: Replayed) -> dict[str, tuple[float, str, int]]:
    """By job: when it began, on which node, with how many GPUs."""
    return {
        event.job or "": (event.time, (event.placement or (("", 0),))[0][0], event.gpus or 0)
        for event in done.log.events()
        if event.event == "start"
    }


@pytest.mark.parametrize("policy", ["fifo", "fair-share", "srtf", "drf", "ares"])
def test_they_take_cores_of_one_node_and_wait_for_cores_only(policy: str) -> None:
    """Three cores fit the node without GPUs once, and the other twice, whose GPUs are held all along."""
    trace = [
        *(prepare(name, 3, at=float(at)) for at, name in enumerate("abcd")),
        job("gpu", gpus=2, gpu_seconds=400),
    ]
    done = replay(inputs(trace, NODES), Run(policy, simulated=FREE_CHANGES))
    began = starts(done)
    found = {name: began[name] for name in "abcd"}
    assert found == {"a": (0, "cores", 0), "b": (1, "gpus", 0), "c": (2, "gpus", 0), "d": (100, "cores", 0)}
    assert began["gpu"] == (0, "gpus", 2)
    assert ends(done) == {"a": 100, "b": 101, "c": 102, "d": 200, "gpu": 200}


def test_cores_of_one_are_not_those_of_another() -> None:
    """A worker that needs seven cores waits for one that has two of eight; what asks first starts first."""
    demand = {"worker": {"cpu": 7.0}}
    trace = [prepare("a", 2, exclude=("cores",)), job("gpu", at=1.0, gpu_seconds=50, resources=demand)]
    done = replay(inputs(trace, NODES), Run("fifo", simulated=FREE_CHANGES))
    assert ends(done) == {"a": 100, "gpu": 150}
    late = [prepare("b", 4, at=2.0, priority=1.0), prepare("c", 4, at=1.0), prepare("d", 4, seconds=10)]
    only = [each.model_copy(update={"nodes": ("ssd",)}) for each in late]
    found = ends(replay(inputs(only, NODES), Run("fifo", simulated=FREE_CHANGES)))
    assert found == {"d": 10, "b": 110, "c": 210}
    # Small jobs that come all the time keep neither a worker nor a job of eight cores waiting for ever.
    small = [prepare(f"s{at}", 4, at=50.0 * at, exclude=("cores",)) for at in range(6)]
    need = {"worker": {"cpu": 8.0}}
    for large in (job("g", at=60.0, priority=1, gpu_seconds=70, resources=need), prepare("g", 8, 60, 70)):
        done = replay(inputs([*small, large], NODES), Run("fifo", simulated=FREE_CHANGES))
        began = {name: time_s for name, (time_s, _, _) in starts(done).items()}
        assert began == {"s0": 0, "s1": 50, "g": 150, "s2": 220, "s3": 220, "s4": 320, "s5": 320}


def test_what_keeps_them_from_running_is_said(golden_text) -> None:
    lines = [
        next(iter(oversized([each], NODES).values()), "fits")
        for each in (
            prepare("a", 9),
            prepare("a", 8),
            prepare("a", 5, nodes=("ssd",)),
            prepare("a", 1, nodes=("nvme",)),
            prepare("a", 1, exclude=("elsewhere",)),
        )
    ]
    for more in (
        {"gpus": {"requested": 0, "max": 2}},
        {"gpus": {"requested": 0, "types": ["a100"]}},
        {"gpus": {"requested": 0}, "elastic": "size"},
        {"gpus": {"requested": 0}, "tasks": "slot"},
        {"gpus": {"requested": 0}, "command": ["torchrun", "train.py"]},
    ):
        with pytest.raises(BadInputError) as refused:
            parse_jobs(json.dumps({"id": "a", "model": "m", **more}).encode(), "jobs")
        lines.append(str(refused.value))
    with pytest.raises(BadInputError) as refused:
        inputs([job("a", gpus=0, work={"samples": 10.0})], NODES)
    lines.append(str(refused.value))
    session = Session(make_policy("fifo"), NODES, CurveThroughput())
    for at, name in enumerate("abcd"):
        session.submit(prepare(name, 4), float(at))
    session.decide(4.0)
    lines += [f"{name}: {why.reason}" for name, why in explanations(session, 4.0).items()]
    for name in ("gpus", "cores"):
        session.maintenance.node_down(name, 5.0)
    lines.append(explanations(session, 5.0)["d"].reason)
    golden_text("\n".join(lines))


def test_awaited_parameter_servers_reserve_nodes_without_gpus() -> None:
    session = Session(make_policy("fifo"), NODES, CurveThroughput())
    session.submit(prepare("a", 2), 0.0)
    session.decide(0.0)
    needs = {"worker": {"bandwidth": 1.0}, "ps": {"cpu": 4.0, "bandwidth": 9.0}}
    session.submit(job("g", gpus=2, resources=needs), 1.0)
    session.submit(prepare("b", 2, at=2.0), 2.0)
    session.decide(2.0)
    assert [each.placement for each in session.jobs.values()] == [(("cores", 1),), (), (("gpus", 1),)]
    session.end("a", 3.0)
    session.decide(3.0)
    assert session.jobs["g"].servers == (("cores", 1),)


def test_they_avoid_failed_places_and_look_at_each_node_once(monkeypatch) -> None:
    session = Session(make_policy("fifo"), NODES, CurveThroughput())
    for name in "ab":
        session.submit(prepare(name, 3), 0.0)
    session.quarantine.bar("a", "cores/1024", 20.0)
    session.decide(0.0)
    assert [session.jobs[name].placement for name in "ab"] == [(("gpus", 1),), (("cores", 1),)]
    for until_s, name in ((30.0, "cores"), (40.0, "gpus")):
        session.cluster.withdraw(f"{name}/1024", 5.0, until_s)
    session.maintenance.lose("b", 5.0)
    assert not session.decide(5.0)
    session.cluster.at(30.0)
    assert session.changes.has_news
    assert [each.job.placement for each in session.decide(30.0)] == [(("cores", 1),)]
    looks, fits = [], Demands.fits_without_gpus
    monkeypatch.setattr(Demands, "fits_without_gpus", lambda *of: looks.append(of) or fits(*of))
    session = Session(make_policy("fifo"), cluster(*[2] * 30), CurveThroughput())
    for at in range(200):
        session.submit(job(f"j{at}", gpus=0), 0.0)
    assert (len(session.decide(0.0)), len(looks)) == (60, 60 + 30)


def test_a_drain_and_a_lost_node_move_them_elsewhere() -> None:
    session = Session(make_policy("fifo"), NODES, CurveThroughput())
    session.submit(prepare("a", 3), 0.0)
    session.decide(0.0)
    assert session.jobs["a"].placement == (("cores", 1),)
    session.maintenance.node_down("cores", 10.0)
    session.decide(10.0)
    assert session.jobs["a"].placement == (("gpus", 1),)
    session.maintenance.node_up("cores", 20.0)
    session.maintenance.drain("gpus", 20.0, now=True)
    session.decide(20.0)
    session.decide(21.0)
    assert session.jobs["a"].placement == (("cores", 1),)
    session.admission.hold("a", 30.0, "ann")
    session.decide(30.0)
    assert not session.jobs["a"].gpus
    session.admission.release("a", 40.0)
    session.decide(40.0)
    assert session.jobs["a"].gpus
    session.end("a", 50.0)
    assert session.cluster.free.by_type == {"gpu": 0}  # of the drained node
