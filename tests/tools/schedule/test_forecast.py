import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.schedule import Schedule
from pliant.tools.profile.predictor import EndedJob, ProgressPredictor
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.finished_work import FinishedWork, WorkDone
from pliant.tools.schedule.forecast import Demand, WorkForecast
from pliant.tools.schedule.jobs import MOST_EPOCH_ENDS, EpochEnd, JobState, with_end
from pliant.tools.schedule.policies.srtf import Srtf
from pliant.tools.schedule.remaining_work import RemainingWork, known_work
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.tools.profile.histories import history
from tests.tools.schedule.histories import decide_from, submitted
from tests.tools.schedule.test_decide import log

EPOCHS = {"epochs": 10.0, "dataset_size": 100}


def state(**stated: object) -> JobState:
    return JobState(job("a", **stated), 10, None)  # type: ignore[arg-type]


def held(*, demand: Demand = "predicted") -> Session:
    return Session(Srtf(), cluster(1), CurveThroughput(), demand=demand)


def report(found: JobState, epochs: int, size: float = 100.0) -> None:
    for number in range(1, epochs + 1):
        found.epochs = with_end(found.epochs, EpochEnd(number, number * size, 1 / number, 0.5))
    found.report_progress(0.0, epochs * size)


def ended(epochs: int) -> JobState:
    found = state(work=EPOCHS)
    report(found, epochs)
    found.hide_work(100.0 * epochs)
    return found


def test_unknown_work_is_as_much_again_and_stated_work_exact() -> None:
    begun, known, unknown = state(), state(work=EPOCHS), state()
    report(begun, 3)
    known.hide_work()
    left = WorkForecast().remaining_samples([begun, known, unknown], 0.0)
    assert left.tolist()[:2] == [300, 200]
    assert np.isnan(left[2])
    low, high = WorkForecast().band([begun], 0.0)
    assert (low[0], high[0]) == pytest.approx((0.05, 0.95))
    # A guess stands for the epochs of a job that shows none.
    silent = state()
    silent.report_progress(0.0, 30.0)
    ahead = WorkForecast().ahead([silent], 0.0, [80.0])
    assert (ahead.reached.tolist(), ahead.before.tolist()) == ([80], [50])
    assert ahead.expected().tolist() == [130], "the rest of its first epoch, and as much again"
    # Work that is stated is exact in every draw.
    stated, silent = state(work=EPOCHS), state()
    stated.total_samples = 1000.0
    report(silent, 3)
    drawn = WorkForecast().ahead([stated, silent], 0.0).draws(np.random.default_rng(0), 50)
    assert set(drawn[:, 0]) == {1000}
    assert len(set(drawn[:, 1])) == 50
    assert drawn.min() >= 0


def test_what_it_learns_from_waits_until_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    learn = ProgressPredictor.learn

    def counted(predictor: ProgressPredictor, ended: Iterable[EndedJob]) -> None:
        calls.append(len(found := list(ended)))
        learn(predictor, found)

    monkeypatch.setattr(ProgressPredictor, "learn", counted)
    groups = [[ended(epochs) for epochs in group] for group in ([3, 4], [5, 6, 7], [2])]
    late, at_once = WorkForecast(), WorkForecast()
    for group in groups:
        late.learn(group)
    assert not calls
    for group in groups:
        at_once.learn(group)
        at_once.remaining_samples([ended(1)], 0.0)
    assert calls == [2, 3, 1]
    assert late.document() == at_once.document()
    assert calls == 2 * [2, 3, 1]
    # A bounded number waits.
    learned: list[EndedJob] = []
    monkeypatch.setattr(ProgressPredictor, "learn", lambda _, ended: learned.extend(ended))
    many, found = WorkForecast(), ended(2)
    for _ in range(1200):
        many.learn([found])
    assert 1000 < len(learned) < 1200


