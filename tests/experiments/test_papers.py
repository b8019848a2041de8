"""Reproductions of papers: their models, recipes and pages, small."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.ares import traces, workloads
from experiments.ares.experiment import EXPERIMENT
from experiments.ares.traces import Sources
from experiments.ares.workloads import SIX_MINUTES, sweeps
from experiments.elastic_scaling.model import CATEGORIES, TABLE_II, Links, fitted, profile_of, residuals
from experiments.elastic_scaling.workloads import SMALL, cluster_of, recipes
from experiments.harness.published import compare, read_numbers
from experiments.harness.replays import carry_out
from experiments.harness.spec import Experiment, Study, find, load
from experiments.harness.study import page_of
from experiments.oasis.facts import facts
from experiments.oasis.measure import measure
from experiments.sharing.measure import outcome
from experiments.sharing.workload import LABEL, Workload, workload
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.replay.sweep_recipe import SweepRecipe
from pliant.tools.replay.synthetic import synthesize
from pliant.tools.replay.synthetic_recipe import Recipe
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import Speeds
from tests.builders import job


@pytest.fixture(scope="module")
def study() -> Study:
    result = find("oasis")
    assert isinstance(result, Study)
    return result


def test_a_small_run_fills_every_table_and_figure(study: Study, tmp_path: Path) -> None:
    small = measure(tmp_path, 1, lambda _text: None, seeds=range(1), scale=15)
    assert all(text for text in facts(small).values() if isinstance(text, str))
    assert "| OASiS |" in page_of(study, small)
    assert len(study.draw(small)) >= 6
    assert facts(small)["broken"] == 0


def busy_and_idle() -> Workload:
    """A team with more jobs than GPUs, and one that needs its own only later."""
    busy = [job(f"b{n}", at=60.0 * n, gpus=4, gpu_seconds=8000.0, labels={LABEL: "busy"}) for n in range(6)]
    idle = [job(f"i{n}", at=2000.0 + n, gpus=4, gpu_seconds=4000.0, labels={LABEL: "idle"}) for n in range(2)]
    result = workload(sorted([*busy, *idle], key=lambda each: each.submit_time))
    return Workload(result.jobs, {"busy": 8, "idle": 8})


def test_lending_shortens_waits_and_costs_the_owner_little():
    load = busy_and_idle()
    fixed, stopped, shrunk = (outcome(load, "ares", way) for way in ("static", "preempt", "shrink"))
    assert stopped["mean_jct_s"] < fixed["mean_jct_s"]
    assert shrunk["deficit_gpu_hours"] <= stopped["deficit_gpu_hours"]
    assert shrunk["teams"]["idle"]["mean_jct_s"] <= 1.1 * fixed["teams"]["idle"]["mean_jct_s"]
    assert all(each["finished"] == 8 for each in (fixed, stopped, shrunk))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, reference_data: Path) -> Iterator[Sources]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traces, "DATA", reference_data)
        yield Sources(tmp_path_factory.mktemp("sources"))


def test_every_recipe_can_be_read_and_has_its_own_name() -> None:
    result = list(sweeps())
    assert len(dict(result)) == len(result)
    for _, recipe in result:
        SweepRecipe.model_validate_json(json.dumps(recipe))


@pytest.mark.services
def test_a_smoke_run_replays_the_published_jobs(tmp_path, sources: Sources, monkeypatch) -> None:
    monkeypatch.setattr(workloads, "Sources", lambda _folder: sources)
    outcomes = carry_out(EXPERIMENT, tmp_path / "out", sweeps=["testbed-360.json"], smoke=True)
    assert set(outcomes) == {f"testbed-0-{name}" for name in SIX_MINUTES}
    for each in outcomes.values():
        assert each.metrics["jobs_finished"] == 6
        assert each.metrics["cpu_s"] > 0
        assert {"decision_ms", "unfair_fraction_requested"} <= each.extra


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load("elastic-scaling")


def test_the_model_is_that_of_the_paper_to_the_minute() -> None:
    # 16 samples on each of 2 GPUs: half a step's samples, and what no sample causes is paid in full. An
    # all-reduce is direct in a node and a ring beyond.
    links = Links(node=0.2, ring=0.5)
    assert links.seconds(24_000_000, 1) == 0.0
    assert links.seconds(12_000_000, 2) == pytest.approx(0.1)
    assert links.seconds(24_000_000, 5) == pytest.approx(0.5 * 2 * 4 / 5)
    model = fitted()
    one = model.jobs[0]
    seconds = one.fixed + (1 - one.fixed) / 2 + model.links.node
    assert one.factor(32, 2, model.links) == pytest.approx(1 / seconds)
    assert one.factor(33, 1, model.links) == -float("inf")
    # The model says what the paper says.
    result = residuals(fitted())
    assert {each.published for each in result} >= set(TABLE_II.values())
    assert all(abs(each.fitted / each.published - 1) < 0.02 for each in result)
    # The profile answers as the model.
    model = fitted()
    speed = ThroughputBySize(profile_of(model))
    for one in model.jobs:
        most = one.category.share_max
        alone = speed.step_seconds(one.category.model, "p100", (1,), most, None) or 0.0
        for place in ((1,), (2,), (2, 1), (2, 2, 2, 2), (2, 2, 2, 2, 2)):
            batch = min(one.category.batch_max, most * sum(place))
            seconds = speed.step_seconds(one.category.model, "p100", place, batch, None) or 0.0
            expected = one.factor(batch, sum(place), model.links)
            assert batch / seconds / (most / alone) == pytest.approx(expected)
    # Jobs take their minutes on one GPU.
    jobs = synthesize(Recipe.model_validate(dict(recipes())["mixed-40"]))
    speeds = Speeds(ThroughputBySize(profile_of(fitted())), node_states(cluster_of(SMALL)))
    minutes = {category.model: category.minutes for category in CATEGORIES}
    for one in jobs[:20]:
        state = job_state(one, speeds)
        rate = speeds.rate(state, 1, global_batch=one.batch.per_gpu_max)
        assert (state.total_samples or 0.0) / rate == pytest.approx(60 * minutes[one.model])


def test_a_small_run_goes_through(experiment: Experiment, tmp_path: Path) -> None:
    result = carry_out(experiment, tmp_path / "out", sweeps=["mixed-400.toml", "queue-400.toml"], smoke=True)
    numbers = [each for each in read_numbers(experiment.numbers) if each.table == "Table IV"]
    compared = compare(numbers, result)
    by_name = {each.name: each for each in compared}
    assert by_name["table4_ratio_queue_jct"].ours < 1
    assert by_name["table4_ratio_drop_sjs"].ours > 1
