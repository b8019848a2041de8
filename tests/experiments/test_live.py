"""The live runs of the experiments in their smallest form: one job of one epoch on one slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.elastic_scaling.live import ROOT
from experiments.harness.live import run_and_replay
from experiments.shadow_price.live import run_live
from pliant.schemas.job import Job


@pytest.fixture
def one() -> Job:
    spec = {
        "id": "one",
        "submit_time": 0,
        "model": "char_transformer",
        "command": ("examples/char_transformer.py", "--epochs", "1"),
        "workdir": str(ROOT),
        "gpus": {"requested": 1},
        "batch": {"size": 64},
        "work": {"epochs": 1, "dataset_size": 4096},
    }
    return Job.model_validate(spec)


@pytest.mark.torch
def test_a_run_is_profiled_carried_out_and_replayed(one: Job, tmp_path: Path) -> None:
    live, simulated = run_and_replay(tmp_path / "out", [one], 1, ("--policy", "fifo"), steps=2)
    for run in (live, simulated):
        assert [job.outcome for job in run.jobs] == ["finished"]


@pytest.mark.torch
def test_a_service_takes_the_jobs_and_is_held_against_its_replay(one: Job, tmp_path: Path) -> None:
    found = run_live("smallest", [one], tmp_path / "out", 1, steps=2)
    assert (found["run"], found["jobs"], found["slots"]) == ("smallest", 1, 1)
    figures = {each["name"]: each for each in found["figures"]}
    assert figures["jct"]["live"] > 0
    assert figures["jct"]["simulated"] > 0
