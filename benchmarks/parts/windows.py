"""Random clusters with reservations, replayed under every policy: who holds a reserved node, who is stuck.

The rule is said here a second time, in the plainest way, so that it is not checked by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from benchmarks.parts.jobs.where import World, worlds
from pliant.schemas.cluster import NodeReservation, Preemptible
from pliant.schemas.event import Event
from pliant.schemas.job import Job, Limits
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.engine import Engine
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session

_USERS: Final = ("ann", "bob")


def reserved_worlds(count: int, seed: int) -> Iterator[tuple[World, Preemptible]]:
    """Worlds in which all nodes up to now and then are reserved, for maintenance or for a user."""
    rng = np.random.default_rng(seed)
    for given in worlds(count, seed):
        names = [node.name for node in given.cluster.nodes]
        made = tuple(_reservation(f"r{at}", names, rng) for at in range(int(rng.integers(1, 4))))
        cluster = given.cluster.model_copy(update={"reservations": made})
        jobs = tuple(_with_user(job, rng) for job in given.jobs)
        yield World(cluster, jobs), "stated" if rng.random() < 0.5 else "all"


def _reservation(name: str, nodes: list[str], rng: np.random.Generator) -> NodeReservation:
    begin_s = float(rng.integers(0, 300))
    own = rng.choice(nodes, int(rng.integers(1, len(nodes) + 1)), replace=False)
    return NodeReservation(
        name=name,
        nodes=tuple(map(str, own)),
        begin=begin_s,
        end=begin_s + float(rng.integers(20, 300)),
        users=() if rng.random() < 0.5 else (str(rng.choice(_USERS)),),
        notice_seconds=float(rng.choice([0, 10, 60])),
    )


def _with_user(job: Job, rng: np.random.Generator) -> Job:
    more: dict[str, Any] = {"user": str(rng.choice((*_USERS, "")))}
    if rng.random() < 0.2:
        more["limits"] = Limits(run_seconds=float(rng.integers(20, 400)))
    if rng.random() < 0.3:
        more["preemptible"] = bool(rng.random() < 0.5)
    return job.model_copy(update=more)


def mistakes(given: World, preemptible: Preemptible, policy: str) -> list[str]:
    """Jobs that hold a node of a window that is not theirs, and jobs that never end."""
    made = make_policy(policy)
    elastic = made.traits.elasticity != "none"
    jobs = [job for job in given.jobs if given.can_run(job, job.min_gpus if elastic else job.gpus.requested)]
    session = Session(made, given.cluster, CurveThroughput(), preemptible=preemptible, trace=jobs)
    engine = Engine(session, jobs, interval_s=made.traits.default_interval_s)
    engine.run()
    wrong = [f"{policy}: {each}" for each in overruns(given, jobs, engine.log.events())]
    return wrong + [f"{policy}: {job_id} never ends" for job_id in session.jobs]


def overruns(given: World, jobs: list[Job], events: Iterator[Event]) -> Iterator[str]:
    """Where a job holds a node while a reservation lasts in which it may not run."""
    held: dict[str, tuple[float, tuple[tuple[str, int], ...]]] = {}
    users = {job.id: job.user for job in jobs}
    for event in events:
        if event.job is None or (event.placement is None and event.gpus != 0):
            continue
        since_s, place = held.pop(event.job, (event.time, ()))
        if event.placement:
            held[event.job] = (event.time, event.placement)
        for each in given.cluster.reservations:
            meets = min(event.time, each.end) - max(since_s, each.begin) > 1e-6
            if meets and users[event.job] not in each.users and {*each.nodes} & {*dict(place)}:
                yield f"{event.job} holds {place} from {since_s} to {event.time} in {each.name}"


def window_overruns(count: int, seed: int = 59) -> int:
    """Mistakes of so many replays; each is under another policy."""
    found, names = 0, policy_names()
    for number, (given, preemptible) in enumerate(reserved_worlds(count, seed)):
        wrong = mistakes(given, preemptible, names[number % len(names)])
        for each in wrong:
            print(number, each, file=sys.stderr)
        found += len(wrong)
    return found
