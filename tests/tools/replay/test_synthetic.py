import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.documents import job_lines, parse_jobs
from pliant.schemas.io import write_jobs
from pliant.schemas.job import EpochWork, GpuTimeWork, Job
from pliant.tools.replay.synthetic import arrival_times_s, synthesize
from pliant.tools.replay.synthetic_recipe import read_recipe
from tests.builders import job


def made(**fields: Any) -> tuple[Job, ...]:
    return synthesize(read_recipe("poisson", fields))


def gpu_hours(job: Job) -> float:
    return job.work.gpu_seconds / 3600  # type: ignore[union-attr]


def test_jobs_of_a_seed_stay_and_are_of_whole_replicas() -> None:
    first = made(jobs=160, seed=1)[:3]
    assert [(one.id, one.submit_time, one.gpus.requested, one.work.gpu_seconds) for one in first] == [
        ("job-000", 0.0, 1, 643.571),
        ("job-001", 55.522, 1, 8473.338),
        ("job-002", 1023.1, 2, 96.872),
    ]
    jobs = made(jobs=20, elastic="size")
    assert parse_jobs(job_lines(jobs), "trace") == jobs
    # Sizes are rounded up to whole replicas.
    models = [{"name": "large", "gpus_per_replica": 4, "gpus_max": 16}]
    jobs = made(jobs=40, seed=1, models=models, gpus={"1": 1, "6": 1}, elastic="size")
    assert {(one.gpus.requested, one.gpus.per_replica) for one in jobs} == {(4, 4), (8, 4)}
    with pytest.raises(BadInputError, match="/models/0/gpus_max: 6 is not a multiple of gpus_per_replica 4"):
        made(jobs=1, models=[{**models[0], "gpus_max": 6}])


def test_arrivals_and_work_follow_their_distributions() -> None:
    jobs = made(jobs=4000, rate_per_hour=120, seed=3)
    times = [one.submit_time for one in jobs]
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] / len(jobs) == pytest.approx(30.0, rel=0.1)
    jobs = made(jobs=4000, gpu_time={"median_s": 3600.0, "sigma": 0.5})
    logs = sorted(math.log(gpu_hours(one)) for one in jobs)
    assert logs[2000] == pytest.approx(0.0, abs=0.05)
    assert math.sqrt(sum(x * x for x in logs) / 4000) == pytest.approx(0.5, rel=0.05)
    models = [{"name": "often", "weight": 3, "batch": 64}, {"name": "seldom"}]
    jobs = made(jobs=4000, gpus={"1": 1, "8": 1}, models=models, classes={"M": 1, "XL": 1})
    assert sum(one.gpus.requested == 8 for one in jobs) == pytest.approx(2000, rel=0.1)
    assert sum(one.model == "often" for one in jobs) == pytest.approx(3000, rel=0.1)
    for name, low, high in (("S", 0, 1), ("M", 1, 10), ("L", 10, 100), ("XL", 100, 1000)):
        assert all(low < gpu_hours(one) <= high for one in made(jobs=200, classes={name: 1.0}))
    assert sum(gpu_hours(one) > 10 for one in jobs) == pytest.approx(2000, rel=0.1)
    assert {one.batch.size for one in jobs if one.model == "often"} == {64}
    assert {one.batch.size for one in jobs if one.model == "seldom"} == {None}


