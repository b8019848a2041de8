"""The populations of a policy, one a pool, and how long they evolve for a decision."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pliant.tools.schedule.policies.ones.genome import Genomes, Ints, counts_of
from pliant.tools.schedule.policies.ones.members import Members
from pliant.tools.schedule.policies.ones.population import Population
from pliant.tools.schedule.policies.ones.search import beginning, evolve

_LEAST_POPULATION: Final = 16
_BEGINNING: Final = 32
"""Generations of a population that begins at random."""
_STILL: Final = 12
"""A search without a time budget ends after that number of generations in a row with the same best genome."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a search goes: parameters of the policy."""

    population: int
    generations: int
    time_budget_s: float | None
    theta: float


class Evolution:
    """Populations that go on from decision to decision."""

    def __init__(self, effort: Effort) -> None:
        self.generations = 0
        """Made for the last decision."""
        self.ahead = False
        """One generation a decision is enough."""
        self._effort = effort
        self._populations: dict[str, Population] = {}

    def best(self, members: Members, rng: np.random.Generator, searches: int) -> Ints:
        """Go on with the population of a pool; returns the GPUs of each job in its best genome.

        :param searches: how many share the time of this decision.
        """
        jobs, kind = [job.id for job in members.jobs], members.pool.gpu_type
        last = self._populations.get(kind)
        if last is None:
            genomes = beginning(members.problem, rng, self._count(members))
        else:
            genomes = last.of(jobs, members.problem.gpus)
        genomes = np.concatenate([members.held(), genomes])
        least = self._effort.generations if last else max(self._effort.generations, _BEGINNING)
        genomes = self._searched(members, genomes, rng, least, self._seconds / searches)
        self._populations[kind] = Population(jobs, genomes)
        return _first(genomes, len(jobs))

    def alone(self, members: Members, rng: np.random.Generator) -> Ints:
        """The GPUs of each job in the best genome of a search that nothing is kept of."""
        genomes = beginning(members.problem, rng, self._count(members))
        least = max(self._effort.generations, _BEGINNING)
        return _first(self._searched(members, genomes, rng, least), len(members.jobs))

    def dump(self) -> dict[str, Any]:
        """As JSON values."""
        return {kind: each.dump() for kind, each in sorted(self._populations.items())}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`dump`."""
        self._populations = {kind: Population.load(each) for kind, each in state.items()}

    def _searched(
        self, members: Members, genomes: Genomes, rng: np.random.Generator, least: int, seconds: float = 0.0
    ) -> Genomes:
        """Generations up to their number; where there is time to spend, until that is spent."""
        until_s = time.monotonic() + seconds
        least = 1 if self.ahead or seconds else least
        made, still, count, theta = 0, 0, self._count(members), self._effort.theta
        while (made < least and still < _STILL) or (seconds and time.monotonic() < until_s):
            best = genomes[0]
            genomes = evolve(members.problem, genomes, rng, count, theta)
            made += 1
            still = still + 1 if np.array_equal(genomes[0], best) else 0
        self.generations += made
        return genomes

    @property
    def _seconds(self) -> float:
        return 0.0 if self.ahead else self._effort.time_budget_s or 0.0

    def _count(self, members: Members) -> int:
        return min(self._effort.population, max(_LEAST_POPULATION, members.problem.gpus))


def _first(genomes: Genomes, jobs: int) -> Ints:
    return np.asarray(counts_of(genomes[:1], jobs)[0])
