"""Every registered policy, held to what every policy must do."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.parts import regressions_oasis as stories
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import GpuTimeWork, Job
from pliant.tools.profile.throughput import CurveThroughput, Placement
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.registry import (
    BUILT_IN,
    make_policy,
    parameter_defaults,
    policy_class,
    policy_names,
)
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Snapshot
from pliant.tools.schedule.testing import conformance
from pliant.tools.schedule.testing.conformance import CHECKS, check_drawn_parameters
from pliant.tools.schedule.testing.harness import CheckedSession, Factory
from tests import builders
from tests.builders import TimedSteps, cluster, job, mixed_cluster
from tests.effort import THOROUGH, examples

VARIANTS: dict[str, Factory] = {
    **{name: lambda name=name: make_policy(name) for name in policy_names()},
    "elastic-dp-drop": lambda: make_policy("elastic-dp", {"mode": "drop", "strict": True, "interval_s": 0}),
    "elastic-dp-charged": lambda: make_policy(
        "elastic-dp", {"interval_s": 60.0, "rescale_s": 30.0, "quota": 5}
    ),
    "fifo-easy": lambda: make_policy("fifo", {"backfill": "easy"}),
    "fifo-skip": lambda: make_policy("fifo", {"backfill": "skip"}),
    "tiresias-gittins-queues": lambda: make_policy(
        "tiresias-gittins",
        {"queue_gpu_hours": "0.01,0.05", "history_gpu_hours": "0.01,0.03,0.1", "promote_after": 2.0},
    ),
}


SLOW = {"sia", "pollux", "dorm", "shockwave", "gavel-throughput", "gavel-ftf", "shadow-price", "ones"}
"""Policies whose decisions take longest."""


def shorten(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Shorter random stories, fewer parameters, smaller crowds, and for slow policies fewer jobs."""
    ops, at_once, jobs_for = conformance.random_ops, conformance._at_once, conformance.jobs_for
    part, jobs = (4, 0.6) if name in SLOW else (2, 1.0)
    monkeypatch.setattr(conformance, "_DRAWS", conformance._DRAWS // 2)
    monkeypatch.setattr(conformance, "random_ops", lambda rng, count: ops(rng, max(count // part, 40)))
    monkeypatch.setattr(conformance, "_at_once", lambda make, count: at_once(make, min(count, 1000)))
    monkeypatch.setattr(conformance, "jobs_for", lambda policy, count: jobs_for(policy, int(count * jobs)))


@pytest.mark.parametrize("name", list(VARIANTS))
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_policy(check: Callable[[Factory], None], name: str, monkeypatch: pytest.MonkeyPatch):
    if check is check_drawn_parameters and name not in policy_names():
        pytest.skip("draws the parameters of the class, whatever those of the variant")
    if not THOROUGH:
        shorten(monkeypatch, name)
    check(VARIANTS[name])


class Unsteady(Fifo):
    """Every second object that sees a whole history at once starts no job."""

    name = "unsteady"
    rebuilds_state = False
    rebuilt = 0

    def __init__(self) -> None:
        super().__init__()
        self.idle: bool | None = None

    def dump_state(self) -> bool | None:
        return self.idle or False

    def load_state(self, state: bool, jobs: Mapping[str, JobState]) -> None:
        self.idle = state

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if self.idle is None:
            Unsteady.rebuilt += len(snapshot.changes) > 1
            self.idle = len(snapshot.changes) > 1 and Unsteady.rebuilt % 2 == 1
        return Decision() if self.idle else super().decide(snapshot, rng)


def test_state_outside_the_history_is_rebuilt_and_then_gone() -> None:
    with pytest.raises(AssertionError, match="state rebuilt twice decides in two ways after 5 jobs"):
        conformance.check_state_survives(Unsteady)
    with pytest.raises(AssertionError, match="outlasts_ends was said, but mere ends change j3, j4"):
        conformance.check_everything_ends(Sleepy)


class Sleepy(Fifo):
    """Wants to be left alone when jobs end, though others wait."""

    name = "sleepy"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        return replace(super().decide(snapshot, rng), outlasts_ends=True)


NODES = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 16, "cpus": 8},)})


@pytest.mark.parametrize("name", policy_names())
def test_a_job_that_demands_cpus_starts_beside_one_that_does_not(name: str):
    """The node has CPUs for two of its workers. What is known of the other's four GPUs is not true of it."""
    sizes = sizes_together(name, cpus=4)
    if not sizes and not sizes_together(name, cpus=0):
        pytest.skip("it runs one such job at a time, whatever they demand")
    assert sizes, "12 GPUs are free for good"
    assert sizes["b"] <= 2


def sizes_together(name: str, cpus: int) -> dict[str, int]:
    """What both hold once both run; empty if they never do."""
    held = CheckedSession(make_policy(name), NODES)
    for job_id, at, demand in (("a", 0.0, {}), ("b", 1.0, {"worker": {"cpu": cpus}} if cpus else {})):
        spec = job(job_id, at=at, low=1, high=4, work={"samples": 50_000}, resources=demand)
        held.session.submit(spec, at)
    for _ in range(40):
        held.decide()
        if len(sizes := builders.sizes(held.session)) == 2:
            return sizes
        if not held.advance([]):
            break
    return {}


