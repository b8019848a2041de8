"""How much work is left of jobs that do not state it, by what finished jobs of their kind had in all.

The totals of jobs that ended and what jobs that train have done so far are observations of a distribution,
the latter censored. The estimate is Bayesian, with a beta process as prior (Hjort, "Nonparametric Bayes
estimators based on beta processes in models for life history data", Annals of Statistics 1990): over each
stretch of work, the probability that a job ends there is

    q' = (c q + d) / (c + Y),

with q that of the prior, d the jobs that ended there, Y those that came so far, and c what the prior counts,
in jobs. Groups of jobs form a chain, each the prior of the next: all jobs, the team, the user, the model, the
user's model, and what the user submitted alike. The first prior is a Lomax distribution, under which a job
that nothing is known of has a constant part of what it has had still to go.

A job is ranked by Gittins's index of what follows after the work that it has done: the least ratio, over
all stretches, of the work expected in it to the probability that the job ends there. Without costs of changes
this is the best order of jobs of unknown work on one server (Gittins, 1979).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pliant.tools.schedule.jobs import JobState

Floats = NDArray[np.float64]
Key = TypeVar("Key")
Value = TypeVar("Value")
_ALIKE: Final = 0.01
"""Weight of the prior, in jobs, where those of the group run the same model: they are much alike."""
_APART: Final = 1.0
"""The same of groups of several models."""
_SCALE_GPU_S: Final = 60.0
"""GPU-seconds that the shortest jobs take, in the first prior."""
_SHAPE: Final = 2.0
"""Chance to end soon, times what a job has had, over what it gets, in the first prior."""
_RATIO: Final = 1.25
"""Ratio of the ends of stretches in which no job is known to have ended."""
_STRETCHES: Final = 50
_REMEMBERED: Final = 32
"""Jobs of a group that ended last."""
_MOST_GROUPS: Final = 1000
_SURE: Final = 1e-12
_NAMES: Final = 1 << 14
"""Maximum names of groups that are kept."""


class WorkDone(NamedTuple):
    """A job that has not ended."""

    job: JobState
    done: float
    """Samples."""
    gpu_s_per_sample: float
    """At the size that it requests."""


class FinishedWork:
    """Totals of finished jobs by group, and how far those that train have come. Order changes nothing."""

    def __init__(self) -> None:
        # Samples, by the groups of one model; those that ended last come last.
        self._totals: dict[tuple[str, ...], list[float]] = {}
        # GPU-seconds of the last job of each user's model, by the groups of several models.
        self._of_scripts: dict[tuple[str, ...], dict[str, float]] = {}
        # Of jobs that train, in the unit of the group.
        self._so_far: dict[tuple[str, ...], list[float]] = {}
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._ranks: dict[Hashable, float] = {}

    def learn(self, ended: WorkDone) -> None:
        """A job has ended after all of its work."""
        if not 0 < ended.done < math.inf:
            return
        for name in _groups_of_model(ended.job):
            self._totals[name] = [*self._totals.pop(name, ()), ended.done][-_REMEMBERED:]
        script = _script(ended.job)
        for name in _groups_of_models(ended.job):
            known = self._of_scripts.pop(name, {})
            known.pop(script, None)
            known[script] = ended.done * ended.gpu_s_per_sample
            _keep_last(known)
            self._of_scripts[name] = known
        _keep_last(self._totals)
        _keep_last(self._of_scripts)
        self._groups, self._ranks = {}, {}

    def observe(self, training: Iterable[WorkDone]) -> None:
        """How far jobs of unknown work have come by now."""
        self._so_far, self._groups, self._ranks = {}, {}, {}
        furthest: dict[tuple[tuple[str, ...], str], float] = {}
        for job, done, gpu_s in training:
            if done <= 0:
                continue
            for name in _groups_of_model(job):
                self._so_far.setdefault(name, []).append(done)
            script = _script(job)
            for name in _groups_of_models(job):
                if script not in self._of_scripts.get(name, ()):
                    furthest[name, script] = max(furthest.get((name, script), 0.0), done * gpu_s)
        for (name, _), gpu_s in furthest.items():
            self._so_far.setdefault(name, []).append(gpu_s)

    def knows(self, job: JobState) -> bool:
        """Whether a job of its model has ended."""
        return ("model", job.spec.model) in self._totals

    def left(self, at: WorkDone) -> float:
        """Samples that a job is taken to have left, by Gittins's index: more than 0."""
        key = (*_groups_of_model(at.job), *_groups_of_models(at.job), at.done, at.gpu_s_per_sample)
        ranks = self._ranks.get(key)
        if ranks is None:
            ranks = self._ranks[key] = self._left(at)
        return ranks

    def dump(self) -> dict[str, list[list[Any]]]:
        return {
            "totals": [[*map(list, item)] for item in self._totals.items()],
            "of_scripts": [
                [list(name), [*map(list, known.items())]] for name, known in self._of_scripts.items()
            ],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._totals = {tuple(name): list(totals) for name, totals in state["totals"]}
        self._of_scripts = {tuple(name): dict(known) for name, known in state["of_scripts"]}
        self._so_far, self._groups, self._ranks = {}, {}, {}

    def _left(self, at: WorkDone) -> float:
        ends, chances = self._distribution(at)
        beyond = np.cumprod(1.0 - chances)
        ending = np.concatenate(([1.0], beyond[:-1])) * chances
        until = np.cumsum(ending)
        work = np.cumsum(ending * ends) + ends * beyond
        sure = until > _SURE
        return float((work[sure] / until[sure]).min())

    def _distribution(self, at: WorkDone) -> tuple[Floats, Floats]:
        """Ends of stretches, as samples from now on, and the chance to end in each if the job comes to it."""
        chain = self._chain(at)
        scale = _SCALE_GPU_S / at.gpu_s_per_sample
        tail = _tail(at.done, scale)
        furthest = max((float(group.all_seen[-1]) for group in chain), default=0.0)
        if furthest > tail[-1]:  # the prior alone says what comes after that
            tail = np.concatenate((tail, _tail(furthest, scale)))
        ends = np.concatenate([tail, *(group.totals for group in chain)])
        ends.sort()
        new = ends > at.done
        new[1:] &= ends[1:] != ends[:-1]
        ends = ends[new]
        begins = np.concatenate(([at.done], ends[:-1]))
        chances = 1.0 - ((scale + begins) / (scale + ends)) ** _SHAPE
        for totals, all_seen, prior in chain:
            over = totals.searchsorted(ends, side="right")
            ended = over.copy()
            ended[1:] -= over[:-1]
            ended[0] -= totals.searchsorted(at.done, side="right")
            came = len(all_seen) - all_seen.searchsorted(ends)
            chances = (prior * chances + ended) / (prior + np.maximum(came, ended))
        return ends - at.done, chances

    def _chain(self, at: WorkDone) -> list[_Group]:
        """The groups of a job from the widest, in samples of it, without those that the next is equal to."""
        groups: list[_Group] = []
        for names, per_sample, prior in (
            (_groups_of_models(at.job), at.gpu_s_per_sample, _APART),
            (_groups_of_model(at.job), 1.0, _ALIKE),
        ):
            unlike: list[_Group] = []
            for name in names:
                group = self._group(name, prior)
                if unlike and _is_same(unlike[-1], group):
                    unlike.pop()
                if len(group.all_seen):
                    unlike.append(group)
            groups += [_Group(each.totals / per_sample, each.all_seen / per_sample, prior) for each in unlike]
        return groups

    def _group(self, name: tuple[str, ...], prior: float) -> _Group:
        group = self._groups.get(name)
        if group is None:
            ended = self._totals.get(name) or [*self._of_scripts.get(name, {}).values()]
            totals = np.sort(np.array(ended, dtype=np.float64))
            all_seen = np.sort(np.concatenate((totals, self._so_far.get(name, ()))))
            group = self._groups[name] = _Group(totals, all_seen, prior)
        return group


class _Group(NamedTuple):
    totals: Floats
    """Ascending."""
    all_seen: Floats
    """All jobs, those that have not ended included, ascending."""
    prior: float


def _tail(begin: float, scale: float) -> Floats:
    """Ends of stretches after ``begin``."""
    steps: Floats = np.arange(1, _STRETCHES, dtype=np.float64)
    return (begin + scale) * _RATIO**steps - scale


def _is_same(one: _Group, other: _Group) -> bool:
    """Of two groups one of which holds the other."""
    return len(one.totals) == len(other.totals) and len(one.all_seen) == len(other.all_seen)


def _groups_of_models(job: JobState) -> Sequence[tuple[str, ...]]:
    return _named_of_models(job.spec.team, job.spec.user)


def _groups_of_model(job: JobState) -> Sequence[tuple[str, ...]]:
    spec = job.spec
    batch = spec.batch.size or job.reference_batch
    return _named_of_model(spec.user, spec.model, batch, spec.gpus.requested)


@lru_cache(maxsize=_NAMES)
def _named_of_models(team: str, user: str) -> Sequence[tuple[str, ...]]:
    return (("all",), ("team", team), ("user", user))


@lru_cache(maxsize=_NAMES)
def _named_of_model(user: str, model: str, batch: int, gpus: int) -> Sequence[tuple[str, ...]]:
    return (("model", model), ("script", user, model), ("alike", user, model, str(batch), str(gpus)))


def _script(job: JobState) -> str:
    return f"{len(job.spec.user)} {job.spec.user} {job.spec.model}"


def _keep_last(groups: dict[Key, Value]) -> None:
    """Drop all but those that were added last, in place, to bound memory."""
    for oldest in [*islice(groups, max(0, len(groups) - _MOST_GROUPS))]:
        del groups[oldest]
