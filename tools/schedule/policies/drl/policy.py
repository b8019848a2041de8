"""DRL: one job at a time, as a trained network prefers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pliant.schemas.job import Elasticity
from pliant.schemas.text.wording import in_gpus
from pliant.tools.schedule.policies.common import minimum_alone, reject_impossible
from pliant.tools.schedule.policies.drl.actions import Action, Situation, best_by_job, odds
from pliant.tools.schedule.policies.drl.network import SHIPPED, Weights, read_network
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy, Target
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class Drl(Policy):
    """One job at a time, as a network prefers that was trained by policy gradient to keep mean JCT low.

    The baseline DRL of ONES (SC '21), section 4.1: the scheduler of Chic (IWQoS '19) for all-reduce. A small
    network scores every action: to start a job that waits on a size that fits, to double or halve one that
    runs, or to change nothing. The best one is taken, then the best of those that are left, until none is
    better than to change nothing. No job is preempted; one that runs changes at most once in ``settled_s``.

    Departures from the papers, which print neither network nor features: a score for each action instead of
    one output for each job, so that any number of jobs is seen; greedy where it does not learn. ``network``
    is a file as ``python -m experiments.ones.train`` writes it; without one, the weights that come with
    pliant, trained on jobs like those of ONES.
    """

    name: ClassVar[str] = "drl"
    knows: ClassVar[Knows] = "profile"
    elasticity: ClassVar[Elasticity] = "size"
    files: ClassVar[frozenset[str]] = frozenset({"network"})
    priority_means: ClassVar[str] = "jobs of higher priority are among those that the network looks at first"

    def __init__(self, settled_s: float = 60.0, network: str = "") -> None:
        if settled_s <= 0:
            raise ValueError("parameter settled_s: expected more than 0")
        self.settled_s = settled_s
        self.network = network
        self._own = read_network(Path(network)).weights if network else None

    @property
    def weights(self) -> Weights:
        """What the network has learnt."""
        return _shipped() if self._own is None else self._own

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """One action after another, until to change nothing is preferred."""
        decision = Decision({}, reject_impossible(snapshot, minimum_alone))
        seen = self._seen(snapshot, decision.rejected)
        while len(actions := seen.actions()) > 1 or (actions and actions[0].job is not None):
            chosen = self.choose(seen, actions, rng)
            if chosen.job is None:
                break
            decision.targets[chosen.job.id] = Target(chosen.gpus, chosen.gpu_type)
            seen.take(chosen)
        decision.ask_again_s = self._next_settled_s(snapshot)
        return decision

    def choose(self, seen: Situation, actions: list[Action], rng: np.random.Generator) -> Action:
        """The action that the network prefers; of equal ones the first."""
        del rng
        return actions[int(self.weights.preferences(seen.features(actions)).argmax())]

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """How likely the network would take each job next."""
        seen = self._seen(snapshot, {})
        actions = seen.actions()
        chances = odds(self.weights.preferences(seen.features(actions))) if actions else ()
        best = best_by_job(actions, chances)
        still = best.get(None, (0.0, 0))[0]
        return {job.id: _explanation(best.get(job.id), still, job.gpus) for job in snapshot.jobs.values()}

    def _seen(self, snapshot: Snapshot, rejected: dict[str, str]) -> Situation:
        waiting = [job for job in snapshot.arrivals() if not job.gpus and job.id not in rejected]
        return Situation(snapshot, waiting, self.settled_s)

    def _next_settled_s(self, snapshot: Snapshot) -> float | None:
        """When the next job that runs may change again, if one may not yet."""
        times = [job.changed_s + self.settled_s for job in snapshot.jobs.values() if job.gpus]
        return min((time_s for time_s in times if time_s > snapshot.time_s), default=None)


def _explanation(best: tuple[float, int] | None, still: float, held: int) -> Explanation:
    if best is None:
        words = "keeps its size" if held else "no size of it fits what is free"
        return Explanation(words)
    chance, gpus = best
    what = f"{in_gpus(gpus)} would be its next step, chosen with probability {chance:.2f}"
    return Explanation(f"{what}; no change with {still:.2f}", needs_gpus=None if held else gpus)


@cache
def _shipped() -> Weights:
    """The weights that come with pliant."""
    return read_network(SHIPPED).weights
