"""The reproduction of the ONES paper: its model, its traces, and what the policy drl learns from them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.harness.plots import write_plots
from experiments.harness.published import compare, read_numbers
from experiments.harness.replays import carry_out
from experiments.harness.significance import paired_tests
from experiments.harness.spec import Experiment, load
from experiments.ones.learning import Rollout, Step, costs, gradient, returns
from experiments.ones.scenes import MAIN, PAPER, ROWS, TAUGHT
from experiments.ones.train import RECIPE, Recipe, train
from experiments.ones.workloads import jobs_of, published
from pliant.schemas.errors import BadInputError
from pliant.schemas.job import EpochWork
from pliant.tools.replay.sweep_recipe import read_sweep
from pliant.tools.schedule.policies.drl import FEATURES, SHIPPED, Weights, read_network

HEAD = "time,model,task,epoch_size,patience,batch_size,lr,max_lr,target_acc,num_gpus"


def test_a_published_trace_is_read_with_its_kinds(tmp_path: Path) -> None:
    path = tmp_path / "trace_1.csv"
    path.write_text(
        f"{HEAD}\n7,bert,cola,6000,5,16,5e-6,2e-5,0.8,2\n9,resnet50,imagenet,12000,10,32,5e-4,0.008,0.55,16\n"
    )
    bert, resnet = published(path)
    assert (bert.kind.name, bert.samples, bert.time_s) == ("bert-cola", 6000, 7.0)
    asked, stated = (
        list(jobs_of([bert, resnet], 0, spread=0.0, shorter=None, most_requested=most)) for most in (4, 16)
    )
    assert [job.gpus.requested for job in asked] == [2, 4]
    assert [job.gpus.requested for job in stated] == [2, 16]
    assert [job.batch.size for job in asked] == [32, 128]
    recorded, whole = (list(jobs_of([bert, resnet], 0, batch_of=gpus)) for gpus in (16, 1))
    assert [job.batch.size for job in recorded] == [32, 512]
    assert [job.batch.size for job in whole] == [16, 32]
    assert asked[0].work == EpochWork(epochs=5.0, dataset_size=6000)
    with pytest.raises(BadInputError, match="PLIANT_DATA"):
        published(tmp_path / "none.csv")
    path.write_text(f"{HEAD}\n7,gpt,cola,6000,5,16,5e-6,2e-5,0.8,2\n")
    with pytest.raises(BadInputError, match="no speed is published of gpt-cola"):
        published(path)


# Learning.


def test_costs_and_advantages_by_hand() -> None:
    rollout = Rollout([(0.0, 10.0), (5.0, 20.0)], [])
    assert costs(rollout, 5, 1e9) == pytest.approx([25.0, 20.0, 10.0, 5.0, 0.0])
    assert costs(rollout, 5, 5.0)[2:4] == pytest.approx([5.0 + 5.0 / np.e, 5.0]), "shortsighted"
    step = Step(0.0, np.zeros((2, len(FEATURES))), 0)
    better, worse = returns([Rollout([(0.0, 50.0)], [step]), Rollout([(0.0, 100.0)], [step])], 1e9)
    assert (better[0], worse[0]) == pytest.approx((1.0, -1.0), rel=1e-6)


def test_the_gradient_is_the_slope_of_what_is_learnt() -> None:
    rng = np.random.default_rng(5)
    weights = Weights.drawn(3, rng)
    steps = [Step(0.0, rng.normal(size=(n, len(FEATURES))), n - 1) for n in (2, 4, 3)]
    advantages = np.array([1.0, -0.5, 2.0])

    def gain(changed: Weights) -> float:
        total = 0.0
        for step, advantage in zip(steps, advantages, strict=True):
            scores = changed.preferences(step.features)
            chances = np.exp(scores) / np.exp(scores).sum()
            total += advantage * np.log(chances[step.taken]) - 0.1 * float(chances @ np.log(chances))
        return total / len(steps)

    slope = gradient(weights, [Rollout([(0.0, 1.0)], steps)], [advantages], 0.1)
    for name, place in (("hidden", (0, 0)), ("hidden", (7, 2)), ("hidden", (19, 1)), ("out", (1,))):
        bumped = getattr(weights, name).copy()
        bumped[place] += 1e-6
        raised = gain(replace(weights, **{name: bumped}))
        assert getattr(slope, name)[place] == pytest.approx((raised - gain(weights)) / 1e-6, abs=1e-5)


SMALL = Recipe.read(RECIPE).model_copy(
    update={"iterations": 2, "rollouts": 2, "jobs": 4, "gpus": 8, "units": 4}
)


def test_equal_recipes_and_seeds_learn_equal_weights() -> None:
    assert train(SMALL, 1).digest == train(SMALL, 1).digest != train(SMALL, 2).digest


def test_both_networks_were_trained_by_committed_recipes() -> None:
    other = RECIPE.with_name("train-published.toml")
    named = "--recipe experiments/ones/train-published.toml "
    for path, recipe, option in ((SHIPPED, RECIPE, ""), (TAUGHT, other, named)):
        network = read_network(path)
        assert network.recipe == Recipe.read(recipe).model_dump(mode="json")
        assert network.command == f"python -m experiments.ones.train {option}--seed {network.seed}"


# The experiment.


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return load("ones")


def test_a_small_run_goes_all_the_way_to_its_figures(experiment: Experiment, tmp_path: Path) -> None:
    wanted = [name for scene in (MAIN, ROWS[0]) for name, _ in scene.sweeps()]
    outcomes = carry_out(experiment, tmp_path / "out", sweeps=wanted, smoke=True)
    assert {name.split("-")[2] for name in outcomes} == set(PAPER)
    counts = {each.metrics["jobs_submitted"] for each in outcomes.values()}
    assert counts == {11}, "of twelve jobs the statistics leave out one"
    numbers = [each for each in read_numbers(experiment.numbers) if each.table == "Figure 15"]
    assert {each.name for each in compare(numbers, outcomes)} == {each.name for each in numbers}
    main = replace(experiment, tests=experiment.tests[:3])
    assert len(paired_tests(main, outcomes)) == 9, "three schedulers on three seeds"
    assert len(experiment.tests) == 12, "of the base, and of the rows that figure 17 has and ones is in"
    write_plots(experiment, outcomes, tmp_path / "figures")
    assert len(list((tmp_path / "figures").glob("figure15?.svg"))) == 6


def test_every_scene_is_a_sweep_with_its_inputs(experiment: Experiment, tmp_path: Path) -> None:
    experiment.prepare(tmp_path, True)
    for name in experiment.sweeps:
        sweep = read_sweep(str(tmp_path / name))
        assert sweep.predictor is None or Path(sweep.predictor).is_file()
        for trace in sweep.traces:
            assert all(Path(each).is_file() for each in (trace.jobs or "", trace.profile or ""))
            assert trace.convergence is None or Path(trace.convergence).is_file()
        assert all(Path(each.path).is_file() for each in sweep.clusters)
