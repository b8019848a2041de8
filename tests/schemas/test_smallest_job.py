"""Jobs that state little: what stands in for the rest, and that files which state it keep their bytes."""

from __future__ import annotations

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import job_fields, parse_jobs
from pliant.schemas.job import Gpus, Job, arriving_at


def read(*lines: str, **defaults: object) -> tuple[Job, ...]:
    return parse_jobs("\n".join(lines).encode(), "jobs.jsonl", defaults)


def test_id_and_command_are_a_job() -> None:
    (job,) = read('{"id": "a", "command": ["src/train.py", "--fast"]}')
    assert (job.submit_time, job.model, job.gpus, job.work) == (0.0, "train", Gpus(requested=1), None)


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (["train.py"], "train"),
        (["-m", "pkg.train", "x"], "pkg.train"),
        (["torchrun", "a/b.py"], "b"),
        (["run.v2"], "run.v2"),
    ],
)
def test_the_model_is_named_like_the_script(command: list[str], model: str) -> None:
    assert Job.model_validate({"id": "a", "command": tuple(command)}).model == model


def test_a_job_that_names_neither_model_nor_script_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"jobs\.jsonl:2: /model: is missing, expected"):
        read('{"id": "a", "model": "m"}', '{"id": "b"}')


def test_what_was_filled_in_is_written_like_what_was_stated() -> None:
    """Defaults of other versions cannot change a job that is on disk, and hashes stay."""
    stated = {"id": "a", "submit_time": 0.0, "model": "train", "gpus": {"requested": 1}}
    (job,) = read('{"id": "a", "command": ["train.py"]}')
    assert job_fields(job) == {**stated, "command": ["train.py"]}
    assert job_fields(Job.model_validate(stated)) == stated


def test_a_job_without_a_time_arrives_with_the_first_of_its_file() -> None:
    jobs = read('{"id": "a", "model": "m"}', '{"id": "b", "model": "m", "submit_time": 1700000000}')
    assert [job.submit_time for job in jobs] == [1700000000, 1700000000]
    assert [job.submit_time for job in arriving_at(jobs, 5.0)] == [5.0, 1700000000]


def test_the_requested_size_follows_the_smallest() -> None:
    (job,) = read('{"id": "a", "model": "m", "elastic": "size", "gpus": {"min": 2, "max": 8}}')
    assert job.gpus.requested == 2


def test_sizes_follow_the_gpus_of_a_replica() -> None:
    (job,) = read('{"id": "a", "model": "m", "elastic": "size", "gpus": {"per_replica": 4}}')
    assert (job.gpus.requested, job.min_gpus, job.max_gpus(30), job.minor) == (4, 4, 28, 3)


def test_sizes_are_those_that_the_job_lists() -> None:
    (job,) = read('{"id": "a", "model": "m", "elastic": "size", "gpus": {"sizes": [2, 3, 8]}}')
    assert (job.gpus.requested, job.min_gpus, job.max_gpus(30), job.minor) == (2, 2, 8, 5)
    assert [job.gpus.whole(gpus) for gpus in (1, 2, 7, 8, 30)] == [0, 2, 3, 8, 8]
    assert [job.gpus.above(gpus) for gpus in (0, 2, 3, 8)] == [2, 3, 8, 0]
    assert [*job.sizes(30)] == [2, 3, 8]
    assert [*job.sizes(7)] == [2, 3]


def test_powers_of_two_are_those_of_replicas() -> None:
    gpus = '{"sizes": "powers-of-two", "per_replica": 3, "max": 24}'
    (job,) = read(f'{{"id": "a", "model": "m", "elastic": "size", "gpus": {gpus}}}')
    assert [*job.sizes(100)] == [3, 6, 12, 24]
    assert [*job.sizes(11)] == [3, 6]
    assert (job.max_gpus(2), job.gpus.whole(2), job.gpus.above(0)) == (0, 0, 3)


def test_epochs_of_an_unknown_data_set_are_unknown_work() -> None:
    known, unknown, silent = read(
        '{"id": "a", "model": "m", "work": {"epochs": 2, "dataset_size": 9}}',
        '{"id": "b", "model": "m", "work": {"epochs": 2}}',
        '{"id": "c", "model": "m"}',
    )
    assert [job.work_gap for job in (known, unknown, silent)] == [
        None,
        "states its epochs without work.dataset_size",
        "states no work",
    ]
    assert (known.minor, unknown.minor) == (0, 2)


def test_defaults_of_the_reader_fill_what_a_job_does_not_state() -> None:
    (job,) = read(
        '{"id": "a", "command": ["t.py"], "gpus": {"requested": 4}, "env": {"A": "own"}}',
        gpus={"requested": 2},
        env={"A": "1", "B": "2"},
        user="ann",
    )
    assert (job.gpus.requested, job.env, job.user) == (4, {"A": "own", "B": "2"}, "ann")
