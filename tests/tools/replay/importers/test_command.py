"""``pliant trace import``: arguments in, files out, the account on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.cli.trace import trace_import
from pliant.schemas import io
from tests.tools.replay.importers.importing import text

HEADER = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"


def test_the_account_goes_to_stderr_and_the_jobs_to_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = text(tmp_path, "jobs.csv", HEADER, "1,2,30,606,vgg19,164,30", "2,0,30,606,vgg19,164,30")
    trace_import("tiresias", [path], out=str(tmp_path / "jobs.jsonl"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "pliant: tiresias: 2 rows read, 1 jobs written, 1 rows dropped",
        "pliant: dropped: 1 asked for no GPU",
        "pliant: assumed: work is duration times GPUs; the iterations are kept as a label",
        "pliant: assumed: times are seconds since the start that the trace has",
    ]
    assert len(io.read_jobs(tmp_path / "jobs.jsonl")) == 1
