"""What one Slurm job is: identity, runs, components, and the hour that clocks show twice."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import UsageError
from tests.tools.replay.importers.importing import Result, gpu_seconds, problems, run, text

NAMES = "JobID|Cluster|User|State|Submit|Start|ElapsedRaw|AllocTRES"


def imported(folder: Path, *rows: str, names: str = NAMES, **more: Any) -> Result:
    """Rows like ``7 a ann COMPLETED 0 10 100 2``: times in s, GPUs last."""
    lines = ["|".join((*fields, f"gres/gpu={gpus}")) for *fields, gpus in (row.split() for row in rows)]
    return run(folder, "slurm", text(folder, "sacct.txt", names, *lines), **more)


def shown(result: Result) -> list[str]:
    """``ID USER STATUS GPUS GPU-SECONDS: RUNS`` of each job."""
    return [
        f"{job.id} {job.user} {job.labels['status']} {job.gpus.requested} {gpu_seconds(job):g}: "
        f"{job.labels['runs']}"
        for job in result.jobs
    ]


RUNS = "are runs of jobs that were requeued or resized"
COMPONENTS = "are components of heterogeneous jobs"
BEFORE = "are there before, or with what was known later"


@pytest.mark.parametrize(
    ("rows", "jobs", "joined"),
    [
        # Slurm prints the older run before or after the last one; a requeue is a submission.
        (
            "7 a ann COMPLETED 110 150 60 4, 7 a ann REQUEUED 0 10 100 2",
            ["7 ann COMPLETED 4 440: 10-110*2, 150-210"],
            {RUNS: 1},
        ),
        # A resized job, which then lost its node, and was cancelled as it waited: its runs count.
        (
            "7 a ann RESIZING 0 10 100 2, 7 a ann NODE_FAIL 110 110 50 3, 7 a ann CANCELLED 160 None 0 3",
            ["7 ann CANCELLED 3 350: 10-110*2, 110-160"],
            {RUNS: 2},
        ),
        # The id is given out again: to another user, and two days later.
        (
            "7 a ann COMPLETED 0 10 100 2, 7 a bob COMPLETED 5 10 100 2",
            ["7 ann COMPLETED 2 200: 10-110", "7-2 bob COMPLETED 2 200: 5-105"],
            {},
        ),
        (
            "7 a ann NODE_FAIL 0 10 100 2, 7 a ann COMPLETED 172910 172910 50 2",
            ["7 ann NODE_FAIL 2 200: 10-110", "7-2 ann COMPLETED 2 100: 0-50"],
            {},
        ),
        # The first run, of two days, had no GPU.
        (
            "7 a ann REQUEUED 0 10 172800 0, 7 a ann COMPLETED 172810 172820 50 2",
            ["7 ann COMPLETED 2 100: 172820-172870"],
            {RUNS: 1},
        ),
        # Two jobs at a time, each requeued: of clusters that no column names.
        (
            (
                "7 a ann REQUEUED 0 10 9000 2, 7 a ann REQUEUED 1 20 99 1"
                ", 7 a ann FAILED 119 130 10 1, 7 a ann FAILED 9010 9020 10 2"
            ),
            ["7 ann FAILED 2 18020: 10-9010, 9020-9030", "7-2 ann FAILED 1 109: 19-118, 129-139"],
            {RUNS: 2},
        ),
        # One export knew the job as it waited, one as it ran, and two as it had ended.
        (
            (
                "7 a ann PENDING 0 Unknown 0 2, 7 a ann RUNNING 0 10 60 2"
                ", 7 a ann COMPLETED 0 10 100 2, 7 a ann COMPLETED 0 10 100 2"
            ),
            ["7 ann COMPLETED 2 200: 10-110"],
            {BEFORE: 3},
        ),
        # Four GPUs and two, of which the two were given back early; the job was requeued as a whole.
        (
            (
                "7+0 a ann REQUEUED 0 10 100 4, 7+1 a ann REQUEUED 0 10 60 2"
                ", 7+0 a ann COMPLETED 110 200 10 4, 7+1 a ann COMPLETED 110 200 10 2"
            ),
            ["7 ann COMPLETED 6 580: 10-70, 70-110*4, 200-210"],
            {COMPONENTS: 1, RUNS: 2},
        ),
        # Runs that overlap are cut, or left out; their work, too.
        (
            "7 a ann REQUEUED 0 10 100 2, 7 a ann REQUEUED 0 50 100 2, 7 a ann FAILED 0 60 20 2",
            ["7 ann FAILED 2 280: 10-110, 110-150"],
            {RUNS: 2},
        ),
    ],
)
def test_rows_of_one_cluster_id_and_user_are_a_job(
    tmp_path: Path, rows: str, jobs: list[str], joined: dict[str, int]
) -> None:
    lines = rows.split(", ")
    for seed in range(3):
        result = imported(tmp_path, *random.Random(seed).sample(lines, len(lines)))
        assert (shown(result), result.summary.joined) == (jobs, joined)


def test_clusters_have_ids_of_their_own(tmp_path: Path) -> None:
    result = imported(tmp_path, "7 a ann COMPLETED 0 10 100 2", "7 b ann COMPLETED 0 10 50 2")
    assert shown(result) == ["7 ann COMPLETED 2 200: 10-110", "7-2 ann COMPLETED 2 100: 10-60"]
    assert [job.labels["cluster"] for job in result.jobs] == ["a", "b"]


@given(st.data())
def test_the_order_of_rows_and_files_changes_nothing(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Jobs of several runs, some of them heterogeneous, each of whose rows stand in one export or in two."""
    rows = []
    for number in range(data.draw(st.integers(1, 4))):
        time_s = 1000 * number
        components = data.draw(st.sampled_from([[""], [""], ["+0", "+1"]]))
        runs = data.draw(st.integers(1, 3))
        for each in range(runs):
            start_s, seconds = time_s + data.draw(st.integers(0, 90)), data.draw(st.integers(1, 500))
            state = "REQUEUED" if each < runs - 1 else "COMPLETED"
            rows += [f"{number}{part} a u {state} {time_s} {start_s} {seconds} 2" for part in components]
            time_s = start_s + seconds
    again = data.draw(st.lists(st.sampled_from(rows), max_size=3))
    first, second = (
        imported(tmp_path_factory.mktemp("order"), *each)
        for each in (rows, data.draw(st.permutations([*rows, *again])))
    )
    assert shown(second) == shown(first)
    assert second.summary.joined.total() == first.summary.joined.total() + len(again)
    for result in (first, second):
        summary = result.summary
        assert summary.rows == summary.jobs + summary.dropped.total() + summary.joined.total()


