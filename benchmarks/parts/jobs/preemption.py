"""Jobs that cannot save, through live decisions of all policies: none may be stopped or changed."""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster
from pliant.tools.schedule.from_log import session_for_run
from pliant.tools.schedule.policy import PolicyError
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import jobs_for

WORLDS: Final = 1000
_STEPS: Final = 40
_HAPPENINGS: Final = ("submit", "submit", "submit", "end", "priority", "withdraw", "wait", "wait")
"""Limits, drains, lost nodes and orders of people take GPUs from any job, and are left out."""


def figures(worlds: int = WORLDS) -> list[Figure]:
    """Jobs that neither state nor show that they can save, and lost or changed GPUs by a decision."""
    names = policy_names()
    stopped = sum(_stopped(names[at % len(names)], np.random.default_rng(at)) for at in range(worlds))
    return [Figure("unsaved_jobs_preempted", float(stopped), "jobs", 0.0)]


def _stopped(policy: str, rng: np.random.Generator) -> int:
    """The jobs of one world that were; the first are named on stderr."""
    nodes = _cluster(rng)
    session = session_for_run(make_policy(policy), nodes, throughput_for(None, nodes), int(rng.integers(100)))
    pool, now_s, found = jobs_for(session.policy, 60), 0.0, set[str]()
    for _ in range(_STEPS):
        now_s += float(rng.choice([0.0, 1.0, 30.0, 400.0]))
        _happen(session, str(rng.choice(_HAPPENINGS)), rng, now_s, pool)
        held = {
            job.id: (job.placement, job.global_batch)
            for job in session.jobs.values()
            if job.gpus and not job.spec.can_save
        }
        try:
            session.decide(now_s)
        except PolicyError as error:
            print(f"{policy}: {error}", file=sys.stderr)
            continue
        for job_id, before in held.items():
            job = session.jobs.get(job_id)
            if job is None or (job.placement, job.global_batch) != before:
                found.add(job_id)
    if found:
        print(f"{policy} stopped or changed {', '.join(sorted(found))} on {nodes}", file=sys.stderr)
    return len(found)


def _cluster(rng: np.random.Generator) -> Cluster:
    """One or two GPU types; now and then teams share it, users are limited, or GPUs may be shared."""
    types = ("a", "b")[: int(rng.integers(1, 3))]
    fields: dict[str, Any] = {
        "nodes": [
            {"name": f"{kind}{{}}", "gpus": int(rng.choice([2, 4, 8])), "count": 2, "gpu_type": kind}
            for kind in types
        ]
    }
    if rng.random() < 0.3:
        teams = {name: {"weight": float(rng.integers(1, 4)), "users": [name]} for name in ("ann", "bob")}
        fields["shares"] = {"teams": teams, "half_life_hours": float(rng.choice([0.0, 1.0]))}
    if rng.random() < 0.2:
        fields["cooldown_seconds"] = 60.0
    return Cluster.model_validate(fields, strict=False)


def _happen(session: Session, what: str, rng: np.random.Generator, now_s: float, pool: list[Any]) -> None:
    active = sorted(session.jobs)
    if what == "submit" and pool:
        spec = pool.pop(int(rng.integers(len(pool))))
        own = {"submit_time": now_s, "user": str(rng.choice(["ann", "bob", "eve"]))}
        own["checkpoint_seconds"] = 60.0 if rng.random() < 0.2 else None
        own["preemptible"] = False if rng.random() < 0.4 else None
        own["priority"] = float(rng.integers(-2, 3))
        session.submit(spec.model_copy(update=own), now_s)
    elif what == "withdraw":
        name = session.cluster.nodes[int(rng.integers(len(session.cluster.nodes)))].name
        if session.cluster.free.free_on(name):
            session.cluster.withdraw(f"{name}/0", now_s, now_s + 100.0)
    elif active and what == "end":
        session.end(active[int(rng.integers(len(active)))], now_s)
    elif active and what == "priority":
        session.admission.prioritize(
            active[int(rng.integers(len(active)))], now_s, float(rng.integers(-9, 10))
        )
