"""A tiny exact event loop for policy tests: no rescale cost, a decision at every arrival and completion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import session, sizes


@dataclass
class Played:
    """What happened."""

    session: Session
    end_s: dict[str, float] = field(default_factory=dict)
    sizes_at: dict[float, dict[str, int]] = field(default_factory=dict)
    """GPUs of every running job after the decision at each event."""

    @property
    def longest_busy_s(self) -> float:
        """The longest time without a free GPU."""
        times = [*self.sizes_at, max(self.end_s.values(), default=0.0)]
        longest = lasted = 0.0
        for start, end in pairwise(times):
            full = sum(self.sizes_at[start].values()) == self.session.up_gpus
            lasted = lasted + end - start if full else 0.0
            longest = max(longest, lasted)
        return longest


def play(policy: Policy, nodes: Cluster, jobs: Iterable[Job], throughput: Throughput | None = None) -> Played:
    """All jobs from submission to completion."""
    held = session(policy, nodes, throughput)
    played = Played(held)
    waiting = sorted(jobs, key=lambda job: (job.submit_time, job.id), reverse=True)
    while waiting or held.jobs:
        now_s = _next_event_s(held, waiting)
        for job_id in sorted(i for i, end_s in _ends(held).items() if end_s <= now_s):
            held.end(job_id, now_s)
            played.end_s[job_id] = now_s
        while waiting and waiting[-1].submit_time <= now_s:
            held.submit(waiting.pop(), now_s)
        held.decide(now_s)
        played.sizes_at[now_s] = sizes(held)
    return played


def _next_event_s(held: Session, waiting: list[Job]) -> float:
    arrivals = [waiting[-1].submit_time] if waiting else []
    return min([*arrivals, *_ends(held).values()])


def _ends(held: Session) -> dict[str, float]:
    ends = {job_id: state.finish_time_s() for job_id, state in held.jobs.items()}
    return {job_id: end_s for job_id, end_s in ends.items() if end_s is not None}
