"""Sessions after the first decision, and what follows when more jobs come."""

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import decided, opened


def started(policy: Policy, nodes: Cluster, *jobs: Job, throughput: Throughput | None = None) -> Session:
    """These jobs have come, and it has been decided when the last of them came, or at 0."""
    held = opened(policy, nodes, *jobs, throughput=throughput)
    held.decide(max((each.submit_time for each in jobs), default=0.0))
    return held


def joined(held: Session, time_s: float, *jobs: Job) -> dict[str, int]:
    """GPUs of every job that holds some, once these have come and a decision was made."""
    for each in jobs:
        held.submit(each, time_s)
    return decided(held, time_s)
