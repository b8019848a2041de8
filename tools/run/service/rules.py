"""The rules of the cluster file about jobs that run: ``idle`` and ``stragglers``.

Idle jobs hold GPUs or CPU slots and hardly use them. Stragglers are workers that need longer for their part
of a step than their peers. In synchronous training all workers take the same time for a step, because they
wait for each other. What tells them apart is the time in which a worker does not wait (``own_seconds`` of the
newest progress). A worker is compared with the median of the others of its job, whose shares of the batch are
its own to a tenth. One without such peers is compared with its own past, and only named. Both ends of the
rule lie apart: a straggler has to come halfway back to its peers before it is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final, NamedTuple

from pliant.schemas.cluster import IdleRule, StragglerRule
from pliant.schemas.text import span_text
from pliant.tools.run.statedir.contract.plan import Plan, Progress

IDLE_LOOK_S: Final = 10.0
"""Seconds between two checks of what jobs use."""


@dataclass(frozen=True, slots=True)
class IdleJob:
    """A job that the rule applies to from now on, or no longer."""

    job_id: str
    used: float
    """Part of its slots that it used, over the last minute."""
    for_s: float
    """Seconds below the limit; 0 if it is no longer."""

    @property
    def words(self) -> str:
        return f"it has used {100 * self.used:.0f} % of its slots or less for {span_text(self.for_s)}"


class IdleWatch:
    """Which jobs have been below the limit for long enough; each is named once until it is busy again.

    What is not measured is not idle. A run that is started again begins to count again.
    """

    def __init__(self, rule: IdleRule) -> None:
        self.rule = rule
        self._since_s: dict[str, float] = {}
        # The most that each of these jobs has used since then.
        self._most: dict[str, float] = {}
        self._places: Mapping[str, object] = {}
        self._named = set[str]()
        self._looked_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        if now_s - self._looked_s < IDLE_LOOK_S:
            return False
        self._looked_s = now_s
        return True

    def look(
        self, used: Mapping[str, float | None], now_s: float, places: Mapping[str, object] | None = None
    ) -> list[IdleJob]:
        """:param used: part of their slots that jobs use; None where that is not known.
        :param places: where they run; of one that is elsewhere than before the log has forgotten that it was
            idle.
        """
        found = []
        before, self._places = self._places, places or {}
        for job_id in before.keys() & self._places.keys():
            if before[job_id] != self._places[job_id]:
                self.forget(job_id)
        for job_id in dict.fromkeys([*self._since_s, *used]):
            part = used.get(job_id)
            if part is None or part >= self.rule.below:
                if job_id in self._named and part is not None:
                    found.append(IdleJob(job_id, part, 0.0))
                self.forget(job_id)
                continue
            since_s = self._since_s.setdefault(job_id, now_s)
            self._most[job_id] = max(part, self._most.get(job_id, 0.0))
            if now_s - since_s >= self.rule.for_seconds and job_id not in self._named:
                self._named.add(job_id)
                found.append(IdleJob(job_id, self._most[job_id], now_s - since_s))
        return found

    def forget(self, job_id: str) -> None:
        """Begin to count again."""
        self._since_s.pop(job_id, None)
        self._most.pop(job_id, None)
        self._named.discard(job_id)


STRAGGLERS_LOOK_S: Final = 5.0
"""Seconds between two checks of what workers report."""
_ALIKE: Final = 10
"""Shares of this many samples differ by a tenth at most, as they differ by one sample."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that the rule applies to from now on, or no longer."""

    job_id: str
    slot: str
    times: float
    """Its time over that of its peers, or over what it took before."""
    own_s: float
    """Seconds of a step without waiting."""
    past_s: float
    """The least that the same worker took."""
    has_peers: bool
    for_s: float
    """Seconds for which it has been slow; 0 if it is no longer."""

    @property
    def words(self) -> str:
        than = "as its peers" if self.has_peers else "as before"
        before = f", and took {self.past_s:.3g} s before" if self.has_peers else ""
        return (
            f"the worker on {self.slot} has needed {self.times:.1f} times as long {than} "
            f"for {span_text(self.for_s)}: {self.own_s:.3g} s of a step{before}"
        )


class StepParts(NamedTuple):
    """What the workers of a job need of a step without waiting for each other."""

    job_id: str
    share: int
    """Samples of a worker; what was measured with another share tells nothing."""
    own_s: Mapping[str, float]
    """Seconds of a step without waiting, by slot."""

    @classmethod
    def of(cls, plan: Plan, progress: Progress) -> StepParts | None:
        """Returns None if it was not measured, under another plan, or if their shares differ too much."""
        own, workers = progress.own_seconds, len(plan.members)
        if own is None or progress.generation != plan.generation or len(own) != workers:
            return None
        share, rest = divmod(progress.global_batch, workers)
        if rest and share < _ALIKE:
            return None
        slots = [member.slot for member in plan.members]
        return cls(progress.job, share, dict(zip(slots, own, strict=True)))


@dataclass(slots=True)
class _Worker:
    share: int
    past_s: float
    since_s: float | None = None
    """Since when it is slow."""
    named: Straggler | None = None


@dataclass(slots=True)
class StragglerWatch:
    """Which workers have been slow for long enough; each is named once until it is as fast as others again.

    A run that is started again begins to count again, and so does a job whose slots have changed.
    """

    rule: StragglerRule
    _workers: dict[tuple[str, str], _Worker] = field(default_factory=dict)
    _looked_s: float = float("-inf")

    def is_due(self, now_s: float) -> bool:
        if now_s - self._looked_s < STRAGGLERS_LOOK_S:
            return False
        self._looked_s = now_s
        return True

    def look(self, jobs: Iterable[StepParts], now_s: float) -> list[Straggler]:
        """:param jobs: those that train and say what their workers need."""
        before, self._workers = self._workers, {}
        slots: dict[str, set[str]] = {}
        for job_id, slot in before:
            slots.setdefault(job_id, set()).add(slot)
        found = []
        for job in jobs:
            stays = slots.get(job.job_id) == set(job.own_s)
            for slot, own_s in job.own_s.items():
                key = (job.job_id, slot)
                worker = before.get(key) if stays else None
                if worker is None or worker.share != job.share:
                    worker = _Worker(job.share, own_s)
                self._workers[key] = worker
                peers = [other_s for other, other_s in job.own_s.items() if other != slot]
                if (said := self._judge(worker, key, own_s, peers, now_s)) is not None:
                    found.append(said)
                worker.past_s = min(worker.past_s, own_s)
        return found

    @property
    def named(self) -> list[Straggler]:
        """Those that are slow now."""
        return [worker.named for worker in self._workers.values() if worker.named is not None]

    def _judge(
        self, worker: _Worker, whose: tuple[str, str], own_s: float, peers: Sequence[float], now_s: float
    ) -> Straggler | None:
        usual_s = median(peers) if peers else worker.past_s
        times, slower = own_s / max(usual_s, 1e-9), self.rule.slower
        if worker.since_s is not None and times < (1 + slower) / 2:
            was, worker.since_s, worker.named = worker.named, None, None
            return None if was is None else replace(was, times=times, own_s=own_s, for_s=0.0)
        if times >= slower and worker.since_s is None:
            worker.since_s = now_s
        if worker.since_s is None or worker.named or now_s - worker.since_s < self.rule.for_seconds:
            return None
        for_s = now_s - worker.since_s
        worker.named = Straggler(*whose, times, own_s, worker.past_s, bool(peers), for_s)
        return worker.named
