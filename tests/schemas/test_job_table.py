from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import job_lines, parse_job_table, parse_jobs
from pliant.schemas.io import read_job_table, read_jobs, write_jobs
from pliant.schemas.job import Job, canonical_json, hash_of_texts, trace_hash
from pliant.schemas.job_parquet import job_parquet, parse_job_parquet
from pliant.schemas.job_table import JobTable, jobs_that, one_of_each
from pliant.schemas.kinds import validate_file
from tests.builders import job
from tests.strategies import traces

LINE = '{{"id":"{0}","submit_time":{1},"model":"m","gpus":{{"requested":2}},"work":{{"samples":{2}}}}}\n'


def in_order(jobs: tuple[Job, ...]) -> list[Job]:
    return sorted(jobs, key=lambda one: (one.submit_time, one.id))


def alike(jobs: tuple[Job, ...], times: list[float]) -> tuple[Job, ...]:
    """Each job three times, with other ids and times: the second and the third are of a known form."""
    return tuple(
        one.model_copy(update={"id": f"{number}-{copy}", "submit_time": at, "after": {}})
        for number, one in enumerate(jobs)
        for copy, at in enumerate(times)
    )


@settings(max_examples=25)
@given(traces(), st.lists(st.floats(0, 1e17) | st.integers(0, 10**15).map(float), min_size=3, max_size=3))
@example((job("a", gpu_seconds=1e-7), job("b", work={"epochs": 2.0, "dataset_size": 50})), [0.0, 1e-5, 1e16])
def test_a_table_holds_the_jobs_of_its_file(trace: tuple[Job, ...], times: list[float]) -> None:
    jobs = alike(trace, times)
    table = parse_job_table(job_lines(jobs), "jobs.jsonl")
    assert tuple(table) == jobs == parse_jobs(job_lines(jobs), "jobs.jsonl")
    assert [one.model_fields_set for one in table] == [
        one.model_fields_set for one in parse_jobs(job_lines(jobs), "jobs.jsonl")
    ]
    assert list(table.canonical()) == [canonical_json(one) for one in jobs]
    assert [table.forms[kind].json(one) for kind, one in zip(table.kind, jobs, strict=True)] == [
        one.model_dump_json(by_alias=True, exclude_defaults=True) for one in jobs
    ]
    assert list(table.in_order()) == in_order(jobs)
    assert hash_of_texts(table.in_order().canonical()) == trace_hash(jobs)


def test_jobs_that_differ_in_few_values_or_labels_are_one_form(tmp_path: Path) -> None:
    jobs = [job(f"j{n}", at=n / 3, gpu_seconds=1 + n / 7, user="u") for n in range(50)]
    jobs.append(job("odd", at=9.0, gpu_seconds=5.0, priority=2.0))
    write_jobs(jobs, tmp_path / "jobs.jsonl")
    table = read_job_table(tmp_path / "jobs.jsonl")
    assert len(set(table.kind)) == 2
    assert [one.id for one in one_of_each(table)] == ["j0", "odd"]
    assert list(jobs_that(lambda one: one.priority, table)) == jobs[-1:]
    assert list(table[48:]) == jobs[48:]
    labelled = [job(f"j{n}", gpu_seconds=n + 1.0, labels={"of": "t", "runs": f"{n}-{n}"}) for n in range(99)]
    table = parse_job_table(job_lines(labelled), "jobs")
    assert (set(table.kind), list(table)) == ({0}, labelled)


SAYS = {"trace": "helios", "runs": "60-310"}
LABELS = (
    SAYS,
    {**SAYS, "runs": "61-90"},
    {"runs": "1-2", "trace": "x"},
    {"100%s": "%d %", "a": "{}[],:"},
    {"100%s": "5 %s", "a": "%"},
    {"labels": "x"},
    {"labels": "y}}"},
    {"a": ""},
    {"a": "\n"},
    {"a": "é", "b": "c"},
    {"a": "ü", "b": "d"},
    {"a": 'quoted "word"'},
    {"a": "back\\slash"},
    {"a-mark": "a-mark"},
    {},
)


