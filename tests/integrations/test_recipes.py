"""The jobs and the report that the pages on relaunches show are valid."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pliant.schemas.file_io.documents import parse_jobs
from pliant.tools.run.statedir.contract.plan import Progress
from tests.integrations.training import recipe

DOCS = Path(__file__).parents[2] / "docs"
JOB, REPORT = re.findall(
    r"^```json\n(.*?)\n```$", (DOCS / "relaunch.md").read_text(), re.DOTALL | re.MULTILINE
)
REPLICAS = recipe("FSDP2", "json")


def test_the_job_and_the_report_are_valid() -> None:
    (job,) = parse_jobs(JOB.encode(), "jobs.jsonl")
    assert (job.elastic, job.resize, job.min_gpus) == ("size", "relaunch", 1)
    found = Progress.model_validate_json(REPORT)
    assert found.samples_done == json.loads(REPORT)["step"] * found.global_batch


def test_the_job_of_replicas_is_valid() -> None:
    (job,) = parse_jobs(REPLICAS.encode(), "jobs.jsonl")
    assert (job.gpus.per_replica, job.resize, job.min_gpus, job.gpus.max) == (4, "relaunch", 4, 16)
