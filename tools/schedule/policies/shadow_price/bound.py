"""No job ends later than it would under equal shares, had it been submitted a stated grace later.

The reference (:class:`EqualShares`) deals all GPUs out equally every T seconds, and its jobs train for T - b
seconds of each deal. Job i enters it grace_s + grace · its time alone on the GPUs that it requests after it
came into play. Credit (:class:`Credits`) is what GPUs were good for by the profile: q of the real job, p of
the one in the reference, which has r_i samples per second on k_i GPUs in the present deal and p' at the end.

**Theorem.** Every job ends by the end of the deal in which it would end in the reference, if
(1) jobs train as fast as the profile says, up to a factor that depends on their progress alone, wherever
they are placed, and not less at a batch that they are given; (2) a change costs a job at most c seconds, and
decisions come at most b - c seconds apart; (3) there is one GPU type, all GPUs stay, no job is stopped from
outside, and none is kept where it is. Curves may have any shape, jobs any minimum and any demands of nodes,
and nothing need be known of their work.

**Proof.** Call a size k of job i safe at time t, in the deal that ends at E, if after w = min(b - c, E - t)
seconds on it the job can still get to p' on k_i GPUs: where a change to k costs c, and one to k_i then again,

    q + min(r(k), r_i) · (w - c)⁺ + r_i · (E - t - w - c)⁺ ≥ p',    no c where k is what it holds,

or if k ≤ k_i and keeping it is enough: q + r(k) · (E - t - c)⁺ ≥ p'. Every decision gives every job a safe
size, in a place and at a batch that it keeps until E where it could not make up for a move. This can be done:

(a) At the first decision of a deal q ≥ p, and t is at most b - c after its beginning. So k_i is safe:
r_i · (T - (b - c) - c) = r_i · (T - b) = p' - p.
(b) Where a job got a safe size at one decision, at the next k_i is safe, or the size that it holds is, and is
at most k_i. That is what the inequalities say if it comes after w; sooner, it only eases them.
(c) So at every decision each job has a safe size of at most k_i GPUs. Σ k_i is at most all GPUs, as the
reference is a schedule: all jobs can have safe sizes at once. The knapsack finds those of largest value.
Where jobs demand something of nodes, k_i means those GPUs that the reference gives the job. A job that cannot
wait has these, or keeps a part of them: such places do not overlap, and have room for all.

At E then q ≥ p', which is (a) for the next deal. A job whose credit reaches that with which it ends has
ended. So no job ends after the deal in which the reference has it end. ∎

Outside these conditions nothing is promised, but a job that is behind is given what makes it as fast as k_i
does until it has caught up. On several GPU types, sizes are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.demand import demand_gpu_s
from pliant.tools.schedule.jobs import JobState, NodeGpus
from pliant.tools.schedule.policies.common import known_pools
from pliant.tools.schedule.policies.shadow_price.curves import Floats, Ints
from pliant.tools.schedule.policies.shadow_price.job_estimates import Knowledge, PoolColumns
from pliant.tools.schedule.policies.shadow_price.reference import ROUNDING, SAME_S, EqualShares, Sharer
from pliant.tools.schedule.policy import Target
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.snapshot import Change, Snapshot

if TYPE_CHECKING:
    from pliant.schemas.cluster import Cluster

Flags = npt.NDArray[np.bool_]


def kept_from_promise(cluster: Cluster) -> str | None:
    """Why nothing is promised on a cluster, as a clause. Returns None if something is."""
    if len({node.gpu_type for node in cluster.nodes if node.gpus}) > 1:
        return "GPU types differ"
    if cluster.shares is not None:
        return "teams share the cluster"
    if cluster.min_run_seconds or cluster.cooldown_seconds:
        return "the cluster keeps jobs where they are for a time"
    return None


class Terms(NamedTuple):
    """What is promised."""

    grace: float
    """Part of a job's time alone on the GPUs that it requests."""
    grace_s: float
    deal_s: float
    lost_s: float
    unstated_grace_s: float
    """All of the grace of a job that does not state its work."""

    def grace_of(self, job: JobState, speeds: Speeds) -> float:
        """Seconds from when the job comes into play until it enters the reference."""
        if job.predicted or job.total_samples is None:
            return self.unstated_grace_s
        alone_s = 0.0 if job.is_speed_guessed else demand_gpu_s(job, speeds) / job.requested
        return self.grace_s + self.grace * alone_s


