from types import SimpleNamespace
from typing import Any

import pytest

from pliant.schemas.job import Job
from pliant.tools.schedule.jobs import EpochEnd, with_end
from pliant.tools.schedule.policies.ones import population
from pliant.tools.schedule.policies.ones.policy import Ones
from pliant.tools.schedule.session.session import Session
from tests import builders
from tests.builders import cluster, curves, decided, job, mixed_cluster, sizes
from tests.tools.schedule.policies.started import joined, started

SPEEDS = curves(linear={1: 100, 2: 190, 4: 340, 8: 560})


def trainable(name: str, *, at: float = 0.0, epochs: float = 20, samples: int = 1000, **more: Any) -> Job:
    """A job of 20 epochs of 10 s on one GPU, on which a batch of 32 fits."""
    batch = {"size": 32, "min": 32, "max": 256, "per_gpu_max": 32}
    fields: dict[str, Any] = {"elastic": "size+batch", "low": 1, "high": 8, "batch": batch, "at": at}
    return job(name, **(fields | {"work": {"epochs": epochs, "dataset_size": samples}} | more))


SHRUNK = {"size": 128, "min": 32, "max": 256, "per_gpu_max": 32}
"""Four GPUs hold the submitted batch."""


def opened(*jobs: Job, gpus: int = 8, **parameters: Any) -> Session:
    return builders.opened(Ones(**parameters), cluster(gpus), *jobs, throughput=SPEEDS)


def batches(held: Session) -> dict[str, int]:
    return {each.id: each.global_batch for each in held.jobs.values() if each.gpus}


def reason(held: Session, name: str, time_s: float) -> str:
    held.decide(time_s)
    return held.explain(time_s)[name].reason


def test_a_job_doubles_after_each_epoch_and_no_more_in_a_crowd() -> None:
    held, seen, time_s = opened(trainable("a", epochs=100)), [], 0.0
    for _ in range(5):
        seen.append((decided(held, time_s)["a"], batches(held)["a"]))
        assert held.decided.due_s is not None
        time_s = held.decided.due_s
    assert seen == [(1, 32), (2, 64), (4, 128), (8, 256), (8, 256)]
    assert held.jobs["a"].reference_batch == 32, "the learning rate follows"

    held = opened(trainable("a", epochs=100, batch=SHRUNK | {"size": 32, "max": 128}))
    *_, last = (decided(held, time_s) for time_s in range(0, 60, 10))
    assert (last, batches(held)) == ({"a": 4}, {"a": 128}), "its largest"
    # Jobs of many sizes come and go; updates shrink some far below what they had.
    held, time_s, grown = opened(gpus=12), 0.0, 0
    for number in range(60):
        epochs = 43 if number % 5 == 0 else 3
        held.submit(trainable(f"j{number}", at=time_s, epochs=epochs, batch=SHRUNK), time_s)
        for _ in range(3):
            before = batches(held)
            held.decide(time_s)
            changes = [(had, batches(held)[name]) for name, had in before.items() if name in batches(held)]
            assert all(now <= 2 * had for had, now in changes)
            grown += sum(now > had for had, now in changes)
            time_s += 2.0
            for each in list(held.jobs.values()):
                if (end_s := each.finish_time_s()) is not None and end_s <= time_s:
                    held.end(each.id, time_s)
    assert grown > 20


def test_an_update_waits_until_every_job_has_done_an_epoch():
    jobs = trainable("quick"), trainable("slow", samples=3000)
    held = opened(*jobs, gpus=2, update="all")
    assert decided(held, 0) == {"quick": 1, "slow": 1}
    assert held.decided.due_s == pytest.approx(30, rel=1e-3)
    result = joined(held, 15, trainable("new", at=15, epochs=1))
    assert result == {"quick": 1, "slow": 1}, "quick has done an epoch, slow has not"
    assert 'once "slow" has done an epoch' in held.explain(15)["new"].reason
    assert "new" in decided(held, 30), "a new job gets its first GPU from one that has run"

    held = opened(*jobs)
    decided(held, 0)
    assert held.decided.due_s == pytest.approx(10, rel=1e-3)
    assert decided(held, 10) == {"quick": 2, "slow": 1}


@pytest.mark.parametrize(("idle_gpus", "expected"), [("start", {"a": 1, "b": 1}), ("hold", {"a": 1})])
def test_idle_gpus_go_to_waiting_jobs_at_once_or_with_the_update(idle_gpus: str, expected: dict[str, int]):
    held = opened(trainable("a"), idle_gpus=idle_gpus, update="all")
    decided(held, 0)
    assert joined(held, 5, trainable("b", at=5)) == expected
    assert held.decided.due_s == pytest.approx(10)
    assert decided(held, 10) == {"a": 2, "b": 1}


