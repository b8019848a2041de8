"""Elastic scaling with batch sizes: the largest total throughput, by dynamic programming.

"Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020): :mod:`curves` is the job
scalability analyzer, :mod:`optimizer` the optimizer; the autoscaler is in :mod:`admission`, who takes part,
and :mod:`rounds`, when.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pliant.schemas.errors import UsageError
from pliant.schemas.job import Elasticity
from pliant.schemas.text.wording import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import reject_arrivals, why_impossible
from pliant.tools.schedule.policies.elastic_dp.admission import Admission, AdmissionControl, Objective
from pliant.tools.schedule.policies.elastic_dp.curves import BatchRange, Curves, allowed_batches
from pliant.tools.schedule.policies.elastic_dp.rounds import ScalingTimes
from pliant.tools.schedule.policy import Decision, Explanation, Knows, Policy, Target
from pliant.tools.schedule.snapshot import Snapshot

_log = logging.getLogger("pliant")

if TYPE_CHECKING:
    import numpy as np

    from pliant.tools.schedule.speeds import Speeds


class ElasticDp(Policy):
    """Largest sum of throughput scaling factors: sizes and batches by dynamic programming, at intervals.

    The scaling factor is the throughput at the best batch for a size, against one GPU at its largest local
    batch. Every interval, jobs join in order of arrival while the smallest sizes of all fit, and the sizes
    of the jobs that take part are chosen, exactly (Saxena et al., 2020, section III). The smallest size of a
    job is the one at which its smallest batch fits the GPUs. Of equally good sizes, jobs that joined later
    get fewer GPUs. While no job holds a GPU no job waits for the interval. Each GPU type is a cluster of its
    own.

    interval_s: seconds between scalings, at multiples of it; 0: at every change.
    ended_part: scale earlier when such a part of the active jobs has ended; none: never.
    mode: "queue": a job that does not fit waits; "drop": it is rejected, unless it has run before.
    strict: no job passes one that does not fit.
    priority_base: a job of priority p counts this to the power of p; 1: all count the same.
    quota: GPUs of each type that the jobs of one named user may hold.
    rescale_s: seconds that a change of size is taken to cost, spread over the interval: a running job counts
    for as much less at every size but its own; "measured": what the profile has measured of each model,
    the mean of the others where it has not measured one.
    """

    name: ClassVar[str] = "elastic-dp"
    knows: ClassVar[Knows] = "profile"
    elasticity: ClassVar[Elasticity] = "size+batch"
    priority_means: ClassVar[str] = "a job of priority p counts priority_base to the power of p"
    interval_parameter: ClassVar[str | None] = "interval_s"
    rebuilds_state: ClassVar[bool] = False
    """No history of changes says when sizes were last looked at."""

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
        self._curves: Curves | None = None
        self._waiting: dict[str, Explanation] = {}

    def batches(self, job: JobState) -> BatchRange:
        """The global batches that the job may be given."""
        return allowed_batches(job)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Reject what never fits; at a scaling moment admit, solve and name what differs."""
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
        """The scaling factor and what one GPU more would add; for a waiting job what it lacks."""
        if self._curves is None:
            return {}
        control = self._admission_control(snapshot)
        return {
            job.id: _explain(job, control) if job.gpus else self._why_waiting(job, snapshot.time_s)
            for job in snapshot.jobs.values()
        }

    def dump_state(self) -> dict[str, Any]:
        """When sizes were looked at, and what has happened since."""
        return self._scaling_times.dump()

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """Take up the scaling times; curves are made again."""
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
            self._curves = Curves(snapshot.speeds)
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
        """Why a job would not fit if it were alone; None: it would."""
        choices = control.choices(job)
        if not choices:
            reason = why_impossible(job, job.spec.min_gpus, control.curves.speeds)
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


def _targets(snapshot: Snapshot, admission: Admission) -> dict[str, Target]:
    """What differs from what the jobs hold."""
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
    """Why a running job has the size that it has."""
    curve = control.curves.of(job, job.gpu_type or "", control.batches(job))
    if curve is None or not 0 < job.gpus < len(curve.factors) or curve.factors[job.gpus] < 0:
        return Explanation("keeps a size that it would not be given")
    factor = f"{curve.factors[job.gpus]:.2f} times one GPU at batch {job.global_batch}"
    if job.gpus + 1 == len(curve.factors):
        return Explanation(f"{factor}, its largest size")
    gain = curve.factors[job.gpus + 1] - curve.factors[job.gpus]
    return Explanation(f"{factor}, one GPU more would {f'add {gain:.2f}' if gain > 0 else 'add nothing'}")
