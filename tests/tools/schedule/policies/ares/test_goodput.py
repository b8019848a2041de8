import pytest

from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.schedule.policies.ares.goodput import AresGoodput
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job, sizes
from tests.tools.profile.rows_builder import step
from tests.tools.schedule.policies.started import started

BATCH = 32
GPUS = (1, 2, 4, 8)


def profile(sync_s: float = 0.1) -> Profile:
    """A sample takes 0.1 s, and k GPUs k − 1 times ``sync_s``: large batches scale further."""
    rows = (
        step(gpus, 2**power, 0.1 * 2**power + sync_s * (gpus - 1), model="conv")
        for gpus in GPUS
        for power in range(8)
    )
    return Profile(tuple(rows))


def conv(name: str = "a", **more: object) -> Job:
    """A job that may train at 32 to 256 samples on 1 to 8 GPUs."""
    stated = {"elastic": "size+batch", "gpus": 1, "low": 1, "high": 8, "work": {"samples": 50_000.0}} | more
    return job(name, model="conv", batch={"size": BATCH, "min": BATCH, "max": 256}, **stated)  # type: ignore[arg-type]


def decided_twice(noise_scale: float | None, *jobs: Job) -> Session:
    """All jobs arrived and decided for, once without known noise and once with."""
    held = started(AresGoodput(), cluster(8), *jobs, throughput=ThroughputBySize(profile()))
    for state in held.jobs.values():
        state.noise_scale = noise_scale
    held.decide(1)
    return held


def test_batch_and_size_grow_where_noise_is_large():
    # At 32 samples, four GPUs bring less than alpha.
    for noise, elastic in ((None, "size+batch"), (1.0, "size+batch"), (1e6, "size")):
        held = decided_twice(noise, conv(elastic=elastic))
        assert (sizes(held), held.jobs["a"].global_batch) == ({"a": 2}, BATCH)

    held = decided_twice(1e6, conv())
    assert held.jobs["a"].global_batch > BATCH
    assert sizes(held) == {"a": 8}

    jobs = [conv(name, work={"samples": samples}) for name, samples in (("long", 9e4), ("short", 1e4))]
    assert sizes(decided_twice(1e6, *jobs)) == {"short": 8}


@pytest.mark.parametrize(("samples", "changes"), [(50_000.0, True), (400.0, False)])
def test_a_job_changes_its_batch_where_it_ends_sooner(samples: float, changes: bool):
    held = decided_twice(64.0, conv(high=2, work={"samples": samples}))
    before = held.jobs["a"].global_batch
    held.jobs["a"].noise_scale = 1e6
    held.decide(2)
    assert (held.jobs["a"].global_batch > before) is changes
    assert held.jobs["a"].gpus == 2