@pytest.mark.parametrize(("convoy", "rule"), [(0.5, "scale-down"), (1.0, "scale-up")])
def test_a_long_job_that_holds_much_is_scaled_down(convoy: float, rule: str):
    """The first job grows to 4 of 4 GPUs; with a queue behind it, it then gives half of them up."""
    held = opened(trainable("a", epochs=1000), gpus=5, sigma=0.1, convoy=convoy, update="all")
    for time_s in (0, 10, 20):
        held.decide(time_s)
    assert held.jobs["a"].gpus == 4
    joined(held, 21, job("gang", gpus=2, at=21))
    held.decide(30)
    assert held.policy.dump_state()["limits"]["jobs"]["a"]["rule"] == rule


@pytest.mark.parametrize(
    ("below_submitted", "ends"), [("steps", [3.2, 3.2 + 640 / 190]), ("epochs", [10.0, 10 + 1000 / 190])]
)
def test_below_its_submitted_batch_a_job_waits_for_a_few_steps(below_submitted: str, ends: list[float]):
    """On one GPU 10 steps of 32 samples take 3.2 s, an epoch takes 10 s."""
    held, seen = opened(trainable("a", batch=SHRUNK), below_submitted=below_submitted), [0.0]
    for _ in range(2):
        held.decide(seen[-1])
        seen.append(held.decided.due_s or 0.0)
    assert seen[1:] == pytest.approx(ends)
    assert (decided(held, seen[-1]), batches(held)) == ({"a": 4}, {"a": 128})
    assert held.decided.due_s == pytest.approx(seen[-1] + 1000 / 340), "now it waits for an epoch"


def test_jobs_are_asked_after_an_epoch_and_shorter_ones_first() -> None:
    held = opened(trainable("a", batch=SHRUNK), gpus=2)
    held.decide(0)
    assert joined(held, 1, job("gang", gpus=2, at=1)) == {"a": 1}
    assert held.decided.due_s == pytest.approx(10)
    # The shorter job gets the GPUs that both could use.
    held = opened(trainable("short", epochs=4), trainable("long", epochs=40), gpus=3)
    held.decide(0)
    assert sorted(decided(held, 10).values()) == [1, 2]
    explained = "".join(each.reason for each in held.explain(10).values())
    assert "grew from 1 to 2 GPUs, batch 64: its limit after an epoch is 64" in explained


def test_gangs_keep_their_size_and_unknown_work_is_said() -> None:
    gang = job("gang", gpus=4, work={"epochs": 20, "dataset_size": 1000})
    held = opened(gang, trainable("fixed", elastic="size", batch=32, epochs=200))
    assert decided(held, 0) == {"gang": 4, "fixed": 1}
    assert decided(held, 10)["fixed"] == 2
    assert batches(held)["fixed"] == 32

    jobs = [trainable(f"j{number}") for number in range(4)]
    held = started(Ones(), mixed_cluster(slow=(2,), fast=(2,)), *jobs, throughput=SPEEDS)
    assert sizes(held) == dict.fromkeys(("j0", "j1", "j2", "j3"), 1)
    assert {each.gpu_type for each in held.jobs.values()} == {"slow", "fast"}

    # Jobs of ten epochs have ended; one of unknown work that has done five is taken to be halfway.
    held, time_s = opened(gpus=1), 0.0
    for number in range(40):
        joined(held, time_s, trainable(f"j{number}", at=time_s, epochs=10))
        time_s = held.jobs[f"j{number}"].finish_time_s() or time_s
        held.end(f"j{number}", time_s)
    joined(held, time_s, trainable("new", at=time_s, work=None))
    for epoch in range(1, 6):
        held.jobs["new"].report_progress(time_s + epoch, 1000.0 * epoch)
        held.jobs["new"].epochs = with_end(held.jobs["new"].epochs, EpochEnd(epoch, 1000.0 * epoch))
    statement = reason(held, "new", time_s + 5)
    assert 40 <= int(statement.split("predicted to be ")[1].split("%")[0]) <= 60, statement


@pytest.mark.parametrize(("generation_s", "made"), [(0.25, 8), (0.75, 3), (60.0, 1)])
def test_a_time_budget_is_spent_and_the_generations_are_said(monkeypatch, generation_s, made):
    """Two seconds, on a clock that only generations move: the last one begins within them."""
    now_s, evolve = [0.0], population.evolve

    def timed(*search):
        now_s[0] += generation_s
        return evolve(*search)

    monkeypatch.setattr(population, "evolve", timed)
    monkeypatch.setattr(population, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    held = opened(trainable("a"), trainable("b"), time_budget_s=2.0)
    assert f"best after {made} generation" in reason(held, "a", 0)
    assert held.policy_host.policy_state().state["generations"] == made
