"""The recorded schedule, replayed as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas import io
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.job import Job
from pliant.tools.replay.batch import Task, replay_all
from pliant.tools.replay.inputs import Sources, inputs
from pliant.tools.replay.recorded import held_gpus, label_of, runs_of
from pliant.tools.replay.run import Replayed, Run, replay
from tests.builders import cluster, job


def recorded(name: str, submit_s: float, label: str, gpus: int = 1, gpu_seconds: float = 60.0) -> Job:
    made = job(name, at=submit_s, gpus=gpus, gpu_seconds=gpu_seconds)
    return made.model_copy(update={"labels": {"runs": label}})


def replayed(*jobs: Job, gpus: int = 4) -> Replayed:
    return replay(inputs(jobs, cluster(gpus)), Run("recorded"))


def told(done: Replayed) -> list[tuple[float, str, str | None, int | None, float | None]]:
    found = list(done.log.events())[1:]
    return [(each.time, each.event, each.job, each.gpus, each.samples_done) for each in found]


def test_jobs_hold_what_was_recorded_when_it_was() -> None:
    """b has two runs, of 2 GPUs for 10 s and of 4 for 10 s: a third of its work, and the rest."""
    first, second = recorded("a", 5.0, "0-60"), recorded("b", 10.0, "5-15*2, 50-60", 4)
    assert told(replayed(first, second)) == [
        (5.0, "submit", "a", None, None),
        (5.0, "start", "a", 1, 0.0),
        (10.0, "submit", "b", None, None),
        (15.0, "start", "b", 2, 0.0),
        (25.0, "preempt", "b", 0, pytest.approx(20.0)),
        (60.0, "resume", "b", 4, pytest.approx(20.0)),
        (65.0, "finish", "a", 0, 60.0),
        (70.0, "finish", "b", 0, 60.0),
    ]


def test_more_gpus_than_the_cluster_has_are_told_and_kept() -> None:
    """Three GPUs are held from 10 s to 20 s, a third of the 30 s."""
    done = replayed(recorded("a", 0.0, "0-20", 2), recorded("b", 0.0, "10-30"), gpus=2)
    assert done.summary.finished == 2
    assert done.summary.assumptions[-1] == (
        "the trace holds up to 3 GPUs at a time, and 33.3% of the time more than the 2 of the cluster"
    )
    assert not any("cost" in text for text in done.summary.assumptions)


def test_without_a_cluster_it_is_as_large_as_what_was_held(tmp_path: Path) -> None:
    """Nine GPUs are held at a time, on nodes of eight."""
    io.write_jobs([recorded("a", 0.0, "0-20", 5), recorded("b", 0.0, "10-30", 4)], tmp_path / "jobs.jsonl")
    found = Sources(str(tmp_path / "jobs.jsonl")).read()
    assert found.cluster.total_gpus == 16
    done = replay(found, Run("recorded"))
    assert done.summary.assumptions[-1] == (
        "no --cluster: it has 2 nodes of 8 GPUs, for what the trace holds at a time"
    )
    io.write_jobs([job("a", gpu_seconds=1.0)], tmp_path / "jobs.jsonl")
    with pytest.raises(UsageError, match="--cluster missing: only a trace with recorded runs"):
        Sources(str(tmp_path / "jobs.jsonl")).read()


def test_a_job_without_a_recording_is_refused(tmp_path: Path) -> None:
    plain = job("a", gpu_seconds=1.0)
    with pytest.raises(BadInputError, match=r'1 job without recorded starts and ends .*: "a"'):
        replayed(plain, recorded("b", 0.0, "0-1"))
    io.write_jobs([plain], tmp_path / "jobs.jsonl")
    io.write_cluster(cluster(1), tmp_path / "cluster.json")
    sources = Sources(str(tmp_path / "jobs.jsonl"), str(tmp_path / "cluster.json"))
    with pytest.raises(BadInputError, match="without recorded starts and ends"):
        replay_all(sources, [Task(Run("recorded"), str(tmp_path / "out.parquet"))])


@pytest.mark.parametrize("label", ["soon", "5-", "60-5", "0-10, 5-20", "0-10*0", "1-2,"])
def test_a_label_that_is_no_recording(label: str) -> None:
    with pytest.raises(BadInputError, match="expected runs like 300-3900"):
        runs_of(recorded("a", 0.0, label))


def test_a_label_is_what_its_runs_say() -> None:
    assert label_of([(400.5, 500.0, 2), (100.0, 300.0, 4)], 100.0, 4) == "0-200, 300.5-400*2"
    first = recorded("a", 100.0, "0-200, 300.5-400*2", 4)
    assert [tuple(run) for run in runs_of(first)] == [(100.0, 300.0, 4), (400.5, 500.0, 2)]
    assert list(held_gpus([first])) == [(100.0, 4), (300.0, 0), (400.5, 2), (500.0, 0)]


def test_the_same_report_reads_it_as_any_replay(tmp_path: Path) -> None:
    from pliant.tools.report.report import read_report

    done = replayed(recorded("a", 0.0, "30-90"), recorded("b", 10.0, "0-60"))
    path = tmp_path / "recorded.jsonl"
    path.write_bytes(done.log.json_lines())
    assert len(io.read_events(path)) == 7
    (run,) = read_report([str(path)]).runs
    assert run.metrics.mean_jct_s == pytest.approx((90 + 60) / 2)
