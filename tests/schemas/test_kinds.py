import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.cli.reference import schema, validate
from pliant.schemas import generate, io
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.file_io.record import KINDS
from pliant.schemas.job import Job, canonical_json, trace_hash
from pliant.schemas.kinds import kind_of, validate_file
from pliant.schemas.metrics import Metrics
from pliant.schemas.profile import Profile
from pliant.schemas.schedule import PolicyUse, Schedule
from tests import strategies
from tests.builders import cluster, job
from tests.effort import examples


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_all() -> None:
    io.write_jobs([job("a"), job("b")], "1")
    io.write_cluster(cluster(4), "2")
    io.write_profile(Profile(()), "3")
    io.write_convergence((), "4")
    io.write_schedule(Schedule(time=0.0, policy=PolicyUse(name="p"), cluster=cluster(1)), "5")
    io.write_events([Event(0.0, "decision")], "6")
    io.write_events([Event(0.0, "decision")] * 3, "7.parquet")
    io.write_metrics(Metrics(runs=()), "8")


def test_validate_says_what_every_file_is(capsys: pytest.CaptureFixture[str]) -> None:
    write_all()
    validate(["1", "2", "3", "4", "5", "6", "7.parquet", "8"])
    assert capsys.readouterr().out.splitlines() == [
        "1: job, 2 records",
        "2: cluster, 1 record",
        "3: profile, 0 records",
        "4: convergence, 0 records",
        "5: schedule, 1 record",
        "6: event, 1 record",
        "7.parquet: event, 3 records",
        "8: metrics, 1 record",
    ]
    # Validate looks at all files before it fails.
    write_all()
    Path("bad").write_text('{"id": 3, "model": "m", "gpus": {"requested": -1}}\n')
    with pytest.raises(BadInputError) as caught:
        validate(["none", "1", "bad", "2"])
    assert capsys.readouterr().out.splitlines() == ["1: job, 2 records", "2: cluster, 1 record"]
    assert str(caught.value).splitlines() == [
        "none: no such file",
        "bad:1: /id: 3 has the wrong type, expected a string",
        "bad:1: /gpus/requested: -1 is below 0, expected 0 or more",
    ]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("x", '{"id": "a", "submit_time": 0, "model": "m", "gpus": {"requested": 1}}', "x: job, 1 record"),
        ("x", '{\n"nodes": []\n}', "x: cluster, 1 record"),
        ("x", '{"schema": "pliant.job/1"}\n', "x: job, 0 records"),
        ("my-jobs.jsonl", "\n\n", "my-jobs.jsonl: job, 0 records"),
    ],
)
def test_without_a_schema_fields_then_name_say_the_kind(name: str, text: str, expected: str) -> None:
    Path(name).write_text(text)
    assert validate_file(name) == expected


def test_a_file_that_cannot_be_told_asks_for_its_kind() -> None:
    Path("x").write_text("hello")
    with pytest.raises(BadInputError, match=r"x: its kind is unclear: .* give --kind"):
        validate_file("x")
    with pytest.raises(BadInputError, match="x:1: not valid JSON"):
        validate_file("x", "job")
    with pytest.raises(UsageError, match='there is no kind "jobs"; did you mean "job"'):
        validate_file("x", "jobs")


def test_schema_lists_the_kinds_and_prints_each(capsys: pytest.CaptureFixture[str]) -> None:
    schema()
    assert capsys.readouterr().out.split() == list(KINDS)
    schema("job")
    assert json.loads(capsys.readouterr().out)["required"] == ["id"]
    with pytest.raises(UsageError, match='there is no kind "x"; expected one of job, cluster'):
        schema("x")


@pytest.mark.parametrize("kind", KINDS)
def test_the_committed_schemas_are_those_of_the_code(kind: str) -> None:
    committed = (generate.FOLDER / f"{kind}.json").read_text()
    assert committed == generate.schema_text(kind), "run: python -m pliant.schemas.generate"


def test_every_field_of_a_kind_is_in_its_generated_schema() -> None:
    generate.main(Path("schemas"))
    assert sorted(path.stem for path in Path("schemas").iterdir()) == sorted(KINDS)
    # Every field of a written file is in its schema.
    described = json.loads(generate.schema_text("event"))
    columns = {column["name"] for column in described["columns"]}
    assert columns | {"schema", "crc"} == set(described["json_lines"]["properties"])
    assert "schema" in json.loads(generate.schema_text("job"))["properties"]


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_equal_traces_have_equal_hashes_in_any_order(data: st.DataObject) -> None:
    trace: tuple[Job, ...] = data.draw(strategies.traces())
    shuffled: Any = data.draw(st.permutations(trace))
    assert trace_hash(trace) == trace_hash(shuffled)


@given(strategies.jobs())
def test_the_text_that_is_hashed_is_sorted_compact_json(one: Job) -> None:
    assert canonical_json(one) == json.dumps(job_fields(one), sort_keys=True, separators=(",", ":"))


def test_the_hash_of_a_trace_is_its_own_and_stays() -> None:
    hashes = {
        trace_hash(jobs)
        for jobs in ([], [job("a")], [job("a", at=1.0)], [job("b")], [job("a"), job("b")], [job("a", gpus=2)])
    }
    assert len(hashes) == 6

    # A golden value: published figures name it.
    jobs = [job("b", at=5.0, gpus=2, work={"samples": 10.0}), job("a", at=5.0)]
    assert trace_hash(jobs) == "2c70f6e8c4c387f73d312a02cfc34b55cceed5ed1a5ffbbe3785a2afb822728d"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"id": "a", "gpus": {"requested": 1}', "it is not readable JSON (line 1: Expecting ',' delimiter)"),
        ("{'id': 'a'}", "it is not readable JSON (line 1: Expecting property name"),
        ('[{"id": "a"}]', "it is a list (jobs and events are one object a line)"),
    ],
)
def test_an_unknown_kind_comes_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(BadInputError) as caught:
        kind_of(text.encode(), "mine.json")
    assert f"its kind is unclear, for {why}" in str(caught.value)
