import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.tools.schedule import step_time_fit
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import Observation
from pliant.tools.schedule.policies.common import Pool
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.policies.pollux import goodput
from pliant.tools.schedule.policies.pollux.policy import Goodputs
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, curves, job, opened

PLAIN = step_time_fit.Fit(0.1, 0.01, 0.2, 0.0, 0.1, 0.0, gamma=1.0)
POOL = Pool("gpu", 8, 4)


def test_goodput_and_the_best_batch_by_hand() -> None:
    assert goodput.efficiency(100.0, 20, np.array([20, 60, 140])).tolist() == pytest.approx([1.0, 0.75, 0.5])
    assert goodput.efficiency(float("inf"), 20, np.array([20, 2000])).tolist() == [1.0, 1.0]

    # Two GPUs at batch 20: 10 samples each, 0.1 + 0.1 + 0.1 s across one node, 0.4 s across two.
    result = goodput.from_fit(PLAIN, goodput.JobLimits(1, 2, 20, 20)).best(None, 20)
    assert result.rates[0, 1:3] == pytest.approx([20 / 0.3] * 2)
    assert result.rates[1, 1:3] == pytest.approx([0, 20 / 0.4])
    assert result.batches[0, 2] == 20

    # 48 samples on one GPU that holds 16: three micro-steps.
    result = goodput.from_fit(PLAIN, goodput.JobLimits(1, 1, 48, 48, 1, 16)).best(None, 48)
    assert result.rates[0, 1] == pytest.approx(48 / (3 * 0.26))

    limits = goodput.JobLimits(1, 1, 16, 32)
    plain, careful = (goodput.from_fit(PLAIN, limits, lone_accumulates=each) for each in (False, True))
    assert plain.samples_per_second[0, 1, -1] == pytest.approx(32 / 0.42)
    assert careful.samples_per_second[0, 1, -1] == pytest.approx(32 / (2 * 0.26))
    assert careful.samples_per_second[0, 1, 0] == plain.samples_per_second[0, 1, 0]

    # One GPU, B samples in 0.1 + 0.01 B s at efficiency 110 / (100 + B): best at B = sqrt(10 · 100).
    result = goodput.from_fit(PLAIN, goodput.JobLimits(1, 1, 10, 1000)).best(100.0, 10)
    best = max(range(10, 1001), key=lambda batch: batch / (0.1 + 0.01 * batch) / (100 + batch))
    assert best == 32
    assert result.batches[0, 1] == pytest.approx(best, rel=0.2)

    candidates = goodput.from_fit(PLAIN, goodput.JobLimits(1, 8, 10, 1000, 1, 64))
    quiet, loud = (candidates.best(noise, 10).batches[1, 8] for noise in (10.0, 10_000.0))
    assert quiet < loud


SMALL = st.integers(1, 64)


@given(low=SMALL, factor=SMALL, most=st.integers(1, 16), cap=st.none() | SMALL)
def test_every_feasible_candidate_keeps_the_limits(low: int, factor: int, most: int, cap: int | None):
    candidates = goodput.from_fit(PLAIN, goodput.JobLimits(1, most, low, low * factor, 1, cap))
    feasible = candidates.samples_per_second > 0
    batches = candidates.batches[feasible]
    gpus = np.broadcast_to(np.arange(most + 1)[None, :, None], feasible.shape)[feasible]
    assert (batches >= np.maximum(low, gpus)).all()
    assert (batches <= low * factor).all()
    assert not feasible[:, 0].any()


def test_speedup_is_against_the_fair_share_where_it_fits():
    for rates, share, node_gpus, expected in (
        ([[0.0, 10.0, 18.0, 0.0], [0.0, 0.0, 15.0, 20.0]], 2, 2, 20 / 18),
        ([[0.0, 10.0, 18.0, 0.0], [0.0, 0.0, 15.0, 20.0]], 3, 2, 1.0),
        ([[0.0, 10.0, 0.0], [0.0, 0.0, 30.0]], 2, 4, 1.0),
        ([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], 2, 4, 0.0),
    ):
        table = goodput.GoodputTable(np.array(rates), np.ones((2, len(rates[0])), dtype=np.int64))
        assert table.speedups(share, node_gpus)[1, -1] == pytest.approx(expected)


def held(name: str = "a", gpus: int = 2, low: int | None = None) -> Session:
    spec = job(name, gpus=gpus, low=low, high=8)
    return opened(Fifo(), cluster(4, 4), spec, throughput=curves(linear={1: 10, 2: 18, 4: 30}))


def goodputs(seen: Session, knowledge: str) -> Goodputs:
    return Goodputs(seen.cluster.speeds, knowledge, lone_accumulates=False)


def test_what_a_job_that_measured_little_is_answered() -> None:
    result = held()
    table = goodputs(result, "profile").goodput(result.jobs["a"], POOL)
    assert table.rates[0, 1:5].tolist() == pytest.approx([10, 18, 24, 30])
    assert table.batches[0, 4] == 960
    assert table.rates.shape == (2, 9)

    result.submit(job("b", high=8, gpus=2), 0.0)
    profile = goodput.ProfileCandidates(result.cluster.speeds)
    first, second = (
        profile.of(state, "gpu", 4, goodput.JobLimits(1, 8, 960, 960)) for state in result.jobs.values()
    )
    assert isinstance(first, goodput.BatchCandidates)
    assert first is second
    # A job that only measures tries one GPU then two.
    result = held()
    state, measuring = result.jobs["a"], goodputs(result, "measured")
    assert measuring.goodput(state, POOL).rates.shape == (2, 2)
    state.observe(Observation((1,), 960, 1, 9.7, 0.0))
    assert measuring.goodput(state, POOL).rates.shape == (2, 3)
    state.observe(Observation((2,), 480, 1, 5.0, 0.1))
    assert measuring.goodput(state, POOL).rates.shape == (2, 5)

    gang = held("gang", gpus=8, low=8)
    limits = goodputs(gang, "measured").limits(gang.jobs["gang"], POOL)
    assert (limits.least_gpus, limits.most_gpus) == (8, 8)


