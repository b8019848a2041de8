import pytest

from benchmarks.parts.evolution import FixedAndPerSample
from pliant.tools.schedule.jobs import EpochEnd, JobState, node_states
from pliant.tools.schedule.policies.ones.limits import (
    ArrivalRate,
    BatchLimit,
    BatchLimits,
    EpochRule,
    SizeTables,
)
from pliant.tools.schedule.rates import Speeds
from tests.builders import cluster, curves, job

SPEEDS = Speeds(curves(), node_states(cluster(16)))


def trained(samples: float, *, batch: int = 64, gpus: int = 1, at_s: float = 100.0) -> JobState:
    """A job of epochs of 1,000 samples that has run until ``at_s`` since 0."""
    spec = job(
        "a",
        low=1,
        high=16,
        elastic="size+batch",
        batch={"size": 64, "min": 16, "max": 4096, "per_gpu_max": 64},
        work={"epochs": 50, "dataset_size": 1000},
    )
    state = JobState(spec, 64, 50_000.0)
    state.gpus, state.global_batch, state.first_start_s = gpus, batch, 0.0
    state.report_progress(at_s, samples)
    return state


def limits(limit: BatchLimit, warmup_steps: int = 0) -> BatchLimits:
    held = BatchLimits(EpochRule(60.0, None), warmup_steps)
    held.load({"seen_s": 0.0, "jobs": {}})
    held._known["a"] = limit
    return held


def followed(
    limit: BatchLimit,
    state: JobState,
    *,
    rate: float = 0.0,
    in_the_way: tuple[str, ...] = (),
    at_s: float = 100.0,
    warmup_steps: int = 0,
) -> BatchLimit:
    held = limits(limit, warmup_steps)
    held.follow({"a": state}, SPEEDS, at_s, rate, in_the_way)
    return held["a"]


@pytest.mark.parametrize(("gpus", "most"), [(1, {"per_gpu_max": 64}), (4, {})])
def test_a_job_starts_with_a_batch_that_fits_one_gpu(gpus: int, most: dict[str, int]):
    batch = {"size": 256, "min": 32, "max": 512, **most}
    state = JobState(job("a", gpus=gpus, low=1, high=8, elastic="size+batch", batch=batch), 256, None)
    held = BatchLimits(EpochRule(60.0, None), 10)
    held.follow({"a": state}, SPEEDS, 0.0, 0.0)
    assert (held["a"].samples, held["a"].local, held["a"].rule) == (64, 64, "start")


def test_scale_up_doubles_the_limit_up_to_the_largest_batch() -> None:
    assert followed(BatchLimit(64, 64.0), trained(999)).samples == 64
    result = followed(BatchLimit(64, 64.0), trained(1000))
    assert (result.samples, result.rule) == (128, "scale-up")

    assert followed(BatchLimit(64, 64.0), trained(1000), warmup_steps=16).samples == 64
    assert followed(BatchLimit(64, 64.0), trained(1024), warmup_steps=16).samples == 128

    held, state = limits(BatchLimit(64, 64.0)), trained(1000)
    for epoch in range(1, 5):
        state.report_progress(100.0 * epoch, 1000.0 * epoch)
        held.follow({"a": state}, SPEEDS, 100.0 * epoch, 0.0)
    assert held["a"].samples == 128
    # Scale up ends at the largest batch of the job.
    state = trained(1000, batch=4096, gpus=16)
    assert followed(BatchLimit(4096, 256.0), state).samples == 4096
    fixed = trained(1000, gpus=4)
    fixed.spec = job("a", low=1, high=16, batch=64, work={"epochs": 50, "dataset_size": 1000})
    assert followed(BatchLimit(64, 16.0), fixed).samples == 128, "it says GPUs where the batch does not move"

    # It had 512 samples and asks for 1024; an update left it 64, its warm-up of one step is over.
    state = trained(64)
    assert followed(BatchLimit(1024, 64.0), state, warmup_steps=1).samples == 128
    assert followed(BatchLimit(1024, 64.0), trained(0, at_s=1.0), at_s=1.0).samples == 128, "nor before it"


