"""Slurm as clusters run it: multifactor priority, backfill by time limits, preemption by QOS."""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from pliant.schemas.cluster import Owner
from pliant.schemas.quantities import duration_words, read_duration
from pliant.schemas.text import shortened
from pliant.tools.schedule.entitlements import GpuUsage
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.backfill import FreeAhead, waits
from pliant.tools.schedule.policies.common import (
    GpuBudget,
    Grant,
    JobRecord,
    explain_gang,
    is_in_reach,
    reject_arrivals,
    reject_impossible,
)
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Change, Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Job
    from pliant.tools.schedule.rates import Speeds

_DAY_S: Final = 86_400.0
_ROUNDING: Final = 1e-6
"""Rounding of a sum of factors, and of a number of slots or periods."""
_LIMIT: Final = "time_limit"
_QOS: Final = "qos"
_PARTITION: Final = "partition"
"""Labels of jobs."""


class Factors(NamedTuple):
    """What the priority of a job is the sum of, each multiplied with its weight."""

    age: float
    fair_share: float
    job_size: float
    partition: float
    qos: float


@dataclass(slots=True, eq=False)
class _Record(JobRecord):
    """What Slurm knows of one active job."""

    job: JobState
    owner: Owner
    eligible_s: float
    """Time at which it came, or was released."""
    limit_s: float
    """The longest that it may run, as its user states."""
    may_preempt: bool
    priority: int = 0
    held: int = 0
    """GPUs that its owner is charged for."""
    queued: bool = False

    @property
    def turn(self) -> tuple[bool, int, float, str]:
        """Jobs that can preempt first, then by priority, time of submission and id."""
        return not self.may_preempt, -self.priority, *self.job.arrival


@dataclass(slots=True)
class FairShares:
    """The classic fair-share factor, 2^(-U/S), of users below accounts.

    S is the normalised share of a user, U the effective usage: of an account its part of all usage; of a user
    its own part, and of what the rest of its account used beyond that as much as its share within it.
    """

    stated: Mapping[str, float]
    """Shares by account; of others 1."""
    users: dict[str, dict[str, None]] = field(default_factory=dict)
    """Who has submitted jobs, by account."""
    used: dict[Owner, float] = field(default_factory=dict)
    """Decayed GPU-seconds."""
    _known: dict[Owner, float] = field(default_factory=dict)

    def join(self, owner: Owner) -> None:
        known = self.users.setdefault(owner.team, {})
        if owner.user not in known:
            known[owner.user] = None
            self._known.clear()

    def settle(self, used: Mapping[Owner, float]) -> None:
        self.used = dict(used)
        self._known.clear()

    def factor(self, owner: Owner) -> float:
        factor = self._known.get(owner)
        if factor is None:
            factor = self._known[owner] = self._factor(owner)
        return factor

    def _factor(self, owner: Owner) -> float:
        total = sum(self.used.values())
        shares = {name: self.stated.get(name, 1.0) for name in self.stated.keys() | self.users.keys()}
        within = 1 / max(1, len(self.users.get(owner.team, ())))
        share = shares.get(owner.team, 1.0) / (math.fsum(shares.values()) or 1.0) * within
        if not share:
            return 0.0
        if total <= 0:
            return 1.0
        own = self.used.get(owner, 0.0) / total
        account = sum(gpu_s for each, gpu_s in self.used.items() if each.team == owner.team) / total
        effective = own + (account - own) * within
        return float(2.0 ** -(effective / share))


