"""What the scheduler can do next to one job, and what the network sees of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import log1p, log2
from typing import Final

import numpy as np
import numpy.typing as npt

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.snapshot import Snapshot

FEATURES: Final = (
    "starts", "grows", "shrinks", "waits", "gpus", "takes", "takes_of_free", "efficiency", "of_requested",
    "gain", "remaining", "remaining_gpu_time", "is_known", "before", "age", "service",
    "waiting", "running", "free", "demand",
)  # fmt: skip
"""Of an action, all about -1 to 1 to keep the units of the network in their range."""
WAITING_SEEN: Final = 24
"""Of the jobs that wait and fit, this many are looked at; of those that run all."""
_UNKNOWN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Action:
    """One job goes to another size; without a job nothing changes."""

    job: JobState | None = None
    gpus: int = 0
    gpu_type: str | None = None


NOTHING: Final = Action()


class Situation:
    """The cluster at one moment: its actions, and the features of each."""

    def __init__(self, snapshot: Snapshot, waiting: Iterable[JobState], settled_s: float) -> None:
        """``settled_s``: a job that runs changes at most once in this time."""
        self._snapshot = snapshot
        self.time_s = snapshot.time_s
        self._free = dict(snapshot.free_gpus)
        self._waiting = list(waiting)
        running = [job for job in snapshot.jobs.values() if job.gpus]
        self._running = len(running)
        self._settled = [job for job in running if self.time_s - job.changed_s >= settled_s]
        self._total = max(1, snapshot.total_gpus)
        self._wanted = sum(job.spec.gpus.requested for job in self._waiting)
        self._lefts = sorted(self._left_s(job, job.spec.gpus.requested) for job in self._waiting)

    def take(self, action: Action) -> None:
        """The action is taken: its job does not change again at this moment."""
        job, gpu_type = action.job, action.gpu_type
        if job is None or gpu_type is None:
            return
        self._free[gpu_type] -= action.gpus - job.gpus
        if job.gpus:
            self._settled.remove(job)
        else:
            self._waiting.remove(job)
            self._wanted -= job.spec.gpus.requested
            self._lefts.remove(self._left_s(job, job.spec.gpus.requested))
            self._running += 1

    def actions(self) -> list[Action]:
        """Everything allowed now; to do nothing is the first, where it does not leave the cluster idle."""
        guessed = any(job.is_speed_guessed for job in self._waiting)  # then the first to come is the next
        most = 1 if guessed else WAITING_SEEN
        seen = islice((found for job in self._waiting if (found := self._starts(job))), most)
        starts = [action for found in seen for action in found] if any(self._free.values()) else []
        changes = [Action(job, gpus, job.gpu_type) for job in self._settled for gpus in self._changes(job)]
        idle = bool(starts) and not self._running
        return [*([] if idle else [NOTHING]), *starts, *changes]

    def features(self, actions: Iterable[Action]) -> npt.NDArray[np.float64]:
        """[action, feature]."""
        shared = self._of_the_cluster()
        return np.array([(*self._features(action), *shared) for action in actions])

    # Sizes.

    def _starts(self, job: JobState) -> list[Action]:
        """Each of its sizes that fits, on the type where it is fastest."""
        found = []
        for gpus in _sizes(job, self._total):
            roomy = [kind for kind, free in self._free.items() if free >= gpus]
            rates = [(-rate, kind) for kind in roomy if (rate := self._rate(job, gpus, kind)) > 0]
            if rates:
                found.append(Action(job, gpus, min(rates)[1]))
        return found

    def _changes(self, job: JobState) -> Iterator[int]:
        """Twice as many GPUs, or half of them; limits may have changed since it got what it has."""
        if job.spec.elastic == "none":
            return
        low, high = job.spec.min_gpus, job.max_gpus(self._total)
        for gpus in (min(2 * job.gpus, high), max(min(job.gpus // 2, high), low)):
            fits = gpus - job.gpus <= self._free.get(job.gpu_type or "", 0)
            if gpus != job.gpus and fits and self._rate(job, gpus, job.gpu_type) > 0:
                yield gpus

    # Features.

    def _of_the_cluster(self) -> tuple[float, ...]:
        return (
            log1p(len(self._waiting)) / 5,
            log1p(self._running) / 5,
            sum(self._free.values()) / self._total,
            log1p(self._wanted / self._total) / 3,
        )

    def _features(self, action: Action) -> tuple[float, ...]:
        job, gpus = action.job, action.gpus
        if job is None:
            return (0.0, 0.0, 0.0, 1.0, *(0.0,) * 12)
        takes = gpus - job.gpus
        rate = self._rate(job, gpus, action.gpu_type)
        least = job.spec.min_gpus
        single = self._rate(job, least, action.gpu_type) / least
        left_s = self._left_s(job, gpus, action.gpu_type)
        known = job.known_samples is not None
        now = self._rate(job, job.gpus, action.gpu_type) if job.gpus else 0.0
        return (
            float(not job.gpus),
            float(0 < job.gpus < gpus),
            float(gpus < job.gpus),
            0.0,
            log2(gpus) / 6,
            takes / self._total,
            takes / max(1, self._free.get(action.gpu_type or "", 0), -takes),
            rate / gpus / single - 1 if single else 0.0,
            log2(gpus / job.spec.gpus.requested) / 4,
            log2(rate / now) if now and rate else 0.0,
            log1p(left_s / 60) / 5,
            log1p(left_s * gpus / 60) / 8,
            float(known),
            self._shorter(self._left_s(job, job.spec.gpus.requested)),
            log1p(max(0.0, self.time_s - job.spec.submit_time) / 60) / 5,
            log1p(job.attained_service_s(self.time_s) / 60) / 8,
        )

    def _shorter(self, left_s: float) -> float:
        """Part of the waiting jobs that are sooner done."""
        return float(np.searchsorted(self._lefts, left_s)) / max(1, len(self._lefts))

    def _left_s(self, job: JobState, gpus: int, gpu_type: str | None = None) -> float:
        """Seconds that the rest of the job takes on that many GPUs; of unknown work a usual number."""
        samples = job.remaining_samples(self.time_s)
        rate = self._rate(job, gpus, gpu_type)
        if samples is None or rate <= 0 or job.is_speed_guessed:
            return _UNKNOWN_S
        return samples / rate

    def _rate(self, job: JobState, gpus: int, gpu_type: str | None) -> float:
        return self._snapshot.speeds.rate(job, gpus, gpu_type)


def _sizes(job: JobState, total: int) -> list[int]:
    """Powers of two between the job's limits, with its smallest and its requested size."""
    if job.spec.elastic == "none":
        return [job.spec.gpus.requested]
    low, high = job.spec.min_gpus, job.max_gpus(total)
    powers = {1 << power for power in range(high.bit_length())} | {low, job.spec.gpus.requested}
    return sorted(size for size in powers if low <= size <= high)


def odds(preferences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The probability of each action."""
    weights = np.exp(preferences - preferences.max())
    return np.asarray(weights / weights.sum())


def best_by_job(
    actions: Iterable[Action], chances: Iterable[float]
) -> Mapping[str | None, tuple[float, int]]:
    """For each job, and None for nothing, the chance of its best action and the GPUs of that."""
    found: dict[str | None, tuple[float, int]] = {}
    for action, chance in zip(actions, chances, strict=True):
        key = action.job.id if action.job else None
        if key not in found or chance > found[key][0]:
            found[key] = (float(chance), action.gpus)
    return found