def test_rows_of_a_dropped_job_are_dropped(tmp_path: Path) -> None:
    """What is counted is rows, whatever they have in common."""
    rows = ["1 a u REQUEUED 0 10 100 2", "1 a u PENDING 110 Unknown 0 2", "2 a u REQUEUED 0 10 100 0"]
    rows += ["2 a u COMPLETED 110 110 10 0", "3 a u COMPLETED 0 1 1 1", "4 a u REQUEUED 0 5 10 1"]
    result = imported(tmp_path, *rows)
    assert shown(result) == ["3 u COMPLETED 1 1: 1-2", "4 u REQUEUED 1 10: 5-15"]
    assert result.dropped == {"had not finished when the trace ended": 2, "asked for no GPU": 2}
    (place,) = (place for said, place in result.summary.first_places.items() if "what came after it" in said)
    assert place.endswith("sacct.txt:7")


BERLIN = "JobID|User|State|Submit|Start|End|ElapsedRaw|AllocTRES"


@pytest.mark.parametrize(
    ("submit", "start", "end", "seconds", "utc", "berlin"),
    [
        ("02:50", "02:10", "03:10", 3600, "0-3600", "1200-4800"),
        ("02:05", "02:10", "03:10", 3600, "300-3900", "3900-7500"),
        ("02:05", "02:10", "02:40", 1800, "300-2100", "300-2100"),
        ("01:50", "02:50", "02:40", 3000, "3600-6600", "3600-6600"),
    ],
)
def test_the_hour_that_clocks_show_twice(
    tmp_path: Path, submit: str, start: str, end: str, seconds: int, utc: str, berlin: str
) -> None:
    """At 03:00 of 26 October clocks in Berlin went back to 02:00."""
    times = "|".join(f"2025-10-26T{clock}:00" for clock in (submit, start, end))
    path = text(tmp_path, "sacct.txt", BERLIN, f"1|u|COMPLETED|{times}|{seconds}|gres/gpu=1")
    for zone, runs in ((None, utc), ("Europe/Berlin", berlin)):
        (job,) = run(tmp_path, "slurm", path, zone=zone).jobs
        assert (job.labels["runs"], gpu_seconds(job)) == (runs, seconds)
    table = text(tmp_path, "jobs.csv", "id,q,s,e,g", f"1,{times.replace('|', ',')},1")
    (job,) = run(
        tmp_path, "csv", table, mapping="id=id,submit=q,start=s,end=e,gpus=g", zone="Europe/Berlin"
    ).jobs
    assert job.labels["runs"] == (berlin if submit != "02:05" else "300-7500" if end == "03:10" else berlin)
    for zone, problem in (
        ("Mars", "--time-zone 'Mars', expected one like"),
        ("UTC", "--time-zone: the times of swf"),
    ):
        with pytest.raises(UsageError, match=problem):
            run(tmp_path, "swf" if zone == "UTC" else "slurm", path, zone=zone)


