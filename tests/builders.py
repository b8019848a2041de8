"""Small builders, so that tests name only what they are about."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.events import Preempted, Started
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput, Placement, Throughput
from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.schedule.jobs import NodeGpus, gpus_of
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.allocations import AllocationEvent
from pliant.tools.schedule.session.session import Session


def job(
    job_id: str = "a",
    *,
    at: float = 0.0,
    gpus: int = 1,
    low: int | None = None,
    high: int | None = None,
    each: int = 1,
    work: Mapping[str, Any] | None = None,
    gpu_seconds: float | None = None,
    elastic: str | None = None,
    model: str = "linear",
    batch: int | Mapping[str, Any] | None = None,
    **more: Any,
) -> Job:
    """A job; elastic by size where limits are given or ``elastic`` says so, rigid otherwise.

    :param each: GPUs of a replica.
    """
    if gpu_seconds is not None:
        work = {"gpu_seconds": gpu_seconds}
    resizes = low is not None or high is not None
    record: dict[str, Any] = {
        "id": job_id,
        "submit_time": at,
        "model": model,
        "gpus": {"requested": gpus, "min": low, "max": high, "per_replica": each},
        "elastic": elastic or ("size" if resizes else "none"),
        "work": work,
        "batch": {"size": batch} if isinstance(batch, int) else dict(batch or {"size": 960}),
        **more,
    }
    return Job.model_validate(record)


def cluster(*node_gpus: int, gpu_type: str = "gpu", slots: str = "gpu") -> Cluster:
    """A cluster with the given GPUs per node: ``cluster(4, 4)`` has nodes n0 and n1."""
    nodes = [{"name": f"n{i}", "gpus": g, "gpu_type": gpu_type} for i, g in enumerate(node_gpus)]
    return Cluster.model_validate({"nodes": tuple(nodes), "slots": slots})


def mixed_cluster(**gpus: tuple[int, ...]) -> Cluster:
    """A cluster of several GPU types: ``mixed_cluster(t4=(4, 4), a100=(8,))``."""
    nodes = [
        {"name": f"{kind}-{i}", "gpus": count, "gpu_type": kind}
        for kind, counts in gpus.items()
        for i, count in enumerate(counts)
    ]
    return Cluster.model_validate({"nodes": tuple(nodes)})


FREE_CHANGES: Final = SimulatedCluster(start_cost=FREE, rescale_cost=FREE)
"""A world of replays in which starts, resumes and changes cost nothing."""


def curves(**by_model: Mapping[int, float]) -> CurveThroughput:
    """Throughput from scaling curves; models without one scale linearly from 1 sample per GPU-second."""
    return CurveThroughput(by_model)


class TimedSteps(CurveThroughput):
    """Seconds of a step by (model, GPU type, placement, global batch), None where infeasible."""

    def __init__(self, seconds: Callable[[str, str, Placement, int], float | None]) -> None:
        super().__init__()
        self._seconds = seconds

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        return self._seconds(model, gpu_type, placement, global_batch)


def session(policy: Policy, nodes: Cluster, throughput: Throughput | None = None) -> Session:
    return Session(policy, nodes, throughput or CurveThroughput())


def opened(policy: Policy, nodes: Cluster, *jobs: Job, throughput: Throughput | None = None) -> Session:
    """A policy in use on a cluster to which these jobs have come; nothing is decided yet."""
    held = session(policy, nodes, throughput)
    for each in jobs:
        held.submit(each, each.submit_time)
    return held


def allocated(
    job_id: str,
    placement: NodeGpus = (),
    batch: int | None = None,
    servers: NodeGpus = (),
    beside: str | None = None,
) -> AllocationEvent:
    """The event by which a job holds these GPUs, or none."""
    if not placement:
        return Preempted(0.0, job_id, 0, (), batch)
    return Started(0.0, job_id, gpus_of(placement), placement, batch, servers=servers, beside=beside)


def decided(held: Session, time_s: float) -> dict[str, int]:
    """GPUs of every job that holds some, after a decision."""
    held.decide(time_s)
    return sizes(held)


def sizes(held: Session) -> dict[str, int]:
    return {job_id: state.gpus for job_id, state in sorted(held.jobs.items()) if state.gpus}
