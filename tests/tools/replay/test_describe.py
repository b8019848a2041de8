"""What is in a trace, worked out by hand."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas import io
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import write_cluster, write_jobs
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.batch import offered_load, overload
from pliant.tools.replay.describe import cluster_for, describe, warning
from pliant.tools.replay.inputs import Inputs, Sources, inputs
from pliant.tools.replay.recorded import (
    PastRun,
    held_gpus,
    label_of,
    runs_of,
    settled,
    side_by_side,
    stated_runs,
)
from pliant.tools.replay.run import Replayed, Run, replay
from pliant.tools.report.report import read_report
from tests.builders import cluster, job
from tests.cli.calling import call

HOUR_S = 3600.0


def trace() -> list[Job]:
    """Two days: 24 GPU hours at first, 72 at hour 36 and none known of the last, at hour 48."""
    return [
        job("a", at=0.0, gpus=2, gpu_seconds=24 * HOUR_S, user="ann", labels={"status": "FAILED"}),
        job("b", at=36 * HOUR_S, gpus=4, gpu_seconds=72 * HOUR_S, user="bob", labels={"runs": "0-10"}),
        job("c", at=48 * HOUR_S, gpus=4, work={"samples": 5.0}, user="ann"),
    ]


def test_a_trace_by_day_and_hour_and_a_cluster_for_its_load() -> None:
    found = describe(trace(), gpus=2)
    assert (found.jobs, found.users, found.span_s, found.gpu_hours) == (3, 2, 48 * HOUR_S, 96.0)
    assert (found.jobs_without_work, found.sizes) == (1, ((2, 1), (4, 2)))
    assert found.durations_s == (12 * HOUR_S, 12 * HOUR_S, 18 * HOUR_S, 18 * HOUR_S)
    assert (found.arrivals_by_hour[0], found.arrivals_by_hour[12]) == (2, 1)
    assert (found.states, found.most_held_gpus) == ((("FAILED", 1),), 4)
    assert found.load == pytest.approx(96 / (2 * 48))
    assert found.load_by_day == pytest.approx((24 / 48, 72 / 48))
    assert found.bin_s == HOUR_S
    assert {hour: gpus for hour, gpus in enumerate(found.arriving_gpus) if gpus} == {0: 24.0, 36: 72.0}
    assert warning(found) is None
    told = "overload: 2 times what 1 GPU can do arrives; days above 1: 2"
    assert warning(describe(trace(), gpus=1)) == told
    found = describe([*trace(), job("d", at=200 * HOUR_S, gpu_seconds=48 * HOUR_S)])
    assert found.bin_s == 24 * HOUR_S
    assert found.arriving_gpus == pytest.approx((1.0, 3.0, 0, 0, 0, 0, 0, 0, 2.0))
    # A job without GPUs takes time, but none of GPUs.
    found = describe([*trace(), job("e", at=0.0, gpus=0, gpu_seconds=6 * HOUR_S)])
    assert (found.jobs_without_work, found.gpu_hours, found.sizes[0]) == (1, 96.0, (0, 1))
    assert found.durations_s == (6 * HOUR_S, 12 * HOUR_S, 18 * HOUR_S, 18 * HOUR_S)
    # A cluster for a load holds the largest job.
    found = describe(trace())
    assert found.load is None
    assert cluster_for(found, 0.2) == 10
    assert cluster_for(found, 0.8) == 4
    with pytest.raises(UsageError, match="expected a load above 0"):
        cluster_for(found, 0.0)
    with pytest.raises(UsageError, match="states no GPU time"):
        cluster_for(describe(trace()[2:]), 0.8)


def test_the_command_says_it_in_words_and_draws_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_jobs(trace(), Path("jobs.jsonl"))
    write_cluster(cluster(1), Path("cluster.json"))
    words = ("trace", "describe", "jobs.jsonl", "--cluster", "cluster.json")
    done = call(*words, "--cluster-for", "0.2")
    assert "work: 96.0 GPU hours, none known of 1 job" in done.stdout
    assert "cluster for a load of 0.2: 10 GPUs\n" in done.stdout
    large = call(*words, "--cluster-for", "0.8").stdout
    assert "a load of 0.8: 4 GPUs, as many as its largest job has; their load is 0.5\n" in large
    assert "overload: 2 times" in done.stderr
    for name in ("one.svg", "two.svg"):
        assert call(*words, "--figure", name).exit_code == 0
    drawn = Path("one.svg").read_bytes()
    assert drawn == Path("two.svg").read_bytes()
    assert b"<svg" in drawn
    done = call(*words, "--figure", "one.gif")
    assert done.exit_code == 2
    assert "--figure one.gif: expected a name that ends in .svg, .png or .pdf" in done.stderr


def stream(count: int, every_s: float, gpu_seconds: float = 200.0, gpus: int = 2) -> Inputs:
    """Jobs of so many GPU-seconds arrive at a steady pace at ten GPUs."""
    jobs = [job(f"j{n}", at=n * every_s, gpus=gpus, gpu_seconds=gpu_seconds) for n in range(count)]
    return inputs(jobs, cluster(10))


def test_loads_and_holdings_beyond_the_cluster() -> None:
    # 41 jobs of 200 GPU-seconds in 400 s, in which ten GPUs have 4000.
    assert offered_load(stream(41, 10.0)) == pytest.approx(41 * 200 / 4000)
    assert "and bring 2.05 times the work that 10 GPUs can do in that time" in overload(stream(41, 10.0))
    assert overload(stream(41, 20.0)) is None
    too_large = stream(41, 10.0, gpus=11)
    assert offered_load(too_large) is None
    jobs = [job(f"j{n}", at=n * 10.0, gpus=2, work={"epochs": 2.0, "dataset_size": 100}) for n in range(41)]
    found = Inputs((job("unknown"), *jobs), cluster(10), None, CurveThroughput())
    assert offered_load(found) == pytest.approx(41 * 200 / 4000), "epochs count, unknown work does not"
    for few in (stream(10, 1.0), stream(41, 0.0), stream(41, 2.0), stream(0, 1.0)):
        # Few jobs, or jobs that arrive faster than half of them end, wait for each other by design.
        assert offered_load(few) is None
    # b has two runs, of 2 GPUs for 10 s and of 4 for 10 s: a third of its work, and the rest.
    first, second = recorded("a", 5.0, "0-60"), recorded("b", 10.0, "5-15*2, 50-60", 4)
    found = [*replayed(first, second).log.events()][1:]
    assert [(each.time, each.event, each.job, each.gpus, each.samples_done) for each in found] == [
        (5.0, "submit", "a", None, None),
        (5.0, "start", "a", 1, 0.0),
        (10.0, "submit", "b", None, None),
        (15.0, "start", "b", 2, 0.0),
        (25.0, "preempt", "b", 0, pytest.approx(20.0)),
        (60.0, "resume", "b", 4, pytest.approx(20.0)),
        (65.0, "finish", "a", 0, 60.0),
        (70.0, "finish", "b", 0, 60.0),
    ]
    # Three GPUs are held from 10 s to 20 s, a third of the 30 s.
    done = replayed(recorded("a", 0.0, "0-20", 2), recorded("b", 0.0, "10-30"), gpus=2)
    assert done.summary.finished == 2
    held = "the trace holds up to 3 GPUs at a time, and 33.3% of the time more than the 2 of the cluster"
    assert done.summary.assumptions[-1] == held
    assert not any("cost" in text for text in done.summary.assumptions)


def recorded(name: str, submit_s: float, label: str, gpus: int = 1) -> Job:
    return job(name, at=submit_s, gpus=gpus, gpu_seconds=60.0, labels={"runs": label})


def replayed(*jobs: Job, gpus: int = 4) -> Replayed:
    return replay(inputs(jobs, cluster(gpus)), Run("recorded"))


def test_without_a_cluster_it_is_as_large_as_what_was_held(tmp_path: Path) -> None:
    """Nine GPUs are held at a time, on nodes of eight."""
    io.write_jobs([recorded("a", 0.0, "0-20", 5), recorded("b", 0.0, "10-30", 4)], tmp_path / "jobs.jsonl")
    found = Sources(str(tmp_path / "jobs.jsonl")).read()
    assert found.cluster.total_gpus == 16
    done = replay(found, Run("recorded"))
    assumed = "no --cluster: it has 2 nodes of 8 GPUs, for what the trace holds at a time"
    assert done.summary.assumptions[-1] == assumed
    io.write_jobs([job("a", gpu_seconds=1.0)], tmp_path / "jobs.jsonl")
    with pytest.raises(UsageError, match="--cluster missing: only a trace with recorded runs"):
        Sources(str(tmp_path / "jobs.jsonl")).read()


def test_a_job_without_a_recording_is_refused() -> None:
    plain = job("a", gpu_seconds=1.0)
    with pytest.raises(BadInputError, match=r'1 job without recorded starts and ends .*: "a"'):
        replayed(plain, recorded("b", 0.0, "0-1"))


def test_labels_and_reports_say_what_was_recorded(tmp_path: Path) -> None:
    assert label_of([PastRun(100.0, 300.0, 4), PastRun(400.5, 500.0, 2)], 100.0, 4) == "0-200, 300.5-400*2"
    first = recorded("a", 100.0, "0-200, 300.5-400*2", 4)
    assert [tuple(run) for run in runs_of(first)] == [(100.0, 300.0, 4), (400.5, 500.0, 2)]
    assert list(held_gpus([first])) == [(100.0, 4), (300.0, 0), (400.5, 2), (500.0, 0)]
    done = replayed(recorded("a", 0.0, "30-90"), recorded("b", 10.0, "0-60"))
    path = tmp_path / "recorded.jsonl"
    path.write_bytes(done.log.json_lines())
    assert len(io.read_events(path)) == 7
    (run,) = read_report([str(path)]).runs
    assert run.metrics.mean_jct_s == pytest.approx((90 + 60) / 2)
    for label in ("soon", "5-", "60-5", "0-10, 5-20", "0-10*0", "1-2,"):
        with pytest.raises(BadInputError, match="expected runs like 300-3900"):
            runs_of(recorded("a", 0.0, label))


RUNS = st.builds(
    lambda at, length, gpus: PastRun(at, at + length, gpus),
    st.floats(0, 1e6),
    st.floats(1, 1e4),
    st.integers(1, 8),
)


@given(st.lists(RUNS, max_size=5), st.floats(0, 1e6))
def test_settled_runs_are_what_a_replay_reads(runs: list[PastRun], submit_s: float) -> None:
    """They hold no GPU longer than they did, and the whole time where none overlapped."""
    result = settled(runs, submit_s)
    assert stated_runs(label_of(result.runs, submit_s, 1)) is not None
    before, after = (
        sum((run.end_s - run.start_s) * run.gpus for run in each) for each in (runs, result.runs)
    )
    assert after <= before * (1 + 1e-9) + 1e-6
    assert result.cut or after == pytest.approx(before)


@given(st.lists(st.lists(RUNS, min_size=1, max_size=3), min_size=1, max_size=3))
def test_gangs_side_by_side_hold_what_they_held_alone(gangs: list[list[PastRun]]) -> None:
    alone = [settled(runs, 0.0).runs for runs in gangs]
    together = side_by_side(alone)
    held = [sum((run.end_s - run.start_s) * run.gpus for run in runs) for runs in (*alone, together)]
    assert held[-1] == pytest.approx(sum(held[:-1]))
    assert settled(together, 0.0).cut == 0
