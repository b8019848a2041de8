from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import write_jobs
from pliant.schemas.job import EpochWork, GpuTimeWork, Job
from pliant.tools.replay.traces.recipe import read_recipe
from pliant.tools.replay.traces.synthetic import synthesize
from tests.builders import job

HOUR_S = 3600.0
CALM = [job(f"calm-{n}", at=HOUR_S * n, gpus=1, gpu_seconds=60) for n in range(3)]
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


def made(folder: Path, trace: list[Job], **fields: Any) -> tuple[Job, ...]:
    write_jobs(trace, folder / "trace.jsonl")
    recipe = {"kind": "sample", "trace": str(folder / "trace.jsonl"), "models": MODELS, "hours": 1, **fields}
    return synthesize(read_recipe("poisson", recipe))


def test_classes_of_gpu_time_become_models_and_the_rest_stays(tmp_path: Path) -> None:
    jobs = made(tmp_path, BUSY, jobs=3)
    found = [(one.submit_time, one.model, one.gpus.requested, one.labels["sampled_from"]) for one in jobs]
    assert found == [(10, "net", 1, "small"), (20, "bert", 4, "medium"), (30, "yolo", 16, "large")]
    assert jobs[0].work == GpuTimeWork(gpu_seconds=1800)
    assert jobs[1].work == EpochWork(epochs=2, dataset_size=100)


def test_the_busiest_hours_are_sampled_unless_the_recipe_names_others(tmp_path: Path) -> None:
    busiest = made(tmp_path, CALM + BUSY, jobs=3)
    assert {one.labels["sampled_from"] for one in busiest} == {"small", "medium", "large"}
    named = made(tmp_path, CALM + BUSY, jobs=1, from_hour=1)
    assert [(one.submit_time, one.labels["sampled_from"]) for one in named] == [(0, "calm-1")]


def test_a_sample_is_without_repetition_and_its_seed_decides(tmp_path: Path) -> None:
    trace = [job(f"j{n:02}", at=float(n), gpus=1, gpu_seconds=60) for n in range(50)]
    picks = [
        tuple(one.labels["sampled_from"] for one in made(tmp_path, trace, jobs=20, seed=seed))
        for seed in (1, 1, 2)
    ]
    assert picks[0] == picks[1] != picks[2]
    assert len(set(picks[0])) == 20
    assert list(picks[0]) == sorted(picks[0])


def test_too_small_a_window_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has 3 jobs that state GPU time in the 1 hours from hour 5 on"):
        made(tmp_path, CALM + BUSY, jobs=4)


def test_a_relative_trace_lies_beside_its_recipe(tmp_path: Path) -> None:
    write_jobs(BUSY, tmp_path / "t.jsonl")
    (tmp_path / "r.toml").write_text('kind = "sample"\ntrace = "t.jsonl"\njobs = 3\n')
    assert len(synthesize(read_recipe(str(tmp_path / "r.toml"), {}))) == 3
