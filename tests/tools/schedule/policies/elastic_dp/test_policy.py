"""elastic-dp as a policy: who joins, when, at which size and batch, on clusters that fit a hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.schedule import PolicyState
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.policies.elastic_dp.policy import ElasticDp
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, curves, job, mixed_cluster, session, sizes

SPEEDS = curves(
    fast={1: 1, 2: 2, 4: 4, 8: 8},
    slow={1: 1, 2: 1.5, 3: 1.75, 4: 1.875, 8: 1.875},
    jump={1: 1, 2: 1.1, 3: 1.2, 4: 4},
)


def opened(*jobs: Any, gpus: int = 8, throughput: Throughput = SPEEDS, **parameters: Any) -> Session:
    held = session(ElasticDp(**parameters), cluster(gpus), throughput)
    submit(held, *jobs)
    return held


def submit(held: Session, *jobs: Any, at_s: float | None = None) -> None:
    for each in sorted(jobs, key=lambda each: (each.submit_time, each.id)):
        held.submit(each, each.submit_time if at_s is None else at_s)


def elastic(name: str, model: str = "fast", *, at: float = 0.0, low: int = 1, high: int = 8, **more: Any):
    return job(name, at=at, model=model, low=low, high=high, gpus=low, **more)


def decided(held: Session, time_s: float) -> dict[str, int]:
    held.decide(time_s)
    return sizes(held)


def test_gpus_go_where_they_add_most_throughput():
    held = opened(elastic("a", "slow"), elastic("b", "fast"))
    assert decided(held, 0) == {"a": 1, "b": 7}
    held = opened(elastic("a", "slow"), elastic("b", "slow"), gpus=5)
    assert decided(held, 0) == {"a": 3, "b": 2}, "of equally good sizes the first gets more"


def test_a_job_that_gains_by_four_gpus_alone_gets_four():
    held = opened(elastic("a", "slow", high=4), elastic("b", "jump", high=4), gpus=6)
    assert decided(held, 0) == {"a": 2, "b": 4}


def test_jobs_join_in_order_of_arrival_while_the_smallest_sizes_fit():
    jobs = [elastic(name, at=at, low=3) for at, name in enumerate("abc")]
    held = opened(*jobs, elastic("d", at=3, low=2))
    assert decided(held, 3) == {"a": 3, "b": 3, "d": 2}
    held.end("a", 600)
    assert decided(held, 600) == {"b": 3, "c": 3, "d": 2}


def test_strictly_nobody_passes_a_job_that_does_not_fit():
    jobs = [elastic(name, at=at, low=3) for at, name in enumerate("abc")]
    held = opened(*jobs, elastic("d", at=3, low=2), strict=True)
    assert decided(held, 3) == {"a": 5, "b": 3}
    assert held.explain(3)["d"].reason == 'waits behind "c", which does not fit'


def test_equal_jobs_keep_what_they_have_while_they_run():
    held = opened(job("c", gpus=4), elastic("a", at=1, low=2), elastic("b", at=2), gpus=5)
    assert decided(held, 2) == {"b": 1, "c": 4}
    held.end("c", 600)
    assert decided(held, 600) == {"a": 2, "b": 3}, "b joined first"
    submit(held, elastic("d", at=700, low=3))
    assert decided(held, 1200) == {"a": 2, "b": 3}


def test_running_jobs_shrink_for_newcomers_and_grow_again():
    held = opened(elastic("a"))
    assert decided(held, 0) == {"a": 8}
    submit(held, elastic("b", at=100), elastic("c", at=200))
    assert decided(held, 600) == {"a": 6, "b": 1, "c": 1}
    held.end("b", 1200)
    assert decided(held, 1200) == {"a": 7, "c": 1}


def test_sizes_change_at_multiples_of_the_interval():
    held = opened(elastic("a"))
    held.decide(0)
    submit(held, elastic("b", at=100))
    assert decided(held, 100) == {"a": 8}
    assert held.ask_again_s == 600
    assert held.explain(100)["b"].reason == "waits for the next scaling, in 500 s"
    assert decided(held, 600) == {"a": 7, "b": 1}
    assert held.ask_again_s is None, "nothing is left to look at"
    submit(held, elastic("c", at=600))
    assert decided(held, 600) == {"a": 6, "b": 1, "c": 1}, "whatever happens at the moment takes part"
    submit(held, elastic("d", at=601))
    assert decided(held, 601) == {"a": 6, "b": 1, "c": 1}


def test_an_interval_of_nothing_is_every_change():
    held = opened(elastic("a"), interval_s=0)
    held.decide(0)
    submit(held, elastic("b", at=1.5))
    assert decided(held, 1.5) == {"a": 7, "b": 1}
    held.lose("b", 2)
    assert held.explain(2)["b"].reason == "waits for the next scaling, in 0 s"
    assert decided(held, 2) == decided(held, 2) == {"a": 7, "b": 1}, "asked twice at one time"


def test_when_enough_jobs_have_ended_the_interval_is_cut_short():
    jobs = [elastic(f"j{i:02}", low=1, high=2) for i in range(40)]
    held = opened(*jobs, gpus=40)
    held.decide(0)
    held.end("j00", 10)
    assert set(decided(held, 10).values()) == {1}
    held.end("j01", 20)
    assert decided(held, 20)["j02"] == 2, "two of forty are five in a hundred"


def test_ends_count_from_moment_to_moment():
    jobs = [elastic(f"j{i:02}", low=1, high=2) for i in range(40)]
    held = opened(*jobs, gpus=40)
    held.decide(0)
    held.end("j00", 10)
    assert decided(held, 10)["j01"] == 1
    assert decided(held, 600)["j01"] == 2
    held.end("j02", 610)
    held.decide(610)
    assert 2 not in [size for name, size in sizes(held).items() if name != "j01"], "one since 600 s"


def test_without_a_part_only_the_interval_counts():
    held = opened(elastic("a", high=4), elastic("b"), ended_part=None)
    held.decide(0)
    held.end("a", 10)
    assert decided(held, 10) == {"b": 4}
    assert decided(held, 600) == {"b": 8}


def test_on_an_idle_cluster_nobody_waits():
    held = opened(elastic("a"), ended_part=None)
    held.decide(0)
    held.end("a", 10)
    held.decide(10)
    submit(held, elastic("b", at=11))
    assert decided(held, 11) == {"b": 8}


def test_a_job_that_does_not_fit_is_dropped_if_asked_to():
    held = opened(elastic("a", low=5), elastic("b", low=4), elastic("c", low=3), mode="drop")
    assert decided(held, 0) == {"a": 5, "c": 3}
    assert set(held.ended) == {"b"}
    held = opened(elastic("a", low=5), elastic("b", low=4), elastic("c", low=3), mode="drop", strict=True)
    assert decided(held, 0) == {"a": 8}
    assert set(held.ended) == {"b", "c"}


def test_a_newcomer_is_dropped_at_the_next_moment_not_before():
    held = opened(elastic("a", low=6), mode="drop")
    held.decide(0)
    submit(held, elastic("b", at=100, low=4))
    held.decide(100)
    assert "b" in held.jobs
    held.decide(600)
    assert "b" in held.ended


def test_a_job_that_has_run_before_is_never_dropped():
    held = session(ElasticDp(mode="drop"), cluster(4, 4), SPEEDS)
    submit(held, elastic("a", low=3, high=4), elastic("b", low=3, high=4))
    held.decide(0)
    held.node_down("n0", 10)
    held.decide(600)
    assert len(held.jobs) == 2
    assert sum(sizes(held).values()) == 4
    held.node_up("n0", 610)
    assert decided(held, 1200) == {"a": 4, "b": 4}


def test_what_never_fits_is_rejected_at_once():
    held = opened(elastic("a"), elastic("giant", low=9, high=9), job("wide", gpus=12, user="ann"))
    transitions = held.decide(0)
    reasons = {
        transition.job.id: transition.reason for transition in transitions if transition.step == "reject"
    }
    assert reasons == {
        "giant": "needs 9 GPUs of one type, the cluster has 8",
        "wide": "needs 12 GPUs of one type, the cluster has 8",
    }


def test_a_quota_limits_each_named_user():
    jobs = [elastic("a", user="ann"), elastic("b", user="ann"), elastic("c", "slow", user="bob")]
    assert decided(opened(*jobs), 0) == {"a": 6, "b": 1, "c": 1}
    assert decided(opened(*jobs, quota=4), 0) == {"a": 3, "b": 1, "c": 4}
    held = opened(*jobs, elastic("d", user="ann", low=3), elastic("e", user="ann", low=5), quota=4)
    assert decided(held, 0) == {"a": 3, "b": 1, "c": 4}
    assert held.explain(0)["d"].reason == "needs 3 GPUs, its user's quota has 2 left"
    assert "e" in held.ended, "it would never fit"
    assert decided(opened(elastic("a"), quota=4), 0) == {"a": 8}, "nobody's jobs are free"


def test_priorities_are_weights():
    jobs = [elastic("a", "slow"), elastic("b", "slow", priority=3)]
    assert decided(opened(*jobs, gpus=6), 0) == {"a": 2, "b": 4}
    assert decided(opened(*jobs, gpus=6, priority_base=1), 0) == {"a": 3, "b": 3}
    assert decided(opened(elastic("a", "slow", priority=-1e9), elastic("b", "slow"), gpus=6), 0) == {
        "a": 2,
        "b": 4,
    }


def test_a_change_of_size_is_made_only_where_it_pays_for_itself():
    for rescale_s, size in ((0, 4), (30, 4), (60, 3)):  # the fourth GPU adds 7 % to a
        held = opened(elastic("a", "slow"), job("b", model="fast"), gpus=4, rescale_s=rescale_s)
        assert decided(held, 0) == {"a": 3, "b": 1}
        held.end("b", 600)
        assert decided(held, 600) == {"a": size}


@pytest.mark.parametrize(("seconds", "size"), [(30.0, 4), (60.0, 3)])
def test_a_change_may_be_charged_as_the_profile_has_measured_it(
    seconds: float, size: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SPEEDS, "rescale_seconds", {"slow": seconds}.get)
    held = opened(elastic("a", "slow"), job("b", model="fast"), gpus=4, rescale_s="measured")
    assert decided(held, 0) == {"a": 3, "b": 1}
    held.end("b", 600)
    assert decided(held, 600) == {"a": size}


def test_what_was_not_measured_is_not_charged_and_that_is_said_once(caplog: pytest.LogCaptureFixture):
    held = opened(elastic("a", "slow"), job("b", model="fast"), gpus=4, rescale_s="measured")
    assert decided(held, 0) == {"a": 3, "b": 1}
    held.end("b", 600)
    assert decided(held, 600) == {"a": 4}
    held.decide(1200)
    assert caplog.text.count("measure them with `pliant profile --costs`") == 1


def test_on_several_gpu_types_each_is_a_cluster_of_its_own():
    held = session(ElasticDp(), mixed_cluster(old=(4,), new=(4,)), SPEEDS)
    submit(held, elastic("a", low=3), elastic("b", low=3), elastic("c", low=1), elastic("d", low=2))
    held.decide(0)
    assert sizes(held) == {"a": 3, "b": 4, "c": 1}
    assert held.jobs["a"].gpu_type == held.jobs["c"].gpu_type != held.jobs["b"].gpu_type


def test_jobs_that_cannot_be_resized_get_what_they_requested():
    held = opened(job("rigid", gpus=3, model="fast"), elastic("b"), job("late", at=1, gpus=5))
    assert decided(held, 1) == {"rigid": 3, "b": 5}
    assert held.explain(1)["late"].needs_gpus == 5


def test_explanations_say_what_a_gpu_more_would_add():
    held = opened(elastic("a", "slow", high=3), elastic("b", "jump", high=4), elastic("c", low=2), gpus=5)
    held.decide(0)
    told = {name: why.reason for name, why in held.explain(0).items()}
    assert told == {
        "a": "1.00 times one GPU at batch 960, one GPU more would add 0.50",
        "b": "1.00 times one GPU at batch 960, one GPU more would add 0.10",
        "c": "3.00 times one GPU at batch 960, one GPU more would add 1.00",
    }
    held = opened(elastic("a", "slow", high=2), elastic("b", "slow"), elastic("c", low=7))
    held.decide(0)
    told = {name: why.reason for name, why in held.explain(0).items()}
    assert told == {
        "a": "1.50 times one GPU at batch 960, its largest size",
        "b": "1.88 times one GPU at batch 960, one GPU more would add nothing",
        "c": "needs 7 GPUs, the smallest sizes of the jobs before it leave 6",
    }


def test_state_is_carried_and_survives_json():
    held = opened(elastic("a"))
    held.decide(0)
    submit(held, elastic("b", at=100))
    held.decide(100)
    state = held.policy_state()
    again = opened(elastic("a"))
    again.adopt([], 0)
    submit(again, elastic("b", at=100))
    assert again.carry(PolicyState.model_validate_json(state.model_dump_json()))
    assert again.policy_state().state == state.state
    assert json.loads(json.dumps(state.state)) == state.state


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"interval_s": -1}, "interval_s -1 is below 0"),
        ({"ended_part": 0}, "ended_part 0 is not above 0 and at most 1"),
        ({"ended_part": 1.5}, "ended_part 1.5 is not above 0 and at most 1"),
        ({"priority_base": 0.5}, "priority_base 0.5 is not from 1 to 10"),
        ({"priority_base": 11}, "priority_base 11 is not from 1 to 10"),
        ({"quota": 0}, "quota 0 is below 1"),
        ({"rescale_s": -1}, "rescale_s -1 is below 0"),
        ({"rescale_s": "measured", "interval_s": 0}, "rescale_s is spread over interval_s, which is 0"),
        ({"rescale_s": 5, "interval_s": 0}, "rescale_s is spread over interval_s, which is 0"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters: dict[str, float], complaint: str):
    with pytest.raises(UsageError, match=f'policy "elastic-dp": {complaint}'):
        ElasticDp(**parameters)
