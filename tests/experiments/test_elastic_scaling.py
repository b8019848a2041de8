from pathlib import Path

import pytest

from experiments.elastic_scaling.model import (
    CATEGORIES,
    TABLE_II,
    Links,
    fitted,
    profile_of,
    residuals,
)
from experiments.elastic_scaling.workloads import (
    SMALL,
    cluster_of,
    recipes,
)
from experiments.harness.published import compare, read_numbers
from experiments.harness.replays import carry_out
from experiments.harness.spec import Experiment, load
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.replay.synthetic import synthesize
from pliant.tools.replay.synthetic_recipe import Recipe
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import Speeds


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
    for job in model.jobs:
        most = job.category.share_max
        alone = speed.step_seconds(job.category.model, "p100", (1,), most, None) or 0.0
        for place in ((1,), (2,), (2, 1), (2, 2, 2, 2), (2, 2, 2, 2, 2)):
            batch = min(job.category.batch_max, most * sum(place))
            seconds = speed.step_seconds(job.category.model, "p100", place, batch, None) or 0.0
            expected = job.factor(batch, sum(place), model.links)
            assert batch / seconds / (most / alone) == pytest.approx(expected)
    # Jobs take their minutes on one GPU.
    jobs = synthesize(Recipe.model_validate(dict(recipes())["mixed-40"]))
    speeds = Speeds(ThroughputBySize(profile_of(fitted())), node_states(cluster_of(SMALL)))
    minutes = {category.model: category.minutes for category in CATEGORIES}
    for job in jobs[:20]:
        state = job_state(job, speeds)
        rate = speeds.rate(state, 1, global_batch=job.batch.per_gpu_max)
        assert (state.total_samples or 0.0) / rate == pytest.approx(60 * minutes[job.model])


def test_a_small_run_goes_through(experiment: Experiment, tmp_path: Path) -> None:
    result = carry_out(experiment, tmp_path / "out", sweeps=["mixed-400.toml", "queue-400.toml"], smoke=True)
    numbers = [each for each in read_numbers(experiment.numbers) if each.table == "Table IV"]
    compared = compare(numbers, result)
    by_name = {each.name: each for each in compared}
    assert by_name["table4_ratio_queue_jct"].ours < 1
    assert by_name["table4_ratio_drop_sjs"].ours > 1
