"""A check of schedules over slots that shares no code with what makes them: all rules, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pliant.tools.schedule.policies.multi_resource.fleet import Bid, Servers, SlotPlan

_NEAR = 1e-6
"""Relative; sums of amounts may be rounded by this much."""


def broken_rules(servers: Servers, planned: Sequence[tuple[Bid, SlotPlan]], slots: int) -> list[str]:
    """Every rule of the problem that these plans break together, in words."""
    found = [f"{bid.id}: {why}" for bid, plan in planned for why in _of_job(bid, plan, slots)]
    return [*found, *_of_servers(servers, planned)]


def _of_job(bid: Bid, plan: SlotPlan, slots: int) -> Iterator[str]:
    workers = [[int(count) for count in row] for row in plan.workers]
    ps = [[int(count) for count in row] for row in plan.ps]
    if len(workers) != len(ps):
        yield "workers and PS have different slots"
    if plan.first < bid.arrival or plan.first + len(workers) > slots:
        yield "runs outside of its slots"
    if any(count < 0 for row in (*workers, *ps) for count in row):
        yield "has fewer than no workers or PS"
    if sum(map(sum, workers)) < bid.work:
        yield "does not do its work"
    if not workers or not sum(workers[-1]):
        yield "has no worker in its last slot"
    for slot, (row, ps_row) in enumerate(zip(workers, ps, strict=False), plan.first):
        if sum(row) and not bid.least_workers <= sum(row) <= bid.most_workers:
            yield f"has too few workers or more than chunks in slot {slot}"
        if bid.servers is not None and any(
            count for count, may in zip(row, bid.servers, strict=True) if not may
        ):
            yield f"is where it may not be in slot {slot}"
        if max(bid.ps, default=0.0) > 0:
            carried = sum(ps_row) * bid.ps_bandwidth * (1 + _NEAR) if bid.ps_bandwidth else math.inf
            if (sum(row) and not sum(ps_row)) or sum(row) * bid.worker_bandwidth > carried:
                yield f"has too few PS in slot {slot}"
            if sum(ps_row) > sum(row):
                yield f"has more PS than workers in slot {slot}"


def _of_servers(servers: Servers, planned: Sequence[tuple[Bid, SlotPlan]]) -> Iterator[str]:
    used: dict[tuple[str, int, int, int], list[float]] = {}
    for bid, plan in planned:
        for kind, rows, demand in (("worker", plan.workers, bid.worker), ("PS", plan.ps, bid.ps)):
            for slot, row in enumerate(rows, plan.first):
                for server, count in enumerate(row):
                    for resource, amount in enumerate(demand):
                        if count and amount:
                            cell = used.setdefault((kind, slot, server, resource), [])
                            cell.append(float(count) * float(amount))
    for (kind, slot, server, resource), amounts in used.items():
        capacity = servers.workers if kind == "worker" else servers.ps
        limit = float(capacity[server, resource])
        if math.fsum(amounts) > limit * (1 + _NEAR) + _NEAR:
            yield f"slot {slot}: {kind} server {server} has {math.fsum(amounts):g} of {limit:g} committed"
