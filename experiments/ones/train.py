"""Train the network of the policy ``drl`` by policy gradient inside replays.

``python -m experiments.ones.train [--recipe FILE] [--seed N] [-o FILE]`` replays traces drawn like the
published one, none of which is replayed by the experiment. Equal recipes and seeds give equal bytes.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
from pydantic import ValidationError

from experiments.ones.learning import Adam, Rollout, Step, gradient, returns
from experiments.ones.model import profile_of
from experiments.ones.workloads import SHORTER, cluster_of, drawn, jobs_of
from pliant.schemas.errors import BadInputError, PliantError
from pliant.schemas.file_io.files import read_bytes
from pliant.schemas.file_io.record import NonNegativeFloat, PositiveFloat, PositiveInt, Record, problems_of
from pliant.schemas.job import Job
from pliant.tools.profile.throughput_model import ThroughputBySize
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.synthetic_recipe import parse_table
from pliant.tools.schedule.policies.drl import SHIPPED, Action, Drl, Situation, Weights, odds, write_network
from pliant.tools.schedule.session.session import Session

RECIPE: Final = Path(__file__).with_name("train.toml")
SEED: Final = 0


class Recipe(Record):
    """What a training is made from, beside its seed."""

    iterations: PositiveInt
    rollouts: PositiveInt
    """Replays of each trace."""
    jobs: PositiveInt
    gpus: PositiveInt
    arrivals_s: tuple[PositiveFloat, PositiveFloat]
    """Mean seconds between arrivals of a trace, from and to."""
    units: PositiveInt
    """Of the hidden layer."""
    learning_rate: PositiveFloat
    entropy: NonNegativeFloat
    """What a chance of trying something else is worth, beside normalised advantages."""
    horizon_s: PositiveFloat
    """What follows an action weighs e times less after this many seconds."""
    work: Literal["recorded", "published"]
    """Of jobs: recorded epochs, or what follows from published execution times."""
    start_cost_s: NonNegativeFloat
    rescale_cost_s: NonNegativeFloat

    @classmethod
    def read(cls, path: Path) -> Self:
        """The recipe of a TOML file.

        :raises BadInputError: with every problem of the file.
        """
        fields = parse_table(read_bytes(path), str(path))
        try:
            return cls.model_validate({**fields, "arrivals_s": tuple(fields.get("arrivals_s", ()))})
        except ValidationError as error:
            raise BadInputError(problems_of(error, str(path))) from error


class Learner(Drl):
    """The policy while it learns: it tries actions as often as the network prefers them, and remembers."""

    def __init__(self, weights: Weights, rng: np.random.Generator) -> None:
        super().__init__()
        self._learnt = weights
        self._draws = rng
        self.steps: list[Step] = []

    @property
    def weights(self) -> Weights:
        """As learnt until now."""
        return self._learnt

    def choose(self, seen: Situation, actions: list[Action], rng: np.random.Generator) -> Action:
        """A random action."""
        del rng
        features = seen.features(actions)
        chances = odds(self.weights.preferences(features))
        place = int(np.searchsorted(np.cumsum(chances), self._draws.random()))
        taken = min(place, len(actions) - 1)
        self.steps.append(Step(seen.time_s, features, taken))
        return actions[taken]


@dataclass(frozen=True, slots=True)
class World:
    """Where replays happen, made once."""

    recipe: Recipe
    throughput: ThroughputBySize

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """The world of a recipe."""
        return cls(recipe, ThroughputBySize(profile_of()))

    def play(self, policy: Drl, jobs: list[Job]) -> list[tuple[float, float]]:
        """Arrival and end of each job, seconds."""
        session = Session(policy, cluster_of(self.recipe.gpus), self.throughput)
        costs = Cost(self.recipe.start_cost_s), Cost(self.recipe.rescale_cost_s)
        engine = Engine(session, jobs, SimulatedCluster(*costs))
        engine.run()
        arrived = {job.id: job.submit_time for job in jobs}
        ends = [(event.job, event.time) for event in engine.log.events() if event.event == "finish"]
        return [(arrived[job_id], end_s) for job_id, end_s in ends if job_id is not None]


def train(recipe: Recipe, seed: int, tell: bool = False) -> Weights:
    """The weights after all iterations."""
    rng = np.random.default_rng([seed, 1])
    weights, world = Weights.drawn(recipe.units, rng), World.of(recipe)
    adam = Adam(recipe.learning_rate)
    for iteration in range(recipe.iterations):
        between_s = float(rng.uniform(*recipe.arrivals_s))
        arrivals = drawn(recipe.jobs, 1_000_000 * (seed + 1) + iteration, between_s)
        shorter = None if recipe.work == "recorded" else SHORTER
        jobs = list(jobs_of(arrivals, iteration, shorter=shorter))
        rollouts = []
        for number in range(recipe.rollouts):
            learner = Learner(weights, np.random.default_rng([seed, 2, iteration, number]))
            rollouts.append(Rollout(world.play(learner, jobs), learner.steps))
        weights = adam.step(
            weights, gradient(weights, rollouts, returns(rollouts, recipe.horizon_s), recipe.entropy)
        )
        if tell:
            mean_s = np.mean([rollout.mean_jct_s for rollout in rollouts])
            print(f"train: iteration {iteration + 1}: mean JCT {mean_s:.0f} s", file=sys.stderr, flush=True)
    return weights


def main(arguments: list[str]) -> int:
    """Train and write; the exit code of what went wrong."""
    parser = argparse.ArgumentParser("python -m experiments.ones.train", description=__doc__)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED, help="default: what comes with pliant")
    wanted = parser.parse_args(arguments)
    try:
        recipe = Recipe.read(wanted.recipe)
        weights = train(recipe, wanted.seed, tell=True)
    except PliantError as error:
        print(f"train: {error}", file=sys.stderr)
        return error.exit_code
    other = "" if wanted.recipe == RECIPE else f"--recipe {wanted.recipe} "
    command = f"python -m experiments.ones.train {other}--seed {wanted.seed}"
    write_network(wanted.output, weights, command, recipe.model_dump(mode="json"), wanted.seed)
    print(f"train: {weights.digest[:12]} written to {wanted.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
