"""The policies over several resources: fifo-demands, drf, dorm and rrh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pliant.schemas.errors import UsageError
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import minimum_alone, reject_impossible, samples_to_go
from pliant.tools.schedule.policies.multi_resource.dorm import DormRule
from pliant.tools.schedule.policies.multi_resource.rules import (
    Losses,
    Prospect,
    RiskReward,
    ServerView,
    TypedJob,
    WorthStep,
    by_arrival,
    by_dominant_share,
)
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Traits
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class FifoDemands(Policy):
    """First come, first served over all that workers demand: no job passes one that lacks CPUs or memory.

    As OASiS compares with it: a job starts when all workers that it requested and their parameter
    servers fit, by slots, CPUs, memory, bandwidth and what else nodes state. Under ``fifo``, which looks
    at GPUs alone, others pass a job that lacks something else; here all wait behind it. A job that does
    not fit the empty nodes that are up is passed. With several GPU types a waiting job takes part on the
    one with the smallest part promised.
    """

    name: ClassVar[str] = "fifo-demands"
    traits: ClassVar[Traits] = Traits(
        knows="nothing",
        priority_means="",
    )

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot)
        view = ServerView(snapshot)
        members = view.members(
            [job for job in snapshot.jobs.values() if job.id not in rejected], requested=True
        )
        holdings = by_arrival([member.active for member in members], view.servers)
        return view.decision(members, holdings, rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return explained(snapshot, "was first in line when all that it requested fitted")


class Drf(Policy):
    """Dominant resource fairness: the next worker goes to the job whose largest share is the smallest.

    Ghodsi et al., Dominant Resource Fairness (NSDI 2011), as OASiS compares with it: at every change all
    workers are dealt out again, one by one. A share is the largest part of any resource of the cluster
    (slots, CPUs, memory, bandwidth) that the job's workers and parameter servers take. A job gets its
    smallest size at once; one that cannot be resized gets what it requested, or nothing. Ties go by
    arrival. With several GPU types a waiting job takes part on the one with the smallest part promised.
    """

    name: ClassVar[str] = "drf"
    traits: ClassVar[Traits] = Traits(
        knows="nothing",
        priority_means="",
    )
    elasticity = "size"

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot, minimum_alone)
        view = ServerView(snapshot)
        members = view.members([job for job in snapshot.jobs.values() if job.id not in rejected])
        holdings = by_dominant_share([member.active for member in members], view.servers)
        return view.decision(members, holdings, rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return explained(snapshot, "its share of the resource that it uses most is levelled with the others'")


class Dorm(Policy):
    """Dorm: the most utilization that limits of unfairness and of adjustments allow, as a MILP.

    Sun et al., Towards Distributed Machine Learning in Shared Clusters: A Dynamically-Partitioned
    Approach (SMARTCOMP 2017), as OASiS compares with it. Departures: the MILP counts workers in the
    whole cluster, and they are placed afterwards; it is solved to 2 % at its root, so that a decision
    does not depend on the machine. A waiting job to which ``drf`` would give nothing waits.

    - ``fairness``: the sum over the jobs of how far their dominant share is from that under ``drf``,
      halved.
    - ``adjusted``: the part of the running jobs that may be resized at a time.
    """

    name: ClassVar[str] = "dorm"
    traits: ClassVar[Traits] = Traits(
        knows="nothing",
        priority_means="",
    )
    elasticity = "size"

    def __init__(self, *, fairness: float = 0.1, adjusted: float = 0.1) -> None:
        for name, value in (("fairness", fairness), ("adjusted", adjusted)):
            if not 0 <= value <= 1:
                raise UsageError(f'policy "{self.name}": {name} {value:g} is not from 0 to 1')
        self.fairness = fairness
        self.adjusted = adjusted

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot, minimum_alone)
        view = ServerView(snapshot)
        members = view.members([job for job in snapshot.jobs.values() if job.id not in rejected])
        rule = DormRule(view.servers, self.fairness, self.adjusted)
        return view.decision(members, rule.holdings([member.active for member in members]), rejected)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return explained(
            snapshot, "its part of the best use of the cluster that is fair and adjusts few jobs"
        )


def explained(snapshot: Snapshot, running: str) -> dict[str, Explanation]:
    return {
        job.id: Explanation(running)
        if job.gpus
        else Explanation(f"waits for {in_gpus(job.min_gpus)} and what else its workers need", job.min_gpus)
        for job in snapshot.jobs.values()
    }


class Rrh(Policy):
    """Risk and reward: a job is admitted, and runs, if it earns more than its running costs the others.

    Irwin, Grit, Chase: Balancing Risk and Reward in a Market-Based Task Service (HPDC 2004), as OASiS
    compares with it. A job earns its utility at the end that it would have if it ran now, on the size
    that it requested. It costs what the others lose if they end later by its duration, times the largest
    share of any resource that it takes. Jobs with the largest difference per second run, others are
    paused. A job of unknown work is expected to be half done.

    - ``threshold``: a job is admitted if the difference is larger; else it is rejected.
    """

    name: ClassVar[str] = "rrh"
    traits: ClassVar[Traits] = Traits(
        knows="work",
        priority_means="",
        uses_deadlines=True,
    )

    def __init__(self, *, threshold: float = 0.0) -> None:
        self.threshold = threshold
        self._admitted: set[str] = set()

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        rejected = reject_impossible(snapshot)
        view = ServerView(snapshot)
        members = view.members(
            [job for job in snapshot.jobs.values() if job.id not in rejected], requested=True
        )
        rule = RiskReward(view.servers, self.threshold)
        ahead = {member.job.id: _prospect(member, snapshot) for member in members}
        inside = [each for each in members if each.job.gpus or each.job.id in self._admitted]
        falling = Losses(ahead[member.job.id] for member in inside)
        taken = {member.job.id for member in inside}
        said: dict[str, dict[str, Any]] = {}
        for member in members:
            if member.job.id in taken:
                continue
            mine = ahead[member.job.id]
            gain = rule.gain(member.active, mine, falling)
            said[member.job.id] = {"admitted": gain > self.threshold, "payoff": float(f"{gain:.6g}")}
            if gain <= self.threshold:
                rejected[member.job.id] = "costs other jobs more by delay than it earns"
                continue
            inside.append(member)
            falling.add(mine)
        self._admitted = {member.job.id for member in inside}
        prospects = [ahead[member.job.id] for member in inside]
        holdings = rule.holdings([member.active for member in inside], prospects)
        decision = view.decision(inside, holdings, rejected)
        decision.admissions = said
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        return explained(snapshot, "earns more per second than its running costs others")

    def dump_state(self) -> Any:
        return sorted(self._admitted)

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._admitted = set(state)


def _prospect(member: TypedJob, snapshot: Snapshot) -> Prospect:
    """In seconds."""
    job = member.job
    remaining = samples_to_go(job, snapshot, 1.0)
    rate = snapshot.speeds.rate(job, job.requested, member.gpu_type)
    since_s = snapshot.time_s - job.spec.submit_time
    utility = job.spec.utility
    falls = utility.shape == "step" or (utility.shape == "sigmoid" and utility.decay > 0)
    duration_s = max(1e-3, remaining / rate) if rate > 0 else 1e18
    step = WorthStep(utility.value, since_s, utility.target or 0.0) if utility.shape == "step" else None
    return Prospect(duration_s, lambda delay_s: utility.worth(since_s + delay_s), falls, step)
