"""What policies see of work: what jobs state, predictions of it, or when each job will end."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.parts.mends_speeds import Scattered, falling_speeds, left_behind, mixed_demands, slower_sizes
from pliant.cli.main import app
from pliant.schemas.checks import oversized
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events, write_cluster, write_jobs, write_predictor
from pliant.schemas.job import Job
from pliant.schemas.predictor import Predictor
from pliant.schemas.profile import ConvergenceRow, Profile
from pliant.tools.profile.predictor import ProgressPredictor
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.failures import Mtbf
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs, inputs
from pliant.tools.replay.options import Conditions, DemandName
from pliant.tools.replay.progress import validations
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.schedule.explain import explanations
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.srtf import Srtf
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import FREE_CHANGES, cluster, job, mixed_cluster
from tests.tools.profile.histories import history
from tests.tools.profile.rows_builder import step
from tests.tools.replay.world import ends
from tests.tools.replay.world import given as inputs_of

Look = Callable[[Callable[[JobState, float], Any]], list[Any]]


def rows(name: str, epochs: int) -> list[ConvergenceRow]:
    """An epoch is a step of 960 samples, after which the metric is a tenth higher."""
    return [ConvergenceRow(name, 960, n, n + 1.0, n + 1.0, 0.1 * (n + 1)) for n in range(epochs)]


TABLE = [*rows("long", 20), *rows("short", 5)]


def silent() -> Inputs:
    """A long job that is there before a short one; neither states its work, validation runs know it."""
    made = [job("a", convergence="long"), job("b", at=1.0, convergence="short")]
    return inputs(made, cluster(1), tables=validations(TABLE))


def early(**labels: str) -> Inputs:
    """A job that states more work than one that came later, and reaches its target after four epochs."""
    made = [
        job("a", convergence="long", work={"epochs": 20.0, "dataset_size": 960}, labels=labels),
        job("b", convergence="short", work={"epochs": 5.0, "dataset_size": 960}),
    ]
    return inputs(made, cluster(1), tables=validations(TABLE))


def sequence(jobs: int = 12, **more: Any) -> Inputs:
    """Jobs of 5 to 16 epochs of 100 samples, one after the other."""
    made = [
        job(f"j{n:02}", at=40.0 * n, work={"epochs": 5.0 + n, "dataset_size": 100}, **more)
        for n in range(jobs)
    ]
    return inputs(made, cluster(2))


def under(found: Inputs, demand: DemandName = "stated", policy: str = "srtf", **more: Any) -> Replayed:
    return replay(
        found, Run(policy, conditions=Conditions(demand=demand, **more), simulated=FREE_CHANGES, seed=3)
    )


def events(done: Replayed, *names: str) -> list[tuple[float, str, str | None]]:
    return [(each.time, each.event, each.job) for each in done.log.events() if each.event in names]


def finished(done: Replayed) -> dict[str | None, tuple[float, float | None]]:
    return {each.job: (each.time, each.samples_done) for each in done.log.events() if each.event == "finish"}


def predictions(done: Replayed) -> list[Any]:
    noted = (each for each in done.log.events() if each.event == "progress")
    return [(each.detail or {})["progress"] for each in noted]


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Notes something about every job that the policy srtf sees."""

    def noted(what: Callable[[JobState, float], Any]) -> list[Any]:
        seen: list[Any] = []
        decide = Srtf.decide

        def watched(self: Any, snapshot: Any, rng: Any) -> Any:
            seen.extend(what(each, snapshot.time_s) for each in snapshot.jobs.values())
            return decide(self, snapshot, rng)

        monkeypatch.setattr(Srtf, "decide", watched)
        return seen

    return noted


