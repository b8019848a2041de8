"""Elastic scaling with batch sizes: the largest total throughput, by dynamic programming.

"Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020): :mod:`curves` is the job
scalability analyzer, :mod:`optimizer` the optimizer. Of the autoscaler, :mod:`admission` says who takes part
and :class:`ScalingTimes` when: at multiples of the interval, and earlier when a part of the jobs has ended.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Job
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import reject_arrivals, why_impossible
from pliant.tools.schedule.policies.elastic_dp.admission import (
    AdmissionControl,
    Objective,
    OptimizerAdmission,
)
from pliant.tools.schedule.policies.elastic_dp.curves import BatchRange, ScalingCurves, allowed_batches
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Change, Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.tools.schedule.rates import Speeds

_log = logging.getLogger("pliant")
_ENDED: Final = frozenset({"finished", "cancelled", "failed"})


class ElasticDp(Policy):
    """Largest sum of throughput scaling factors: sizes and batches by dynamic programming, at intervals.

    The scaling factor is the throughput at the best batch for a size, against one GPU at its largest
    local batch. Every interval, jobs join in order of arrival while the smallest sizes of all fit; then
    the best sizes are chosen, exactly (Saxena et al., 2020, section III). Of equally good sizes, jobs
    that joined later get fewer GPUs. On an idle cluster no job waits for the interval. Each GPU type is
    a cluster of its own.

    interval_s: seconds between scalings; 0: at every change.
    ended_part: scale earlier when such a part of the active jobs has ended; none: never.
    mode: "queue": a job that does not fit waits; "drop": it is rejected, unless it has run before.
    strict: no job passes one that does not fit.
    priority_base: a job of priority p counts this to the power of p; 1: all count the same.
    quota: GPUs of each type that the jobs of one named user may hold.
    rescale_s: seconds that a change of size is taken to cost, spread over the interval; "measured": as
    the profile has measured each model, the mean of the others where it has not.
    """

    name: ClassVar[str] = "elastic-dp"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        elasticity="size+batch",
        accumulates=False,
        priority_means="a job of priority p counts priority_base to the power of p",
        interval_parameter="interval_s",
        rebuilds_state=False,
    )

    def __init__(
        self,
        *,
        interval_s: float = 600.0,
        ended_part: float | None = 0.05,
        mode: Literal["queue", "drop"] = "queue",
        strict: bool = False,
        priority_base: float = 2.0,
        quota: int | None = None,
        rescale_s: float | Literal["measured"] = 0.0,
    ) -> None:
        self._check(interval_s, ended_part, priority_base, quota, rescale_s)
        self.interval_s = interval_s
        self.ended_part = ended_part
        self.mode = mode
        self.strict = strict
        self.priority_base = priority_base
        self.quota = quota
        self.rescale_s = rescale_s
        self._noted = False
        self._scaling_times = ScalingTimes(interval_s, ended_part)
        self._curves: ScalingCurves | None = None
        self._waiting: dict[str, Explanation] = {}

    def batches(self, job: JobState) -> BatchRange:
        return allowed_batches(job)

    def counts_on_work(self, jobs: Iterable[Job]) -> bool:
        return False

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        control = self._admission_control(snapshot)
        decision = Decision(rejected=reject_arrivals(snapshot, lambda job: self._why_never(job, control)))
        due = self._scaling_times.due(
            snapshot.changes, snapshot.time_s, sum(snapshot.speeds.gpu_types.values())
        )
        idle = sum(snapshot.free_gpus.values()) == snapshot.total_gpus
        if not (due or idle):
            decision.ask_again_s = self._scaling_times.next_s(snapshot.time_s)
            return decision
        self._scaling_times.hold(snapshot.time_s)
        jobs = [job for job in snapshot.jobs.values() if job.id not in decision.rejected]
        admission = control.admit(jobs, snapshot.gpus_by_type(), self.quota, strict=self.strict)
        self._waiting = admission.waiting
        decision.targets = _targets(snapshot, admission)
        if self.mode == "drop":
            for job_id, why in admission.waiting.items():
                if snapshot.jobs[job_id].first_start_s is None:
                    decision.rejected[job_id] = why.reason
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        if self._curves is None:
            return {}
        control = self._admission_control(snapshot)
        return {
            job.id: _explain(job, control) if job.gpus else self._why_waiting(job, snapshot.time_s)
            for job in snapshot.jobs.values()
        }

    def dump_state(self) -> dict[str, Any]:
        return self._scaling_times.dump()

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._scaling_times.load(state)

    def _check(
        self,
        interval_s: float,
        ended_part: float | None,
        priority_base: float,
        quota: int | None,
        rescale_s: float | str,
    ) -> None:
        wrong = {
            f"interval_s {interval_s:g} is below 0": interval_s < 0,
            f"ended_part {ended_part} is not above 0 and at most 1": ended_part is not None
            and not 0 < ended_part <= 1,
            f"priority_base {priority_base:g} is not from 1 to 10": not 1 <= priority_base <= 10,
            f"quota {quota} is below 1": quota is not None and quota < 1,
            f"rescale_s {rescale_s} is below 0": not isinstance(rescale_s, str) and rescale_s < 0,
            "rescale_s is spread over interval_s, which is 0": bool(rescale_s) and interval_s == 0,
        }
        for complaint, holds in wrong.items():
            if holds:
                raise UsageError(f'policy "{self.name}": {complaint}')

    def _admission_control(self, snapshot: Snapshot) -> AdmissionControl:
        if self._curves is None or self._curves.speeds is not snapshot.speeds:
            self._curves = ScalingCurves(snapshot.speeds)
        charge = partial(self._rescale_part, self._curves.speeds) if self.rescale_s else None
        return AdmissionControl(self._curves, self.batches, Objective(self.priority_base, charge))

    def _rescale_part(self, speeds: Speeds, model: str) -> float:
        seconds = speeds.rescale_seconds(model) if self.rescale_s == "measured" else self.rescale_s
        if seconds is None:
            self._note_unmeasured()
            return 0.0
        return min(1.0, seconds / self.interval_s)

    def _note_unmeasured(self) -> None:
        if not self._noted:
            self._noted = True
            _log.warning(
                'policy "%s": rescale_s is "measured", but the profile has no costs: nothing is charged; '
                "measure them with `pliant profile --costs`",
                self.name,
            )

    def _why_never(self, job: JobState, control: AdmissionControl) -> str | None:
        """Why a job would not fit if it were alone; None if it would."""
        choices = control.choices(job)
        if not choices:
            reason = why_impossible(job, job.min_gpus, control.curves.speeds)
            return reason or f'model "{job.spec.model}" runs at none of its sizes with a batch that it allows'
        least = min(member.curve.least for member in choices)
        if self.quota is not None and job.spec.user and least > self.quota:
            return f"needs {in_gpus(least)}, a user may hold {self.quota}"
        return None

    def _why_waiting(self, job: JobState, now_s: float) -> Explanation:
        if job.id in self._waiting:
            return self._waiting[job.id]
        next_s = self._scaling_times.next_s(now_s)
        return Explanation(f"waits for the next scaling, in {next_s - now_s:.0f} s")


def _targets(snapshot: Snapshot, admission: OptimizerAdmission) -> dict[str, Target]:
    wanted = {
        member.job.id: Target(size, member.gpu_type, int(member.curve.batches[size]))
        for member, size in admission.sizes()
    }
    targets = {job.id: Target(0) for job in snapshot.jobs.values() if job.gpus and job.id not in wanted}
    for job_id, target in wanted.items():
        job = snapshot.jobs[job_id]
        if (job.gpus, job.gpu_type, job.global_batch) != (target.gpus, target.gpu_type, target.global_batch):
            targets[job_id] = target
    return targets


def _explain(job: JobState, control: AdmissionControl) -> Explanation:
    curve = control.curves.of(job, job.gpu_type or "", control.batches(job))
    if curve is None or not 0 < job.gpus < len(curve.factors) or curve.factors[job.gpus] < 0:
        return Explanation("keeps a size that it would not be given")
    factor = f"{curve.factors[job.gpus]:.2f} times one GPU at batch {job.global_batch}"
    if job.gpus + 1 == len(curve.factors):
        return Explanation(f"{factor}, its largest size")
    gain = curve.factors[job.gpus + 1] - curve.factors[job.gpus]
    return Explanation(f"{factor}, one GPU more would {f'add {gain:.2f}' if gain > 0 else 'add nothing'}")


# The baselines: the same policy with one batch for each job.


class MaxBs(ElasticDp):
    """elastic-dp with every job at the largest batch it allows: sizes are chosen, batches are not.

    A baseline of Saxena et al., 2020, section IV-B. The batch is split over the GPUs, so a large one that no
    single GPU holds makes the smallest size large. Parameters as in elastic-dp.
    """

    name: ClassVar[str] = "max-bs"

    def batches(self, job: JobState) -> BatchRange:
        return (allowed_batches(job)[1],) * 2


class MinBs(ElasticDp):
    """elastic-dp with every job at the smallest batch it allows: sizes are chosen, batches are not.

    A baseline of Saxena et al., 2020, section IV-B. A small batch leaves each of many GPUs too little to do.
    Parameters as in elastic-dp.
    """

    name: ClassVar[str] = "min-bs"

    def batches(self, job: JobState) -> BatchRange:
        return (allowed_batches(job)[0],) * 2


class RandomBs(ElasticDp):
    """elastic-dp with every job at a batch drawn once: uniform over all that it allows.

    The baseline of Saxena et al., 2020, section IV-B, for users who choose some batch. A job's batch follows
    from the seed and its id alone: neither other jobs nor their order matter. Parameters as in elastic-dp.
    """

    name: ClassVar[str] = "random-bs"
    _seed: int | None = None

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if self._seed is None:
            self._seed = int(rng.integers(2**53))
        return super().decide(snapshot, rng)

    def batches(self, job: JobState) -> BatchRange:
        low, high = allowed_batches(job)
        if low == high:
            return low, high
        digest = sha256(f"{self._seed} {job.id}".encode()).digest()
        drawn = low + int.from_bytes(digest[:16]) % (high - low + 1)
        return drawn, drawn

    def dump_state(self) -> dict[str, Any]:
        return {**super().dump_state(), "seed": self._seed}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        super().load_state(state, jobs)
        self._seed = state["seed"]


# When it scales.


class ScalingTimes:
    """The times at which sizes may change; a change belongs to the first scaling time not before it.

    They follow from the times of the changes alone, also for an object that sees the whole history at once;
    it takes the latest changes for unanswered.
    """

    def __init__(self, interval_s: float, ended_part: float | None) -> None:
        """:param ended_part: of the active and ended jobs, one a GPU at most; None: never early."""
        self._interval_s = interval_s
        self._ended_part = ended_part
        # Time of the last change seen.
        self._seen_s: float | None = None
        # When sizes were last looked at.
        self._held_s: float | None = None
        # The last scaling time that came because jobs had ended.
        self._early_s = -math.inf
        self._active = 0
        # Jobs that have ended since the last scaling time.
        self._ended = 0

    def due(self, changes: Sequence[Change], now_s: float, gpus: int) -> bool:
        """Take in what happened; returns whether a scaling time came since, or comes with a new change.

        :param gpus: GPUs of the cluster, up or down.
        """
        new = list(changes)
        if self._seen_s is None and self._held_s is None and new:
            latest_s = new[-1].time_s
            while new[0].time_s < latest_s:
                self._take(new.pop(0), gpus)
        known_s = max(-math.inf if at_s is None else at_s for at_s in (self._seen_s, self._held_s))
        for change in new:
            self._take(change, gpus)
        moment_s = max(self._early_s, self._last_s(now_s))
        unanswered = (change.time_s for change in new if change.kind != "rejected")
        return moment_s > known_s or moment_s >= next(unanswered, math.inf)

    def hold(self, now_s: float) -> None:
        self._held_s = now_s

    def next_s(self, now_s: float) -> float:
        """The next multiple of the interval; without an interval, now."""
        if not self._interval_s:
            return now_s
        next_s = (self._number(now_s) + 1) * self._interval_s
        while self._last_s(next_s) <= now_s:  # rounding
            next_s = math.nextafter(next_s, math.inf)
        return next_s

    def dump(self) -> dict[str, Any]:
        return {
            "told_s": self._seen_s,
            "held_s": self._held_s,
            "early_s": None if self._early_s == -math.inf else self._early_s,
            "active": self._active,
            "ended": self._ended,
        }

    def load(self, state: Any) -> None:
        self._seen_s, self._held_s = state["told_s"], state["held_s"]
        self._early_s = -math.inf if state["early_s"] is None else state["early_s"]
        self._active, self._ended = state["active"], state["ended"]

    def _take(self, change: Change, gpus: int) -> None:
        if self._seen_s is not None and self._last_s(change.time_s) > self._seen_s:
            self._ended = 0
        self._seen_s = change.time_s
        if change.kind == "arrived":
            self._active += 1
        elif change.ended_job is not None:
            self._active -= 1
        if change.kind in _ENDED and self._ended_part is not None:
            self._ended += 1
            if self._ended >= self._ended_part * min(self._active + self._ended, gpus):
                self._early_s, self._ended = change.time_s, 0

    def _number(self, time_s: float) -> int:
        return math.floor(time_s / self._interval_s)

    def _last_s(self, now_s: float) -> float:
        """The last multiple of the interval that is not after ``now_s``."""
        return self._number(now_s) * self._interval_s if self._interval_s else now_s
