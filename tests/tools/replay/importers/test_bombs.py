"""Traces that are small while they are packed, or hold no end of a line."""

from __future__ import annotations

import gzip
import io as streams
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pliant.schemas.file_io import limits
from tests.tools.replay.importers.importing import problems, run

HEADER = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
RAISED = "PLIANT_INPUT_LIMITS=10 in the environment makes all such limits ten times as large"


def packed(folder: Path, text: str) -> str:
    path = folder / "jobs.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    return str(path)


@pytest.mark.parametrize("piped", [False, True])
def test_rows_without_end_in_a_small_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piped: bool
) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)
    path = packed(tmp_path, HEADER + "1,2,30,606,vgg19,164,30\n" * 200_000)
    stdin = streams.BufferedReader(streams.BytesIO(Path(path).read_bytes()))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
    (problem,) = problems(tmp_path, "tiresias", "-" if piped else path)
    assert "expands too far: 1,0" in problem
    assert problem.endswith(f"; {RAISED}")


def test_a_packed_trace_of_the_usual_density_is_read_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FREE_BYTES", 0)
    drawn = random.Random(0)
    rows = [
        f"{n},{drawn.choice((1, 2, 4))},{30 * n},606,vgg19,{drawn.randrange(9999)},30\n" for n in range(3000)
    ]
    assert len(run(tmp_path, "tiresias", packed(tmp_path, HEADER + "".join(rows))).jobs) == 3000


def test_a_line_without_end(tmp_path: Path) -> None:
    path = packed(tmp_path, HEADER + "1" * (limits.LONGEST_TEXT + 1))
    (problem,) = problems(tmp_path, "tiresias", path)
    assert problem == f"jobs.csv.gz: holds a text of more than 16,777,216 characters; {RAISED}"


def test_a_first_line_without_end(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "helios", packed(tmp_path, "," * (limits.LONGEST_TEXT + 1)))
    assert "holds a text of more than 16,777,216 characters" in problem


def test_an_object_of_a_list_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LONGEST_TEXT", 1 << 20)
    (problem,) = problems(tmp_path, "philly", packed(tmp_path, '[{"jobid": "' + "j" * (1 << 22) + '"}]'))
    assert "1: holds a text of more than 1,048,576 characters" in problem