def test_the_oracle_knows_work_that_jobs_do_not_state(look: Look) -> None:
    assert finished(under(silent(), "oracle")) == {"a": (24000.0, 19200.0), "b": (4801.0, 4800.0)}
    # A job of unknown work comes last, so that the long one trains on unless the policy knows.
    assert events(under(silent(), "oracle"), "preempt") == [(1.0, "preempt", "a")]
    assert events(under(silent()), "preempt") == []
    seen = look(lambda state, time_s: state.remaining_samples(time_s))
    under(silent())
    assert set(seen) == {None}
    seen.clear()
    under(silent(), "oracle")
    assert seen[:3] == [19200.0, 19199.0, 4800.0]


@pytest.mark.parametrize(
    ("policy", "demand"),
    [("srtf", "stated"), ("srtf", "predicted"), ("srtf", "oracle"), ("ones", "stated"), ("pollux", "stated")],
)
def test_a_target_metric_ends_jobs_under_every_demand(policy: str, demand: DemandName) -> None:
    alone = replace(early(target_metric="0.35"), jobs=early(target_metric="0.35").jobs[:1])
    ((_, samples),) = finished(under(alone, demand, policy)).values()
    assert samples == 4 * 960


def test_the_oracle_knows_when_targets_end_jobs_and_no_more() -> None:
    assert events(under(early(target_metric="0.35")), "start")[0] == (0.0, "start", "b")
    known = under(early(target_metric="0.35"), "oracle")
    assert events(known, "start")[0] == (0.0, "start", "a")
    assert finished(known) == {"a": (3840.0, 3840.0), "b": (8640.0, 4800.0)}

    def told(demand: DemandName) -> list[Event]:
        return [each for each in under(early(), demand).log.events() if each.event != "decision"]

    assert told("stated") == told("oracle")


def test_unstated_work_needs_epochs_or_an_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = SimulatedCluster(mtbf=Mtbf(between_h=1.0, repair_h=0.1))
    assert events(replay(silent(), Run("srtf", simulated=fails)), "node_down")
    with pytest.raises(UsageError, match='--progress samples: job "a" states no work, and only epochs'):
        replay(silent(), Run("srtf", conditions=Conditions(progress="samples")))
    monkeypatch.setattr(Srtf, "needs", frozenset({"demand"}))
    with pytest.raises(BadInputError, match='job "a" states no work, which policy "srtf" needs'):
        under(silent())
    assert len(finished(under(silent(), "oracle"))) == 2


def test_predictions_are_learned_and_hide_the_work_of_the_trace(look: Look) -> None:
    done = under(sequence(), "predicted")
    assert {name: samples for name, (_, samples) in finished(done).items()} == {
        f"j{n:02}": 100.0 * (5 + n) for n in range(12)
    }
    assert done.session.forecast.predictor.jobs >= 11
    first, *_, last = predictions(done)
    assert {"samples_done", "mean", "low", "high"} == set(first)
    assert (first["low"], first["high"]) == (0.05, 0.95), "at first it knows nothing"
    assert last["high"] - last["low"] < 0.9
    assert under(sequence(), "predicted").log.json_lines() == done.log.json_lines()
    seen = look(lambda state, _: (state.predicted, state.total_samples == state.work_samples))
    under(sequence(), "predicted")
    assert all(predicted for predicted, _ in seen)
    assert sum(is_true for _, is_true in seen) < len(seen) / 4


def test_jobs_with_a_table_report_its_metrics() -> None:
    table = [ConvergenceRow("net", 960, n, n + 1.0, 100.0 * (n + 1), 0.1 * n) for n in range(16)]
    done = under(replace(sequence(convergence="net"), tables=validations(table)), "predicted")
    last = done.session.ended["j03"].epochs
    assert [(end.epoch, end.samples_done, end.metric) for end in last] == [
        (n, 100.0 * n, pytest.approx(0.1 * (n - 1))) for n in range(1, 8)
    ]
    # Two recorded epochs stand for halves: of eight epochs the first four report the first of them.
    losses = {"initial_loss": 8.0}
    table = [ConvergenceRow("net", 960, n, n + 1.0, n + 1.0, 0.1 + n, loss=4.0 - n, **losses) for n in (0, 1)]
    world = replace(sequence(convergence="net"), tables=validations(table))
    done = under(world, "predicted", progress="samples")
    plain = under(sequence(), "predicted")
    assert events(done, "finish") == events(plain, "finish"), "what it reports changes no speed"
    job = done.session.ended["j03"]
    assert job.initial_loss == 8.0
    assert [end.loss for end in job.epochs] == [4.0] * 4 + [3.0] * 3
    assert [end.metric for end in job.epochs] == [0.1] * 4 + [1.1] * 3
    assert [end.samples_done for end in job.epochs] == [100.0 * n for n in range(1, 8)]
    assert under(world, progress="samples").session.ended["j03"].epochs == (), "no policy asks"


