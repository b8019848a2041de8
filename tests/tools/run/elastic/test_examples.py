"""The examples say the same thing in their jobs file and in their scripts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pliant.schemas.checks import check_fits
from pliant.schemas.io import read_cluster, read_jobs
from pliant.schemas.job import EpochWork, Job

ROOT = Path(__file__).parents[4]
JOBS = read_jobs(ROOT / "examples" / "jobs.jsonl")


def options(job: Job) -> dict[str, int]:
    """Defaults of the script's options, and what the command says instead."""
    assert job.command is not None
    found: dict[str, int] = {}
    source = (ROOT / job.command[0]).read_text()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            default = {word.arg: word.value for word in call.keywords}["default"]
            found[ast.literal_eval(call.args[0])] = ast.literal_eval(default)
    given = job.command[1:]
    return found | {name: int(value) for name, value in zip(given[::2], given[1::2], strict=True)}


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.id)
def test_a_job_states_the_work_and_batch_of_its_script(job: Job) -> None:
    script = options(job)
    assert isinstance(job.work, EpochWork)
    assert (job.work.epochs, job.work.dataset_size) == (script["--epochs"], script["--size"])
    assert job.batch.size == script["--batch"]
    assert job.command is not None
    assert Path(job.command[0]).stem == job.model


def test_the_jobs_fit_the_cluster() -> None:
    check_fits(JOBS, read_cluster(ROOT / "examples" / "cluster.json"), "examples/jobs.jsonl")
