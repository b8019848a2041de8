from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.errors import BadInputError
from pliant.tools.replay.importers.reading import json_rows
from tests.strategies import json_objects


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