def test_a_requeue_in_the_hour_that_clocks_show_twice(tmp_path: Path) -> None:
    """The first run ends at 02:50 summer time, 20 minutes before the second is submitted at 02:10."""
    day = "2025-10-26T"
    first = f"1|u|REQUEUED|{day}00:00:00|{day}01:00:00|{day}02:50:00|6600|gres/gpu=1"
    second = f"1|u|COMPLETED|{day}02:10:00|{day}02:20:00|{day}03:00:00|2400|gres/gpu=1"
    for rows in ((first, second), (second, first)):
        path = text(tmp_path, "sacct.txt", BERLIN, *rows)
        (job,) = run(tmp_path, "slurm", path, zone="Europe/Berlin").jobs
        assert (job.labels["runs"], gpu_seconds(job)) == ("3600-10200, 12000-14400", 9000)


def test_json_names_parts_of_jobs_as_text_does(tmp_path: Path) -> None:
    """A task of an array, and two components; a job that is none is named by its line."""
    gpus = [{"type": "gres", "name": "gpu", "count": 2}]
    job: dict[str, Any] = {"job_id": 12, "cluster": "a", "state": {"current": ["FAILED"]}}
    job |= {
        "time": {"submission": 0, "start": 5, "elapsed": 10},
        "tres": dict.fromkeys(("allocated", "requested"), gpus),
    }
    first, second = ({"set": True, "infinite": False, "number": number} for number in (0, 1))
    array = {"job_id": 10, "task_id": second}
    hets = [{"job_id": 20, "job_offset": offset} for offset in (first, second)]
    jobs = [{**job, "array": array, "het": {"job_id": 0, "job_offset": {**first, "set": False}}}]
    jobs += [{**job, "array": {"job_id": 0}, "het": het} for het in hets]
    path = text(tmp_path, "sacct.json", json.dumps({"meta": {}, "jobs": jobs, "errors": []}, indent=1))
    assert shown(run(tmp_path, "slurm", path)) == ["10_1  FAILED 2 20: 5-15", "20  FAILED 4 40: 5-15"]
    odd = text(tmp_path, "sacct.json", '{"jobs": [', json.dumps(jobs[0]) + ",", '{"job_id": 3}', "]}")
    (problem,) = problems(tmp_path, "slurm", odd)
    assert problem == "sacct.json:3: is not a job as sacct --json prints it: KeyError('time')"
    assert run(tmp_path, "slurm", odd, lenient=True).dropped == {"malformed (as a whole)": 1}


def test_exports_put_together_and_times_that_slurm_cannot_tell(tmp_path: Path) -> None:
    """Two exports in one file, a start after the end, a state that is cut short, and names with a bar."""
    names = "JobID|State|Submit|Start|End|Elapsed|AllocTRES"
    rows = ["1|CANCELLED+|0|5|9|00:00:04|gres/gpu=1", names, "2|COMPLETED|0|9|5|INVALID|gres/gpu=1"]
    result = run(tmp_path, "slurm", text(tmp_path, "sacct.txt", names, *rows))
    assert shown(result) == ["1  CANCELLED 1 4: 5-9"]
    assert result.dropped == {"are lines of column names": 1, "ended before they started": 1}
    names, rest = "JobID|JobName|State|Submit|Start|ElapsedRaw|AllocTRES", "COMPLETED|0|5|10|gres/gpu=1"
    path = text(tmp_path, "sacct.txt", names, f"1|a|b|c|{rest}", f"2|d|{rest}")
    assert [job.labels["name"] for job in run(tmp_path, "slurm", path).jobs] == ["a|b|c", "d"]
    path = text(tmp_path, "sacct.txt", f"{names}|Comment", f"1|a|b|{rest}|x")
    assert problems(tmp_path, "slurm", path) == [
        'sacct.txt:2: has 9 fields, expected 8: a "|" within a field?'
    ]
