from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tools.replay.importers.importing import gpu_seconds, problems, run, text


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, Any]:
    """An attempt on as many machines as there are numbers of GPUs."""
    machines = [{"ip": f"m{i}", "gpus": [f"gpu{g}" for g in range(count)]} for i, count in enumerate(gpus)]
    day = "2017-10-01 "
    return {"start_time": start and day + start, "end_time": end and day + end, "detail": machines}


def entry(job_id: str, submitted: str | None, *attempts: dict[str, Any]) -> dict[str, Any]:
    return {
        "status": "Killed",
        "vc": "a1",
        "jobid": job_id,
        "attempts": list(attempts),
        "submitted_time": submitted and "2017-10-01 " + submitted,
        "user": "ann",
    }


def log(folder: Path, *entries: Any) -> str:
    return text(folder, "cluster_job_log", "[", ",\n".join(json.dumps(found) for found in entries), "]")


def test_a_job_of_two_machines_is_a_gang_of_their_gpus(tmp_path: Path) -> None:
    early = entry("application_1", "08:00:00", attempt("08:10:00", "08:20:00", 1))
    gang = entry("application_2", "08:00:30", attempt("09:00:00", "10:00:00", 8, 4))
    (_, job) = run(tmp_path, "philly", log(tmp_path, early, gang)).jobs
    assert (job.id, job.submit_time, job.gpus.requested, job.user) == ("application_2", 30.0, 12, "ann")
    assert gpu_seconds(job) == 12 * 3600
    assert job.labels == {"trace": "philly", "status": "Killed", "vc": "a1", "attempts": "1"}


def test_attempts_are_summed_and_the_largest_is_requested(tmp_path: Path) -> None:
    retried = entry("a", "08:00:00", attempt("08:00:00", "08:01:00", 2), attempt("09:00:00", "09:00:10", 4))
    result = run(tmp_path, "philly", log(tmp_path, retried))
    assert result.jobs[0].gpus.requested == 4
    assert gpu_seconds(result.jobs[0]) == 2 * 60 + 4 * 10
    assert (
        "a job whose attempts had different numbers of GPUs requests the largest"
        in result.summary.assumptions
    )


def test_an_attempt_without_an_end_is_left_out_of_the_work(tmp_path: Path) -> None:
    going_on = entry("a", "08:00:00", attempt("08:00:00", "08:01:00", 2), attempt("09:00:00", None, 2))
    assert gpu_seconds(run(tmp_path, "philly", log(tmp_path, going_on)).jobs[0]) == 120


def test_what_is_no_gpu_training_job_is_dropped_by_reason(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        "philly",
        log(
            tmp_path,
            entry("kept", "08:00:00", attempt("08:00:00", "08:01:00", 1)),
            entry("lost", None, attempt("08:00:00", "08:01:00", 1)),
            entry("waits", "08:00:00"),
            entry("never", "08:00:00", attempt(None, None, 1)),
            entry("cpu", "08:00:00", attempt("08:00:00", "08:01:00")),
            entry("instant", "08:00:00", attempt("08:00:00", "08:00:00", 1)),
            entry("runs", "08:00:00", attempt("08:00:00", None, 1)),
        ),
    )
    assert [job.id for job in result.jobs] == ["kept"]
    assert result.dropped == {
        "had no time of submission": 1,
        "never started": 2,
        "asked for no GPU": 1,
        "ran for no time": 1,
        "had not finished when the trace ended": 1,
    }
    assert (result.summary.rows, result.summary.jobs) == (7, 1)


def test_malformed_entries_are_named_with_their_lines(tmp_path: Path) -> None:
    good = attempt("08:00:00", "08:01:00", 1)
    path = log(
        tmp_path,
        {**entry("a", "08:00:00", good), "submitted_time": "yesterday"},
        {"jobid": "b"},
        {**entry("c", "08:00:00"), "attempts": [{"start_time": None}]},
        {"jobid": "d", "submitted_time": None},
    )
    assert problems(tmp_path, "philly", path) == [
        "cluster_job_log:2: /submitted_time: 'yesterday', expected a time like 2017-10-09 07:01:55",
        "cluster_job_log:3: /submitted_time: is missing",
        "cluster_job_log:4: /attempts/0: expected start_time, end_time and detail with gpus",
        "cluster_job_log:5: /attempts: is missing",
    ]


def test_the_reduced_csv_is_told_from_the_log(tmp_path: Path) -> None:
    path = text(
        tmp_path,
        "philly.csv",
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2017-10-09 07:01:55,66.0,2,132.0,11cb48",
        "2017-10-09 07:00:55,5.0,0,0.0,11cb48",
        "2017-10-09 07:00:55,5.5,1,5.5,6214e9",
    )
    result = run(tmp_path, "philly", path)
    assert [(job.id, job.submit_time) for job in result.jobs] == [("philly-3", 0.0), ("philly-1", 60.0)]
    assert gpu_seconds(result.job("philly-1")) == 132.0
    assert result.dropped == {"asked for no GPU": 1}
