"""Risk and reward (RRH)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import reject_impossible, samples_to_go
from pliant.tools.schedule.policies.multi_resource.policies import explained
from pliant.tools.schedule.policies.multi_resource.rules import Prospect, RiskReward
from pliant.tools.schedule.policies.multi_resource.view import Member, View
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    import numpy as np


class Rrh(Policy):
    """Risk and reward: a job is admitted, and runs, if it earns more than its running costs the others.

    Irwin, Grit, Chase: Balancing Risk and Reward in a Market-Based Task Service (HPDC 2004), as OASiS
    compares with it. A job earns its utility at the end that it would have if it ran now, on the size that it
    requested. It costs what the others lose if they end later by its duration, times the largest share of
    any resource that it takes. Jobs with the largest difference per second run, others are paused. A job
    that states no work is expected to be half done.

    - ``threshold``: a job is admitted if the difference is larger; else it is rejected.
    """

    name: ClassVar[str] = "rrh"
    knows: ClassVar[Knows] = "work"
    priority_means: ClassVar[str] = ""

    def __init__(self, *, threshold: float = 0.0) -> None:
        self.threshold = threshold
        self._admitted: set[str] = set()

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Turn away what arrives and does not pay, then choose who runs."""
        rejected = reject_impossible(snapshot)
        view = View(snapshot)
        members = view.members(
            [job for job in snapshot.jobs.values() if job.id not in rejected], requested=True
        )
        rule = RiskReward(view.servers, self.threshold)
        ahead = {member.job.id: _prospect(member, snapshot) for member in members}
        inside = [each for each in members if each.job.gpus or each.job.id in self._admitted]
        falling = [ahead[member.job.id] for member in inside if ahead[member.job.id].falls]
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
            if mine.falls:
                falling.append(mine)
        self._admitted = {member.job.id for member in inside}
        prospects = [ahead[member.job.id] for member in inside]
        holdings = rule.holdings([member.active for member in inside], prospects)
        decision = view.decision(inside, holdings, rejected)
        decision.admissions = said
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """Why a job waits."""
        return explained(snapshot, "earns more per second than its running costs others")

    def dump_state(self) -> Any:
        """The jobs that have been admitted."""
        return sorted(self._admitted)

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """The inverse of :meth:`dump_state`."""
        self._admitted = set(state)


def _prospect(member: Member, snapshot: Snapshot) -> Prospect:
    """In seconds."""
    job = member.job
    remaining = samples_to_go(job, snapshot, 1.0)
    rate = snapshot.speeds.rate(job, member.active.requested, member.gpu_type)
    since_s = snapshot.time_s - job.spec.submit_time
    utility = job.spec.utility
    falls = utility.shape == "step" or (utility.shape == "sigmoid" and utility.decay > 0)
    duration_s = max(1e-3, remaining / rate) if rate > 0 else 1e18
    return Prospect(duration_s, lambda delay_s: utility.worth(since_s + delay_s), falls)
