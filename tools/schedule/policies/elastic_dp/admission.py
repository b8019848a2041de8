"""Who takes part: the trial admission of elastic-dp, one GPU type beside the other.

Figure 4 of "Effective Elastic Scaling of Deep Learning Workloads" (Saxena et al., 2020): first the jobs that
run, then the others one by one in order of arrival; a job that fits with all before it joins. Departures:
each GPU type is a cluster of its own; a running job stays on its type, another one joins the type that it is
fastest on among those with room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.elastic_dp.curves import BatchRange, Gains, ScalingCurve, ScalingCurves
from pliant.tools.schedule.policies.elastic_dp.optimizer import Optimizer
from pliant.tools.schedule.policy import Explanation

Batches = Callable[[JobState], BatchRange]
MOST_PRIORITY: Final = 16.0
"""Priorities beyond it count as this: weights keep proportions that sums can hold."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What a job's scaling factors count for."""

    priority_base: float
    """A job of priority p counts this to the power of p."""
    rescale_part: Callable[[str], float] | None = None
    """Part of its throughput that a running job of a model pays for another size; None: nothing."""

    def gains(self, job: JobState, curve: ScalingCurve) -> Gains:
        """The job's curve as the optimizer is to see it."""
        weight = self.weight(job)
        part = self.rescale_part(job.spec.model) if self.rescale_part and job.gpus else 0.0
        charged = part > 0 and 0 < job.gpus < len(curve.factors)
        if weight == 1.0 and not charged:
            return curve.gains
        feasible = curve.factors > -np.inf
        worth = curve.factors.copy()
        worth[feasible] *= weight * (1.0 - part if charged else 1.0)
        if charged:
            worth[job.gpus] = curve.factors[job.gpus] * weight
        gains = Gains.of(worth)
        assert gains is not None, "there is a feasible size"  # noqa: S101
        return gains

    def weight(self, job: JobState) -> float:
        return float(self.priority_base ** min(max(job.spec.priority, -MOST_PRIORITY), MOST_PRIORITY))


@dataclass(frozen=True, slots=True)
class Participant:
    """One job that takes part on one GPU type."""

    job: JobState
    gpu_type: str
    curve: ScalingCurve


@dataclass(slots=True)
class OptimizerAdmission:
    """The jobs that take part, one optimizer for each GPU type, and why the others wait."""

    optimizers: Mapping[str, Optimizer]
    members: dict[str, list[Participant]] = field(default_factory=dict)
    """Members by GPU type, in the order of its optimizer."""
    waiting: dict[str, Explanation] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        return not any(optimizer.left for optimizer in self.optimizers.values())

    def sizes(self) -> Iterator[tuple[Participant, int]]:
        for gpu_type, members in self.members.items():
            yield from zip(members, self.optimizers[gpu_type].sizes(), strict=True)


@dataclass(frozen=True, slots=True)
class AdmissionControl:
    """Tries jobs in turn."""

    curves: ScalingCurves
    batches: Batches
    objective: Objective

    def admit(
        self,
        jobs: list[JobState],
        gpus_by_type: Mapping[str, int],
        quota: int | None,
        *,
        strict: bool,
    ) -> OptimizerAdmission:
        """Let each job join if its smallest size fits beside those of all before it.

        :param strict: no job joins after the first waiting job that does not fit.
        """
        optimizers = {gpu_type: Optimizer(gpus, quota) for gpu_type, gpus in gpus_by_type.items()}
        admission = OptimizerAdmission(optimizers)
        barrier = ""
        for job in sorted(jobs, key=_in_turn):
            if barrier:
                admission.waiting[job.id] = Explanation(f'waits behind "{barrier}", which does not fit')
            elif not self._joins(job, admission) and strict and not job.gpus:
                barrier = job.id
        return admission

    def choices(self, job: JobState) -> list[Participant]:
        """The GPU types that the job can run on: the one it holds, or the fastest first."""
        kinds = [job.gpu_type] if job.gpus and job.gpu_type else list(self.curves.speeds.gpu_types)
        batches = self.batches(job)
        curve_by_type = [(kind, self.curves.of(job, kind, batches)) for kind in kinds]
        members = [Participant(job, kind, curve) for kind, curve in curve_by_type if curve is not None]
        if len(members) > 1:
            members.sort(key=lambda member: (-self._speed(member), member.gpu_type))
        return members

    def _joins(self, job: JobState, admission: OptimizerAdmission) -> bool:
        if admission.full:
            admission.waiting[job.id] = Explanation(
                "the jobs before it need all GPUs at their smallest sizes"
            )
            return False
        choices = self.choices(job)
        for member in choices:
            optimizer = admission.optimizers.get(member.gpu_type)
            if optimizer and optimizer.left_for(job.spec.user) >= member.curve.least:
                optimizer.add(self.objective.gains(job, member.curve), job.spec.user)
                admission.members.setdefault(member.gpu_type, []).append(member)
                return True
        admission.waiting[job.id] = _why(choices, admission.optimizers)
        return False

    def _speed(self, member: Participant) -> float:
        """Samples per second and GPU at the smallest size."""
        least = member.curve.least
        batch = int(member.curve.batches[least])
        return self.curves.speeds.rate(member.job, least, member.gpu_type, global_batch=batch) / least


def _in_turn(job: JobState) -> tuple[bool, float, tuple[float, str]]:
    """Running jobs by first start, then the others by arrival: the order stays while they run."""
    first_s = job.first_start_s if job.gpus else None
    return first_s is None, first_s or 0.0, job.arrival


def _why(choices: list[Participant], optimizers: Mapping[str, Optimizer]) -> Explanation:
    if not choices:
        return Explanation("no size of it is feasible")
    member = min(choices, key=lambda member: member.curve.least)
    least, optimizer = member.curve.least, optimizers.get(member.gpu_type)
    left = optimizer.left if optimizer else 0
    left_for_user = optimizer.left_for(member.job.spec.user) if optimizer else 0
    if left_for_user < least <= left:
        return Explanation(f"needs {in_gpus(least)}, its user's quota has {left_for_user} left", least)
    return Explanation(
        f"needs {in_gpus(least)}, the smallest sizes of the jobs before it leave {left}", least
    )
