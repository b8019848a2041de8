"""The recipes of docs/relaunch.md name what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pliant.schemas.file_io.documents import parse_jobs
from pliant.tools.run.statedir.contract.plan import Progress

PAGE = (Path(__file__).parents[2] / "docs" / "relaunch.md").read_text()
JOB, REPORT = re.findall(r"^```json\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)
CODE = re.findall(r"^```python\n(.*?)\n```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_job_and_the_report_are_valid() -> None:
    (job,) = parse_jobs(JOB.encode(), "jobs.jsonl")
    assert (job.elastic, job.resize, job.min_gpus) == ("size", "relaunch", 1)
    found = Progress.model_validate_json(REPORT)
    assert found.samples_done == json.loads(REPORT)["step"] * found.global_batch


@pytest.mark.torch
@pytest.mark.parametrize("code", CODE, ids=["own loop", "transformers", "lightning"])
def test_what_the_recipes_import_is_there(code: str) -> None:
    for library in re.findall(r"pliant\.integrations\.(\w+)", code):
        pytest.importorskip(library, reason="the extra integrations is not installed")
    imports = [line for line in code.splitlines() if line.startswith("from ")]
    assert imports
    for line in imports:
        exec(compile(line, "docs/relaunch.md", "exec"), {})  # noqa: S102 - our own page
    compile(code, "docs/relaunch.md", "exec")