def test_predictions_begin_as_the_file_says(tmp_path: Path) -> None:
    path = str(tmp_path / "predictor.json")
    write_predictor(Predictor(widened=False), path)
    narrow, wide = (
        under(sequence(), "predicted", predictor=each).session.forecast.document() for each in (path, None)
    )
    assert narrow.fit.trust == 1 > wide.fit.trust
    assert not narrow.widened
    known = ProgressPredictor()
    known.learn(history(10))
    write_predictor(known.document(), path)
    done = under(sequence(), "predicted", predictor=path)
    assert done.session.forecast.predictor.jobs > 20
    first = predictions(done)[0]
    assert (first["low"], first["high"]) != (0.05, 0.95)


def test_a_replay_is_a_history_to_fit_predictors_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the commands; the report and the event file name what was known of the work."""
    monkeypatch.chdir(tmp_path)
    made, begin = sequence(8), ("replay", "jobs.jsonl", "--cluster", "cluster.json", "--policy", "srtf")
    write_jobs(made.jobs, "jobs.jsonl")
    write_cluster(made.cluster, "cluster.json")
    for words in (
        (*begin, "-o", "stated.parquet"),
        ("predictor", "fit", "stated.parquet", "-o", "predictor.json"),
        (*begin, "--demand", "predicted", "--predictor", "predictor.json", "-o", "predicted.parquet"),
        (*begin, "--demand", "oracle", "-o", "oracle.parquet"),
    ):
        assert CliRunner().invoke(app, [*words]).exit_code == 0
    assert any(event.event == "progress" for event in read_events("predicted.parquet"))
    (head, *_) = read_events("oracle.parquet")
    assert [(head.detail or {})[name] for name in ("oracle", "demand")] == [True, "oracle"]
    report = CliRunner().invoke(app, ["report", "predicted.parquet", "oracle.parquet", "--format", "json"])
    assert [run["demand"] for run in json.loads(report.stdout)["runs"]] == ["predicted", "oracle"]
    alone = CliRunner().invoke(app, [*begin, "--predictor", "predictor.json"])
    assert alone.exit_code == 2
    assert "it predicts with --demand predicted only" in alone.output
    for command in ("schedule", "run"):  # have no oracle
        told = CliRunner().invoke(app, [command, "--policy", "srtf", "--demand", "oracle"])
        assert told.exit_code == 2
        assert "only a replay knows when jobs will end" in " ".join(told.output.replace("│", "").split())


def test_jobs_of_random_demands_and_one_whose_gpus_lie_apart() -> None:
    # More such worlds are part of the benchmarks, and conformance/test_falling_speeds.py draws others.
    assert list(left_behind(mixed_demands(13))) == []
    assert list(slower_sizes(falling_speeds(1))) == []
    # Two nodes have one GPU free each. Across nodes the job takes twice as long as on one GPU.
    jobs = [
        job("a", gpus=3, model="linear", work={"samples": 300.0}),
        job("b", gpus=3, model="linear", work={"samples": 300.0}),
        job("c", at=1.0, gpus=2, low=1, high=2, model="m", batch=64, work={"samples": 1000.0}),
    ]
    speeds = Scattered({"m": {1: 10.0, 2: 12.0}}, per_node=2.0)
    done = replay(inputs_of(jobs, cluster(4, 4), speeds), Run("ares"))
    held = [(event.job, event.event, event.gpus) for event in done.log.events() if event.job == "c"]
    assert held[1][1:] == ("start", 1)
    assert ("c", "grow", 2) in held  # once two GPUs of one node are free


BATCH = 8
NODES = mixed_cluster(slow=(2, 2), fast=(2,))
FASTEST_FIRST = ("fifo", "sjf", "srtf", "ares", "tiresias", "optimus", "las")


TIMES = {
    ("both", "slow"): {"1": 4.0, "2": 2.0, "2,2": 1.0},
    ("both", "fast"): {"1": 2.0, "2": 1.0},
    ("choosy", "fast"): {"1": 1.0, "2": 0.5},
    ("choosy", "slow"): {"1": None, "2": None},  # too large
}
"""Seconds of a step of a batch of eight by placement."""
PROFILE = Profile(
    tuple(
        step(place, BATCH // sum(map(int, place.split(","))), seconds, model=model, gpu_type=gpu_type)
        for (model, gpu_type), times in TIMES.items()
        for place, seconds in times.items()
    )
)


def of(job_id: str, gpus: int, steps: int, *, model: str = "both", at: float = 0.0) -> Job:
    return job(job_id, at=at, gpus=gpus, model=model, batch=BATCH, work={"iterations": steps})


def replayed(policy: str, *trace: Job) -> Replayed:
    run = Run(policy, conditions=Conditions(interval=0.0), simulated=FREE_CHANGES)
    return replay(inputs(trace, NODES, PROFILE), run)


def told(done: Replayed, name: str) -> dict[str, Event]:
    return {event.job or "": event for event in done.log.events() if event.event == name}


def types(event: Event) -> set[str]:
    return {node.split("-")[0] for node, _ in event.placement or ()}


@pytest.mark.parametrize("policy", [*FASTEST_FIRST, "fair-share", "pollux"])
def test_a_model_profiled_on_one_type_waits_for_it(policy: str) -> None:
    trace = [of("a", 2, 10, model="choosy"), of("b", 2, 20, model="choosy", at=1)]
    done = replayed(policy, *trace)
    assert done.summary.finished == 2
    assert max(ends(done).values()) == 5 + 10
    assert all(types(event) <= {"fast"} for event in done.log.events())


@pytest.mark.parametrize("policy", FASTEST_FIRST)
def test_each_trains_at_the_speed_of_its_type(policy: str) -> None:
    done = replayed(policy, of("a", 1, 10), of("b", 1, 5), of("c", 4, 10, at=1))
    starts = [(types(event), event.time) for event in told(done, "start").values()]
    assert starts == [({"fast"}, 0), ({"fast"}, 0), ({"slow"}, 1)]
    assert ends(done) == {"a": 20, "b": 10, "c": 11}


TWICE = NODES.model_copy(update={"speeds": {"fast": 2.0}})


@pytest.mark.parametrize(
    ("types", "kind", "end_s"),
    [(None, "slow", 100), (["fast"], "fast", 50), (["slow", "fast"], "fast", 50), (["slow"], "slow", 100)],
)
def test_a_recorded_time_is_that_of_its_type(types: list[str] | None, kind: str, end_s: float) -> None:
    """100 s on two slow GPUs were recorded; a fast one is twice as fast."""
    recorded = job("a", gpus=2, gpu_seconds=200, labels={"trace": "slurm", "gpu_type": "slow"})
    told_otherwise = recorded.gpus.model_copy(update={"types": None if types is None else tuple(types)})
    given = inputs([recorded.model_copy(update={"gpus": told_otherwise})], TWICE)
    for policy in FASTEST_FIRST:
        done = replay(given, Run(policy, simulated=FREE_CHANGES))
        assert ends(done) == {"a": pytest.approx(end_s)}, policy
        assert types_of(done) == {kind}, policy
    assert len(given.types_assumed) == (types is None)


def types_of(done: Replayed) -> set[str]:
    return {kind for event in told(done, "start").values() for kind in types(event)}


def test_what_is_assumed_of_recorded_types_is_said_and_what_no_node_allows_refused(golden_text) -> None:
    labels = ({"gpu_type": "slow"}, {"gpu_type": "fast"}, {"gpu_type": "k80"}, {})
    trace = [job(f"j{at}", gpu_seconds=10, labels={"trace": "pai", **each}) for at, each in enumerate(labels)]
    lines = [each.text for nodes in (TWICE, cluster(4)) for each in inputs(trace, nodes).types_assumed]
    small = tuple(each.model_copy(update={"gpu_memory": 16 * 10**9}) for each in TWICE.nodes)
    nodes = TWICE.model_copy(update={"nodes": small})
    for where, more in (
        (TWICE, {"types": ["v100", "h100"]}),
        (TWICE, {"memory": 40 * 10**9}),
        (nodes, {"types": ["slow"], "memory": 40 * 10**9}),
    ):
        line = {"id": "a", "model": "m", "work": {"gpu_seconds": 1}, "gpus": more}
        spec = Job.model_validate_json(json.dumps(line))
        with pytest.raises(BadInputError) as refused:
            inputs([spec], where)
        lines.append(str(refused.value))
    three = job("a", gpus=3, gpu_seconds=1)
    three = three.model_copy(update={"gpus": three.gpus.model_copy(update={"types": ("fast",)})})
    spec_of_two = three.gpus.model_copy(update={"requested": 2})
    (left,) = replay(inputs([three], TWICE), Run("fifo")).summary.rejections
    lines += [*oversized([three], TWICE).values(), left.reason]
    session = Session(make_policy("fifo"), TWICE, CurveThroughput(speeds=TWICE.speeds))
    for name in "ab":
        session.submit(three.model_copy(update={"id": name, "gpus": spec_of_two}), 0.0)
    session.decide(0.0)
    lines.append(explanations(session, 0.0)["b"].reason)
    session.node_down("fast-0", 1.0)
    session.decide(1.0)
    lines.append(explanations(session, 1.0)["a"].reason)
    golden_text("\n".join(lines))


@pytest.mark.parametrize("policy", ["srtf", "las", "tiresias", "ares", "shadow-price", "optimus"])
def test_a_job_that_cannot_save_keeps_its_gpus_where_that_is_asked_for(policy: str) -> None:
    """A long job has both GPUs when a short one comes; it may say that it saves."""
    stated, free = (Conditions(interval=0.0, preemptible=who) for who in ("stated", "all"))
    short = job("b", at=1, gpus=2, gpu_seconds=20)
    for more, paused in (({}, False), ({"preemptible": True}, True), ({"checkpoint_seconds": 60.0}, True)):
        trace = [job("a", gpus=2, gpu_seconds=2000, **more), short]
        kept, usual = (
            ends(replay(inputs(trace, cluster(2)), Run(policy, conditions=each, simulated=FREE_CHANGES)))
            for each in (stated, free)
        )
        assert kept == (usual if paused else {"a": 1000, "b": 1010})


def test_sizes_are_those_that_some_type_has() -> None:
    done = replayed("fifo", of("a", 5, 10), of("b", 1, 1))
    assert done.summary.finished == 1
    reasons = [left.reason for left in (*done.summary.unfinished, *done.summary.rejections)]
    assert reasons == ["needs 5 GPUs of one type, the cluster has 4"]
    # Four GPUs are on the slow type only, where a step takes a second.
    trace = [job("a", gpus=4, model="both", batch=BATCH, gpu_seconds=400)]
    done = replay(inputs(trace, NODES, PROFILE), Run("fifo", simulated=FREE_CHANGES))
    assert ends(done) == {"a": pytest.approx(100)}
