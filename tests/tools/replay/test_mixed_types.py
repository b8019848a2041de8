"""Replays on clusters of two GPU types with a profile of both: by hand."""

from __future__ import annotations

import pytest

from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Replayed, Run, replay
from tests.builders import FREE_CHANGES, job, mixed_cluster

BATCH = 8
NODES = mixed_cluster(slow=(2, 2), fast=(2,))
FASTEST_FIRST = ("fifo", "sjf", "srtf", "ares", "tiresias", "optimus")
EVERYBODY = (*FASTEST_FIRST, "las", "fair-share", "pollux")


def measured(model: str, gpu_type: str, **seconds: float) -> list[ProfileRow]:
    """Step times of a batch of eight by placement: ``g2=1.0``, ``g2_2=0.75``."""
    rows = []
    for name, step_seconds in seconds.items():
        shares = [int(share) for share in name[1:].split("_")]
        rows.append(
            ProfileRow(
                "train", model, gpu_type, len(shares), sum(shares), ",".join(map(str, shares)),
                BATCH // sum(shares), 1, step_seconds=step_seconds, iterations=5, feasible=True,
                source="measured",
            )
        )  # fmt: skip
    return rows


def too_large(model: str, gpu_type: str) -> list[ProfileRow]:
    """The model does not fit the memory of the type at any batch."""
    return [
        ProfileRow(
            "train",
            model,
            gpu_type,
            1,
            gpus,
            str(gpus),
            1,
            1,
            iterations=0,
            feasible=False,
            source="measured",
        )
        for gpus in (1, 2)
    ]


PROFILE = Profile(
    (
        *measured("both", "slow", g1=4.0, g2=2.0, g2_2=1.0),
        *measured("both", "fast", g1=2.0, g2=1.0),
        *measured("choosy", "fast", g1=1.0, g2=0.5),
        *too_large("choosy", "slow"),
        *measured("patient", "slow", g1=4.0),
        *too_large("patient", "fast"),
    )
)


def of(job_id: str, gpus: int, steps: int, *, model: str = "both", at: float = 0.0) -> Job:
    return job(job_id, at=at, gpus=gpus, model=model, batch=BATCH, work={"iterations": steps})


def replayed(policy: str, *trace: Job) -> Replayed:
    return replay(
        inputs(trace, NODES, PROFILE),
        Run(policy, conditions=Conditions(interval=0.0), simulated=FREE_CHANGES),
    )


def told(done: Replayed, name: str) -> dict[str, Event]:
    return {event.job or "": event for event in done.log.events() if event.event == name}


def types(event: Event) -> set[str]:
    return {node.split("-")[0] for node, _ in event.placement or ()}


@pytest.mark.parametrize("policy", FASTEST_FIRST)
def test_the_first_job_takes_the_fast_type_and_the_second_what_is_left(policy: str) -> None:
    done = replayed(policy, of("a", 2, 10), of("b", 2, 10, at=1))
    starts, ends = told(done, "start"), told(done, "finish")
    assert (types(starts["a"]), types(starts["b"])) == ({"fast"}, {"slow"})
    assert (ends["a"].time, ends["b"].time) == (10, 1 + 20)


@pytest.mark.parametrize("policy", EVERYBODY)
def test_a_model_that_is_profiled_on_one_type_waits_for_it_while_the_other_is_idle(policy: str) -> None:
    trace = [of("a", 2, 10, model="choosy"), of("b", 2, 20, model="choosy", at=1)]
    done = replayed(policy, *trace)
    assert done.summary.finished == 2
    assert max(event.time for event in told(done, "finish").values()) == 5 + 10
    assert all(types(event) <= {"fast"} for event in done.log.events())


@pytest.mark.parametrize("policy", [*FASTEST_FIRST, "las"])
def test_each_trains_at_the_speed_of_its_type(policy: str) -> None:
    done = replayed(policy, of("a", 1, 10), of("b", 1, 5), of("c", 4, 10, at=1))
    starts, ends = told(done, "start"), told(done, "finish")
    assert [(types(starts[i]), starts[i].time, ends[i].time) for i in "abc"] == [
        ({"fast"}, 0, 20),
        ({"fast"}, 0, 10),
        ({"slow"}, 1, 11),
    ]


@pytest.mark.parametrize("policy", EVERYBODY)
def test_a_job_waits_for_enough_gpus_of_one_type(policy: str) -> None:
    """Five of six GPUs are free, three of them of the slow type, and it asks for four."""
    done = replayed(policy, of("a", 1, 10, model="patient"), of("c", 4, 10, at=1))
    assert all(len(types(event)) <= 1 for event in done.log.events())
    ends = {job_id: event.time for job_id, event in told(done, "finish").items()}
    assert ends in ({"a": 40, "c": 50}, {"a": 50, "c": 11}), "c waits, or a gives way"


def test_what_is_left_says_that_no_type_has_so_many() -> None:
    done = replayed("fifo", of("a", 5, 10), of("b", 1, 1))
    assert done.summary.finished == 1
    reasons = [left.reason for left in (*done.summary.unfinished, *done.summary.rejections)]
    assert reasons == ["needs 5 GPUs of one type, the cluster has 4"]


def test_gpu_time_is_told_in_samples_by_the_types_that_have_the_size() -> None:
    """Four GPUs are on the slow type only, where a step takes a second."""
    trace = [job("a", gpus=4, model="both", batch=BATCH, gpu_seconds=400)]
    done = replay(inputs(trace, NODES, PROFILE), Run("fifo", simulated=FREE_CHANGES))
    assert told(done, "finish")["a"].time == pytest.approx(100)