SPEEDS: Final = CurveThroughput({"scales": {1: 1.0, 2: 1.9, 4: 3.6, 8: 6.4}}, {"fast": 2.0})
GROW_OTHERWISE: Final = {
    "drl": "a network that was taught decides, not speeds",
    "ones": "jobs grow as they report epochs, which these do not",
}
GROW: Final = [
    name
    for name in policy_names()
    if make_policy(name).traits.elasticity != "none" and name not in GROW_OTHERWISE
]
CHOOSE_TYPES: Final = ("shadow-price", "sia")
"""Under the others a job stays on the GPU type that it was given."""


@pytest.mark.parametrize("name", GROW)
def test_a_job_grows_onto_the_gpus_of_one_that_ended(name: str):
    assert settled(name, mixed_cluster(fast=(4, 4))).gpus == 8


@pytest.mark.parametrize("name", CHOOSE_TYPES)
def test_a_job_moves_to_faster_gpus_that_are_idle(name: str):
    long = settled(name, mixed_cluster(slow=(4,), fast=(4,)))
    assert (long.gpu_type, long.gpus) == ("fast", 4)


def settled(name: str, nodes: Cluster) -> JobState:
    """A long job that came beside a short one on four of eight GPUs, half an hour later."""
    first = job("first", gpus=4, low=4, high=4, model="scales", work={"samples": 2000.0})
    held = builders.opened(make_policy(name), nodes, first, throughput=SPEEDS)
    held.decide(0.0)
    held.submit(job("long", low=1, high=8, model="scales", work={"samples": 100_000.0}), 0.0)
    for time_s in range(0, 1801, 60):
        held.decide(time_s)
        for state in [*held.jobs.values()]:
            end_s = state.finish_time_s()
            if end_s is not None and end_s <= time_s + 60.0:
                held.end(state.id, end_s)
    (long,) = held.jobs.values()
    return long


ADMITS = {name for name in policy_names() if policy_class(name).traits.uses_guessed_speeds}
"""These admit jobs by what they are worth, and refuse those of unknown work."""


def gpus_given(policy: str, first: dict, later: dict, **both: Any) -> tuple[int, int]:
    """GPUs of two jobs of two on two slots, the one submitted a second before the other."""
    jobs = [
        job(name, at=at, batch=64, gpus=2, **both, **own)
        for name, at, own in (("z", 0, first), ("a", 1, later))
    ]
    schedule = decide(jobs, cluster(2), None, Question(policy), now_s=1.0)
    given = {each.job: each.gpus for each in schedule.allocations}
    return given.get("z", 0), given.get("a", 0)


LIMITS: Final = pytest.mark.parametrize("limits", [{}, {"low": 1, "high": 2}], ids=["rigid", "elastic"])


@LIMITS
@pytest.mark.parametrize("policy", policy_names())
def test_of_two_equal_jobs_the_earlier_one_is_not_worse_off(policy: str, limits: dict):
    for work in ({"iterations": 1000}, *([] if policy in ADMITS else [None])):
        first, later = gpus_given(policy, {"work": work}, {"work": work}, **limits)
        assert first >= max(later, 1)


@LIMITS
@pytest.mark.parametrize("policy", sorted({*policy_names()} - ADMITS))
def test_fewer_iterations_of_another_model_do_not_come_first(policy: str, limits: dict):
    """A hundred iterations of one model may take longer than a thousand of another."""
    more, fewer = ({"work": {"iterations": count}, "model": f"of-{count}"} for count in (1000, 100))
    first, later = gpus_given(policy, more, fewer, **limits)
    assert first >= later


@pytest.mark.parametrize("policy", ["ares", "srtf", "sjf", "shadow-price"])
def test_gpu_seconds_say_how_long_a_job_takes(policy: str):
    assert gpus_given(policy, {"gpu_seconds": 9e4}, {"gpu_seconds": 900}) == (0, 2)


def step_seconds(model: str, gpu_type: str, placement: Placement, batch: int) -> float | None:
    """Half of a step is the same for all batches, so large ones are faster by the sample."""
    del model, gpu_type
    return (32 + batch) / 64 / sum(placement) ** 0.8


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    result = []
    for number in range(draw(st.integers(1, 6))):
        parts = sorted(draw(st.sets(st.sampled_from([0.1, 0.25, 0.5, 0.8]), max_size=3)))
        sizes = st.sampled_from([4, 16, 256])
        regimes = tuple({"after": part, "size": draw(sizes)} for part in parts)
        elastic = draw(st.booleans())
        limits: dict[str, Any] = {"low": 1, "high": draw(st.integers(2, 8))} if elastic else {}
        result.append(
            job(
                f"j{number}",
                at=float(draw(st.integers(0, 300))),
                gpus=draw(st.integers(1, 2)),
                batch={"size": 64, "regimes": regimes},
                work={"samples": float(draw(st.integers(500, 20_000)))},
                **limits,
            )
        )
    return result