@pytest.mark.parametrize(("demand", "seen"), [("predicted", (True, 600)), ("stated", (False, None))])
def test_a_policy_sees_a_prediction_where_a_job_states_no_work(demand, seen):
    session = held(demand=demand)
    silent, stated = session.submit(job("a"), 0.0), session.submit(job("b", work={"samples": 50.0}), 0.0)
    report(silent, 3)
    session.decide(0.0)
    assert (silent.predicted, silent.total_samples) == seen
    assert (stated.predicted, stated.total_samples) == (False, 50)
    assert stated.gpus, "the shorter one by what is expected"


def test_hidden_work_still_ends_the_job_and_no_policy_sees_when() -> None:
    found = held().submit(job("a", work=EPOCHS), 0.0)
    found.hide_work()
    assert (found.total_samples, found.work_samples, found.remaining_samples(0.0)) == (None, 1000, None)
    found.report_progress(0.0, 5000.0)
    assert found.samples_done(1.0) == 1000
    assert found.finish_time_s() is None
    # Of many epochs a bounded number is kept the last included.
    found = state()
    report(found, 1000)
    assert len(found.epochs) <= MOST_EPOCH_ENDS
    assert found.losses == tuple(end.loss for end in found.epochs)
    assert found.epochs[-1].epoch == 1000
    gaps = {after.epoch - before.epoch for before, after in zip(found.epochs, found.epochs[1:], strict=False)}
    assert max(gaps) <= 8
    # The size of an epoch is stated or shown by the epochs.
    shown = state()
    report(shown, 2, size=70.0)
    assert (state(work=EPOCHS).epoch_samples, shown.epoch_samples, state().epoch_samples) == (100, 70, None)


def test_it_learns_from_finished_jobs_alone(monkeypatch):
    session = held()
    for number in range(8):
        ended = session.submit(job(f"j{number}"), 0.0)
        report(ended, 10 + number)
        ended.report_progress(0.0, 100.0 * (11 + number))
        session.end(ended.id, 0.0, "finished" if number < 6 else "failed")
    silent = session.submit(job("z"), 0.0)
    report(silent, 5)
    session.decide(0.0)
    assert session.policy_host.forecast.predictor.jobs == 6
    assert 900 < (silent.total_samples or 0) < 2000, "not 1000, twice what it has done"
    # Looking ahead teaches nothing.
    learned: list[object] = []
    monkeypatch.setattr(ProgressPredictor, "learn", lambda _self, jobs: learned.extend(jobs))
    jobs = [job("a", gpu_seconds=300.0), job("b", gpu_seconds=200.0)]
    found = decide(jobs, NODES, None, Question("srtf", explain=True, demand="predicted"))
    assert found.waiting[0].predicted_start is not None
    assert learned == []


NODES = cluster(1)
SRTF = Question("srtf", timing=False, demand="predicted")


def fitted() -> ProgressPredictor:
    found = ProgressPredictor()
    found.learn(history(10))
    return found


def test_a_policy_that_needs_the_work_takes_predicted_work(monkeypatch) -> None:
    monkeypatch.setattr(Srtf, "traits", replace(Srtf.traits, needs=frozenset({"demand"})))
    with pytest.raises(BadInputError, match='jobs: job "a" states no work, which policy "srtf" needs'):
        decide([job("a")], NODES, None, Question("srtf"))
    found = decide([job("a"), job("b", gpu_seconds=1e-3)], NODES, None, SRTF)
    assert [given.job for given in found.allocations] == ["b"]
    assert found.demand == "predicted"
    # A predictor without predictions is refused.
    with pytest.raises(UsageError, match="--predictor predicts with --demand predicted only"):
        decide([job("a")], NODES, None, Question("srtf", predictor=fitted().document()))
    # The schedule holds what predicts and is of a newer minor version.
    known = fitted()
    found = decide([job("a")], NODES, None, Question("srtf", demand="predicted", predictor=known.document()))
    assert found.forecast is not None
    assert found.forecast.predictor == known.document()
    assert found.minor == 2
    plain = decide([job("a")], NODES, None, Question("fifo"))
    assert (plain.forecast, plain.demand, plain.minor) == (None, "stated", 0)