@dataclass(frozen=True)
class Guard:
    """Which sizes keep the promise, by row of the members."""

    safe: Flags
    """[job, size]"""
    pinned: Flags
    """Jobs that hold a safe size and cannot afford a move or another batch."""
    due_gpus: Ints
    """GPUs of the job in the reference, where it must be served now; 0 elsewhere."""
    places: Mapping[int, NodeGpus] = field(default_factory=dict)
    """Where such jobs are to be, where demands of jobs say on which nodes: others make way."""

    @classmethod
    def none(cls, members: PoolColumns) -> Guard:
        jobs = len(members.jobs)
        every = np.ones(members.whole.shape, dtype=np.bool_)
        return cls(every, np.zeros(jobs, dtype=np.bool_), np.zeros(jobs, dtype=np.int64))


class Bound:
    """The reference beside the real cluster, and what it asks for."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._reference = EqualShares(terms.deal_s, terms.lost_s)
        self._credits = Credits()

    def follow(self, snapshot: Snapshot, known: Knowledge) -> None:
        gains = [change.gpus for change in snapshot.changes]
        gpus = snapshot.total_gpus - sum(gains)
        for change, gained in zip(snapshot.changes, gains, strict=True):
            if gained:
                self._advance(change.time_s, gpus, snapshot, known)
                self._reference.close(change.time_s)
                gpus += gained
            elif change.job is not None:
                if change.ended_job and change.kind != "finished":  # it has its part of the deals before
                    self._advance(change.time_s - SAME_S, gpus, snapshot, known)
                self._apply(change, change.job, snapshot)
        for job in snapshot.jobs.values():
            self._credits.begin(job, snapshot.time_s)
        self._credits.book(snapshot.jobs.values(), known, snapshot.time_s)
        self._advance(snapshot.time_s, gpus, snapshot, known)

    def guard(self, members: PoolColumns, known: Knowledge, time_s: float) -> Guard:
        jobs = members.jobs
        safe = np.ones(members.whole.shape, dtype=np.bool_)
        pinned, due = np.zeros(len(jobs), dtype=np.bool_), np.zeros(len(jobs), dtype=np.int64)
        places: dict[int, NodeGpus] = {}
        for row, job in enumerate(jobs):
            share = self._reference.share(job.id)
            if share is not None and self._need(share) > 0:
                rate = known.held_rate(job, time_s) if members.held[row] else 0.0
                on_nodes = share.place is not None
                judge = self._safe_on_nodes if on_nodes else self._safe
                safe[row], pinned[row] = judge(members, row, share, rate, time_s)
                due[row] = 0 if safe[row, 0] else share.gpus
                if on_nodes and due[row]:
                    places[row] = job.placement if pinned[row] else share.place or ()
        return Guard(safe, pinned, due, places)

    def expect(self, members: PoolColumns, changed: Mapping[str, Target], time_s: float) -> None:
        for row, job in enumerate(members.jobs):
            target = changed.get(job.id)
            gpus = job.gpus if target is None else target.gpus
            if not gpus:
                self._credits.expect_none(job)
                continue
            curve, size = members.curves[row], int(members.sizes.searchsorted(gpus))
            begins_s = job.changed_s if target is None else time_s
            rate = float(curve.rates[size, curve.usual])
            self._credits.expect(job, rate, begins_s + float(members.rescale_s[row]))

    def dump(self) -> dict[str, Any]:
        return {"reference": self._reference.dump(), "credits": self._credits.dump()}

    def load(self, state: Mapping[str, Any], jobs: Mapping[str, JobState]) -> None:
        self._reference.load(state["reference"], jobs)
        self._credits.load(state["credits"])

    def _apply(self, change: Change, job: JobState, snapshot: Snapshot) -> None:
        if change.kind == "arrived":
            self._reference.enter(job, change.time_s + self._terms.grace_of(job, snapshot.speeds))
        elif change.kind == "finished":
            credit = self._credits.end(job.id, change.time_s)
            self._reference.end(job.id, job.samples_done(change.time_s) if credit is None else credit)
        elif change.ended_job:
            self._credits.end(job.id, change.time_s)
            self._reference.withdraw(job.id)

    def _advance(self, time_s: float, gpus: int, snapshot: Snapshot, known: Knowledge) -> None:
        if not self._reference.is_due(time_s):
            return
        pool = next(iter(known_pools(snapshot).values()), None)
        if pool is None:
            return
        curves = known.curves(pool)

        def rates_of(job: JobState) -> tuple[Ints, Floats]:
            curve = curves.of(job)
            return curves.sizes, curve.rates[:, curve.usual]

        for _ in self._reference.advance(time_s, gpus, rates_of, snapshot.nodes):
            pass

    def _need(self, share: Sharer) -> float:
        return share.target * (1 - ROUNDING) - self._credits.of(share.job.id)

    def _safe(
        self, members: PoolColumns, row: int, share: Sharer, rate: float, time_s: float
    ) -> tuple[Flags | bool, bool]:
        """[size] whether it is safe, and whether the job must stay where it is.

        :param rate: what the job holds is good for, 0 for nothing.
        """
        cost_s, left_s = float(members.rescale_s[row]), self._reference.until_s - time_s
        window_s = min(max(0.0, self._terms.lost_s - cost_s), left_s)
        need = self._need(share)
        then = share.rate * max(0.0, left_s - window_s - cost_s)
        if then >= need:
            return True, False
        curve, sizes = members.curves[row], members.sizes
        rates = curve.rates[:, curve.usual]
        at_most = sizes <= share.gpus

        def enough(rates: Floats, wait_s: float) -> Flags:
            back = np.minimum(rates, share.rate) * max(0.0, window_s - wait_s) + then >= need
            return back | ((rates * max(0.0, left_s - wait_s) >= need) & at_most)

        moved = enough(rates, cost_s)
        safe, held = moved.copy(), int(members.held[row])
        if held:
            wait_s = max(0.0, members.jobs[row].changed_s + cost_s - time_s)
            safe[held] = enough(np.full(len(sizes), rate), wait_s)[held]
        if not safe[at_most].any():  # behind: outside the theorem
            as_fast = share.rate * (1 - ROUNDING)
            safe, keeps = rates >= as_fast, held > 0 and rate >= as_fast
            safe[held] |= keeps
            moved[held] = not keeps  # a size in a place that makes the job slower: it may move
        return safe, bool(held and safe[held] and not moved[held])

    def _safe_on_nodes(
        self, members: PoolColumns, row: int, share: Sharer, rate: float, time_s: float
    ) -> tuple[Flags | bool, bool]:
        """The same where nodes matter: a job that cannot wait is in its place of the reference, or in a part.

        Then no two of such jobs are in each other's way.
        """
        cost_s, left_s = float(members.rescale_s[row]), self._reference.until_s - time_s
        window_s = min(max(0.0, self._terms.lost_s - cost_s), left_s)
        need, job, held = self._need(share), members.jobs[row], int(members.held[row])
        if share.rate * max(0.0, left_s - window_s - cost_s) >= need:
            return True, False
        own = dict(share.place or ())
        inside = held > 0 and all(count <= own.get(name, 0) for name, count in job.placement)
        wait_s = max(0.0, job.changed_s + cost_s - time_s)
        keeps = inside and rate * max(0.0, left_s - wait_s) >= need
        if not keeps and share.rate * max(0.0, left_s - cost_s) < need:  # behind: outside the theorem
            keeps = inside and rate >= share.rate * (1 - ROUNDING)
        safe = np.zeros(len(members.sizes), dtype=np.bool_)
        safe[held if keeps else members.sizes.searchsorted(share.gpus)] = True
        return safe, keeps


@dataclass(slots=True)
class _Account:
    credit: float
    until_s: float
    """Up to when it is counted."""
    rate: float = 0.0
    """Rate of what the job was to hold then, should it end before it is asked about again."""
    from_s: float = 0.0


class Credits:
    """What the GPUs that each active job has held were good for, in samples of its author's batch.

    Counted by the speeds of the profile: a job that is slower by a factor that depends on its progress alone
    is as far as the same job in the reference when it has had the same credit.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}

    def of(self, job_id: str) -> float:
        return self._accounts[job_id].credit

    def begin(self, job: JobState, time_s: float) -> None:
        if job.id not in self._accounts:
            self._accounts[job.id] = _Account(job.samples_done(time_s), time_s)

    def book(self, jobs: Iterable[JobState], known: Knowledge, time_s: float) -> None:
        for job in jobs:
            if job.gpus:
                self.expect(job, known.held_rate(job, time_s), job.changed_s + known.rescale_s(job))
            else:
                self.expect_none(job)
            _count(self._accounts[job.id], time_s)

    def expect(self, job: JobState, rate: float, from_s: float) -> None:
        account = self._accounts[job.id]
        account.rate, account.from_s = rate, from_s

    def expect_none(self, job: JobState) -> None:
        self._accounts[job.id].rate = 0.0

    def end(self, job_id: str, time_s: float) -> float | None:
        """A job has left; returns its credit, None if it was not there."""
        account = self._accounts.pop(job_id, None)
        if account is None:
            return None
        _count(account, time_s)
        return account.credit

    def dump(self) -> dict[str, list[float]]:
        return {job_id: [*astuple(account)] for job_id, account in sorted(self._accounts.items())}

    def load(self, state: Mapping[str, Any]) -> None:
        self._accounts = {job_id: _Account(*values) for job_id, values in state.items()}


def _count(account: _Account, time_s: float) -> None:
    account.credit += account.rate * max(0.0, time_s - max(account.until_s, account.from_s))
    account.until_s = max(account.until_s, time_s)