@pytest.mark.parametrize("name", policy_names())
@settings(max_examples=examples(8), deadline=None)
@given(jobs=jobs(), fails=st.booleans())
def test_every_job_ends_with_the_batch_of_its_last_regime(name: str, jobs: list[Job], fails: bool):
    policy = make_policy(name)
    session = Session(policy, cluster(4, 4), TimedSteps(step_seconds), trace=jobs)
    failures = (NodeEvent(200.0, "n0", False), NodeEvent(260.0, "n0", True)) if fails else ()
    engine = Engine(
        session, jobs, SimulatedCluster(node_events=failures), interval_s=policy.traits.default_interval_s
    )
    engine.run()
    assert not session.jobs
    for state in session.book.ended.values():
        if state.id in session.book.outcomes or not state.batch_changes:
            continue
        own = state.spec.batch.regimes
        work = state.work_samples or 0.0
        assert state.global_batch == own[-1].size
        borders = {work * regime.after for regime in own}
        assert {change.samples_done for change in state.batch_changes} <= borders


JOBS = 12
SEED = 3
"""Of the jobs whose one story all comparisons share."""
POLICIES = list(BUILT_IN)
UNSCALED: Mapping[str, str] = {"drl": "its network has learned from times in minutes"}
"""Policies whose results do not scale with all times, and why."""
BY_NAME: Mapping[str, str] = {
    "random-bs": "the batch of a job is drawn from its name",
    "slurm": "by how much its user overestimates a job is drawn from its name",
}
"""Policies that read more than the order of names, and why."""


@cache
def at_first(policy: str) -> tuple[list[Job], list[stories.Moment]]:
    jobs = stories.drawn_jobs(SEED, stories.FEW.get(policy, JOBS))
    return jobs, stories.story(jobs, policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_years_later_under_other_names_the_same_happens(policy: str):
    jobs, expected = at_first(policy)
    name = (lambda job_id: job_id) if policy in BY_NAME else renamed
    shift_s = stories.SHIFTS_S[1]
    others = [
        job.model_copy(update={"id": name(job.id), "submit_time": job.submit_time + shift_s}) for job in jobs
    ]
    moved = (stories.back(each, shift_s) for each in stories.story(others, policy))
    assert stories.are_alike([each._replace(job=each.job and name(each.job)) for each in expected], moved)


def renamed(job_id: str) -> str:
    return f"k-{int(job_id[1:]):05}-x"


@pytest.mark.parametrize("policy", ["pollux", "ones"])
def test_ties_of_claims_are_broken_alike_at_every_hour(policy: str):
    """The last digit of an age, or of the service that several jobs have had alike, chose between equals."""
    assert not stories.decisions_changed_by_translation(
        1, policies=[policy], shifts_s=stories.SHIFTS_S[:1], jobs=45
    )


def test_ties_of_plans_are_broken_alike_at_every_hour():
    assert not stories.decisions_changed_by_translation(1, policies=["oasis"], jobs=10, first=16)


def slowed(job: Job, factor: float) -> Job:
    assert isinstance(job.work, GpuTimeWork)
    utility = job.utility
    changes = {"decay": utility.decay / factor, "target": utility.target and utility.target * factor}
    return job.model_copy(
        update={
            "submit_time": job.submit_time * factor,
            "work": GpuTimeWork(gpu_seconds=job.work.gpu_seconds * factor),
            "utility": utility.model_copy(update=changes),
        }
    )


def slowed_parameters(policy: str, factor: float) -> dict[str, Any]:
    result = {}
    for name, value in parameter_defaults(policy_class(policy)).items():
        if (
            name.endswith(("_s", "_seconds", "_hours"))
            and name not in policy_class(policy).traits.clock_parameters
        ):
            if isinstance(value, int | float) and not isinstance(value, bool):
                result[name] = value * factor
            elif isinstance(value, str) and value:
                result[name] = ",".join(str(float(part) * factor) for part in value.split(","))
    return result


@pytest.mark.parametrize("policy", POLICIES)
def test_where_every_second_lasts_twice_as_long_all_is_later(policy: str):
    if policy in UNSCALED:
        pytest.skip(UNSCALED[policy])
    jobs, expected = at_first(policy)
    interval_s = policy_class(policy).traits.default_interval_s
    rounds = {} if interval_s is None else {"interval": interval_s * 2}
    slower = stories.story(
        [slowed(job, 2.0) for job in jobs],
        policy,
        slowed_parameters(policy, 2.0),
        samples_per_second=0.5,
        costs_s=(stories.COSTS_S[0] * 2, stories.COSTS_S[1] * 2),
        **rounds,
    )
    assert stories.are_alike(expected, iter(slower), lambda time_s: time_s / 2)
