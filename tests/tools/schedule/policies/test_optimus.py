from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.optimus import Optimus
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, curves, decided, job, opened
from tests.tools.schedule.policies.started import joined, started

SPEEDS = curves(good={1: 1, 2: 2, 3: 3, 4: 4}, poor={1: 1, 2: 1.25, 3: 1.25, 4: 1.25})


def elastic(name: str, model: str, samples: float, **more):
    return job(name, model=model, batch=60, low=1, high=4, work={"samples": samples}, **more)


def sizes_of(gpus: int, *jobs: Job) -> dict[str, int]:
    return decided(opened(Optimus(), cluster(gpus), *jobs, throughput=SPEEDS), 0)


def test_gpus_go_where_they_save_most_and_places_stay() -> None:
    assert sizes_of(4, elastic("a", "good", 6000), elastic("b", "poor", 6000)) == {"a": 2, "b": 2}
    jobs = elastic("a", "good", 600), elastic("b", "poor", 60_000)
    assert sizes_of(4, *jobs) == {"a": 2, "b": 2}, "b gains nothing from a third, so a gets what is left"
    assert sizes_of(3, *jobs) == {"a": 1, "b": 2}
    assert sizes_of(4, elastic("b", "poor", 100)) == {"b": 2}
    # One each in order of arrival while they last.
    jobs = [elastic(name, "good", 100, at=at) for at, name in enumerate("cab")]
    held = opened(Optimus(), cluster(2), *jobs, throughput=SPEEDS)
    assert decided(held, 2) == {"a": 1, "c": 1}
    held.end("c", 10)
    assert decided(held, 10) == {"a": 1, "b": 1}
    # Rigid jobs and unknown work.
    rigid = job("rigid", gpus=2, model="good", batch=60, work={"samples": 1e6})
    unknown = job("unknown", model="good", batch=60, low=1, high=4)
    assert sizes_of(4, rigid, unknown) == {"rigid": 2, "unknown": 1}
    # Places stay and an oracle overrides estimates.
    jobs = [elastic(name, "poor", 600) for name in "ab"]
    held = started(Optimus(placement="emptiest"), cluster(4, 4), *jobs, throughput=SPEEDS)
    before = {name: state.placement for name, state in held.jobs.items()}
    joined(held, 60, elastic("c", "good", 1e6, at=60))
    assert before == {"a": (("n0", 2),), "b": (("n1", 2),)}
    assert {name: held.jobs[name].placement for name in "ab"} == before
    assert held.jobs["c"].placement == (("n0", 2), ("n1", 2))
    # An oracle overrides what is estimated.
    held = Session(Optimus(), cluster(4), SPEEDS, oracle=Truth())
    held.submit(elastic("a", "good", 6000), 0)
    assert decided(held, 0) == {"a": 2}, "on three it does not run, says the oracle"
    assert held.policy_host.oracle is not None


class Truth:
    """An oracle that knows of ten steps to go, and that two GPUs are four times as fast."""

    def remaining_steps(self, job: JobState, time_s: float) -> float:
        return 10.0

    def step_seconds(self, job: JobState, gpus: int, gpu_type: str) -> float | None:
        return {1: 4.0, 2: 1.0}.get(gpus)

    def max_gpus(self, job: JobState) -> int:
        return 3

    def kind(self, job: JobState) -> object:
        return "any"