@pytest.mark.parametrize("stated", [{"gpu_seconds": 5.0}, {"work": None}])
def test_labels_may_say_something_else_of_each_job(stated: dict[str, Any]) -> None:
    jobs = [
        job(f"j{n}-{copy}", at=float(n), labels=labels, **stated)
        for copy in range(3)
        for n, labels in enumerate(LABELS)
    ]
    table = parse_job_table(job_lines(jobs), "jobs")
    assert list(table) == jobs == list(parse_jobs(job_lines(jobs), "jobs"))
    assert list(table.canonical()) == [canonical_json(one) for one in jobs]
    assert [vars(one)["form"].json(one) for one in table] == [
        one.model_dump_json(by_alias=True, exclude_defaults=True) for one in jobs
    ]
    assert list(table.in_order()) == in_order(tuple(jobs))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (LINE.format("-x", 1, 1), "-x"),
        (LINE.format("x", "01", 1), "not valid JSON"),
        (LINE.format("x", 1, 0), "/work/samples: 0"),
        (LINE.format("x", -1, 1), "/submit_time: -1"),
        (LINE.format("x", 1, "1e30"), "/work/samples: 1e+30"),
        (LINE.format("a", 1, 1), '"a" is used twice, first on line 1'),
        (LINE.format("x", 1, 1).replace('"model":"m"', '"model":"m","model":"n"'), "given twice"),
        (LINE.format("x", 1, 1).replace("}}", '},"labels":{"a":"b","a":"c"}}'), "given twice"),
        (LINE.format("x", 1, 1).replace("}}", '},"labels":{"a":1}}'), "/labels/a: 1"),
    ],
)
def test_a_wrong_line_of_a_known_form_is_named(line: str, words: str) -> None:
    good = LINE.format("a", 0, 5) + LINE.format("b", 0.5, 5.25)
    with pytest.raises(BadInputError, match=r"jobs\.jsonl:3: ") as raised:
        parse_job_table((good + line + LINE.format("c", 2, 2)).encode(), "jobs.jsonl")
    assert words in str(raised.value)
    with pytest.raises(BadInputError) as of_all:
        parse_jobs((good + line + LINE.format("c", 2, 2)).encode(), "jobs.jsonl")
    assert str(of_all.value) == str(raised.value)


