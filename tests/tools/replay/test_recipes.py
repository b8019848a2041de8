"""The recipes that come with the project make the workloads that they are named after."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from pliant.schemas.file_io.documents import job_lines
from pliant.schemas.job import EpochWork, GpuTimeWork, Job
from pliant.tools.replay.traces.recipe import read_recipe
from pliant.tools.replay.traces.synthetic import synthesize

RECIPES = Path(__file__).parents[3] / "experiments" / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.toml") if path.stem != "sample")


def made(name: str, seed: int = 0) -> tuple[Job, ...]:
    return synthesize(read_recipe(str(RECIPES / f"{name}.toml"), {"seed": seed}))


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_bytes(name: str) -> None:
    assert job_lines(made(name, 3)) == job_lines(made(name, 3)) != job_lines(made(name, 4))


@pytest.mark.parametrize(
    ("name", "jobs", "hours"), [("ares-philly", 160, 8), ("ares-helios", 160, 8), ("ares-newtrace", 960, 48)]
)
def test_ares_has_its_jobs_in_its_hours_and_models_by_class(name: str, jobs: int, hours: int) -> None:
    found = made(name)
    assert len(found) == jobs
    assert 0.9 * hours * 3600 < found[-1].submit_time < hours * 3600
    longest = {"cifar10": 1, "ncf": 1, "bert": 10, "deepspeech2": 10, "yolov3": 100, "imagenet": 1000}
    for one in found:
        assert isinstance(one.work, GpuTimeWork)
        assert one.work.gpu_seconds <= longest[one.model] * 3600


def test_ones_has_400_jobs_of_50_kinds_every_30_s() -> None:
    found = made("ones")
    kinds = read_recipe(str(RECIPES / "ones.toml"), {}).models
    assert len({(kind.name, kind.dataset_size, kind.batch) for kind in kinds}) == 50
    assert len(found) == 400
    assert found[-1].submit_time / 399 == pytest.approx(30, rel=0.2)
    assert all(isinstance(one.work, EpochWork) and one.batch.max for one in found)


def test_elastic_scaling_has_four_categories_as_often_as_each_other() -> None:
    found = [one for seed in range(10) for one in made("elastic-high", seed)]
    shares = Counter(one.model for one in found)
    assert len(shares) == 4
    assert all(count / len(found) == pytest.approx(0.25, abs=0.04) for count in shares.values())
    assert {one.gpus.max for one in found if one.elastic != "none"} == {10}
    assert {one.elastic for one in found if one.model == "alexnet-food101"} == {"none"}


def test_elastic_scaling_arrives_four_times_as_often_when_high() -> None:
    high, low = (sum(len(made(f"elastic-{name}", seed)) for seed in range(20)) for name in ("high", "low"))
    assert high / low == pytest.approx(4, rel=0.15)


def test_oasis_states_utilities_and_what_workers_and_parameter_servers_need() -> None:
    found = [one for seed in range(10) for one in made("oasis", seed)]
    decays = [one.utility.decay * 1200 for one in found]
    assert sum(decay == 0 for decay in decays) / len(found) == pytest.approx(0.10, abs=0.03)
    assert sum(decay >= 4 for decay in decays) / len(found) == pytest.approx(0.35, abs=0.05)
    for one in found:
        assert one.utility.shape == "sigmoid"
        assert set(one.resources.worker) == {"gpu", "cpu", "memory", "disk", "bandwidth"}
        assert 5 <= one.resources.ps["bandwidth"] * 8 / 1e9 <= 20
        assert 2e9 <= one.resources.worker["memory"] <= 32e9
        assert one.gpus.requested <= (one.gpus.max or 0) == int(one.labels["chunks"]) <= 100


def test_the_work_of_an_oasis_job_follows_from_its_parts() -> None:
    one = made("oasis")[0]
    assert isinstance(one.work, GpuTimeWork)
    parts = {name: float(value) for name, value in one.labels.items()}
    sync_slots = 2 * parts["gradient_mb"] * 1e6 / one.resources.worker["bandwidth"] / parts["slot_s"]
    minibatches = parts["epochs"] * parts["chunks"] * parts["minibatches"]
    slots = one.work.gpu_seconds / parts["slot_s"]
    assert slots == pytest.approx(minibatches * (parts["minibatch_slots"] + sync_slots), abs=1)
