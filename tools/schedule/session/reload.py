"""The session that goes on when a living cluster is changed.

Jobs keep what they hold, have done and wait for. The policy begins again and sees the active jobs arrive, as
in a run that is taken up without its state.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence

from pliant.schemas.cluster import Cluster, Owner
from pliant.tools.profile.throughput import Throughput
from pliant.tools.schedule.jobs import JobState, NodeState
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.cluster import NodesState
from pliant.tools.schedule.session.quarantine import QuarantineState, node_of
from pliant.tools.schedule.session.session import Session


def session_on(
    before: Session,
    cluster: Cluster,
    time_s: float | None = None,
    throughput: Throughput | None = None,
    policy: Policy | None = None,
) -> Session:
    """A session like another one, on a changed cluster; the other one stays as it is.

    :param cluster: it has all nodes on which jobs hold GPUs, with as many GPUs as before.
    :param time_s: None: the present time of the session.
    :param throughput: None: as before.
    :param policy: a fresh one; None: that of the session, which must not have been asked yet.
    :raises KeyError: a node in use is missing.
    :raises ValueError: a node in use has too few GPUs.
    """
    nodes, host = before.cluster, before.policy_host
    new = Session(
        policy or before.policy,
        cluster,
        throughput or nodes.speeds.throughput,
        seed=before.seed,
        forecast=host.forecast,
        demand=host.demand,
        preemptible=cluster.preemptible or "stated",
    )
    now_s = nodes.at(before.changes.now_s if time_s is None else time_s)
    new.changes.state.now_s = new.changes.state.last_s = now_s
    old = {node.name: node for node in nodes.nodes}
    sizes = {name: node.made_gpus for name, node in old.items()}
    same = {node.name for node in new.cluster.nodes if sizes.get(node.name) == node.made_gpus}
    new.quarantine.restore(_quarantine(before.quarantine.state, same))
    new.cluster.restore(_nodes(new.cluster.nodes, old, nodes.state))
    if new.learned is not None and before.learned is not None:
        new.learned.restore(copy.deepcopy(before.learned.state))
    hidden = copy.deepcopy(before.hidden)
    hidden.reserved.clear()  # the reservations of the new cluster say so at its first decision
    new.admission.restore(hidden)
    new.book.restore(copy.copy(before.book.state))
    new.book.ended = before.book.ended
    new.jobs.update((job.id, _job(new, job)) for job in before.jobs.values())
    for job in new.jobs.values():
        new.cluster.free.take(new.maintenance.counted(job))
    if new.usage is not None:
        if before.usage is not None:
            new.usage.gpu_s = before.usage.until(now_s)
        new.usage.since_s = new.usage.changed_s = now_s
        new.usage.held = _held(new)
    for job in new.in_play.values():
        new.changes.note("arrived", now_s, job)
    new.admission.renew_limits(now_s)
    return new


def _job(new: Session, old: JobState) -> JobState:
    """A copy of a job's state; what follows from the cluster is computed again where it can be."""
    job = old.copied(new.book.state_as(old.spec))  # the caller holds one that makes no sense there
    job.is_pinned = new.pins(job.spec)
    if job.gpus and job.requested:
        job.gpu_type = new.cluster.speeds.gpu_type_of(job.placement)
    return job


def _quarantine(state: QuarantineState, same: Container[str]) -> QuarantineState:
    return QuarantineState(
        {slot: until_s for slot, until_s in state.slots.items() if node_of(slot) in same},
        {pair: until_s for pair, until_s in state.pairs.items() if node_of(pair[1]) in same},
        dict(state.jobs),
    )


def _nodes(nodes: Sequence[NodeState], old: Mapping[str, NodeState], state: NodesState) -> NodesState:
    """How nodes differ from the new file: what is down or drained stays so, and slots in quarantine."""
    held = {name for name, anyway in state.reserved.items() if not anyway}
    changed = {}
    for node in (node for node in nodes if node.name in old):
        was = old[node.name]
        gpus = was.gpus if was.made_gpus == node.made_gpus else node.gpus
        up = was.up or (node.name in held and node.name not in state.vanished)
        if (gpus, up) != (node.gpus, True):
            changed[node.name] = gpus, up
    there = {node.name for node in nodes} - held
    return NodesState(
        {name: now for name, now in state.drained.items() if name in there},
        {name: since_s for name, since_s in state.vanished.items() if name in there},
        changed,
    )


def _held(session: Session) -> dict[Owner, float]:
    """GPUs that owners hold; shared ones count half for each of two jobs."""
    held: dict[Owner, float] = {}
    for job in session.jobs.values() if session.usage is not None else ():
        if session.usage is not None and job.gpus and job.requested:
            owner = session.usage.shares.owner_of(job.spec)
            held[owner] = held.get(owner, 0.0) + (job.gpus if job.beside is None else job.gpus / 2)
    return held