def story(jobs: int) -> Iterator[Event]:
    """Jobs that run one after the other, each for a few epochs of 100 samples."""
    for number in range(jobs):
        name, at = f"j{number}", 10.0 * number
        yield from submitted(job(name, at=at))
        yield Event(at, "start", name, gpus=1, placement=(("n0", 1),), global_batch=960)
        epochs = 4 + number % 3
        for epoch in range(1, epochs):
            reported = {"samples_done": 100.0 * epoch, "loss": 3.0 / epoch, "metric": epoch / 10}
            yield Event(at + epoch, "epoch", name, detail={"epoch": epoch - 1}, **reported)
        yield Event(at + 9, "finish", name, gpus=0, samples_done=100.0 * epochs)


def call(events: list[Event], previous: Schedule | None = None, **asked: Any) -> Schedule:
    question = Question("srtf", timing=False, **asked)
    return decide_from(log(*events), question, now_s=events[-1].time, cluster=NODES, previous=previous)


def test_calls_from_cron_go_on_learning_what_is_left() -> None:
    events = list(story(9))
    first = call([each for each in events if each.time < 60], demand="predicted")
    assert first.forecast is not None
    assert first.forecast.predictor.jobs == 6
    then = call(events, first)
    assert then.forecast is not None
    assert then.demand == "predicted", "as before, where nothing else is said"
    assert then.forecast.predictor.jobs == 9
    again = call(events, then)
    assert again.forecast == then.forecast, "no job is learned from twice"
    whole = call(events, demand="predicted").forecast
    assert whole is not None
    assert whole.predictor.jobs == 9, "without what was carried it learns from the whole log"
    stated = call(events, then, demand="stated")
    assert (stated.demand, stated.forecast) == ("stated", None)
    # What is left follows from what is done and the progress.
    assert AHEAD.expected() == pytest.approx(LEFT)
    drawn = AHEAD.draws(np.random.default_rng(0), 4)
    assert drawn.shape == (4, 3)
    assert drawn == pytest.approx(np.array([LEFT] * 4), rel=1e-4)
    # A part of the jobs has what is left of these.
    assert AHEAD.only([2, 0]).expected() == pytest.approx([LEFT[2], LEFT[0]])
    # Known work is drawn as it is and takes no random number.
    rng = np.random.default_rng(0)
    assert known_work([5.0, 6.0]).draws(rng, 2).tolist() == [[5.0, 6.0]] * 2
    assert rng.random() == np.random.default_rng(0).random()
    assert known_work([5.0]).expected().tolist() == [5.0]
    # The draws of a job with hardly any progress are finite.
    unsure = RemainingWork(*(np.array([value]) for value in (NAN, 10.0, 0.0, 1e-9, 1.0)))
    assert unsure.draws(np.random.default_rng(0), 3).max() == pytest.approx(10.0 * (1000 - 1))


# What is left of jobs, as ONES draws it.


NAN = float("nan")
AHEAD = RemainingWork(
    exact=np.array([NAN, 70.0, NAN]),
    reached=np.array([100.0, 1.0, 50.0]),
    before=np.array([0.0, 0.0, 20.0]),
    alpha=np.array([1.0, 1.0, 2.0]) * 1e12,
    beta=np.array([3.0, 1.0, 2.0]) * 1e12,
)
"""The first is at a quarter: three times what it has done is left. The last is to be at a half after an epoch
of 50 samples, of which 20 are to come. So sure, every draw is the mean."""
LEFT = [300.0, 70.0, 70.0]


# What finished jobs say of others.


AMOUNTS = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=8)


def at(done: float, *, gpu_s: float = 1.0, name: str = "a", **fields: object) -> WorkDone:
    return WorkDone(JobState(job(name, **fields), 960, None), done, gpu_s)  # type: ignore[arg-type]


def knowing(*ended: WorkDone) -> FinishedWork:
    found = FinishedWork()
    for each in ended:
        found.learn(each)
    return found


