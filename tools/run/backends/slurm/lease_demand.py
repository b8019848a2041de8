"""Which nodes of Slurm are leased while leases follow the jobs: a function of what is known of each node.

A node whose lease is not asked for counts as up: a job that is placed there has it asked for. Idle leases end
after a time; of those beyond the maximum of nodes none is asked for, and they count as down meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pliant.schemas.cluster import LeaseLimits, LeaseRule


class LeaseState(IntEnum):
    """The lower, the sooner a node keeps its place among the most that are leased."""

    RUNNING = 0
    REQUESTED = 1
    NONE = 2
    WAITING = 3
    """It has waited for so long in Slurm's queue that its node counts as down."""


@dataclass(frozen=True, slots=True)
class LeasedNode:
    """What is known of one node."""

    name: str
    partition: str | None
    """The partition of the rule that it is in; None: of none that the rule names."""
    state: LeaseState
    is_busy: bool
    """Whether a unit runs there, or is to."""
    idle_s: float

    @property
    def rank(self) -> tuple[bool, LeaseState]:
        return not self.is_busy, self.state


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """Nodes by name."""

    needed: frozenset[str]
    """Their leases are asked for, and kept."""
    offered: frozenset[str]
    """Jobs may be placed there."""


def lease_plan(rule: LeaseRule, nodes: Sequence[LeasedNode], *, jobs_wait: bool) -> LeasePlan:
    """:param nodes: in the order of the cluster file.
    :param jobs_wait: what waits in Slurm's queue is still of use.
    """
    needed, offered = set[str](), set[str]()
    for partition in dict.fromkeys(node.partition for node in nodes):
        own = [node for node in nodes if node.partition == partition]
        limits = rule if partition is None else rule.partitions[partition]
        offers = sorted(own, key=lambda node: node.rank)[: limits.max_nodes]
        offered.update(node.name for node in offers)
        offered.update(node.name for node in own if node.is_busy)
        needed.update(_needed(limits, offers, jobs_wait=jobs_wait))
        needed.update(node.name for node in own if node.is_busy)
    return LeasePlan(frozenset(needed), frozenset(offered))


def _needed(limits: LeaseLimits, offers: Sequence[LeasedNode], *, jobs_wait: bool) -> Iterable[str]:
    """:param offers: those to keep first first."""
    kept = [node.name for node in offers if _is_of_use(node, limits, jobs_wait=jobs_wait)]
    others = [node.name for node in offers if node.name not in kept]
    return [*kept, *others[: max(0, limits.min_nodes - len(kept))]]


def _is_of_use(node: LeasedNode, limits: LeaseLimits, *, jobs_wait: bool) -> bool:
    if node.is_busy or node.state is LeaseState.NONE:
        return node.is_busy
    return node.idle_s < limits.idle_seconds if node.state is LeaseState.RUNNING else jobs_wait
