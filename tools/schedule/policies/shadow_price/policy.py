"""shadow-price: every decision gives GPUs by the worth of a unit of each job's progress.

In the order of a decision: :mod:`job_estimates` says how fast each job would train and what is ahead of it;
:mod:`bound` which sizes keep the promise (theorem and proof are there), and :mod:`deadlines` which a deadline
needs; :mod:`completion_order` in which order jobs are to end, and :mod:`prices` what each job's progress is
worth in it. At these prices :mod:`sizes` shares one pool out, :mod:`types` pools of several GPU types, and
:mod:`placement_choice` chooses nodes and batches.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pliant.schemas.errors import UsageError
from pliant.schemas.text import counted, in_gpus, span_text
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import Pool, known_pools, minimum_alone, reject_impossible
from pliant.tools.schedule.policies.shadow_price.bound import Bound, Guard, Terms, kept_from_promise
from pliant.tools.schedule.policies.shadow_price.curves import GoodputCurves, sizes_of
from pliant.tools.schedule.policies.shadow_price.deadlines import earns_by_time, with_deadlines
from pliant.tools.schedule.policies.shadow_price.job_estimates import (
    Knowledge,
    PoolColumns,
    UnknownNoise,
    stated_left,
)
from pliant.tools.schedule.policies.shadow_price.placement_choice import Placing, Retune
from pliant.tools.schedule.policies.shadow_price.prices import PriceMemory, ends_s
from pliant.tools.schedule.policies.shadow_price.sizes import PoolShares, Rules, shared
from pliant.tools.schedule.policies.shadow_price.types import shared_over_types
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.snapshot import Snapshot

if TYPE_CHECKING:
    from pliant.schemas.cluster import Cluster
    from pliant.schemas.job import Job
    from pliant.schemas.runinfo import PromisedBounds

_HOUR_S = 3600.0
_NOTICED = 1e-6
"""Part of the dwell time after an expected end, so that rounding does not make the end come too late."""
_SOONER = 0.4
"""Part of the dwell time, where several GPU types offer more changes."""
_LEAST_ROUND = 0.02
"""Part of it between two decisions of which the second awaits an end, which may come late."""


class ShadowPrice(Policy):
    """Least mean JCT by shadow prices: the worth of a unit of each job's progress decides who gets GPUs.

    Training on a cluster is a problem of optimal control: remaining work falls at the goodput of the
    GPUs that a job holds, and the sum of completion times shall be least. Its costate, the price of a
    job's progress, is constant while the job lives; it is computed in the order in which the jobs are to
    end, for goodput curves of any shape. Each decision gives out the GPUs so that the sum of prices
    times rates is largest.

    Where a job lets its batch move and its gradient noise scale is known, every size comes with its best
    batch; the noise ahead is what other jobs of the model have shown. Where a job of the model has ended
    without reporting its noise, the batches that a job states are taken as alike. A change of size counts
    with the rescale time that the profile has measured, or in a replay what changes of the model have
    turned out to cost where that is far more. A job far below its promised speed, or past its stated
    work, counts as longer. Where GPU types differ, type, size and batch are chosen together; in pools of up
    to 128 GPUs the jobs that a decision costs most make way only where others gain more than they lose,
    there and back.

    A job with a deadline or a sigmoid utility is planned: in order of deadline, each gets the smallest
    size with which it ends in time. Where not all can, those that earn least for their GPU time are
    given up, or put off along their sigmoid; they come last, and keep their latest end. The other GPUs
    go by price. On several GPU types, and for unknown work, deadlines are not with_deadlines.

    Unstated work is what finished jobs have shown: those that the user submitted alike, of the user's
    model, of the model, of the user, the team, and all, the wider where the narrower says little; how
    far running jobs have come counts, too. A job goes by Gittins's index, given what it has done, with
    ``--demand predicted`` as well. Without a profile, and until a job of the model has ended, work is
    taken to be as much as the job has had already, in steps of a factor of four.

    Short jobs come first, and a long one waits, but not without bound: no job ends later than under
    equal shares in whole GPUs, had it been submitted a grace later. docs/delay-bound.md has the theorem
    and its premises; reports hold every run against it (``--reference gps``).

    It decides every 60 s, and while jobs wait also when the next one is to end (``await_ends``), at
    least a fiftieth of ``dwell_s`` after the last time.

    rescale_s: seconds that a change costs a running job, where its profile has not measured them.
    caution: how many times its cost a change counts to a job whose batch moves, on one GPU type: with the
    noise such jobs change again and again.
    dwell_s: seconds after which what a job holds is taken to change, two fifths of them where GPU types
    differ; changes have to pay within that time, or eight times what they count (four where types differ)
    if that is longer.
    ahead_s: seconds over which rates are averaged when GPUs are given out.
    sweeps: the most passes that improve the order of completion by exchanges, in pools of up to 128
    GPUs.
    future: the worth of GPUs to jobs that are still to come, as a part of their mean worth now; more of
    it shortens the makespan and lengthens the mean JCT.
    grace: how many times its time alone on the GPUs that it requests a job may be held back; none:
    without bound.
    grace_s: seconds that every job may be held back on top of that.
    unstated_grace_s: seconds that a job may be held back whose work is unknown, instead of both.
    deal_s: seconds for which the reference deals out the GPUs.
    lost_s: seconds of each deal in which its jobs do not train: at least a change of size and the
    interval between decisions.
    unknown_noise: "stated": once a job of its model has ended without reporting its noise scale, a job
    gets the fastest of the batches that it states; "author": it keeps the author's batch.
    retune: "paid": a job that keeps its GPUs gets another batch only where that is worth a change;
    "free": whenever another is better.
    await_ends: whether it also decides when a job is to end while others wait.
    """

    name: ClassVar[str] = "shadow-price"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        elasticity="size+batch",
        uses_deadlines=True,
        default_interval_s=60.0,
        priority_means="of up to three priorities the higher comes first; latest ends hold",
        weight_means="the completion time of a job counts as often as its weight says",
        rebuilds_state=False,
    )
    state_version: ClassVar[int] = 4

    def __init__(
        self,
        *,
        rescale_s: float = 30.0,
        caution: float = 1.5,
        dwell_s: float = 500.0,
        ahead_s: float = 900.0,
        sweeps: int = 10,
        future: float = 0.0,
        retune: Retune = "paid",
        unknown_noise: UnknownNoise = "stated",
        grace: float | None = 6.0,
        grace_s: float = 600.0,
        unstated_grace_s: float = 3600.0,
        deal_s: float = 600.0,
        lost_s: float = 90.0,
        await_ends: bool = True,
    ) -> None:
        not_below_0 = {
            "rescale_s": rescale_s,
            "sweeps": sweeps,
            "future": future,
            "lost_s": lost_s,
            "caution": caution,
        }
        graces = {"grace": grace or 0.0, "grace_s": grace_s, "unstated_grace_s": unstated_grace_s}
        for key, value in {**not_below_0, **graces}.items():
            if value < 0:
                raise UsageError(f'policy "{self.name}": {key} {value:g} is below 0')
        for key, value in {"dwell_s": dwell_s, "ahead_s": ahead_s, "deal_s": deal_s}.items():
            if value <= 0:
                raise UsageError(f'policy "{self.name}": {key} {value:g} is not above 0')
        if lost_s >= deal_s:
            raise UsageError(f'policy "{self.name}": lost_s {lost_s:g} is not below deal_s {deal_s:g}')
        self.rescale_s = rescale_s
        self.caution = caution
        self.dwell_s = dwell_s
        self.ahead_s = ahead_s
        self.sweeps = sweeps
        self.future = future
        self.retune = retune
        self.unknown_noise = unknown_noise
        self.grace = grace
        self.grace_s = grace_s
        self.unstated_grace_s = unstated_grace_s
        self.deal_s = deal_s
        self.lost_s = lost_s
        self.await_ends = await_ends
        self._known = Knowledge(ahead_s, rescale_s, unknown_noise, caution)
        self._bound = None
        if grace is not None:
            self._bound = Bound(Terms(grace, grace_s, deal_s, lost_s, unstated_grace_s))
        self._memory = PriceMemory()
        # Of the last decision, to be explained.
        self._shares: list[PoolShares] = []
        # What it made of deadlines, by job.
        self._outlooks: dict[str, str] = {}

    @property
    def bounds(self) -> PromisedBounds | None:
        from pliant.schemas.runinfo import EqualDeals, PromisedBounds

        if self.grace is None:
            return None
        deals = EqualDeals(
            grace=self.grace,
            grace_s=self.grace_s,
            unstated_grace_s=self.unstated_grace_s,
            deal_s=self.deal_s,
            lost_s=self.lost_s,
            rescale_s=self.rescale_s,
        )
        return PromisedBounds(equal_deals=deals)

    def chooses_nodes(self) -> bool:
        return True

    def bounds_on(self, cluster: Cluster) -> PromisedBounds | None:
        bounds = self.bounds
        return None if bounds is None else bounds.model_copy(update={"void": kept_from_promise(cluster)})

    @classmethod
    def overlooks_deadline(cls, job: Job, cluster: Cluster) -> str | None:
        if len({node.gpu_type for node in cluster.nodes if node.gpus}) > 1:
            return "deadlines where GPU types differ"
        return "deadlines of jobs that do not state their work" if job.work is None else None

    def promised_rates(self, job: JobState, speeds: Speeds) -> Sequence[tuple[int, float]]:
        if self.grace is None or len(speeds.gpu_types) != 1:
            return ()
        (kind, gpus), (node_gpus,) = next(iter(speeds.gpu_types.items())), speeds.node_gpus.values()
        sizes = sizes_of(gpus, node_gpus)
        curve = GoodputCurves(speeds, kind, sizes).of(job)
        rates = zip(sizes.tolist(), curve.rates[:, curve.usual].tolist(), strict=True)
        return [(size, rate) for size, rate in rates if rate > 0]

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        del rng
        self._memory.tidy()
        self._known.use(snapshot.speeds)
        self._known.rank(snapshot.jobs.values())
        for change in snapshot.changes:
            if change.kind == "finished" and change.job is not None:
                self._known.learn(change.job)
        for job in snapshot.jobs.values():
            self._known.observe(job, snapshot.time_s)
        self._known.follow(snapshot.jobs.values(), snapshot.time_s)
        bound = self._bound if len(snapshot.speeds.gpu_types) == 1 else None
        if bound is not None:
            bound.follow(snapshot, self._known)
        decision = Decision(rejected=reject_impossible(snapshot, minimum_alone))
        self._outlooks = {}
        pools = known_pools(snapshot)
        dwell_s = self.dwell_s * (_SOONER if len(pools) > 1 else 1.0)
        rules = Rules(dwell_s, self.sweeps, self.future)
        self._shares = self._shared(snapshot, pools.values(), rules, decision.rejected, bound)
        served = {shares.members.jobs[row].id for shares in self._shares for row in shares.served}
        out = (job for job in snapshot.jobs.values() if job.gpus and job.id not in served)
        decision.targets |= {job.id: Target(0) for job in out if job.id not in decision.rejected}
        for shares in self._shares:
            placing = Placing(shares, snapshot, self._known, rules.dwell_s)
            decision.targets |= placing.targets(self.retune)
            if bound is not None:
                bound.expect(shares.members, decision.targets, snapshot.time_s)
        if self.await_ends and len(served) + len(decision.rejected) < len(snapshot.jobs):
            ends_s = (next_end_s(each, decision.targets, snapshot.time_s) for each in self._shares)
            if (end_s := min(ends_s, default=math.inf)) < math.inf:
                soonest_s = snapshot.time_s + _LEAST_ROUND * self.dwell_s
                decision.ask_again_s = max(end_s + _NOTICED * self.dwell_s, soonest_s)
        return decision

    def _shared(
        self,
        snapshot: Snapshot,
        pools: Collection[Pool],
        rules: Rules,
        rejected: Container[str],
        bound: Bound | None,
    ) -> list[PoolShares]:
        """Every pool shared out."""
        jobs = [job for job in snapshot.jobs.values() if job.id not in rejected]
        every = []
        for pool in pools:
            able = [job for job in jobs if _may_run(job, pool.gpu_type)]
            cautious = len(pools) == 1
            every.append(PoolColumns.of(pool, able, self._known, snapshot.time_s, cautious=cautious))
        types = [columns for columns in every if columns is not None]
        if len(pools) > 1:
            return shared_over_types(types, rules, self._memory, snapshot.time_s) if types else []
        guards = [
            None if bound is None else bound.guard(columns, self._known, snapshot.time_s) for columns in types
        ]
        return [
            self._shared_in_time(columns, rules, guard or Guard.none(columns), snapshot.time_s)
            for columns, guard in zip(types, guards, strict=True)
        ]

    def _shared_in_time(self, members: PoolColumns, rules: Rules, guard: Guard, time_s: float) -> PoolShares:
        """One pool shared out; jobs that earn by ending in time get what that takes."""
        if not any(map(earns_by_time, members.jobs)):
            return shared(members, rules, guard, self._memory)
        waits_s = max(0.0, self.lost_s - self.rescale_s)
        members, guard, plan = with_deadlines(members, guard, time_s, waits_s)
        self._outlooks |= plan.reasons(members, time_s)
        return shared(members, rules, guard, self._memory, by_demands=True)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        explanations: dict[str, Explanation] = {}
        for shares in self._shares:
            explanations |= explained(shares, self._slack_s(snapshot), self._outlooks)
        return {job_id: why for job_id, why in explanations.items() if job_id in snapshot.jobs}

    def _slack_s(self, snapshot: Snapshot) -> float:
        """What a change may cost at the default interval of decisions; infinite without a bound."""
        bounded = self._bound is not None and len(snapshot.speeds.gpu_types) == 1
        return self.lost_s - (self.traits.default_interval_s or 0.0) if bounded else math.inf

    def dump_state(self) -> dict[str, Any]:
        return {**self._known.dump(), "bound": None if self._bound is None else self._bound.dump()}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._known.load(state)
        if self._bound is not None and (bound := state.get("bound")) is not None:
            self._bound.load(bound, jobs)


def _may_run(job: JobState, gpu_type: str) -> bool:
    """Whether the nodes that are up have what its smallest size demands; they do where it runs."""
    return job.gpus > 0 or job.fits_now(job.min_gpus, gpu_type)


def next_end_s(shares: PoolShares, changed: Mapping[str, Target], time_s: float) -> float:
    """When the next job is to end whose GPUs another could have then; infinite if none is known to.

    Until the next round they would be idle, which is long where jobs are short and others wait.
    """
    members, earliest = shares.members, math.inf
    for row in shares.served:
        job, size = members.jobs[row], shares.chosen[row]
        left = stated_left(job, time_s)
        if left is None or left <= 0:  # it trains past its stated work: no end is known
            continue
        stays = job.id not in changed and job.gpus
        rate = float(members.soon[row, size] * (members.scattered[row] if stays else 1.0))
        begins_s = (job.changed_s if stays else time_s) + float(members.rescale_s[row])
        if rate > 0:
            earliest = min(earliest, max(time_s, begins_s) + left / rate)
    return earliest


# Why each job has what it has.


def explained(
    shares: PoolShares, slack_s: float, outlooks: Mapping[str, str] | None = None
) -> dict[str, Explanation]:
    """One clause a job. What GPUs are worth is said in completion time, over all jobs, saved in an hour.

    :param slack_s: what a change may cost if the bound is to hold.
    :param outlooks: of jobs with deadlines.
    """
    members = shares.members
    all_end_s = ends_s(shares.prices, members.whole, members.left, members.sizes)
    worth = shares.values * _HOUR_S
    least = _least_worth(shares, worth)
    return {
        job.id: Explanation(
            "; ".join(
                (
                    *_outlook(shares, row, float(all_end_s[row])),
                    *([outlooks[job.id]] if outlooks and job.id in outlooks else ()),
                    *_due(shares, row),
                    *_marginal(shares, worth, row, least),
                    *_unbounded(shares, row, slack_s),
                )
            ),
            None if shares.gpus[row] else job.min_gpus,
        )
        for row, job in enumerate(members.jobs)
    }


def _outlook(shares: PoolShares, row: int, end_s: float) -> list[str]:
    if shares.members.jobs[row].is_speed_guessed:
        return ["no profile says how long it takes: it goes by the GPU time that it has received"]
    left = float(shares.members.left[row])
    whole = span_text(float(shares.prices[row]) * left)
    clauses = [f"price {shares.prices[row]:.3g} s a sample, {whole} for the work left"]
    if np.isfinite(end_s):
        clauses.append(f"would end in {span_text(end_s)} if none came")
    return clauses


def _due(shares: PoolShares, row: int) -> list[str]:
    gpus = int(shares.guard.due_gpus[row])
    return [f"has had its grace: equal shares would give it {in_gpus(gpus)} now"] if gpus else []


def _unbounded(shares: PoolShares, row: int, slack_s: float) -> list[str]:
    """That its changes cost too much for the bound to hold, and what would mend it."""
    over_s = float(shares.members.rescale_s[row]) - slack_s
    return [f"may end past its bound unless lost_s is {over_s:.3g} s more"] if over_s > 0 else []


def _marginal(shares: PoolShares, worth: np.ndarray, row: int, least: float) -> list[str]:
    """What one GPU more and one less would change; of a waiting job why it waits."""
    sizes, own, chosen = shares.members.sizes, worth[row], int(shares.chosen[row])
    if not chosen:
        offers = np.flatnonzero(np.isfinite(own[1:])) + 1
        best = int(offers[(own[offers] / sizes[offers]).argmax()])
        before = len(shares.order) - 1 - shares.order.index(row)
        if shares.members.jobs[row].is_speed_guessed:
            return [f"waits: {counted(before, 'job')} {'comes' if before == 1 else 'come'} before it"]
        saves = span_text(float(own[best] / sizes[best]))
        return [
            f"waits: {counted(before, 'job')} would end before it",
            f"on {in_gpus(int(sizes[best]))} each would save {saves} an hour, elsewhere {span_text(least)}",
        ]
    clauses: list[str] = []
    if shares.members.jobs[row].is_speed_guessed:
        return clauses
    for other, words in ((chosen + 1, "more would save"), (chosen - 1, "less would cost")):
        if other < len(own) and np.isfinite(own[other]):
            gpus = abs(int(sizes[other] - sizes[chosen]))
            change = max(0.0, float((own[other] - own[chosen]) * (other - chosen)))
            clauses.append(f"{in_gpus(gpus)} {words} {span_text(change)} an hour")
    return clauses


def _least_worth(shares: PoolShares, worth: np.ndarray) -> float:
    """What the GPU saves in an hour that saves least, by job that has any."""
    has = np.flatnonzero(shares.chosen)
    worths = worth[has, shares.chosen[has]] / shares.members.sizes[shares.chosen[has]]
    return max(0.0, float(worths.min(initial=np.inf))) if has.size else 0.0
