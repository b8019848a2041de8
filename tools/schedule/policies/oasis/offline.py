"""The best that any scheduler could have done with all jobs known from the start: problem (1) of OASiS.

One MILP, which HiGHS solves; where it runs out of time it says how much more there may be. Presolve stays
off: with it HiGHS 1.12 calls a schedule optimal that is not, in one of 60 small random worlds (as in
ERGO-Code/HiGHS issues 1725, 2995 and 3094). A bound must be one, even if it takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.tools.schedule.policies.multi_resource.model import Bid, Plan, Servers
from pliant.tools.schedule.policies.oasis.offline_model import Layout, Used, constraints


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the solver found."""

    plans: tuple[Plan | None, ...]
    """Of each bid; None: it is not admitted."""
    utility: float
    """Of these plans."""
    bound: float
    """No plans have more."""

    @property
    def gap(self) -> float:
        """The part of the utility that may be missing; 0 is proven to be the best."""
        return max(0.0, self.bound / self.utility - 1) if self.utility > 0 else float(self.bound > 0)


def solve(
    bids: Sequence[Bid],
    servers: Servers,
    slots: int,
    limit_s: float = 60.0,
    *,
    gap: float = 1e-4,
    used: Used | None = None,
) -> Optimum:
    """The plans of the largest total utility.

    :param bids: of those with one id at most one is admitted.
    :param limit_s: after this the best found so far is taken, which depends on the machine.
    :param gap: relative; what is this near to the best is taken for it.
    :param used: what is not there for them.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    layout = Layout.of(bids, servers, slots)
    if not layout.count:
        return Optimum((None,) * len(bids), 0.0, 0.0)
    rows, low, high = constraints(layout, servers, used)
    found = milp(
        -layout.worths,
        integrality=np.ones(layout.count, dtype=np.int64),
        bounds=Bounds(0, layout.most),
        constraints=LinearConstraint(rows, low, high),
        options={"time_limit": limit_s, "mip_rel_gap": gap, "presolve": False},
    )
    bound = layout.best if found.mip_dual_bound is None else min(layout.best, -float(found.mip_dual_bound))
    if found.x is None:
        return Optimum((None,) * len(bids), 0.0, bound)
    plans = layout.plans(np.rint(found.x).astype(np.int64), len(bids))
    pairs = zip(bids, plans, strict=True)
    utility = sum(float(bid.worth[plan.last]) for bid, plan in pairs if plan is not None)
    return Optimum(plans, utility, max(bound, utility))


def variables(bids: Sequence[Bid], servers: Servers, slots: int) -> int:
    """The size of the problem: how many whole numbers are to be found."""
    found = 0
    for bid in bids:
        length = max(0, slots - bid.arrival)
        each = len(servers.workers) + bid.needs_ps * len(servers.ps) + (bid.least_workers > 1) + 1
        found += length * each
    return found