def test_recipes_are_toml_or_json_and_options_win(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('jobs = 3\n[[models]]\nname = "net"\n')
    (tmp_path / "r.json").write_text('{"jobs": 3, "models": [{"name": "net"}]}')
    from_toml = read_recipe(str(tmp_path / "r.toml"), {"seed": 5})
    assert from_toml == read_recipe(str(tmp_path / "r.json"), {"seed": 5})
    assert (from_toml.jobs, from_toml.seed, from_toml.models[0].name) == (3, 5, "net")
    with pytest.raises(UsageError, match='"posson" is neither a recipe'):
        read_recipe("posson", {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
        ('[[models]]\nname = "net"\ngpus_min = 16', "a job of this recipe: .*is below gpus.min 16"),
        ('[[models]]\nname = "net"\nbatch = 8\nbatch_min = 16', "8 is below batch.min 16"),
        ('kind = "oasis"\n[oasis]\nchunks = [0, 0]', "0 is not above 0"),
    ],
)
def test_a_wrong_recipe_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(BadInputError, match=message):
        synthesize(read_recipe(str(tmp_path / "r.toml"), {}))


HOUR_S = 3600.0


def hours(seed: int = 0, kind: str = "poisson", **fields: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    return (
        arrival_times_s(read_recipe("poisson", {"kind": kind, **fields}), np.random.default_rng(seed))
        / HOUR_S
    )


@pytest.mark.parametrize("low", [{}, {"low_rate_per_hour": 250}])
def test_bursts_come_in_turn_with_calm_at_a_quarter_of_the_rate(low: dict[str, float]) -> None:
    times = hours(kind="bursty", rate_per_hour=1000, phase_minutes=30, jobs=6250, **low)
    assert np.sum(times % 1 < 0.5) == pytest.approx(5000, rel=0.05)
    assert times[-1] == pytest.approx(10, rel=0.05)


def test_hours_and_jobs_bound_the_arrivals() -> None:
    times = hours(hours=10, rate_per_hour=300)
    assert len(times) == pytest.approx(3000, rel=0.06)
    assert times[0] == 0
    assert times[-1] < 10
    times = hours(jobs=160, hours=8, rate_per_hour=1)
    assert len(times) == 160
    assert 0 <= times[0] < times[-1] < 8
    times = hours(kind="bursty", jobs=9000, hours=1.5, rate_per_hour=40, phase_minutes=60)
    assert np.sum(times < 1) == pytest.approx(8000, rel=0.05)
    assert times[-1] < 1.5
    # A day peaks at its hour and keeps its mean.
    times = hours(kind="diurnal", rate_per_hour=1000, amplitude=0.8, peak_hour=15, jobs=24_000)
    by_hour = np.bincount(times.astype(int) % 24, minlength=24)
    assert times[-1] == pytest.approx(24, rel=0.02)
    assert by_hour[14:16] == pytest.approx([1800, 1800], rel=0.07)
    assert by_hour[2:4] == pytest.approx([200, 200], rel=0.2)


BUSY = [
    job("small", at=5 * HOUR_S + 10, gpus=1, gpu_seconds=0.5 * HOUR_S),
    job("medium", at=5 * HOUR_S + 20, gpus=4, gpu_seconds=5 * HOUR_S),
    job("large", at=5 * HOUR_S + 30, gpus=8, gpu_seconds=50 * HOUR_S),
]
MODELS = [
    {"name": "net", "classes": ["S"]},
    {"name": "bert", "classes": ["M"], "epochs": [2, 2], "dataset_size": 100},
    {"name": "yolo", "classes": ["L", "XL"], "gpus": {"16": 1}, "batch": 64},
]


def sampled(folder: Path, trace: list[Job], **fields: Any) -> tuple[Job, ...]:
    write_jobs(trace, folder / "trace.jsonl")
    recipe = {"kind": "sample", "trace": str(folder / "trace.jsonl"), "models": MODELS, "hours": 1, **fields}
    return synthesize(read_recipe("poisson", recipe))


def test_classes_become_models_and_traces_lie_by_their_recipe(tmp_path: Path) -> None:
    jobs = sampled(tmp_path, BUSY, jobs=3)
    found = [(one.submit_time, one.model, one.gpus.requested, one.labels["sampled_from"]) for one in jobs]
    assert found == [(10, "net", 1, "small"), (20, "bert", 4, "medium"), (30, "yolo", 16, "large")]
    assert jobs[0].work == GpuTimeWork(gpu_seconds=1800)
    assert jobs[1].work == EpochWork(epochs=2, dataset_size=100)
    write_jobs(BUSY, tmp_path / "t.jsonl")
    (tmp_path / "r.toml").write_text('kind = "sample"\ntrace = "t.jsonl"\njobs = 3\n')
    assert len(synthesize(read_recipe(str(tmp_path / "r.toml"), {}))) == 3


def test_the_busiest_hours_are_sampled_unless_others_are_named(tmp_path: Path) -> None:
    calm = [job(f"calm-{n}", at=HOUR_S * n, gpus=1, gpu_seconds=60) for n in range(3)]
    busiest = sampled(tmp_path, calm + BUSY, jobs=3)
    assert {one.labels["sampled_from"] for one in busiest} == {"small", "medium", "large"}
    named = sampled(tmp_path, calm + BUSY, jobs=1, from_hour=1)
    assert [(one.submit_time, one.labels["sampled_from"]) for one in named] == [(0, "calm-1")]
    with pytest.raises(BadInputError, match="has 3 jobs that state GPU time in the 1 hours from hour 5 on"):
        sampled(tmp_path, calm + BUSY, jobs=4)


def test_a_sample_is_without_repetition_and_its_seed_decides(tmp_path: Path) -> None:
    trace = [job(f"j{n:02}", at=float(n), gpus=1, gpu_seconds=60) for n in range(50)]
    one, same, other = (
        [each.labels["sampled_from"] for each in sampled(tmp_path, trace, jobs=20, seed=seed)]
        for seed in (1, 1, 2)
    )
    assert one == same != other
    assert one == sorted({*one})
    assert len(one) == 20


RECIPES = Path(__file__).parents[3] / "experiments" / "recipes"


def shipped(name: str, seed: int = 0) -> tuple[Job, ...]:
    return synthesize(read_recipe(str(RECIPES / f"{name}.toml"), {"seed": seed}))


@pytest.mark.parametrize("name", sorted({path.stem for path in RECIPES.glob("*.toml")} - {"sample"}))
def test_a_seed_gives_the_same_bytes(name: str) -> None:
    assert job_lines(shipped(name, 3)) == job_lines(shipped(name, 3)) != job_lines(shipped(name, 4))
