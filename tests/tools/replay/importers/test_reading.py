"""Rows of an input: JSON lists, and files that are small while they are packed."""

from __future__ import annotations

import gzip
import io as streams
import json
import random
import re
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io import limits
from pliant.tools.replay.importers.reading import json_rows
from tests.strategies import json_objects
from tests.tools.replay.importers.importing import TIRESIAS, problems, run


@given(st.lists(json_objects, max_size=8), st.sampled_from([None, 1]), st.integers(1, 64))
def test_a_list_is_read_whatever_the_size_of_the_blocks(
    objects: list[dict[str, object]], indent: int | None, block: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "list.json"
        path.write_text(json.dumps(objects, indent=indent) + "\n")
        assert [dict(record.values) for record in json_rows(path, block=block)] == objects


@pytest.mark.parametrize("block", [1, 7, 1 << 18])
def test_an_object_stands_on_the_line_on_which_it_begins(tmp_path: Path, block: int) -> None:
    path = tmp_path / "list.json"
    path.write_text('[\n{"a": 1},\n\n {"a":\n 2}\n, {"a": 3}]')
    assert [record.line for record in json_rows(path, block=block)] == [2, 4, 6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "list.json:1: found 'the end of the file', expected a JSON list"),
        ('{"a": 1}', "list.json:1: found '{', expected a JSON list"),
        ("[\n1]", "list.json:2: is not an object, expected the objects of one JSON list"),
        ('[{"a": 1}\n{"a": 2}]', "list.json:2: found '{', expected ',' or ']' after an object"),
        ('[{"a": 1},', "list.json:1: is not an object"),
        ('[{"a": 1},\n{"a": ]', "list.json:2: is not readable JSON: expecting value"),
        ('[{"a": 1}]\n[]', "list.json:2: there is text behind the list"),
    ],
)
def test_what_is_no_list_of_objects_is_told_by_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(content)
    with pytest.raises(BadInputError) as caught:
        list(json_rows(path))
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(message)


def test_only_a_block_and_an_object_are_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "list.json"
    entry = json.dumps({"text": "x" * 500})
    path.write_text("[" + ",\n".join([entry] * 20_000) + "]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in json_rows(path)) == 20_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 10_000_000
    assert peak < 4_000_000


HEADER = f"{TIRESIAS}\n"
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
    assert re.search(r"expands too far: 1,[01]\d\d,\d{3} bytes", problem)  # it is read in blocks
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


def test_an_object_of_a_list_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LONGEST_TEXT", 1 << 20)
    (problem,) = problems(tmp_path, "philly", packed(tmp_path, '[{"jobid": "' + "j" * (1 << 22) + '"}]'))
    assert "1: holds a text of more than 1,048,576 characters" in problem
