import math
from dataclasses import replace
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.policies.lucid import Durations, Lucid
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, decided, job, mixed_cluster, opened, sizes
from tests.tools.profile.rows_builder import step
from tests.tools.schedule.policies.started import joined, started

TOGETHER, SLOW = (Sharing(unmeasured="together", speed=speed) for speed in (0.8, 0.7))


def sharing(*node_gpus: int, rules: Sharing = TOGETHER) -> Cluster:
    return cluster(*node_gpus).model_copy(update={"sharing": rules})


def company(held: Session) -> dict[str, str]:
    return {job_id: state.beside for job_id, state in held.jobs.items() if state.beside is not None}


def with_past() -> Session:
    """Two jobs have ended on two GPUs: one of model long took 1000 s, one of model short 10 s."""
    held = started(Lucid(), cluster(2), job("l", model="long"), job("s", model="short"))
    for name, seconds in (("s", 10), ("l", 1000)):
        held.jobs[name].report_progress(seconds, seconds)
        held.end(name, seconds)
    return held


@pytest.mark.parametrize("gpus", [2, 3])
def test_before_any_job_has_ended_the_smallest_start_first(gpus: int) -> None:
    jobs = job("wide", gpus=2), job("b", at=2), job("a", at=1)
    assert decided(opened(Lucid(), cluster(gpus), *jobs), 2) == {"a": 1, "b": 1}


def test_past_jobs_teach_the_order_of_new_ones() -> None:
    long, short = (job(model, at=1001, gpus=2, model=model) for model in ("long", "short"))
    assert joined(with_past(), 1020, long, short) == {"short": 2}

    # Expected: 68 s of the long model on one GPU, and 63 s on each of two of a model that is new.
    new = job("a", at=1001, gpus=2, model="new"), job("b", at=1002, model="new")
    assert joined(with_past(), 1020, *new) == {"b": 1}

    held = with_past()
    joined(held, 1020, long)
    assert joined(held, 1080, short) == {"long": 2}
    # What jobs state counts only where it is asked for.
    jobs = job("a", work={"samples": 900}), job("b", work={"samples": 5})
    for policy, first in ((Lucid(), "a"), (Lucid(durations="stated"), "b")):
        assert decided(opened(policy, cluster(1), *jobs), 0) == {first: 1}
    # A job that is cancelled or fails teaches nothing.
    held = started(Lucid(), cluster(2), job("a"), job("b"))
    held.jobs["a"].report_progress(5, 5)
    held.end("a", 5, "cancelled")
    held.end("b", 5, "failed")
    joined(held, 60, job("c", at=6))
    assert "no job has ended yet" in held.explain(60)["c"].reason


def test_a_job_without_free_gpus_joins_one_of_as_many() -> None:
    held = started(Lucid(), sharing(4), job("a", gpus=2), job("b"), job("c"))
    assert sizes(held) == {"a": 2, "b": 1, "c": 1}
    coming = job("d", at=1, gpus=2), job("e", at=2), job("f", at=3, gpus=3)
    assert joined(held, 60, *coming) == {"a": 2, "b": 1, "c": 1, "d": 2, "e": 1}
    assert company(held) == {"a": "d", "d": "a", "b": "e", "e": "b"}
    assert held.jobs["d"].samples_per_second == pytest.approx(0.8 * 2)
    assert held.explain(60)["d"].reason.startswith("shares its GPUs with a; runs to its end; no job")

    held = started(Lucid(), sharing(2), job("a"))
    joined(held, 60, job("b", at=1), job("c", at=2))
    assert company(held) == {"a": "c", "c": "a"}

    held = started(Lucid(), sharing(1), job("a"))
    joined(held, 60, job("b", at=1), job("c", at=2))
    assert company(held) == {"a": "b", "b": "a"}
    held.end("a", 70)
    held.decide(120)
    assert company(held) == {"b": "c", "c": "b"}

    nodes = mixed_cluster(slow=(1,), fast=(2,)).model_copy(update={"sharing": TOGETHER})
    held = started(Lucid(), nodes, job("a", gpus=2))
    joined(held, 60, job("b", at=1), job("c", at=1, gpus=2))
    assert (held.jobs["c"].gpu_type, held.jobs["c"].beside) == ("fast", "a")