@pytest.mark.parametrize("done", [0.0, 60.0, 6e5])
def test_of_an_unknown_job_the_first_stretch_counts(done: float):
    """It is a quarter of what it has had and 60 GPU-seconds, and ends the job with 1 - 1.25 ** -2 = 0.36."""
    assert FinishedWork().left(at(done)) == pytest.approx((done + 60) * 0.25 / 0.36)
    assert knowing(at(0.0), at(float("inf"))).left(at(done)) == FinishedWork().left(at(done)), "no work"


def test_a_job_is_as_long_as_its_model_and_like_jobs_count_once() -> None:
    known = knowing(*[at(1e6)] * 8)
    assert known.left(at(1e5)) == pytest.approx(9e5, rel=0.02)
    assert known.left(at(9e5)) == pytest.approx(1e5, rel=0.02)
    # Half end after 100, half after 10,000: for 100 samples the chance to end is 0.5.
    known = knowing(*[at(100.0), at(10_000.0)] * 16)
    assert known.left(at(0.0)) == pytest.approx(200.0, rel=0.05)
    assert known.left(at(101.0)) == pytest.approx(9_899.0, rel=0.05)
    # What the user submitted alike counts more than the model.
    known = knowing(*[at(1000.0, user="ann")] * 4, *[at(9000.0, user="bob")] * 4)
    assert known.left(at(0.0, user="ann")) == pytest.approx(1000.0, rel=0.1)
    assert known.left(at(0.0, user="bob")) == pytest.approx(9000.0, rel=0.1)
    # Of jobs that are alike the furthest has least left.
    known = FinishedWork()
    known.observe([at(100.0, name="a"), at(3000.0, name="b")])
    assert known.left(at(3000.0)) < known.left(at(100.0))
    # All jobs that have ended were ann's: that a job is hers, too, says nothing more about it.
    known = knowing(*(at(done, user="ann", team="x") for done in (50.0, 400.0, 7000.0)))
    known.observe([at(30.0, user="ann", team="x")])
    hers, his = (at(20.0, user=user, team=team) for user, team in (("ann", "x"), ("bob", "y")))
    assert known.left(hers) == known.left(his)
    known.learn(at(100.0, user="bob", team="y"))
    assert known.left(hers) != known.left(his)
    # Another model counts in GPU-seconds, and as one job.
    once = knowing(at(5000.0, gpu_s=2.0, model="other"))
    often = knowing(*[at(5000.0, gpu_s=2.0, model="other")] * 9)
    assert once.left(at(0.0)) == often.left(at(0.0))
    nearly = once.left(at(9_990.0))
    assert nearly < 40 < FinishedWork().left(at(9_990.0))


@pytest.mark.parametrize("count", [1, 100])
def test_a_new_job_is_taken_to_come_as_far_as_many_others(count: int):
    """1,400 GPU-hours each, in groups none of which is equal to the next."""
    known, far = FinishedWork(), 5e6
    others = [
        {"team": "other", "user": "bob"},
        {"user": "bob"},
        {"user": "ann"},
        {"user": "bob", "model": "this"},
        {"user": "ann", "model": "this", "gpus": 2},
        {"user": "ann", "model": "this"},
    ]
    known.observe([at(far, **{"model": "its own", **each}) for each in others for _ in range(count)])
    assert far < known.left(at(0.0, user="ann", model="this")) < 2 * far


@settings(deadline=None, max_examples=30)
@given(AMOUNTS, AMOUNTS, st.floats(0.0, 1e6), st.randoms(use_true_random=False))
def test_order_changes_nothing_and_what_is_carried_is_all(ended, so_far, done, chance):
    known = knowing(*map(at, ended))
    known.observe([at(each) for each in so_far])
    same = FinishedWork()
    same.load(json.loads(json.dumps(known.dump())))
    same.observe([at(each) for each in chance.sample(so_far, len(so_far))])
    assert same.left(at(done)) == pytest.approx(known.left(at(done)))
    assert known.left(at(done)) > 0


# What shadow-price makes of it, in replays of jobs whose work is hidden.
