"""shadow-price with a part of it taken out or replaced, to see what the part is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.shadow_price import sizes as shares
from pliant.tools.schedule.policies.shadow_price.curves import Floats
from pliant.tools.schedule.policies.shadow_price.job_estimates import Knowledge, PoolColumns
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.snapshot import Snapshot

PRICES: Final[dict[str, Callable[[PoolColumns], Floats]]] = {
    "speedups": lambda members: 1.0 / members.whole.max(axis=1),
    "completions": lambda members: 1.0 / members.left,
    "equal": lambda members: members.normal / members.whole[np.arange(len(members.jobs)), members.normal],
}
"""Other prices of progress: the sum of normalised speeds, that of jobs that end, that of GPUs well used."""
NAMES: Final = (*PRICES, "lambda-g", "arrival", "history", "places")


@contextmanager
def ablated(name: str) -> Iterator[None]:
    """Decide without a part; "": as it is."""
    if name in PRICES:
        with patch.object(shares, "_prices", _other_prices(PRICES[name])):
            yield
    elif name == "lambda-g":
        with patch.object(shares, "values", _without_scale):
            yield
    elif name == "arrival":
        with patch.object(PoolColumns, "shortest_last", _by_arrival):
            yield
    elif name == "history":
        with patch.object(Knowledge, "observe", _forget):
            yield
    elif name == "places":
        with patch.object(ShadowPrice, "decide", _anywhere):
            yield
    else:
        yield


def _other_prices(made: Callable[[PoolColumns], Floats]) -> Callable[..., tuple[list[int], Floats]]:
    def prices(members: PoolColumns, rules: Any, memory: Any) -> tuple[list[int], Floats]:
        del rules, memory
        return members.shortest_last(), made(members)

    return prices


_values = shares.values
_decide = ShadowPrice.decide


def _without_scale(members: PoolColumns, prices: Floats, dwell_s: float) -> Floats:
    """Prices times present rates: λ G instead of μ G."""
    rows = np.arange(len(members.jobs))
    scale = members.soon[rows, members.normal] / members.whole[rows, members.normal]
    return _values(members, prices * scale, dwell_s)


def _by_arrival(members: PoolColumns) -> list[int]:
    """Last to end: the last to come."""
    jobs = members.jobs
    return sorted(range(len(jobs)), key=lambda row: (jobs[row].spec.submit_time, jobs[row].id), reverse=True)


def _forget(known: Knowledge, job: JobState, time_s: float) -> None:
    del known, job, time_s


def _anywhere(policy: ShadowPrice, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
    """Sizes and batches only; where the GPUs are is left to the session."""
    decision = _decide(policy, snapshot, rng)
    for job_id, target in decision.targets.items():
        if target.gpus and snapshot.jobs[job_id].gpus != target.gpus:
            decision.targets[job_id] = target._replace(placement=None)
        elif target.gpus:
            decision.targets[job_id] = target._replace(placement=snapshot.jobs[job_id].placement)
    return decision
