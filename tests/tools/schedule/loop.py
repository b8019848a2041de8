"""All of a workload under a policy: no rescale cost, a decision at every arrival and completion."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.predict_start import advance, in_order_of_arrival
from pliant.tools.schedule.session.session import Session
from tests.builders import session, sizes


@dataclass
class Played:
    session: Session
    end_s: dict[str, float] = field(default_factory=dict)
    sizes_at: dict[float, dict[str, int]] = field(default_factory=dict)
    """GPUs of every running job after the decision at each event."""


def play(policy: Policy, nodes: Cluster, jobs: Iterable[Job], throughput: Throughput | None = None) -> Played:
    held = session(policy, nodes, throughput)
    played, coming, now_s = Played(held), in_order_of_arrival(jobs), 0.0
    while (next_s := advance(held, now_s, coming)) is not None:
        now_s = next_s
        for job_id in held.ended:
            played.end_s.setdefault(job_id, now_s)
        held.decide(now_s)
        played.sizes_at[now_s] = sizes(held)
    return played
