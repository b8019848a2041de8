import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from pliant.schemas.job import Job
from pliant.schemas.output_files import pattern_fault
from pliant.tools.run.statedir.output_paths import output_file

FIRST: dict[str, Any] = {"id": "sweep-3", "command": ["a.sh"], "workdir": "/w"}
ARRAY = {"array": {"name": "sweep", "index": 3}}
KNOWN = "%j, %x, %A, %a, %r, %t, %N, %u, %%"


@pytest.mark.parametrize(
    ("pattern", "more", "expected"),
    [
        ("out.txt", {}, "/w/out.txt"),
        ("logs/%j.%a.%r.out", {}, "/w/logs/sweep-3.2.7.out"),
        ("%A_%a.out", ARRAY, "/w/sweep_3.out"),
        ("%x_%A", {}, "/w/sweep-3_sweep-3"),
        ("%4a-%2r%%", ARRAY, "/w/0003-07%"),
        ("../%u/%N.%t", {}, "/w/../ada/n1.7"),
        ("/scratch/%u/%j", {"user": "bo"}, "/scratch/bo/sweep-3"),
    ],
)
def test_a_pattern_names_a_file_as_sbatch_would(pattern: str, more: dict[str, Any], expected: str) -> None:
    job = Job.model_validate_json(json.dumps({**FIRST, **more, "output": pattern}))
    assert output_file(pattern, job, attempt=2, node="n1", rank=7, user="ada") == expected
    assert job.minor == 8


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        ("logs/", "names no file"),
        ("%s.out", f"has %s, expected {KNOWN}"),
        ("100%", f"has %, expected {KNOWN}"),
        ("%12j", f"has %12, expected {KNOWN}"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused(pattern: str, fault: str) -> None:
    assert pattern_fault(pattern) == fault
    with pytest.raises(ValidationError, match=re.escape(fault)):
        Job.model_validate_json(json.dumps({**FIRST, "error": pattern}))