def test_the_limit_falls_with_length_and_with_refusals() -> None:
    # σT = 2.5: R ← ⌈2 · 128 / ⌈3.5⌉⌉ = 64.
    state = trained(1000, batch=128, gpus=2)
    result = followed(BatchLimit(128, 64.0), state, rate=0.025, in_the_way=("a",))
    assert (result.samples, result.rule) == (64, "scale-down")
    assert followed(BatchLimit(128, 64.0), state, rate=0.025).rule == "scale-up", "no job waits behind it"
    short = followed(BatchLimit(128, 64.0), state, rate=0.01, in_the_way=("a",))
    assert short.rule == "scale-up", "it is not long"

    result = followed(BatchLimit(64, 64.0), trained(1000), rate=10.0, in_the_way=("a",))
    assert result.samples == 64
    # Resume with half of the batch after each refusal.
    held, state = limits(BatchLimit(512, 64.0, "scale-up")), trained(1000, batch=256, gpus=4)
    state.samples_per_second = 100.0
    held.preempted(state, 100.0)
    assert (held["a"].samples, held["a"].rule) == (256, "resume")
    state.gpus = 0
    asked = []
    for time_s in (105.0, 110.0, 115.0, 120.0, 130.0):
        held.refused(state, time_s)
        asked.append(held["a"].samples)
    assert asked == [256, 128, 128, 64, 64], "once in the 10 s of an epoch, down to what one GPU trains"


@pytest.mark.parametrize(("limit", "sizes"), [(64, 1), (128, 2), (127, 1), (4096, 16)])
def test_a_limit_is_gpus_in_proportion_to_the_batch(limit: int, sizes: int):
    """Rounded down, and 16 are the job's own limit."""
    row = SizeTables(SPEEDS).row(trained(0), "gpu", 16, BatchLimit(limit, 64.0))
    assert len(row.utilization) == sizes + 1


def test_the_fastest_batch_within_the_limit_and_unstated_epochs() -> None:
    # A GPU holds 32 samples. On three GPUs 63 are faster than 64: one share would be of 22.
    batch = {"size": 16, "min": 8, "max": 256, "per_gpu_max": 32}
    spec = job("a", model="m", low=1, high=8, elastic="size+batch", batch=batch)
    row = measured(0.01, 0.001, 0.0).row(JobState(spec, 16, None), "gpu", 8, BatchLimit(64, 16.0))
    assert row.batches == [0, 32, 64, 63, 64]

    # A step of 64 samples takes 64 ms on one GPU, and twice as many GPUs add 20 ms.
    state = JobState(job("a", model="m", low=1, high=8, batch=64), 64, None)
    row = measured(0.0, 0.001, 0.02).row(state, "gpu", 8, BatchLimit(512, 64.0))
    assert [gpus for gpus, worth in enumerate(row.utilization) if 0 < worth < float("inf")] == [1, 2]

    row = SizeTables(SPEEDS).row(state, "gpu", 16, BatchLimit(128, 32.0))
    assert row.batches == [0, 64, 64, 64, 64]
    # Unstated epochs and arrivals follow from what was seen.
    spec = job("a", low=1, high=8)
    state, epochs = JobState(spec, 64, None), EpochRule(60.0, None)
    state.gpus, state.samples_per_second = 1, 10.0
    assert epochs.end_s(state, 0.0, 5.0, 20.0) == 65.0
    state.report_progress(20.0, 400.0)
    state.epochs = (EpochEnd(2, 400.0, loss=1.5),)
    assert state.epoch_samples == 200
    assert epochs.end_s(state, 300.0, 5.0, 20.0) == pytest.approx(30.0)
    assert EpochRule(60.0, 7.0).end_s(state, 300.0, 5.0, 20.0) == 12.0, "an epoch never counts longer"
    # The rate of arrivals is their mean.
    rate = ArrivalRate()
    assert rate.per_second == 0
    for time_s in (10.0, 20.0, 50.0):
        rate.count(time_s)
    assert rate.per_second == pytest.approx(2 / 40)


def measured(*model: float) -> SizeTables:
    """On eight GPUs, with these seconds of a step, of a sample, and of a doubling."""
    return SizeTables(Speeds(FixedAndPerSample({"m": model}), node_states(cluster(8))))
