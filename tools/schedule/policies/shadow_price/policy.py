"""shadow-price: every decision gives GPUs by the worth of a unit of each job's progress.

:mod:`knowledge` says how fast each job would train (:mod:`curves`) and what is ahead of it (:mod:`noise`,
:mod:`outlook`), :mod:`pool_choice` on which GPU type it takes part; :mod:`members` holds it as columns.
:mod:`shares` puts together what a pool is shared out by: :mod:`order` and :mod:`prices` find the price of
each job's progress, :mod:`values` what each size of it is worth, :mod:`knapsack` the sizes. :mod:`targets`
makes a decision of them with :mod:`places` and :mod:`batches`; :mod:`explain` says why. :mod:`bound` says
which sizes keep what is promised: theorem and proof are there.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Elasticity
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import Pool, minimum_alone, reject_impossible
from pliant.tools.schedule.policies.shadow_price.bound import Bound, Guard, Terms
from pliant.tools.schedule.policies.shadow_price.knowledge import Knowledge, PoolColumns
from pliant.tools.schedule.policies.shadow_price.places import Placing, Retune
from pliant.tools.schedule.policies.shadow_price.sizes import (
    Rules,
    Shares,
    explained,
    pool_members,
    second_choices,
    shared,
)
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy, Target
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    from pliant.schemas.runinfo import PromisedBounds


class ShadowPrice(Policy):
    """Least mean JCT by shadow prices: the worth of a unit of each job's progress decides who gets GPUs.

    Training on a cluster is a problem of optimal control: remaining work falls at the goodput of the GPUs
    that a job holds, and the sum of completion times shall be least. Its costate, the price of a job's
    progress, is constant while the job lives. In the order in which the jobs are to end, one step a job
    computes it for goodput curves of any shape. Each decision then gives out the GPUs so that the sum of
    prices times rates is largest.

    Where a job lets its batch move and its gradient noise scale is known, every size comes with its best
    batch; the noise ahead of a job is what others of its model have shown. A change of size counts with what
    it costs: the rescale time that the profile has measured. On mixed GPU types a job takes part in the type
    on which it would end first.

    Work that is not stated is expected to be that of the jobs of the model that ended before and were longer
    than what the job has done. Where there are none it is taken to be as much as the job has had already, in
    steps of a factor of four; within a step the first to come is first. With ``--demand predicted`` it is
    what is predicted.

    Short jobs come first, and a long one waits, but not without bound. No job ends later than it would under
    equal shares, had it been submitted a grace later: in a reference schedule that deals all GPUs out
    equally, in whole GPUs, every ``deal_s`` seconds. A job that would otherwise fall behind it gets what the
    reference gives it. This is a theorem on clusters of one GPU type, where profiles are true up to a factor
    and nothing fails (docs/delay-bound.md); reports hold every run against it (``--reference gps``).

    rescale_s: seconds that a change costs a job that trains, where its profile has not measured them.
    dwell_s: seconds after which what a job holds is taken to change; changes have to pay within them.
    ahead_s: seconds over which rates are averaged when GPUs are given out.
    sweeps: the most passes that improve the order of completion by exchanges, in pools of up to 128 GPUs.
    future: the worth of GPUs to jobs that are still to come, as a part of their mean worth now; more of it
    shortens the makespan and lengthens the mean JCT.
    grace: how many times its time alone on the GPUs that it requests a job may be held back; none: without
    bound.
    grace_s: seconds that every job may be held back on top of that.
    deal_s: seconds for which the reference deals out the GPUs.
    lost_s: seconds of each deal in which its jobs do not train: at least a change of size and the interval
    between decisions.
    retune: "paid": a job that keeps its GPUs gets another batch only where that is worth a change; "free":
    whenever another is better.
    """

    name: ClassVar[str] = "shadow-price"
    knows: ClassVar[Knows] = "profile"
    elasticity: ClassVar[Elasticity] = "size+batch"
    default_interval_s: ClassVar[float | None] = 60.0
    priority_means: ClassVar[str] = "the completion time of a job counts 2 to the power of its priority"
    rebuilds_state: ClassVar[bool] = False

    def __init__(
        self,
        *,
        rescale_s: float = 30.0,
        dwell_s: float = 500.0,
        ahead_s: float = 900.0,
        sweeps: int = 10,
        future: float = 0.0,
        retune: Retune = "paid",
        grace: float | None = 6.0,
        grace_s: float = 600.0,
        deal_s: float = 600.0,
        lost_s: float = 90.0,
    ) -> None:
        not_below_0 = {"rescale_s": rescale_s, "sweeps": sweeps, "future": future, "grace": grace or 0.0}
        for key, value in {**not_below_0, "grace_s": grace_s, "lost_s": lost_s}.items():
            if value < 0:
                raise UsageError(f'policy "{self.name}": {key} {value:g} is below 0')
        for key, value in {"dwell_s": dwell_s, "ahead_s": ahead_s, "deal_s": deal_s}.items():
            if value <= 0:
                raise UsageError(f'policy "{self.name}": {key} {value:g} is not above 0')
        if lost_s >= deal_s:
            raise UsageError(f'policy "{self.name}": lost_s {lost_s:g} is not below deal_s {deal_s:g}')
        self.rescale_s = rescale_s
        self.dwell_s = dwell_s
        self.ahead_s = ahead_s
        self.sweeps = sweeps
        self.future = future
        self.retune = retune
        self.grace = grace
        self.grace_s = grace_s
        self.deal_s = deal_s
        self.lost_s = lost_s
        self._known = Knowledge(ahead_s, rescale_s)
        self._bound = None if grace is None else Bound(Terms(grace, grace_s, deal_s, lost_s))
        self._shares: list[Shares] = []
        """Of the last decision, to be explained."""

    @property
    def bounds(self) -> PromisedBounds | None:
        """No job ends after equal shares of it, submitted a grace later; none without a grace."""
        from pliant.schemas.runinfo import EqualDeals, PromisedBounds

        if self.grace is None:
            return None
        deals = EqualDeals(grace=self.grace, grace_s=self.grace_s, deal_s=self.deal_s, lost_s=self.lost_s)
        return PromisedBounds(equal_deals=deals)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Share out each GPU type, and name what differs from what the jobs hold."""
        del rng
        self._known.use(snapshot.speeds)
        for change in snapshot.changes:
            if change.kind == "finished" and change.job is not None:
                self._known.learn(change.job)
        for job in snapshot.jobs.values():
            self._known.observe(job, snapshot.time_s)
        bound = self._bound if len(snapshot.speeds.gpu_types) == 1 else None
        if bound is not None:
            bound.follow(snapshot, self._known)
        decision = Decision(rejected=reject_impossible(snapshot, minimum_alone))
        self._shares = self._shared(snapshot, decision.rejected, bound)
        served = {job.id for shares in self._shares for job in shares.served()}
        out = (job for job in snapshot.jobs.values() if job.gpus and job.id not in served)
        decision.targets |= {job.id: Target(0) for job in out if job.id not in decision.rejected}
        for shares in self._shares:
            placing = Placing(shares, snapshot, self._known, self.dwell_s)
            decision.targets |= placing.targets(self.retune)
            if bound is not None:
                bound.expect(shares.members, shares.chosen, decision.targets, snapshot.time_s)
        return decision

    def _shared(self, snapshot: Snapshot, rejected: Container[str], bound: Bound | None) -> list[Shares]:
        """Every pool shared out; those that jobs of another fall back on once more."""
        rules = Rules(self.dwell_s, self.sweeps, self.future)

        def share(pool: Pool, jobs: Sequence[JobState]) -> Shares | None:
            columns = PoolColumns.of(pool, jobs, self._known, snapshot.time_s)
            if columns is None:
                return None
            guard = None if bound is None else bound.guard(columns, self._known, snapshot.time_s)
            return shared(columns, rules, guard or Guard.none(columns))

        wanted = dict(pool_members(snapshot, rejected, self._known))
        found = {pool: share(pool, jobs) for pool, jobs in wanted.items()}
        if len(wanted) > 1:
            again = second_choices(found)
            elsewhere = {job.id for jobs in again.values() for job in jobs}
            for pool, jobs in wanted.items():
                if more := again.get(pool.gpu_type):
                    stay = [job for job in jobs if job.id not in elsewhere]
                    found[pool] = share(pool, [*stay, *more])
        return [shares for shares in found.values() if shares is not None]

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """The price of each job, its end, what one GPU more or less would be worth, and why it waits."""
        found: dict[str, Explanation] = {}
        for shares in self._shares:
            found |= explained(shares, self._slack_s(snapshot))
        return {job_id: why for job_id, why in found.items() if job_id in snapshot.jobs}

    def _slack_s(self, snapshot: Snapshot) -> float:
        """Seconds that a change may cost where decisions come at the default interval; endless: no bound."""
        bounded = self._bound is not None and len(snapshot.speeds.gpu_types) == 1
        return self.lost_s - (self.default_interval_s or 0.0) if bounded else math.inf

    def dump_state(self) -> dict[str, Any]:
        """What jobs have shown by progress, and the reference of the bound."""
        return {**self._known.dump(), "bound": None if self._bound is None else self._bound.dump()}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """Take up what was dumped; curves are made again."""
        self._known.load(state)
        if self._bound is not None and (bound := state.get("bound")) is not None:
            self._bound.load(bound, jobs)
