"""Progress by epochs and by goodput, computed by hand.

Jobs that change their batch by themselves: a replay follows them to the second.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import read_jobs, write_jobs
from pliant.schemas.job import Job, trace_hash
from pliant.schemas.profile import ConvergenceRow, Profile
from pliant.tools.profile.throughput import Placement
from pliant.tools.replay.compat import SimulatorEpochs, WholeSecondPieces
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions, parse_noise_scales
from pliant.tools.replay.progress import (
    EpochProgress,
    GoodputProgress,
    Pieces,
    Validation,
    efficiency,
    validations,
)
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.from_log import apply_events
from pliant.tools.schedule.jobs import BatchChange, Observation
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.session.session import Session
from tests.builders import FREE_CHANGES, TimedSteps, cluster, curves, job
from tests.tools.profile.rows_builder import step
from tests.tools.replay.world import Pairs, Told, ends, play


def run(batch: int, *epochs: tuple[float, float], metrics: tuple[float, ...] = ()) -> list[ConvergenceRow]:
    """A validation run: (iterations, progress) at the end of each epoch; noise scale 32, 16, 8, …"""
    return [
        ConvergenceRow("m", batch, epoch, steps, progress, metric, 1.0, 4.0 / 2**epoch)
        for epoch, ((steps, progress), metric) in enumerate(
            zip(epochs, metrics or (None,) * len(epochs), strict=True)
        )
    ]


TABLE = Validation([*run(8, (10, 10), (20, 20)), *run(16, (6, 11), (10, 21))])
NODES = cluster(4)


def trained(spec: Job, progress, policy=None, *, rate: float = 8.0, **simulated) -> float:
    """When the job ends that starts at 0 on one GPU at ``rate`` samples a second."""
    world = SimulatedCluster(progress=lambda: progress, **simulated)
    curve = curves(m={1: rate, 2: 2 * rate})
    return ends(play(policy or Told({0.0: {"a": 1}}), [spec], NODES, curve, simulated=world))["a"]


def epochs_job(batch: int = 8, **more) -> Job:
    return job("a", model="m", batch=batch, work={"epochs": 2, "dataset_size": 80}, convergence="m", **more)


def test_tables_are_linear_and_epochs_take_recorded_steps() -> None:
    assert TABLE.iterations(8, 0) == 10
    assert TABLE.iterations(12, 1) == 15
    assert TABLE.iterations(64, 1) == 10
    assert TABLE.iterations(4, 1) == 20
    assert TABLE.iterations(8, 7) == 20, "after the last epoch as in the last"
    assert TABLE.least_progress == (10, 20)
    assert TABLE.gain(16, 0) == (4 + 1) / (4 / 2 + 1)
    assert TABLE.noise_scale(8, 1) == 8 * 2.0
    # Epochs take the steps of the validation run.
    assert trained(epochs_job(8), EpochProgress({"m": TABLE})) == 20  # 20 steps of 8 samples at 8 a second
    assert trained(epochs_job(16), EpochProgress({"m": TABLE})) == 20  # 10 steps of 2 s
    assert trained(epochs_job(12), EpochProgress({"m": TABLE})) == pytest.approx(15 * 1.5)
    half = job("a", model="m", batch=8, work={"epochs": 1.5, "dataset_size": 80}, convergence="m")
    assert trained(half, EpochProgress({"m": TABLE})) == 15
    for most, batch, end_s in (({}, 16, 12 + 13), ({"m": 1}, 8, 10)):  # 12.0 and 13.33 in whole seconds
        simulator = SimulatorEpochs({"m": TABLE}, EpochProgress({"m": TABLE}).cut, most)
        assert trained(epochs_job(batch), simulator) == end_s


@pytest.mark.parametrize(("metrics", "target", "end_s"), [((1, 5), 4, 20), ((5, 6), 4, 10), ((9, 3), 3, 20)])
def test_a_target_metric_ends_a_job_at_an_epochs_end(metrics, target, end_s):
    table = Validation(run(8, (10, 10), (20, 20), metrics=metrics))
    spec = epochs_job(labels={"target_metric": str(target)})
    assert trained(spec, EpochProgress({"m": table})) == end_s


@pytest.mark.parametrize("text", ["high", "nan", ""])
def test_a_target_metric_is_a_number(text):
    table = Validation(run(8, (10, 10), (20, 20), metrics=(1, 5)))
    with pytest.raises(BadInputError, match=f'job "a": label target_metric: "{text}" is not a finite number'):
        trained(epochs_job(labels={"target_metric": text}), EpochProgress({"m": table}))


@pytest.mark.parametrize("model", [EpochProgress, GoodputProgress])
def test_a_watched_job_shows_its_noise(model):
    stepwise = model({"m": TABLE}, stepwise=True)
    world = SimulatedCluster(progress=lambda: stepwise, measured=True)
    engine = play(Told({0.0: {"a": 1}}), [epochs_job()], NODES, curves(m={1: 8}), simulated=world)
    assert engine.session.book.ended["a"].noise_scale == 16, "that of the last epoch"


@pytest.mark.parametrize("measured", [False, True])
def test_jobs_measure_where_the_simulated_cluster_says_so(measured):
    told = Told({0.0: {"a": 1}, 5.0: {"a": 2}, 7.0: {"a": 1}}, again_s=[5.0, 7.0])
    spec = epochs_job(8, low=1, high=2)
    world = SimulatedCluster(progress=lambda: GoodputProgress({}, {"m": 5.0}), measured=measured)
    engine = play(told, [spec], NODES, curves(m={1: 8, 2: 16}), simulated=world)
    job = engine.session.book.ended["a"]
    assert job.noise_scale == (5.0 if measured else None)
    known = (Observation((1,), 8, 1, 1.0, gpu_type="gpu"), Observation((2,), 4, 1, 0.5, gpu_type="gpu"))
    assert job.observations == (known if measured else ())


@pytest.mark.parametrize("knowledge", ["profile", "measured"])
def test_pollux_tunes_the_batch_to_the_noise_it_measures(knowledge):
    """With a noise scale far above the batch, the largest batch trains fastest: nearly all rows say so."""
    rows = [step(1, local, 1 + local / 64, model="m") for local in (8, 16, 32, 64, 128)]
    batch = {"size": 8, "min": 8, "max": 128}
    spec = job("a", model="m", batch=batch, elastic="size+batch", work={"samples": 80_000})
    conditions = Conditions(progress="goodput", noise_scale={"": 1e5})
    run = Run("pollux", {"knowledge": knowledge}, conditions=conditions, simulated=FREE_CHANGES)
    done = replay(inputs([spec], cluster(1), Profile(tuple(rows))), run)
    batches = [event.global_batch for event in done.log.events() if event.global_batch]
    assert batches[0] == 8
    assert batches[-1] > 32, "it stays at its first batch where nothing hands on the noise scale"


def test_goodput_and_noise_scales_by_model() -> None:
    assert efficiency(10, 8, 8) == 1
    assert efficiency(8, 8, 16) == pytest.approx(16 / 24)
    assert efficiency(float("inf"), 8, 16) == 1
    assert trained(epochs_job(8), GoodputProgress({"m": TABLE})) == 20
    assert trained(epochs_job(8), GoodputProgress({}, {"m": 5.0})) == 20
    for batch in (8, 16):
        whole, by_epoch = (GoodputProgress({"m": TABLE}, stepwise=each) for each in (False, True))
        assert trained(epochs_job(batch), by_epoch) == pytest.approx(trained(epochs_job(batch), whole))
    # Noise scales are read by model.
    assert parse_noise_scales(None) == {}
    assert parse_noise_scales("100,bert=20.5") == {"": 100.0, "bert": 20.5}
    for wrong in ("x", "bert=", "=5", "0", "-1", "inf", "a=nan"):
        with pytest.raises(UsageError, match="--noise-scale"):
            parse_noise_scales(wrong)


def test_the_model_is_chosen_by_what_a_job_has():
    plain = job("b", model="m", batch=8, work={"samples": 80})

    def under(*specs: Job, tables: bool = True, **conditions: Any) -> tuple[float, str]:
        """When the last job ends, and what the event file says of progress: the caveat about bounds."""
        rows = validations([*run(8, (10, 10), (30, 20))]) if tables else {}
        world = replace(inputs(specs, NODES, Profile((step(1, 8, 1.0, model="m"),))), tables=rows)
        done = replay(world, Run("fifo", conditions=Conditions(**conditions), simulated=FREE_CHANGES))
        first = next(iter(done.log.events()))
        return max(ends(done).values()), (first.detail or {}).get("progress", "samples")

    assert under(epochs_job()) == (30, "epochs")
    assert under(plain) == (10, "samples")
    assert under(epochs_job(), plain) == (30, "epochs")
    assert under(epochs_job(), progress="samples") == (20, "samples")
    assert under(epochs_job(), tables=False) == (20, "samples")
    assert under(plain, progress="goodput", noise_scale={"": 3.0})[0] == 10
    with pytest.raises(BadInputError, match='1 job without a run in the convergence table: "b"'):
        under(epochs_job(), plain, progress="epochs")
    with pytest.raises(UsageError, match="needs a --convergence table"):
        under(epochs_job(), tables=False, progress="epochs")
    with pytest.raises(UsageError, match='no noise scale is known for model "m"'):
        under(plain, progress="goodput")


def test_what_a_table_lacks_is_said_and_a_job_is_in_its_pieces() -> None:
    with pytest.raises(BadInputError, match='"m" at batch 8: epoch 1 is missing'):
        Validation([run(8, (1, 1))[0], *run(8, (1, 1), (2, 2), (3, 3))[2:]])
    with pytest.raises(BadInputError, match="iterations at batch 8: 9 after epoch 1, expected more than 9"):
        Validation(run(8, (9, 1), (9, 2)))
    stuck = Validation(run(8, (1, 1), (2, 1)))
    assert trained(epochs_job(), EpochProgress({"m": stuck})) == 2, "these epochs are counted by iterations"
    with pytest.raises(BadInputError, match='"m", progress: 1 after epoch 1, expected more than 1'):
        trained(epochs_job(), GoodputProgress({"m": stuck}))
    still = Validation([ConvergenceRow("m", 8, 0, 1.0, 1.0, None, 0.0, 0.0)])
    with pytest.raises(BadInputError, match="grad_sqr and grad_var are 0 around batch 8, epoch 0"):
        still.gain(8, 0)
    silent = Validation([ConvergenceRow("m", 8, 0, 1.0, 1.0)])
    with pytest.raises(BadInputError, match="epoch 0: a value that this replay needs is null"):
        silent.gain(8, 0)
    # A job is where its pieces take it.
    steps = Pieces([0.0, 10.0, 30.0, 40.0], [1.0, 4.0, 2.0])  # 10, 5 and 5 seconds
    trajectory = steps.trajectory(0.0)
    assert trajectory.seconds == 20
    told = [trajectory.samples_done(100.0, 100.0 + passed) for passed in (-5, 0, 5, 10, 12, 15, 17.5, 20, 99)]
    assert told == [0, 0, 5, 10, 18, 30, 35, 40, 40]
    assert steps.trajectory(5.0).seconds == 15
    assert steps.trajectory(5.0).samples_done(0.0, 6.0) == 14
    at_bound = steps.trajectory(10.0)
    assert (at_bound.rate, at_bound.seconds) == (4.0, 10)
    nearly = steps.trajectory(10.0 - 1e-12)
    assert (nearly.rate, nearly.seconds) == (4.0, pytest.approx(10))
    assert steps.trajectory(40.0).seconds == 0


@given(
    st.lists(st.tuples(st.floats(0.5, 50), st.floats(0.1, 20)), min_size=1, max_size=6),
    st.floats(0, 1),
    st.booleans(),
    st.lists(st.floats(0, 400), min_size=2, max_size=8),
)
def test_progress_never_runs_back_and_ends_at_the_goal(widths, part, whole_seconds, times):
    bounds = [0.0]
    for width, _ in widths:
        bounds.append(bounds[-1] + width)
    rates = [rate for _, rate in widths]
    pieces = WholeSecondPieces(bounds, rates, 60.0) if whole_seconds else Pieces(bounds, rates)
    trajectory = pieces.trajectory(part * bounds[-1])
    told = [trajectory.samples_done(0.0, time) for time in sorted(times)]
    assert told == sorted(told)
    assert all(part * bounds[-1] <= done <= bounds[-1] for done in told)
    assert trajectory.samples_done(0.0, trajectory.seconds + 1e-6) == pytest.approx(bounds[-1])


def one_second_a_step(model: str, gpu_type: str, placement: Placement, batch: int) -> float | None:
    """A GPU trains up to 8 samples in a second, so a batch of 16 takes two of one GPU."""
    del model, gpu_type
    return max(1.0, batch / 8 / sum(placement))


SPEEDS = TimedSteps(one_second_a_step)


def growing(job_id: str = "a", **more: object) -> Job:
    """800 samples: 200 at 2 a second, 200 at 4 a second, 400 at 8 a second; 200 s on one GPU."""
    regimes = ({"after": 0.25, "size": 4}, {"after": 0.5, "size": 8})
    batch = {"size": 2, "regimes": regimes}
    return job(job_id, batch=batch, work={"samples": 800.0}, **more)  # type: ignore[arg-type]


def test_regimes_change_speed_costs_and_the_work_of_failures() -> None:
    engine = play(Fifo(), [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 200.0}
    events = [*engine.log.events()]
    changes = [(e.time, e.global_batch, e.samples_done) for e in events if e.event == "progress"]
    assert changes == [(100.0, 4, 200.0), (150.0, 8, 400.0)]
    detail = next(event.detail for event in events if event.event == "submit") or {}
    assert detail["demand_gpu_s"] == pytest.approx(200.0)
    assert detail["curve"][0] == [1, pytest.approx(4.0)]
    held = Session(Fifo(), cluster(1), SPEEDS)
    for event in events:
        if event.time < 150.0:
            apply_events(held, [event])
    state = held.jobs["a"]
    assert (state.reference_batch, state.global_batch, state.samples_per_second) == (4, 4, 4.0)
    assert state.batch_changes == (BatchChange(200.0, 4),)
    assert state.samples_done(125.0) == 300.0
    assert [change.kind for change in held.changes.entries] == ["arrived", "batch"]
    # Costs and failures meet the regime of the moment.
    policy = Told({0.0: {"a": 1}, 120.0: {"a": 0}, 130.0: {"a": 1}}, again_s=[120.0, 130.0])
    engine = play(policy, [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 210.0}  # ten seconds without GPUs in the second regime
    # Checkpoints at 60 s and 120 s; the node fails at 110 s, in the second regime.
    failures = (NodeEvent(110.0, "n0", False), NodeEvent(200.0, "n0", True))
    simulated = SimulatedCluster(FREE_CHANGES.start_cost, FREE_CHANGES.rescale_cost, node_events=failures)
    engine = play(Fifo(), [growing()], cluster(1), SPEEDS, simulated=simulated)
    assert ends(engine) == {"a": 340.0}  # 120 of 200 samples saved, 40 s to the border, then 50 s + 50 s
    batches = [event.global_batch for event in engine.log.events() if event.event == "progress"]
    assert batches == [4, 2, 4, 8]


def test_a_policy_is_asked_between_regimes_which_may_be_slow() -> None:
    def look(seen):
        found = seen.jobs.values()
        return [(seen.time_s, seen.speeds.rate(each, 1), tuple(each.batch_changes)) for each in found]

    policy = Told({0.0: {"a": 1}}, look=look)
    play(policy, [growing()], cluster(1), SPEEDS, simulated=FREE_CHANGES)
    first, second = BatchChange(200.0, 4), BatchChange(400.0, 8)
    borders = [(0.0, 2.0, ()), (100.0, 4.0, (first,)), (150.0, 8.0, (first, second))]
    assert policy.seen == [*([each] for each in borders), []]
    # Small batches and shared GPUs slow a regime.
    regimes = ({"after": 0.5, "size": 2},)
    shrinking = job("a", gpus=4, low=1, high=4, batch={"size": 4, "regimes": regimes}, work={"samples": 80.0})
    engine = play(Told({0.0: {"a": 4}}), [shrinking], cluster(4), SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 30.0}  # 10 steps of 4 samples, then 20 of 2
    # At half its speed, a begins its second regime at 200 s, when b ends; at 100 s, it would be alone.
    sharing = {"unmeasured": "together", "speed": 0.5}
    nodes = Cluster.model_validate({"nodes": ({"name": "n0", "gpus": 1},), "sharing": sharing})
    other = job("b", batch=8, work={"samples": 1000.0})
    engine = play(Pairs({0.0: {"a": 1, "b": "a"}}), [growing(), other], nodes, SPEEDS, simulated=FREE_CHANGES)
    assert ends(engine) == {"a": 325.0, "b": 250.0}  # 100 samples at 2 a second, 100 at 4, 400 at 8
    until_four = TimedSteps(lambda *of: one_second_a_step(*of) if of[-1] < 8 else None)
    with pytest.raises(BadInputError, match="it changes its batch to 8, which is infeasible on 1 GPUs"):
        play(Fifo(), [growing()], cluster(1), until_four)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch": {"regimes": ({"after": 0.5, "size": 2},)}}, "/batch/size: is missing"),
        (
            {"batch": {"size": 2, "max": 8, "regimes": ({"after": 0.5, "size": 2},)}},
            "/batch/max: contradicts",
        ),
        ({"elastic": "size+batch"}, "/elastic: 'size+batch' contradicts batch.regimes"),
        ({"convergence": "lm"}, "/convergence: contradicts batch.regimes"),
        ({"gpus": {"requested": 8}}, "/batch/regimes/0/size: 4 is below the 8 workers"),
        (
            {"batch": {"size": 2, "regimes": ({"after": 0.5, "size": 2}, {"after": 0.5, "size": 4})}},
            "/batch/regimes/1/after: 0.5 is not above that of the regime before it, 0.5",
        ),
    ],
)
def test_a_job_that_chooses_its_batch_twice_is_refused(wrong: dict[str, Any], words: str, tmp_path: Path):
    record = growing().model_dump(mode="json", exclude_defaults=True) | wrong
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(BadInputError, match=re.escape(words)):
        read_jobs(str(path))


def test_regimes_survive_a_file_and_count_for_the_hash(tmp_path: Path):
    path = str(tmp_path / "jobs.jsonl")
    write_jobs([growing()], path)
    assert '"schema":"pliant.job/1.6"' in Path(path).read_text()
    assert list(read_jobs(path)) == [growing()]
    assert trace_hash([growing()]) != trace_hash([job("a", batch=2, work={"samples": 800.0})])
