from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.service.launching import runnable
from tests.builders import cluster, job


def schedule(jobs: list[Job], *allocations: dict[str, Any]) -> Schedule:
    record = {
        "time": 0.0,
        "policy": {"name": "fifo"},
        "cluster": cluster(2, 2).model_dump(mode="json", by_alias=True),
        "jobs": [found.model_dump(mode="json") for found in jobs],
        "allocations": [{"action": "start", **allocation} for allocation in allocations],
    }
    return Schedule.model_validate(record, strict=False)


def problems(found: Schedule, folder: Path) -> list[str]:
    with pytest.raises(BadInputError) as caught:
        runnable(found, "schedule.json", folder)
    return [str(problem) for problem in caught.value.problems]


def test_jobs_start_in_the_folder_they_name_or_where_the_command_is_given(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    jobs = [job("a", command=("t.py",)), job("b", command=("t.py",), workdir="sub")]
    found = runnable(schedule(jobs), "s", tmp_path)
    assert [found_job.workdir for found_job in found.jobs] == [str(tmp_path), str(tmp_path / "sub")]


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    found = schedule(
        [job("a", gpus=2), job("b", command=("t.py",), workdir="nowhere")],
        {"job": "c", "gpus": 1, "placement": [["n0", 1]]},
        {"job": "a", "gpus": 2, "placement": [["n0", 2]]},
        {"job": "b", "gpus": 1, "placement": [["n7", 1]]},
    )
    assert problems(found, tmp_path) == [
        'schedule.json: /jobs/0/command: job "a" has no command: it can be replayed, but not run',
        f'schedule.json: /jobs/1/workdir: job "b": no such folder: {tmp_path}/nowhere',
        'schedule.json: /allocations/0/job: "c" is not among the jobs',
        "schedule.json: /allocations/1/placement: node n0 has fewer free GPUs than that",
        "schedule.json: /allocations/2/placement: node n7 has fewer free GPUs than that",
    ]


def test_gpus_without_a_place_are_refused(tmp_path: Path) -> None:
    found = schedule([job("a", command=("t.py",))], {"job": "a", "gpus": 1})
    assert problems(found, tmp_path) == ["schedule.json: /allocations/0/placement: is empty, expected nodes"]


def test_what_torchrun_cannot_give_to_workers_is_refused(tmp_path: Path) -> None:
    found = schedule(
        [
            job("a", command=("t.py",), resources={"worker": {"cpu": 1.0}, "ps": {"cpu": 2.0}}),
            job("b", command=("t.py",), resources={"worker": {"gpu": 2.0}}),
        ]
    )
    assert problems(found, tmp_path) == [
        'schedule.json: /jobs/0/resources/ps: job "a" has parameter servers: it can be replayed, but not run',
        'schedule.json: /jobs/1/resources/worker/gpu: job "b" needs 2 GPUs for each worker, which gets one',
    ]