@dataclass(kw_only=True, eq=False, repr=False)
class Slurm(Policy):
    """Slurm's multifactor priority, conservative backfill by time limits, and preemption by QOS.

    The rules are those of Slurm's manual (version 22.05: slurm.conf, Multifactor Priority Plugin,
    Classic Fairshare Algorithm, Scheduling Configuration Guide, Preemption), and so are the names of
    parameters, in small letters.

    Priority is a whole number: the sum of five factors from 0 to 1, each times ``priority_weight_…``,
    and of the job's own priority (a negative nice value). It is computed again every
    ``priority_calc_period_s``.

    - Age: the time waited, 1 from ``priority_max_age_s`` on.
    - Fair share: 2^(-U/S) of its user below its team (PriorityFlags=NO_FAIR_TREE). Usage in GPU-seconds
      halves every ``priority_decay_half_life_s``; ``shares`` has those of teams as NAME=NUMBER with
      commas between them, 1 where not stated, equal among the users of a team.
    - Job size: requested GPUs over those of the cluster, or 1 minus that with ``priority_favor_small``.
    - Partition and QOS: the number of the job's label in ``partitions`` or ``qos`` (NAME=NUMBER), over
      the largest.

    At every change jobs start in order of priority, then of submission, until one does not fit. A
    backfill pass, at most every ``bf_interval_s``, reads the first ``bf_max_job_test`` waiting jobs in
    that order and books for each the earliest time within ``bf_window_s`` at which its GPUs are free for
    its whole time limit; a job starts now if it ends before what is booked. So no job delays one before
    it. Times count in steps of ``bf_resolution_s``.

    The time limit is ``limits.run_seconds``, or the job's label ``time_limit`` (seconds, or 30m, 2h).
    Without, it is the predicted run time times 1 + ``overestimate`` · u, u uniform in [0, 1), drawn for each
    job from its id and ``overestimate_seed`` (the f-model of Mu'alem and Feitelson, IEEE TPDS 2001). Jobs of
    unknown work get ``default_time_s``.

    ``preempts`` lists which QOS may preempt which, as high>low with commas (PreemptType=preempt/qos,
    PreemptMode=REQUEUE; empty: none). A job that can preempt comes first, and takes the GPUs of running
    jobs of lowest priority that have run for ``preempt_exempt_time_s``. They wait again with their old
    place.

    Departures: GPUs are planned by number and type, while Slurm books whole nodes, so it backfills less.
    All partitions have all nodes and one tier. Time limits end no job. A backfill pass preempts none.
    There are no association, site and TRES factors, no reservations, no licences. Without its saved
    state usage is counted again from the service of the known jobs.
    """

    name: ClassVar[str] = "slurm"
    traits: ClassVar[Traits] = Traits(
        knows="work",
        priority_means="it is added to the sum of the weighted factors, as a negative nice value",
        unknown_work="takes default_time_s as their time limit",
        rebuilds_state=False,
    )

    priority_weight_age: float = 1000.0
    priority_weight_fairshare: float = 10_000.0
    priority_weight_job_size: float = 1000.0
    priority_weight_partition: float = 1000.0
    priority_weight_qos: float = 1000.0
    priority_max_age_s: float = 7 * _DAY_S
    priority_decay_half_life_s: float = 7 * _DAY_S
    priority_calc_period_s: float = 300.0
    priority_favor_small: bool = False
    shares: str = ""
    partitions: str = ""
    qos: str = ""
    preempts: str = ""
    preempt_exempt_time_s: float = 0.0
    bf_interval_s: float = 30.0
    bf_window_s: float = _DAY_S
    bf_resolution_s: float = 60.0
    bf_max_job_test: int = 500
    default_time_s: float = _DAY_S
    overestimate: float = 1.0
    overestimate_seed: int = 0

    def __post_init__(self) -> None:
        self._check()
        self._weights = Factors(
            self.priority_weight_age,
            self.priority_weight_fairshare,
            self.priority_weight_job_size,
            self.priority_weight_partition,
            self.priority_weight_qos,
        )
        self._partition_factors = _over_largest(_numbers("partitions", self.partitions))
        self._qos_factors = _over_largest(_numbers("qos", self.qos))
        self._preempts = _pairs(self.preempts)
        self._fair = FairShares(_numbers("shares", self.shares))
        self._usage = GpuUsage(self.priority_decay_half_life_s)
        self._records: dict[str, _Record] = {}
        # Those that wait, by turn.
        self._queue: list[_Record] = []
        # GPUs of jobs that the last decision changed.
        self._decided: dict[str, int] = {}
        self._decided_s = -math.inf
        # When priorities were computed last; None: this object has not been asked yet.
        self._calculated_s: float | None = None
        self._backfilled_s = -math.inf
        # Whether something has changed since the last backfill pass.
        self._stale = True
        self._is_loaded = False

    def _check(self) -> None:
        for name in ("priority_max_age_s", "priority_decay_half_life_s", "bf_resolution_s", "default_time_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"parameter {name}: expected a number above 0")
        names = (
            *("priority_weight_age", "priority_weight_fairshare", "priority_weight_job_size"),
            *("priority_weight_partition", "priority_weight_qos", "priority_calc_period_s"),
            *("preempt_exempt_time_s", "bf_interval_s", "bf_window_s", "overestimate"),
        )
        for name in names:
            if getattr(self, name) < 0:
                raise ValueError(f"parameter {name}: expected 0 or more")
        if self.bf_max_job_test < 1:
            raise ValueError("parameter bf_max_job_test: expected 1 or more")

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return any(_LIMIT not in job.labels and _limit_s(job) is None for job in jobs)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """O(changes · log jobs) where no pass is due; a pass costs O(tested jobs · those booked)."""
        now_s = snapshot.time_s
        rejected = reject_impossible(snapshot) | reject_arrivals(snapshot, _why_no_limit)
        changed = {change.job.id for change in snapshot.changes if change.job is not None}
        self._charge_decided(snapshot, changed)
        self._recalculate(snapshot)
        self._keep_up(snapshot, changed | self._decided.keys(), rejected)
        turn = _Turn(snapshot, GpuBudget(snapshot.free_gpus))
        head = self._start_in_order(turn)
        again_s = turn.exempt_until_s
        if head is not None and turn.budget.total:
            due_s = self._backfilled_s + self.bf_interval_s
            if self._stale and now_s >= due_s:
                self._backfill(turn)
                self._backfilled_s, self._stale = now_s, False
            if any(job.gpus for job in snapshot.jobs.values()) or turn.grants:
                again_s = min(again_s, due_s if self._stale else math.inf, self._next_calculation_s())
        self._queue = [record for record in self._queue if record.job.id not in turn.grants]
        for job_id in turn.grants:
            self._records[job_id].queued = False
        for job_id in turn.preempted:
            self._enqueue(self._records[job_id])
        self._decided = dict.fromkeys(turn.preempted, 0) | {
            job_id: grant.gpus for job_id, grant in turn.grants.items()
        }
        self._decided_s = now_s
        targets = {job_id: Target(0) for job_id in turn.preempted} | {
            job_id: Target(grant.gpus, grant.gpu_type) for job_id, grant in turn.grants.items()
        }
        return Decision(targets, rejected, ask_again_s=again_s if math.isfinite(again_s) else None)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        explanations = {}
        places = {record.job.id: place for place, record in enumerate(self._queue, 1)}
        for job in snapshot.jobs.values():
            record = self._records.get(job.id)
            if record is None:
                continue
            if job.gpus:
                reason = f"started with priority {record.priority}"
            else:
                parts = self._weighed(record, self._calculated_s or snapshot.time_s, snapshot.speeds)
                factors = ", ".join(
                    f"{name.replace('_', ' ')} {part:.0f}"
                    for name, part in parts._asdict().items()
                    if round(part)
                )
                place = f"place {places[job.id]} in the queue, " if job.id in places else ""
                reason = f"{place}priority {record.priority}" + (f" ({factors})" if factors else "")
            explanations[job.id] = explain_gang(job, reason)
        return explanations

    # Jobs, and what their owners have used.

    def _charge_decided(self, snapshot: Snapshot, changed: Collection[str]) -> None:
        """Count what the last decision gave, or what became of it where no change tells."""
        for job_id, gpus in self._decided.items():
            job = snapshot.jobs.get(job_id)
            self._charge(job_id, gpus if job is None or job_id in changed else job.gpus, self._decided_s)

    def _keep_up(self, snapshot: Snapshot, named: set[str], rejected: Mapping[str, str]) -> None:
        """:param named: jobs that may be in another place than before."""
        first = self._calculated_s is None
        if first:
            self._calculated_s = snapshot.time_s
        self._stale = self._stale or bool(snapshot.changes)
        for change in snapshot.changes:
            if change.job is not None:
                self._follow(change, change.job, snapshot)
        if first:
            self._recollect(snapshot)
        for job_id in sorted(named):
            self._put(job_id, snapshot, rejected)
        if first or self._is_loaded or len(self._records) != len(snapshot.jobs) - len(rejected):
            for job_id in sorted((self._records.keys() | snapshot.jobs.keys()) - named):
                self._put(job_id, snapshot, rejected)
        self._is_loaded = False

    def _follow(self, change: Change, job: JobState, snapshot: Snapshot) -> None:
        """Count until a change what its job has held; a job that comes is eligible from then on."""
        if change.kind == "arrived" and snapshot.jobs.get(job.id) is job:
            self._drop(job.id)
            self._records[job.id] = self._record(job, change.time_s, snapshot.speeds)
        elif change.kind == "lost" or change.ended_job is not None:
            self._charge(job.id, 0, change.time_s)
        elif change.kind == "priority" and (record := self._records.get(job.id)) is not None:
            self._dequeue(record)
            record.priority = self._priority(record, change.time_s, snapshot.speeds)

    def _put(self, job_id: str, snapshot: Snapshot, rejected: Mapping[str, str]) -> None:
        """Put a job where it is now: away, running, or in its place in the queue."""
        job = snapshot.jobs.get(job_id)
        if job is None or job_id in rejected:
            self._drop(job_id)
            return
        record = self._records.get(job_id)
        if record is None or record.job is not job:
            self._drop(job_id)
            record = self._records[job_id] = self._record(job, job.spec.submit_time, snapshot.speeds)
        self._charge(job_id, job.gpus, snapshot.time_s)
        self._dequeue(record)
        if not job.gpus:
            self._enqueue(record)

    def _record(self, job: JobState, eligible_s: float, speeds: Speeds) -> _Record:
        owner = Owner(job.spec.team, job.spec.user)
        self._fair.join(owner)
        may_preempt = job.spec.labels.get(_QOS, "") in self._preempts
        record = _Record(job, owner, eligible_s, self._limit_s(job, speeds), may_preempt)
        record.priority = self._priority(record, eligible_s, speeds)
        return record

    def _limit_s(self, job: JobState, speeds: Speeds) -> float:
        """The time limit: stated, else by the slowest GPUs that run the job."""
        stated = _stated_limit_s(job)
        if stated is not None:
            return stated
        gpus, samples = job.requested, job.known_samples
        rates = [rate for kind in speeds.gpu_types if (rate := speeds.rate(job, gpus, kind)) > 0]
        if samples is None or not rates:
            return self.default_time_s
        if not self.overestimate:
            return samples / min(rates)
        drawn = random.Random(f"{self.overestimate_seed} {job.id}").random()  # noqa: S311 - no secret
        return samples / min(rates) * (1 + self.overestimate * drawn)

    def _charge(self, job_id: str, gpus: int, time_s: float) -> None:
        record = self._records.get(job_id)
        if record is not None:
            self._usage.hold(record.owner, gpus - record.held, time_s)
            record.held = gpus

    def _recollect(self, snapshot: Snapshot) -> None:
        """Usage of the jobs known, as if they had received their service at the end of it."""
        used: dict[Owner, float] = {}
        ended = [(change.ended_job, change.time_s) for change in snapshot.changes if change.ended_job]
        for job, time_s in (*ended, *((job, snapshot.time_s) for job in snapshot.jobs.values())):
            owner = Owner(job.spec.team, job.spec.user)
            kept = 0.5 ** ((snapshot.time_s - time_s) / self.priority_decay_half_life_s)
            used[owner] = used.get(owner, 0.0) + kept * job.attained_service_s(time_s)
            self._fair.join(owner)
        self._usage = GpuUsage(self.priority_decay_half_life_s, used, since_s=snapshot.time_s)
        self._fair.settle(used)
        for record in self._records.values():
            record.priority = self._priority(record, snapshot.time_s, snapshot.speeds)

    def _drop(self, job_id: str) -> None:
        record = self._records.get(job_id)
        if record is not None:
            self._charge(job_id, 0, self._usage.changed_s)
            self._dequeue(record)
            del self._records[job_id]

    def _enqueue(self, record: _Record) -> None:
        insort(self._queue, record, key=attrgetter("turn"))
        record.queued = True

    def _dequeue(self, record: _Record) -> None:
        if record.queued:
            del self._queue[bisect_left(self._queue, record.turn, key=attrgetter("turn"))]
            record.queued = False

    # Priorities.

    def _recalculate(self, snapshot: Snapshot) -> None:
        """Compute priorities again, as of the last time at which that was due."""
        period_s = self.priority_calc_period_s
        if self._calculated_s is None:
            return
        passed = (snapshot.time_s - self._calculated_s) / period_s if period_s else math.inf
        if passed < 1 - _ROUNDING:
            return
        time_s = snapshot.time_s
        if period_s:
            time_s = self._calculated_s + math.floor(passed + _ROUNDING) * period_s
        self._calculated_s = time_s
        self._fair.settle(self._usage.until(max(time_s, self._usage.changed_s)))
        before = [record.job.id for record in self._queue]
        for record in self._queue:
            record.priority = self._priority(record, time_s, snapshot.speeds)
        self._queue.sort(key=attrgetter("turn"))
        self._stale = self._stale or before != [record.job.id for record in self._queue]

    def _next_calculation_s(self) -> float:
        """When priorities may change their order next."""
        moves = self.priority_weight_age or self.priority_weight_fairshare
        if self._calculated_s is None or not moves or not self.priority_calc_period_s:
            return math.inf
        return self._calculated_s + self.priority_calc_period_s

    def _priority(self, record: _Record, time_s: float, speeds: Speeds) -> int:
        weighed = self._weighed(record, time_s, speeds)
        return math.floor(math.fsum((*weighed, record.job.priority)) + _ROUNDING)

    def _weighed(self, record: _Record, time_s: float, speeds: Speeds) -> Factors:
        factors = self._factors(record, time_s, speeds)
        return Factors(*(weight * factor for weight, factor in zip(self._weights, factors, strict=True)))

    def _factors(self, record: _Record, time_s: float, speeds: Speeds) -> Factors:
        labels = record.job.spec.labels
        size = min(1.0, record.job.requested / (sum(speeds.gpu_types.values()) or 1))
        return Factors(
            age=min(1.0, max(0.0, time_s - record.eligible_s) / self.priority_max_age_s),
            fair_share=self._fair.factor(record.owner),
            job_size=1 - size if self.priority_favor_small else size,
            partition=self._partition_factors.get(labels.get(_PARTITION, ""), 0.0),
            qos=self._qos_factors.get(labels.get(_QOS, ""), 0.0),
        )

    # Starts.

    def _start_in_order(self, turn: _Turn) -> _Record | None:
        """Start jobs in order until one does not fit, and return that; pass over those out of reach."""
        snapshot, budget = turn.snapshot, turn.budget
        gpus_up: Mapping[str, int] = {}
        for record in self._queue:
            job = record.job
            if not waits(job, snapshot):
                continue
            if not budget.total and not record.may_preempt:
                return record
            grant = budget.fit(job, job.requested, snapshot.speeds) or self._preempt(record, turn)
            if grant is not None:
                budget.take(grant)
                turn.grants[job.id] = grant
                continue
            gpus_up = gpus_up or snapshot.gpus_by_type()
            if is_in_reach(job, job.requested, gpus_up, snapshot.speeds):
                return record
        return None

    def _preempt(self, record: _Record, turn: _Turn) -> Grant | None:
        """GPUs of running jobs that this one may preempt, on the type on which it is fastest."""
        if not record.may_preempt:
            return None
        job, gpus, snapshot = record.job, record.job.requested, turn.snapshot
        below = self._preempts[job.spec.labels[_QOS]]
        victims: dict[str, list[_Record]] = {}
        for each in self._records.values():
            other = each.job
            if not other.gpus or other.id in turn.preempted or other.spec.labels.get(_QOS, "") not in below:
                continue
            exempt_until_s = other.granted_s + self.preempt_exempt_time_s
            if exempt_until_s > snapshot.time_s:
                turn.exempt_until_s = min(turn.exempt_until_s, exempt_until_s)
            else:
                victims.setdefault(other.gpu_type or "", []).append(each)
        kinds = [
            (-rate, kind)
            for kind in victims
            if job.fits_now(gpus, kind) and (rate := snapshot.speeds.rate(job, gpus, kind)) > 0
        ]
        for _, kind in sorted(kinds):
            taken = _fewest(victims[kind], gpus - turn.budget.left[kind])
            if taken:
                turn.preempted.update((each.job.id, None) for each in taken)
                turn.budget.left[kind] += sum(each.job.gpus for each in taken)
                return Grant(gpus, kind)
        return None

    def _backfill(self, turn: _Turn) -> None:
        """Book every waiting job in order at its earliest time, and start those whose time is now."""
        snapshot, budget = turn.snapshot, turn.budget
        ahead = self._free_ahead(turn)
        last = math.floor(self.bf_window_s / self.bf_resolution_s + _ROUNDING)
        waiting = (each for each in self._queue if waits(each.job, snapshot))
        tested = list(
            islice((each for each in waiting if each.job.id not in turn.grants), self.bf_max_job_test)
        )
        fewest = [*accumulate((each.job.requested for each in reversed(tested)), min)]
        for record, least in zip(tested, reversed(fewest), strict=True):
            if least > max(free.now for free in ahead.values()):
                return  # no job that follows can start now
            job, gpus = record.job, record.job.requested
            slots = self._slots(record.limit_s)
            # no job that waits is delayed: this one ends before what is booked, and not at that moment
            starts = [
                (start, -rate, kind)
                for kind, free in ahead.items()
                if job.fits_now(gpus, kind)
                and (rate := snapshot.speeds.rate(job, gpus, kind)) > 0
                and (start := free.earliest(gpus, slots + 1, last)) is not None
            ]
            if not starts:
                continue
            start, _, kind = min(starts)
            ahead[kind].book(gpus, start, slots)
            if not start:
                turn.grants[job.id] = Grant(gpus, kind)
                budget.take(turn.grants[job.id])

    def _free_ahead(self, turn: _Turn) -> dict[str, FreeAhead]:
        """GPUs by type that come free as running jobs reach their limits; one beyond its limit ends soon."""
        now_s = turn.snapshot.time_s
        frees: dict[str, list[tuple[int, int]]] = {kind: [] for kind in turn.budget.left}
        for job in turn.snapshot.jobs.values():
            kind = job.gpu_type
            if job.gpus and kind in frees and job.id not in turn.preempted and job.id in self._records:
                end_s = job.granted_s + self._records[job.id].limit_s
                frees[kind].append((self._slots(end_s - now_s), job.gpus))
        for job_id, grant in turn.grants.items():
            frees[grant.gpu_type].append((self._slots(self._records[job_id].limit_s), grant.gpus))
        return {kind: FreeAhead(left, frees[kind]) for kind, left in turn.budget.left.items()}

    def _slots(self, seconds: float) -> int:
        return max(1, math.ceil(seconds / self.bf_resolution_s - _ROUNDING))

    # What is carried.

    def dump_state(self) -> dict[str, Any]:
        usage = self._usage
        return {
            "jobs": {
                job_id: [each.eligible_s, each.limit_s, each.priority, each.held]
                for job_id, each in self._records.items()
            },
            "users": [[team, list(users)] for team, users in self._fair.users.items()],
            "used": _listed(self._fair.used),
            "usage": [_listed(usage.gpu_s), _listed(usage.held), usage.since_s],
            "since": [_listed(usage.changes), usage.changed_s],
            "decided": [self._decided, _finite(self._decided_s)],
            "calculated_s": self._calculated_s,
            "backfilled_s": _finite(self._backfilled_s),
            "stale": self._stale,
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._fair.users = {team: dict.fromkeys(users) for team, users in state["users"]}
        self._fair.settle(_owned(state["used"]))
        gpu_s, held, since_s = state["usage"]
        changes, changed_s = state["since"]
        half_life_s = self.priority_decay_half_life_s
        self._usage = GpuUsage(half_life_s, _owned(gpu_s), _owned(held), since_s, _owned(changes), changed_s)
        for job_id, (eligible_s, limit_s, priority, charged) in state["jobs"].items():
            job = jobs[job_id]
            may_preempt = job.spec.labels.get(_QOS, "") in self._preempts
            owner = Owner(job.spec.team, job.spec.user)
            record = _Record(job, owner, eligible_s, limit_s, may_preempt, priority, charged)
            self._records[job_id] = record
            if not job.gpus:
                self._enqueue(record)
        self._decided, self._decided_s = dict(state["decided"][0]), _or_never(state["decided"][1])
        self._calculated_s = state["calculated_s"]
        self._backfilled_s, self._stale = _or_never(state["backfilled_s"]), state["stale"]
        self._is_loaded = True


@dataclass(slots=True)
class _Turn:
    """One decision while it is made."""

    snapshot: Snapshot
    budget: GpuBudget
    grants: dict[str, Grant] = field(default_factory=dict)
    preempted: dict[str, None] = field(default_factory=dict)
    exempt_until_s: float = math.inf
    """Time at which the first running job may be preempted that may not yet."""


def _fewest(victims: Sequence[_Record], gpus: int) -> list[_Record]:
    """Those of lowest priority that free that many GPUs, and none without need; empty if all are too few."""
    taken: list[_Record] = []
    freed = 0
    for each in sorted(victims, key=attrgetter("turn"), reverse=True):
        if freed >= gpus:
            break
        taken.append(each)
        freed += each.job.gpus
    if freed < gpus:
        return []
    for each in reversed(taken):
        if freed - each.job.gpus >= gpus:
            taken.remove(each)
            freed -= each.job.gpus
    return taken


def _stated_limit_s(job: JobState) -> float | None:
    """The time limit of a job, else of its label; None if it has none that can be read."""
    if (limit_s := _limit_s(job.spec)) is not None:
        return limit_s
    try:
        return read_duration(job.spec.labels.get(_LIMIT, "")) or None
    except ValueError:
        return None


def _limit_s(job: Job) -> float | None:
    return None if job.limits is None else job.limits.run_seconds


def _why_no_limit(job: JobState) -> str | None:
    stated = job.spec.labels.get(_LIMIT)
    if stated is None or _stated_limit_s(job) is not None:
        return None
    return f'label {_LIMIT} is "{shortened(stated)}", expected {duration_words()}, above 0'


def _numbers(parameter: str, text: str) -> dict[str, float]:
    """:raises ValueError: not NAME=NUMBER with commas between them."""
    numbers: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        try:
            numbers[name.strip()] = float(number)
        except ValueError:
            numbers[name.strip()] = math.nan
    if not all(name and 0 <= number < math.inf for name, number in numbers.items()):
        raise ValueError(f"parameter {parameter}: expected NAME=NUMBER, as in a=3,b=1, with numbers from 0")
    return numbers


def _over_largest(numbers: Mapping[str, float]) -> dict[str, float]:
    largest = max(numbers.values(), default=0.0) or 1.0
    return {name: number / largest for name, number in numbers.items()}


def _pairs(text: str) -> dict[str, set[str]]:
    """By QOS, those that it may preempt.

    :raises ValueError: not HIGH>LOW with commas between them.
    """
    pairs: dict[str, set[str]] = {}
    for part in filter(None, text.split(",")):
        high, _, low = (each.strip() for each in part.partition(">"))
        if not high or not low or high == low:
            raise ValueError("parameter preempts: expected HIGH>LOW, as in high>normal,high>low")
        pairs.setdefault(high, set()).add(low)
    return pairs


def _listed(by_owner: Mapping[Owner, float]) -> list[Any]:
    return [[owner.team, owner.user, value] for owner, value in by_owner.items()]


def _owned(listed: Sequence[Any]) -> dict[Owner, Any]:
    return {Owner(team, user): value for team, user, value in listed}


def _finite(time_s: float) -> float | None:
    return time_s if math.isfinite(time_s) else None


def _or_never(time_s: float | None) -> float:
    return -math.inf if time_s is None else time_s