def test_the_batch_moves_with_the_noise_where_the_job_allows_it() -> None:
    batch, seen = {"size": 64, "min": 32, "max": 256}, held()
    fixed, free = (
        job_state(job("a", high=8, elastic=elastic, batch=batch), seen.cluster.speeds)
        for elastic in ("size", "size+batch")
    )
    fixed.noise_scale = free.noise_scale = 100.0
    profile, measuring = (goodputs(seen, knowledge) for knowledge in ("profile", "measured"))
    assert [profile.limits(state, POOL).resizes_batch for state in (fixed, free)] == [False, True]
    free.noise_scale = None
    assert profile.limits(free, POOL)[2:4] == (64, 64)
    assert measuring.limits(free, POOL)[2:4] == (32, 32)
    # A new noise scale chooses another batch.
    seen, batch = held(), {"size": 64, "min": 64, "max": 4096}
    state = job_state(job("a", high=8, elastic="size+batch", batch=batch), seen.cluster.speeds)
    state.observe(Observation((1,), 64, 1, 0.74, 0.0))
    state.observe(Observation((1,), 128, 1, 1.38, 0.0))
    measuring, batches = goodputs(seen, "measured"), []
    for noise in (10.0, 100_000.0):
        state.noise_scale = noise
        batches.append(int(measuring.goodput(state, POOL).batches[0, 1]))
    assert batches[0] < batches[1]


TRUE = step_time_fit.Fit(
    alpha_c=0.05, beta_c=0.001, alpha_n=0.04, beta_n=0.002, alpha_r=0.02, beta_r=0.001, gamma=2.0
)
PLACES = ((1,), (2,), (3,), (4,), (1, 1), (2, 2), (4, 4), (4, 4, 4))


def seconds(model: step_time_fit.Fit, place: tuple[int, ...], local: int, accum: int = 1) -> float:
    several, gpus = np.array(len(place) > 1), np.array(sum(place))
    return float(model.step_seconds(several, gpus, np.array(local), np.array(accum)))


def measured(model: step_time_fit.Fit, place: tuple[int, ...], local: int, accum: int = 1) -> Observation:
    step_s = seconds(model, place, local, accum)
    return Observation(place, local, accum, step_s, step_s - accum * (model.alpha_c + model.beta_c * local))


def test_a_step_computes_and_synchronises_and_a_fit_recovers_it() -> None:
    plain = TRUE._replace(gamma=1.0)
    for model, place, accum, expected in (
        (TRUE, (1,), 1, 0.1),
        (plain, (2,), 1, 0.1 + 0.02),
        (plain, (4,), 1, 0.1 + 0.02 + 2 * 0.001),
        (plain, (2, 2), 1, 0.1 + 0.04 + 2 * 0.002),
        (TRUE, (2,), 1, (0.1**2 + 0.02**2) ** 0.5),
        (TRUE, (2,), 3, 2 * 0.1 + (0.1**2 + 0.02**2) ** 0.5),
    ):
        assert seconds(model, place, 50, accum) == pytest.approx(expected)
    # A fit recovers the times it was made from.
    result = step_time_fit.fit([measured(TRUE, place, local) for place in PLACES for local in (16, 64, 256)])
    for place in (*PLACES, (4, 4, 4, 4)):
        for local in (16, 100, 256):
            assert seconds(result, place, local) == pytest.approx(seconds(TRUE, place, local), rel=0.03)
    assert result.alpha_c == pytest.approx(TRUE.alpha_c, rel=0.02)
    assert result.beta_c == pytest.approx(TRUE.beta_c, rel=0.02)

    result = step_time_fit.fit(
        [measured(TRUE, place, local, accum=3) for place in PLACES for local in (16, 64, 256)]
    )
    assert seconds(result, (4, 4), 64) == pytest.approx(seconds(TRUE, (4, 4), 64), rel=0.02)

    whole = [measured(TRUE, place, 64)._replace(sync_seconds=None) for place in PLACES]
    result = step_time_fit.fit([measured(TRUE, (1,), 16), *whole])
    assert seconds(result, (4, 4), 64) == pytest.approx(seconds(TRUE, (4, 4), 64), rel=0.1)


def test_a_fit_of_few_times_takes_the_rest_for_granted():
    result = step_time_fit.fit([measured(TRUE, (1,), 16), measured(TRUE, (1,), 64)])
    assert seconds(result, (4, 4), 64) == pytest.approx(seconds(TRUE, (1,), 64), rel=0.01)

    result = step_time_fit.fit([measured(TRUE, (1,), 50)])
    assert result.alpha_c == pytest.approx(0.05, rel=0.01)
    assert result.beta_c * 50 == pytest.approx(0.05, rel=0.01)

    result = step_time_fit.fit([measured(TRUE, (gpus,), local) for gpus in (1, 2, 4) for local in (16, 64)])
    assert result.alpha_n == pytest.approx(1.1 * result.alpha_r)
    assert seconds(result, (2, 2), 16) > seconds(result, (4,), 16)


@pytest.mark.parametrize("factor", [1e-9, 1e-4, 1e6, 1e12])
def test_extreme_times_are_fitted_without_a_warning(factor: float):
    times = [measured(TRUE, place, 64)._replace(step_seconds=factor, sync_seconds=0.0) for place in PLACES]
    assert np.isfinite(step_time_fit.fit(times)).all()
    with pytest.raises(ValueError, match="no observations"):
        step_time_fit.fit([])