@pytest.mark.parametrize(
    "work",
    [
        '"work":{{"gpu_seconds": {0}}}',
        '"work":{{"samples":{0}e0}}',
        '"work":{{"dataset_size":10,"epochs":{0}}}',
        '"work":{{"samples":{0}}},"submit_time":7',
        '"labels":{{"a":"{0}","a":"x"}}',
    ],
)
@pytest.mark.parametrize("first", ["1234.5", "8.25"])
def test_values_in_unusual_places_are_those_of_each_job(work: str, first: str) -> None:
    start = '{{"id":"j{0}","submit_time":1234.5,"model":"m",'
    lines = [start.format(n) + work.format(amount) + "}" for n, amount in enumerate([first, "3", "4.5"])]
    table = JobTable()
    for line in lines:
        assert table.take(line.encode()) or table.append(Job.model_validate_json(line), line.encode()) >= 0
    assert list(table) == [Job.model_validate_json(line) for line in lines]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n\n" + 2 * LINE.format("a", 1, 1), 'jobs.jsonl:4: /id: "a" is used twice, first on line 3'),
        ("\r\n  \n" + 2 * LINE.format("a", 1, 1), 'jobs.jsonl:4: /id: "a" is used twice, first on line 3'),
        ('{\n"id":"a","model":"m"}\n{"id":"b","model":"m"}\n', "jobs.jsonl:2: "),
        ('{"schema":"pliant.job/2"}\n' + LINE.format("a", 1, 1), "jobs.jsonl:1: "),
    ],
)
def test_a_file_has_the_problems_of_its_text(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(text.encode())
    with pytest.raises(BadInputError) as of_text:
        parse_job_table(text.encode(), str(path))
    with pytest.raises(BadInputError) as of_file:
        read_job_table(path)
    assert str(of_file.value) == str(of_text.value)
    assert words in str(of_file.value)


def test_a_table_of_jobs_is_a_sequence_of_jobs() -> None:
    line = LINE.replace('"work"', '"after":{{"x":"ok"}},"work"')
    text = LINE.format("x", 0, 1) + line.format("a", 1, 1) + line.format("x2", 1, 1)
    assert len(parse_job_table(text.encode(), "jobs")) == 3
    with pytest.raises(BadInputError, match="names the job itself"):
        parse_job_table((line.format("a", 1, 1) + line.format("x", 1, 1)).encode(), "jobs")
    # Jobs without a time arrive with the first stated.
    silent = '{"id":"s","model":"m"}\n'
    text = LINE.format("a", 7, 1) + silent + LINE.format("b", 5, 1)
    table = parse_job_table(text.encode(), "jobs")
    assert [one.submit_time for one in table] == [7.0, 5.0, 5.0]
    assert tuple(table) == parse_jobs(text.encode(), "jobs")
    # A changed copy has no form.
    (one,) = parse_job_table(LINE.format("a", 0, 5).encode(), "jobs")
    assert "form" in vars(one)
    changed = one.model_copy(update={"priority": 3.0})
    assert "form" not in vars(changed)
    assert '"priority":3.0' in changed.model_dump_json(exclude_defaults=True)
    # A table of jobs is a sequence.
    jobs = (job("b", at=2.0, gpu_seconds=1.0), job("a", at=1.0), job("c", at=1.0, gpu_seconds=2.0))
    table = JobTable(jobs)
    assert list(table) == list(jobs)
    assert [one.id for one in table.in_order()] == ["a", "c", "b"]
    assert table[-1] == jobs[-1]


@settings(max_examples=25)
@given(traces(), st.lists(st.floats(0, 1e17), min_size=3, max_size=3))
def test_a_parquet_file_holds_the_same_jobs(trace: tuple[Job, ...], times: list[float]) -> None:
    jobs = alike(trace, times)
    table = parse_job_parquet(job_parquet(jobs), "jobs.parquet")
    assert tuple(table) == jobs
    assert list(table.canonical()) == [canonical_json(one) for one in jobs]
    assert job_parquet(table) == job_parquet(jobs)


@pytest.mark.parametrize("stated", [{"gpu_seconds": 5.0}, {"work": None}])
def test_labels_are_columns_of_parquet(stated: dict[str, Any], tmp_path: Path) -> None:
    jobs = [job(f"j{n}", at=float(n), labels=labels, **stated) for n, labels in enumerate(LABELS)]
    for part in (jobs, [job(f"j{n}", labels={"of": "t", "runs": f"{n}"}, **stated) for n in range(9)]):
        write_jobs(part, tmp_path / "jobs.parquet")
        assert (
            list(read_job_table(tmp_path / "jobs.parquet")) == part == [*read_jobs(tmp_path / "jobs.parquet")]
        )
    assert len(read_job_table(tmp_path / "jobs.parquet").forms) == 1
    assert validate_file(tmp_path / "jobs.parquet").endswith(": job, 9 records")
    columns = pq.read_table(tmp_path / "jobs.parquet").column_names
    assert [*read_job_table(tmp_path / "jobs.parquet")[0].labels] == ["of", "runs"]
    assert columns[:2] == ["id", "submit_time"]
    assert columns[-2:] == ["labels.of", "labels.runs"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": ["a", "-x"]}, 'jobs.parquet: row 2: /id: "-x" is not'),
        ({"id": ["a", "a"]}, 'jobs.parquet:2: /id: "a" is used twice, first on line 1'),
        ({"submit_time": [1.0, -1.0]}, "row 2: /submit_time: -1"),
        ({"work.samples": [1.0, 0.0]}, "row 2: /work/samples: 0"),
        ({"gpus.requested": [1, -1]}, "row 2: /gpus/requested: -1"),
        ({"gpus.requested": ["1", "x"]}, "/gpus.requested: column is string, expected int64"),
        ({"after": ['{"b":"ok"}', "{"]}, "row 2: /after: not valid JSON"),
        ({"after": [None, '{"b":"ok"}']}, "row 2: /after: names the job itself"),
        ({"colour": ["a", "b"]}, "/colour: is not a column that this version knows"),
        ({"model": ["m", None]}, "row 2: /model: is missing"),
    ],
)
def test_a_wrong_row_of_parquet_is_named(columns: dict[str, Any], words: str, tmp_path: Path) -> None:
    stated = {"id": ["a", "b"], "submit_time": [0.0, 1.0], "model": ["m", "m"]} | columns
    table = pa.table(stated).replace_schema_metadata({"schema": "pliant.job/1"})
    pq.write_table(table, tmp_path / "jobs.parquet")
    with pytest.raises(BadInputError) as raised:
        read_job_table(tmp_path / "jobs.parquet")
    assert words in str(raised.value)