@pytest.mark.parametrize(
    ("nodes", "first", "second"),
    [
        pytest.param(sharing(1, rules=Sharing()), {}, {}, id="they may not fit together"),
        pytest.param(sharing(1, rules=SLOW), {}, {}, id="they lose too much"),
        pytest.param(sharing(1), {"shares_gpus": False}, {}, id="the first refuses company"),
        pytest.param(sharing(1), {}, {"shares_gpus": False}, id="the second refuses company"),
        pytest.param(sharing(1, 1), {"gpus": 2}, {"gpus": 2}, id="they are on several nodes"),
    ],
)
def test_a_job_stays_alone(nodes: Cluster, first: dict[str, Any], second: dict[str, Any]) -> None:
    held = started(Lucid(), nodes, job("a", **first))
    assert joined(held, 60, job("b", at=1, **second)).keys() == {"a"}


def pair(one: str, other: str, part: float, other_part: float) -> list[ProfileRow]:
    """Rows of two jobs of eight samples, which take 0.1 s alone."""
    names, parts = (one, other), (part, other_part)
    return [
        replace(step(1, 8, 0.1 / mine, model=me), kind="pair", beside_model=you, beside_batch=8)
        for me, you, mine in zip(names, names[::-1], parts, strict=True)
    ]


def test_of_several_the_best_one_is_joined_and_groups_teach() -> None:
    alone = [step(1, 8, 0.1, model=model) for model in "xyz"]
    too_slow = ThroughputBySize(Profile((*alone, *pair("x", "z", 0.9, 0.5))))
    held = started(Lucid(), cluster(1), job("a", model="x", batch=8), throughput=too_slow)
    late = [job(name, at=at, model="z", batch=8) for at, name in enumerate("cd", start=1)]
    assert joined(held, 60, late[0]) == {"a": 1}, "of a pair each has to keep enough"

    rows = (*alone, *pair("x", "z", 0.9, 0.8), *pair("y", "z", 0.95, 0.9))
    first = job("first", model="x", batch=8), job("second", model="y", batch=8)
    held = started(Lucid(), cluster(2), *first, throughput=ThroughputBySize(Profile(rows)))
    joined(held, 60, *late)
    assert company(held) == {"second": "c", "c": "second", "first": "d", "d": "first"}
    assert held.jobs["c"].samples_per_second == pytest.approx(80 * 0.9)
    # Durations lean on the groups around them.
    past = learned(({"model": "x"}, 10.0), ({"model": "y"}, 1000.0))
    assert past.expect(job(model="z")).seconds == pytest.approx(100.0), "the geometric mean"
    assert str(past.expect(job(model="z"))) == "100 s expected, from 2 ended jobs"

    # x: one job of 10 s against two of 100 s; its unnamed user, and one GPU, each against two of the group.
    of_model = math.exp((math.log(10) + 2 * math.log(100)) / 3)
    of_user = math.exp((math.log(10) + 2 * math.log(of_model)) / 3)
    of_size = math.exp((math.log(10) + 2 * math.log(of_user)) / 3)
    assert past.expect(job(model="x", gpus=2)).seconds == pytest.approx(of_user)
    result = past.expect(job(model="x"))
    assert (result.seconds, result.jobs) == (pytest.approx(of_size), 1)
    assert str(result).endswith("from 1 ended job of its model, user and size")

    ended = [({"model": "x", "user": "ann"}, 60.0)] * 500 + [({"model": "x", "user": "bob"}, 6000.0)] * 500
    past = learned(*ended)
    assert past.expect(job(model="x", user="ann")).seconds == pytest.approx(60, rel=0.03)
    assert past.expect(job(model="x", user="bob")).seconds == pytest.approx(6000, rel=0.03)


def learned(*ended: tuple[dict[str, Any], float]) -> Durations:
    result = Durations()
    for spec, seconds in ended:
        result.learn(job(**spec), seconds)
    return result
