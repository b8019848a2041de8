from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.documents import job_lines, parse_jobs
from pliant.schemas.job import GpuTimeWork, Job
from pliant.tools.replay.traces.recipe import Recipe, read_recipe
from pliant.tools.replay.traces.synthetic import synthesize


def made(**fields: Any) -> tuple[Job, ...]:
    return synthesize(read_recipe("poisson", fields))


def gpu_hours(job: Job) -> float:
    assert isinstance(job.work, GpuTimeWork)
    return job.work.gpu_seconds / 3600


def test_a_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    assert job_lines(made(jobs=50, seed=1)) == job_lines(made(jobs=50, seed=1))
    assert job_lines(made(jobs=50, seed=1)) != job_lines(made(jobs=50, seed=2))


FIRST = [
    ("job-000", 0.0, 1, 643.571),
    ("job-001", 55.522, 1, 8473.338),
    ("job-002", 1023.1, 2, 96.872),
]


def test_the_first_jobs_of_seed_1_are_what_they_were() -> None:
    first = made(jobs=160, seed=1)[:3]
    assert [(one.id, one.submit_time, one.gpus.requested, one.work) for one in first] == [
        (*facts, GpuTimeWork(gpu_seconds=gpu_seconds)) for *facts, gpu_seconds in FIRST
    ]


def test_jobs_arrive_in_order_from_time_0_at_the_rate() -> None:
    jobs = made(jobs=4000, rate_per_hour=120, seed=3)
    times = [one.submit_time for one in jobs]
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] / len(jobs) == pytest.approx(30.0, rel=0.1)


def test_sizes_models_and_classes_come_as_often_as_their_weights_say() -> None:
    models = [{"name": "often", "weight": 3, "batch": 64}, {"name": "seldom"}]
    jobs = made(jobs=4000, gpus={"1": 1, "8": 1}, models=models, classes={"M": 1, "XL": 1})
    assert sum(one.gpus.requested == 8 for one in jobs) == pytest.approx(2000, rel=0.1)
    assert sum(one.model == "often" for one in jobs) == pytest.approx(3000, rel=0.1)
    assert sum(gpu_hours(one) > 10 for one in jobs) == pytest.approx(2000, rel=0.1)
    assert {one.batch.size for one in jobs if one.model == "often"} == {64}
    assert {one.batch.size for one in jobs if one.model == "seldom"} == {None}


@pytest.mark.parametrize(
    ("name", "low", "high"), [("S", 0, 1), ("M", 1, 10), ("L", 10, 100), ("XL", 100, 1000)]
)
def test_a_class_keeps_to_its_hours(name: str, low: float, high: float) -> None:
    assert all(low < gpu_hours(one) <= high for one in made(jobs=200, classes={name: 1.0}))


def test_gpu_time_may_be_lognormal_instead() -> None:
    jobs = made(jobs=4000, gpu_time={"median_s": 3600.0, "sigma": 0.5})
    logs = sorted(math.log(gpu_hours(one)) for one in jobs)
    assert logs[2000] == pytest.approx(0.0, abs=0.05)
    assert math.sqrt(sum(x * x for x in logs) / 4000) == pytest.approx(0.5, rel=0.05)


def test_a_trace_reads_back_as_it_was() -> None:
    jobs = made(jobs=20, elastic="size")
    assert parse_jobs(job_lines(jobs), "trace") == jobs


def test_recipes_are_toml_or_json_and_options_replace_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('jobs = 3\n[[models]]\nname = "net"\n')
    (tmp_path / "r.json").write_text('{"jobs": 3, "models": [{"name": "net"}]}')
    from_toml = read_recipe(str(tmp_path / "r.toml"), {"seed": 5})
    assert from_toml == read_recipe(str(tmp_path / "r.json"), {"seed": 5})
    assert (from_toml.jobs, from_toml.seed, from_toml.models[0].name) == (3, 5, "net")


def test_defaults_make_a_trace() -> None:
    assert len(synthesize(Recipe())) == 160


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("jobs = 0", "/jobs: 0 is not above 0"),
        ("job = 1", "/job: is not a field that this version knows"),
        ("jobs = ", "neither TOML nor JSON"),
        ("[gpus]\nmany = 1", '/gpus: "many" is not a number of GPUs'),
        ("[classes]\nQ = 1", '/classes/Q: "Q" is unknown'),
        ("models = []", "/models"),
        ('[[models]]\nname = "net"\nclasses = ["S"]', 'no model is trained by jobs of class "L"'),
        ('[[models]]\nname = "net"\nepochs = [1, 2]', "epochs and dataset_size come together"),
        (
            '[[models]]\nname = "net"\nepochs = [3, 2]\ndataset_size = 9',
            r"2 is below 3, expected \[from, to\]",
        ),
        ('kind = "sample"', '/trace: kind "sample" and trace come together'),
        ('kind = "diurnal"\namplitude = 1.0', "/amplitude: 1.0 is not below 1"),
        ("[gpus]\n99999999 = 1", '/gpus: "99999999" is not a number of GPUs'),
        (f'[[models]]\nname = "net"\nbatch = {10**20}', "/models/0/batch: "),
        ("[oasis]\nepochs = [9, 5]", r"/oasis/epochs: .*5 is below 9, expected \[from, to\]"),
        ("[oasis.worker]\ngpu = [2, 1]", "/oasis/worker/gpu: .*1 is below 2"),
        ("[oasis]\nsensitive_share = 1.0", "/oasis: .*are more than 1 together"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(BadInputError, match=message):
        read_recipe(str(tmp_path / "r.toml"), {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[models]]\nname = "net"\ngpus_min = 16', "a job of this recipe: .*is below gpus.min 16"),
        ('[[models]]\nname = "net"\nbatch = 8\nbatch_min = 16', "8 is below batch.min 16"),
        ('kind = "oasis"\n[oasis]\nchunks = [0, 0]', "0 is not above 0"),
    ],
)
def test_a_recipe_whose_jobs_are_none_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(BadInputError, match=message):
        synthesize(read_recipe(str(tmp_path / "r.toml"), {}))


def test_an_unknown_recipe_is_told() -> None:
    with pytest.raises(UsageError, match='"posson" is neither a recipe'):
        read_recipe("posson", {})
