"""Random stories of jobs, nodes and slots, with a decision after everything that happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.testing.harness import CheckedSession, cluster, jobs_for, node

if TYPE_CHECKING:
    import numpy as np

Factory = Callable[[], Policy]
OpKind = Literal[
    "submit", "finish", "cancel", "lose", "down", "up", "withdraw", "hold", "hold_back", "let_go",
    "prioritize", "drain", "resume", "wait",
]  # fmt: skip
_KINDS: Final[tuple[OpKind, ...]] = (
    *("submit", "submit", "submit", "finish", "cancel", "lose"),
    *("down", "up", "withdraw", "hold", "hold_back", "let_go", "prioritize", "drain", "resume", "wait"),
)
CLUSTERS: Final = (cluster(node(4, 2), node(2)), cluster(node(4, 1, "a"), node(2, 2, "b")))
"""Of one GPU type, and of two."""


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that happens: ``index`` chooses the job or node it happens to."""

    kind: OpKind
    index: int = 0
    seconds: float = 1.0
    """Time that passes before it."""


def random_ops(rng: np.random.Generator, count: int) -> list[Op]:
    """A random story of that many events, arrivals the most frequent."""
    return [
        Op(_KINDS[rng.integers(len(_KINDS))], int(rng.integers(1000)), float(rng.integers(0, 90)))
        for _ in range(count)
    ]


def check_ops(make: Factory, ops: Iterable[Op], nodes: Cluster = CLUSTERS[0]) -> None:
    """Any sequence of events, each followed by a decision, keeps every rule."""
    held = CheckedSession(make(), nodes)
    pool = jobs_for(held.session.policy, 200)
    for op in ops:
        held.time_s += op.seconds
        _happen(held, op, pool)
        held.decide()


def _happen(held: CheckedSession, op: Op, pool: list[Job]) -> None:
    active = sorted(held.jobs)
    if op.kind == "submit" and pool:
        each = pool.pop(op.index % len(pool))
        held.session.submit(each.model_copy(update={"submit_time": held.time_s}), held.time_s)
    elif active:
        _happen_to_job(held, op, active[op.index % len(active)])
    _happen_to_node(held, op, held.session.nodes[op.index % len(held.session.nodes)].name)


def _happen_to_node(held: CheckedSession, op: Op, name: str) -> None:
    session, time_s = held.session, held.time_s
    match op.kind:
        case "down":
            session.node_down(name, time_s)
        case "up":
            session.node_up(name, time_s)
        case "drain":
            session.drain(name, time_s, now=op.index % 2 == 0)
        case "resume":
            session.resume(name, time_s)
        case "withdraw" if session.free.free_on(name):
            session.withdraw(f"{name}/{op.index}", time_s, time_s + op.index)


def _happen_to_job(held: CheckedSession, op: Op, job_id: str) -> None:
    session, time_s = held.session, held.time_s
    match op.kind:
        case "hold":
            session.withheld.hold(job_id, time_s + op.index)
        case "hold_back":
            session.hold_back(job_id, time_s, "its owner")
        case "let_go" if session.held:
            session.let_go(sorted(session.held)[op.index % len(session.held)], time_s)
        case "prioritize":
            session.prioritize(job_id, time_s, op.index % 5 - 2.0)
        case "lose":
            session.lose(job_id, time_s)
        case "finish":
            session.end(job_id, time_s)
        case "cancel":
            session.end(job_id, time_s, "cancelled")
