"""Tiresias with knowledge of durations: within a queue, the job that is likely to finish soon goes first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.tiresias.policy import Tiresias
from pliant.tools.schedule.policy import Decision, Explanation, Target
from pliant.tools.schedule.snapshot import Snapshot

Floats = npt.NDArray[np.float64]

_HOUR_S = 3600.0


class TiresiasGittins(Tiresias):
    """Discretised two-dimensional Gittins index: in every queue, first who is likely to finish soon.

    Tiresias (NSDI '19), section 3.3, where the distribution of service is known. Queues, thresholds and all
    else are those of ``tiresias``; but within a queue jobs go by Gittins index, largest first: the
    probability that a job finishes within the next quantum of service, over the service it is expected to
    take of it, given what it has had. Ties go by entry into the queue. The index is worked out again each
    round, so jobs of one queue may take turns.

    The distribution is that of the jobs that finished so far, cancelled and failed ones left out, together
    with ``history_gpu_hours``: services of earlier jobs in GPU-hours, with commas between them. Before there
    is any, the order is that of ``tiresias``. A job that had more than every one of them goes last in its
    queue. ``quantum_gpu_hours`` is the quantum; none: the first threshold.

    Departure from the paper: its distribution is given beforehand and stays.
    """

    name: ClassVar[str] = "tiresias-gittins"

    def __init__(
        self,
        *,
        queue_gpu_hours: str = "16",
        promote_after: float = 0.0,
        skewed: str = "",
        placement: Literal["compact", "emptiest"] = "compact",
        quantum_gpu_hours: float | None = None,
        history_gpu_hours: str = "",
    ) -> None:
        super().__init__(queue_gpu_hours, promote_after, skewed, placement)
        if quantum_gpu_hours is not None and quantum_gpu_hours <= 0:
            raise ValueError("parameter quantum_gpu_hours: expected a number above 0")
        self.quantum_gpu_hours = quantum_gpu_hours
        self.history_gpu_hours = history_gpu_hours
        self._quantum = self._thresholds[0] if quantum_gpu_hours is None else _HOUR_S * quantum_gpu_hours
        self._stated = _stated(history_gpu_hours)
        self._seen: list[float] = []
        """GPU-seconds of the jobs that finished, in order of their ends."""
        self._services = Services(self._stated)

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        """Learn from the jobs that finished, then deal the GPUs out queue by queue."""
        ended = [change.job for change in snapshot.changes if change.kind == "finished" and change.job]
        services = [job.attained_service_s(snapshot.time_s) for job in ended]
        self._seen += services
        self._services.add(services)
        return super().decide(snapshot, rng)

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        """Queue, place in it, and how soon the job is likely to finish."""
        reasons = super().explain(snapshot)
        for job_id, index in {member.job.id: member.index for member in self._order}.items():
            reason = f"{reasons[job_id].reason}, Gittins index {_HOUR_S * index:.3g} per GPU-hour"
            reasons[job_id] = Explanation(reason, reasons[job_id].needs_gpus)
        return reasons

    def dump_state(self) -> dict[str, Any]:
        """The queues as ``tiresias`` has them, and the services of the jobs that finished."""
        return {"queues": super().dump_state(), "services": self._seen}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        """Take up what ``dump_state`` gave; indices are worked out again."""
        super().load_state(state["queues"], jobs)
        self._seen = list(state["services"])
        self._services = Services([*self._stated, *self._seen])

    def _index(self, now_s: float) -> bool:
        if not self._order:
            return False
        attained = np.array([self._service(member, now_s) for member in self._order])
        found = self._services.indices(attained, self._quantum).tolist()
        changed: bool = found != [member.index for member in self._order]
        for member, index in zip(self._order, found, strict=True):
            member.index = index
        return changed

    def _next_change_s(self, targets: Mapping[str, Target], now_s: float) -> float:
        """While a job waits, indices may change places in any round."""
        gpus = [
            member.job.gpus if (target := targets.get(member.job.id)) is None else target.gpus
            for member in self._order
        ]
        return super()._next_change_s(targets, now_s) if all(gpus) else -math.inf


def _stated(history_gpu_hours: str) -> Sequence[float]:
    """GPU-seconds from the text of GPU-hours.

    :raises ValueError: no numbers above 0.
    """
    try:
        found = [_HOUR_S * float(hours) for hours in filter(None, history_gpu_hours.split(","))]
    except ValueError:
        found = [math.nan]
    if not all(0 < service < math.inf for service in found):
        raise ValueError("parameter history_gpu_hours: expected numbers above 0, as in 0.5,2,16")
    return found


class Services:
    """The service of finished jobs, GPU-seconds each; their order does not matter."""

    def __init__(self, known: Iterable[float] = ()) -> None:
        self._sorted: Floats = np.array(sorted(known), dtype=np.float64)
        self._sums = _sums(self._sorted)

    def add(self, services: Iterable[float]) -> None:
        """More jobs have finished. O(jobs known)."""
        more = np.array(sorted(services), dtype=np.float64)
        if more.size:
            self._sorted = np.insert(self._sorted, np.searchsorted(self._sorted, more), more)
            self._sums = _sums(self._sorted)

    def indices(self, attained: Floats, quantum: float) -> Floats:
        """Gittins index of jobs that attained so much, for a quantum of service; 1 / GPU-seconds.

        The probability that a job finishes within the next quantum, over the service that it is expected to
        take of that quantum: P(S - a <= q | S > a) / E[min(S - a, q) | S > a], S as the finished jobs had
        it. 0 where none of them took more than ``attained``.
        """
        first = np.searchsorted(self._sorted, attained, side="right")
        last = np.searchsorted(self._sorted, attained + quantum, side="right")
        ending, beyond = last - first, len(self._sorted) - last
        taken = self._sums[last] - self._sums[first] - ending * attained + beyond * quantum
        found: Floats = np.divide(ending, taken, out=np.zeros(len(attained)), where=ending > 0)
        return found


def _sums(values: Floats) -> Floats:
    """Sums of the first 0, 1, 2, … values."""
    return np.concatenate(([0.0], np.cumsum(values)))
