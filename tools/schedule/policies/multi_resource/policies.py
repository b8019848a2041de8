"""The policies drf, dorm and fifo-demands."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pliant.schemas.errors import UsageError
from pliant.schemas.text.wording import in_gpus
from pliant.tools.schedule.policies.common import minimum_alone, reject_impossible
from pliant.tools.schedule.policies.multi_resource.dorm import Dorm as DormRule
from pliant.tools.schedule.policies.multi_resource.rules import by_arrival, by_dominant_share
from pliant.tools.schedule.policies.multi_resource.view import View
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class FifoDemands(Policy):
    """First come, first served over all that workers demand: no job passes one that lacks CPUs or memory.

    As OASiS compares with it: a job starts when all workers that it requested and their parameter servers fit
    beside those that run, by slots, CPUs, memory, bandwidth and what else nodes state. It keeps them to its
    end. ``fifo`` looks at GPUs alone: where nodes lack something else for the first in line, the next one
    passes it. Here all wait behind it.

    A job that does not fit the empty nodes that are up is passed. With several GPU types a waiting job takes
    part on the one with the smallest part promised.
    """

    name: ClassVar[str] = "fifo-demands"
    knows: ClassVar[Knows] = "nothing"
    priority_means: ClassVar[str] = ""

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Start those that are first in line while they fit."""
        rejected = reject_impossible(snapshot)
        view = View(snapshot)
        members = view.members(
            [job for job in snapshot.jobs.values() if job.id not in rejected], requested=True
        )
        holdings = by_arrival([member.active for member in members], view.servers)
        return view.decision(members, holdings, rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """What the first in line lacks, and who waits behind it."""
        return explained(snapshot, "was first in line when all that it requested fitted")


class Drf(Policy):
    """Dominant resource fairness: the next worker goes to the job whose largest share is the smallest.

    Ghodsi et al., Dominant Resource Fairness (NSDI 2011), as OASiS compares with it: at every change all
    workers are dealt out again, one by one. A share is the largest part of any resource of the cluster
    (slots, CPUs, memory, bandwidth, those of nodes for parameter servers among them) that the job's workers
    and parameter servers take. A job gets its smallest size at once; one that cannot be resized gets what it
    requested, or nothing. Ties go by arrival.

    With several GPU types a waiting job takes part on the one with the smallest part promised.
    """

    name: ClassVar[str] = "drf"
    knows: ClassVar[Knows] = "nothing"
    priority_means: ClassVar[str] = ""
    elasticity = "size"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Deal all workers out again."""
        rejected = reject_impossible(snapshot, minimum_alone)
        view = View(snapshot)
        members = view.members([job for job in snapshot.jobs.values() if job.id not in rejected])
        holdings = by_dominant_share([member.active for member in members], view.servers)
        return view.decision(members, holdings, rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """Shares, and what a waiting job lacks."""
        return explained(snapshot, "its share of the resource that it uses most is levelled with the others'")


class Dorm(Policy):
    """Dorm: the most utilization that limits of unfairness and of adjustments allow, as a MILP.

    Sun et al., Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned Approach
    (SMARTCOMP 2017), as OASiS compares with it: at every change the numbers of workers are decided again.

    - ``fairness``: the sum over the jobs of how far their dominant share is from that under ``drf``, halved.
    - ``adjusted``: the part of the running jobs that may be resized at a time.

    Departures: the MILP counts workers in the whole cluster, and they are placed afterwards; it is solved to
    2 % at its root, so that a decision does not depend on the machine. A waiting job to which ``drf`` would
    give nothing waits.
    """

    name: ClassVar[str] = "dorm"
    knows: ClassVar[Knows] = "nothing"
    priority_means: ClassVar[str] = ""
    elasticity = "size"

    def __init__(self, *, fairness: float = 0.1, adjusted: float = 0.1) -> None:
        for name, value in (("fairness", fairness), ("adjusted", adjusted)):
            if not 0 <= value <= 1:
                raise UsageError(f'policy "{self.name}": {name} {value:g} is not from 0 to 1')
        self.fairness = fairness
        self.adjusted = adjusted

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Solve the MILP for what is there now."""
        rejected = reject_impossible(snapshot, minimum_alone)
        view = View(snapshot)
        members = view.members([job for job in snapshot.jobs.values() if job.id not in rejected])
        rule = DormRule(view.servers, self.fairness, self.adjusted)
        return view.decision(members, rule.holdings([member.active for member in members]), rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """Why a job waits."""
        return explained(
            snapshot, "its part of the best use of the cluster that is fair and adjusts few jobs"
        )


def explained(snapshot: Snapshot, running: str) -> dict[str, Explanation]:
    """One clause for jobs that run, and what the others wait for."""
    return {
        job.id: Explanation(running)
        if job.gpus
        else Explanation(
            f"waits for {in_gpus(job.spec.min_gpus)} and what else its workers need", job.spec.min_gpus
        )
        for job in snapshot.jobs.values()
    }
