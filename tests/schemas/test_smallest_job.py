import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import job_fields, parse_jobs
from pliant.schemas.job import Gpus, Job, arriving_at


def read(*lines: str, **defaults: object) -> tuple[Job, ...]:
    return parse_jobs("\n".join(lines).encode(), "jobs.jsonl", defaults)


def elastic(gpus: str) -> Job:
    return read(f'{{"id": "a", "model": "m", "elastic": "size", "gpus": {gpus}}}')[0]


def test_a_small_job_is_written_as_if_all_was_stated() -> None:
    # Defaults of other versions cannot change a job that is on disk, and hashes stay.
    (job,) = read('{"id": "a", "command": ["src/train.py", "--fast"]}')
    assert (job.submit_time, job.model, job.gpus, job.work) == (0.0, "train", Gpus(requested=1), None)
    stated = {"id": "a", "submit_time": 0.0, "model": "train", "gpus": {"requested": 1}}
    assert job_fields(job) == {**stated, "command": ["src/train.py", "--fast"]}
    assert job_fields(Job.model_validate(stated)) == stated
    # What a small job leaves out follows from its file.
    models = {
        ("train.py",): "train",
        ("-m", "pkg.train", "x"): "pkg.train",
        ("torchrun", "a/b.py"): "b",
        ("run.v2",): "run.v2",
    }
    assert {words: Job.model_validate({"id": "a", "command": words}).model for words in models} == models
    with pytest.raises(BadInputError, match=r"jobs\.jsonl:2: /model: is missing, expected"):
        read('{"id": "a", "model": "m"}', '{"id": "b"}')
    # A job without a time arrives with the first of its file.
    jobs = read('{"id": "a", "model": "m"}', '{"id": "b", "model": "m", "submit_time": 1700000000}')
    assert [job.submit_time for job in jobs] == [1700000000, 1700000000]
    assert [job.submit_time for job in arriving_at(jobs, 5.0)] == [5.0, 1700000000]
    assert elastic('{"min": 2, "max": 8}').gpus.requested == 2
    job = elastic('{"per_replica": 4}')
    assert (job.gpus.requested, job.min_gpus, job.max_gpus(30), job.minor) == (4, 4, 28, 3)


def test_sizes_epochs_and_defaults_of_a_small_job() -> None:
    job = elastic('{"sizes": [2, 3, 8]}')
    assert (job.gpus.requested, job.min_gpus, job.max_gpus(30), job.minor) == (2, 2, 8, 5)
    assert [job.gpus.whole(gpus) for gpus in (1, 2, 7, 8, 30)] == [0, 2, 3, 8, 8]
    assert [job.gpus.above(gpus) for gpus in (0, 2, 3, 8)] == [2, 3, 8, 0]
    assert ([*job.sizes(30)], [*job.sizes(7)]) == ([2, 3, 8], [2, 3])
    job = elastic('{"sizes": "powers-of-two", "per_replica": 3, "max": 24}')
    assert ([*job.sizes(100)], [*job.sizes(11)]) == ([3, 6, 12, 24], [3, 6])
    assert (job.max_gpus(2), job.gpus.whole(2), job.gpus.above(0)) == (0, 0, 3)
    # Epochs of an unknown data set are unknown work.
    works = ('{"epochs": 2, "dataset_size": 9}', '{"epochs": 2}', "null")
    jobs = read(*(f'{{"id": "{at}", "model": "m", "work": {work}}}' for at, work in enumerate(works)))
    gaps = [None, "states its epochs without work.dataset_size", "states no work"]
    assert [job.work_gap for job in jobs] == gaps
    assert [job.minor for job in jobs[:2]] == [0, 2]
    (job,) = read('{"id": "a", "model": "m", "array": {"name": "s", "index": 0, "max_failures": 1}}')
    assert job.minor == 8
    # Defaults of the reader fill what a job does not state.
    (job,) = read(
        '{"id": "a", "command": ["t.py"], "gpus": {"requested": 4}, "env": {"A": "own"}}',
        gpus={"requested": 2},
        env={"A": "1", "B": "2"},
        user="ann",
    )
    assert (job.gpus.requested, job.env, job.user) == (4, {"A": "own", "B": "2"}, "ann")


def test_a_job_states_or_shows_that_it_can_save() -> None:
    shown = (
        '"elastic": "size"',
        '"resize": "relaunch"',
        '"checkpoint_seconds": 9',
        '"preemptible": true',
        '"seed": 1',
    )
    jobs = read(*(f'{{"id": "{at}", "model": "m", {text}}}' for at, text in enumerate(shown)))
    assert [job.can_save for job in jobs] == [True, True, True, True, False]
    (never,) = read(
        '{"id": "a", "model": "m", "elastic": "size", "preemptible": false, "gpus": {"types": ["t4"]}}'
    )
    assert (never.can_save, never.minor) == (False, 7)
