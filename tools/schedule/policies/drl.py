"""DRL: one job at a time, as a trained network prefers.

:class:`Situation` lists what the scheduler can do next to one job and what the network sees of it;
:class:`Weights` is the network, which prefers one action to another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from math import log1p, log2
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import document_bytes, parse_document
from pliant.schemas.file_io.files import atomic_write, read_bytes
from pliant.schemas.file_io.record import NonNegativeInt, Record, broken_rule
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import minimum_alone, reject_impossible
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Snapshot

Floats = npt.NDArray[np.float64]
FEATURES: Final = (
    "starts", "grows", "shrinks", "waits", "gpus", "takes", "takes_of_free", "efficiency", "of_requested",
    "gain", "remaining", "remaining_gpu_time", "is_known", "before", "age", "service",
    "waiting", "running", "free", "demand",
)  # fmt: skip
"""Features of an action, all about -1 to 1 to keep the units of the network in their range."""
WAITING_SEEN: Final = 24
"""Waiting jobs that fit and are looked at; of the running ones, all are."""
_UNKNOWN_S: Final = 600.0
KIND: Final = "network"
SHIPPED: Final = Path(__file__).with_name("drl_network.json")
_DIGITS: Final = 6
"""Digits of a weight in its file."""


class Drl(Policy):
    """One job at a time, as a network prefers that was trained by policy gradient to keep mean JCT low.

    The baseline DRL of ONES (SC '21), section 4.1: the scheduler of Chic (IWQoS '19) for all-reduce. A
    small network scores every action: to start a waiting job on a size that fits, to double or halve a
    running one, or to change nothing. The best action is taken, then the best of those left, until none
    is better than to change nothing. No job is preempted. Jobs that the network leaves out have no GPUs,
    also where all may run on the same few nodes only. Departures from the papers, which print
    neither network nor features: a score for each action instead of one output for each job; greedy
    except while training.

    settled_s: a running job changes at most once in this time.
    network: a file as ``python -m experiments.ones.train`` writes it; without one, the weights that come
    with pliant, trained on jobs like those of ONES.
    """

    name: ClassVar[str] = "drl"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        elasticity="size",
        file_parameters=frozenset({"network"}),
        priority_means="jobs of higher priority are among those that the network looks at first",
    )

    def __init__(self, settled_s: float = 60.0, network: str = "") -> None:
        if settled_s <= 0:
            raise ValueError("parameter settled_s: expected more than 0")
        self.settled_s = settled_s
        self.network = network
        self._own = read_network(Path(network)).weights if network else None

    @property
    def weights(self) -> Weights:
        return _shipped() if self._own is None else self._own

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        decision = Decision({}, reject_impossible(snapshot, minimum_alone))
        seen = self._seen(snapshot, decision.rejected)
        while len(actions := seen.actions()) > 1 or (actions and actions[0].job is not None):
            chosen = self.choose(seen, actions, rng)
            if chosen.job is None:
                break
            decision.targets[chosen.job.id] = Target(chosen.gpus, chosen.gpu_type)
            seen.take(chosen)
        decision.ask_again_s = self._next_settled_s(snapshot)
        return decision

    def choose(self, seen: Situation, actions: list[Action], rng: np.random.Generator) -> Action:
        del rng
        return actions[int(self.weights.preferences(seen.features(actions)).argmax())]

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        seen = self._seen(snapshot, {})
        actions = seen.actions()
        chances = odds(self.weights.preferences(seen.features(actions))) if actions else ()
        best = best_by_job(actions, chances)
        still = best.get(None, (0.0, 0))[0]
        return {job.id: _explanation(best.get(job.id), still, job.gpus) for job in snapshot.jobs.values()}

    def _seen(self, snapshot: Snapshot, rejected: dict[str, str]) -> Situation:
        waiting = [job for job in snapshot.arrivals() if not job.gpus and job.id not in rejected]
        return Situation(snapshot, waiting, self.settled_s)

    def _next_settled_s(self, snapshot: Snapshot) -> float | None:
        times = [job.changed_s + self.settled_s for job in snapshot.jobs.values() if job.gpus]
        return min((time_s for time_s in times if time_s > snapshot.time_s), default=None)


def _explanation(best: tuple[float, int] | None, still: float, held: int) -> Explanation:
    if best is None:
        words = "keeps its size" if held else "no size of it fits what is free"
        return Explanation(words)
    chance, gpus = best
    what = f"{in_gpus(gpus)} would be its next step, chosen with probability {chance:.2f}"
    return Explanation(f"{what}; no change with {still:.2f}", needs_gpus=None if held else gpus)


@cache
def _shipped() -> Weights:
    return read_network(SHIPPED).weights


# What the scheduler can do next, and what the network sees of it.


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
        """:param settled_s: a running job changes at most once in this time."""
        self._snapshot = snapshot
        self.time_s = snapshot.time_s
        self._free = dict(snapshot.free_gpus)
        self._waiting = list(waiting)
        running = [job for job in snapshot.jobs.values() if job.gpus]
        self._running = len(running)
        self._settled = [job for job in running if self.time_s - job.changed_s >= settled_s]
        self._total = max(1, snapshot.total_gpus)
        self._wanted = sum(job.requested for job in self._waiting)
        self._lefts = sorted(self._left_s(job, job.requested) for job in self._waiting)

    def take(self, action: Action) -> None:
        job, gpu_type = action.job, action.gpu_type
        if job is None or gpu_type is None:
            return
        self._free[gpu_type] -= action.gpus - job.gpus
        if job.gpus:
            self._settled.remove(job)
        else:
            self._waiting.remove(job)
            self._wanted -= job.requested
            self._lefts.remove(self._left_s(job, job.requested))
            self._running += 1

    def actions(self) -> list[Action]:
        """All that is allowed now; doing nothing comes first, unless it leaves the cluster idle."""
        guessed = any(job.is_speed_guessed for job in self._waiting)  # then the first to come is the next
        most = 1 if guessed else WAITING_SEEN
        seen = islice((sizes for job in self._waiting if (sizes := self._starts(job))), most)
        starts = [action for sizes in seen for action in sizes] if any(self._free.values()) else []
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
        starts = []
        for gpus in _sizes(job, self._total):
            roomy = [kind for kind, free in self._free.items() if free >= gpus]
            rates = [(-rate, kind) for kind in roomy if (rate := self._rate(job, gpus, kind)) > 0]
            if rates:
                starts.append(Action(job, gpus, min(rates)[1]))
        return starts

    def _changes(self, job: JobState) -> Iterator[int]:
        """Twice its GPUs, or half; its limits may have changed since it got them."""
        if job.spec.elastic == "none":
            return
        low, high = job.min_gpus, job.max_gpus(self._total)
        own = job.spec.gpus
        half, double = own.whole(job.gpus // 2), max(own.above(job.gpus), own.whole(2 * job.gpus))
        for gpus in (min(double, high), max(min(half, high), low)):
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
        least = job.min_gpus
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
            log2(gpus / job.requested) / 4,
            log2(rate / now) if now and rate else 0.0,
            log1p(left_s / 60) / 5,
            log1p(left_s * gpus / 60) / 8,
            float(known),
            self._shorter(self._left_s(job, job.requested)),
            log1p(max(0.0, self.time_s - job.spec.submit_time) / 60) / 5,
            log1p(job.attained_service_s(self.time_s) / 60) / 8,
        )

    def _shorter(self, left_s: float) -> float:
        """Part of the waiting jobs that have less time left."""
        return float(np.searchsorted(self._lefts, left_s)) / max(1, len(self._lefts))

    def _left_s(self, job: JobState, gpus: int, gpu_type: str | None = None) -> float:
        """Seconds that the rest of the job takes on these GPUs; a usual number where work is unknown."""
        samples = job.remaining_samples(self.time_s)
        rate = self._rate(job, gpus, gpu_type)
        if samples is None or rate <= 0 or job.is_speed_guessed:
            return _UNKNOWN_S
        return samples / rate

    def _rate(self, job: JobState, gpus: int, gpu_type: str | None) -> float:
        return self._snapshot.speeds.rate(job, gpus, gpu_type)


def _sizes(job: JobState, total: int) -> list[int]:
    """Powers of two of replicas, else the sizes that the job lists, between its limits; with its smallest and
    its requested size.
    """
    if job.spec.elastic == "none":
        return [job.requested]
    low, high = job.min_gpus, job.max_gpus(total)
    powers: Iterable[int] = (job.per_replica << power for power in range(high.bit_length()))
    listed = job.spec.gpus.sizes
    allowed = {*(listed if isinstance(listed, tuple) else powers), low, job.requested}
    return sorted(size for size in allowed if low <= size <= high)


def odds(preferences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights = np.exp(preferences - preferences.max())
    return np.asarray(weights / weights.sum())


def best_by_job(
    actions: Iterable[Action], chances: Iterable[float]
) -> Mapping[str | None, tuple[float, int]]:
    """The chance of each job's best action and its GPUs; under None that of no change."""
    best: dict[str | None, tuple[float, int]] = {}
    for action, chance in zip(actions, chances, strict=True):
        key = action.job.id if action.job else None
        if key not in best or chance > best[key][0]:
            best[key] = (float(chance), action.gpus)
    return best


# The network, and the file that keeps what it has learnt.

_Row = Annotated[tuple[float, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Weights:
    """One hidden layer, tanh, and a preference: a score for each row of features."""

    hidden: Floats
    """[feature, unit]."""
    offsets: Floats
    """[unit]."""
    out: Floats
    """[unit]."""

    @classmethod
    def drawn(cls, units: int, rng: np.random.Generator) -> Self:
        """Where training begins: all actions are about equally good."""
        scale = 1 / np.sqrt(len(FEATURES))
        hidden = rng.normal(0, scale, (len(FEATURES), units))
        return cls(hidden, np.zeros(units), rng.normal(0, 0.01, units))

    def preferences(self, features: Floats) -> Floats:
        """A score for each action; higher is better, differences are logarithms of odds."""
        return np.asarray(self.activities(features) @ self.out)

    def activities(self, features: Floats) -> Floats:
        """[action, unit] outputs of the hidden units."""
        return np.asarray(np.tanh(features @ self.hidden + self.offsets))

    @property
    def digest(self) -> str:
        """SHA-256 of the weights as their file states them."""
        text = repr([_rounded(self.hidden), _rounded(self.offsets), _rounded(self.out)])
        return hashlib.sha256(text.encode()).hexdigest()


class TrainedNetwork(Record):
    """A file of weights, and where they come from."""

    schema_: Literal["pliant.network/1"] = Field(default="pliant.network/1", alias="schema")
    policy: Literal["drl"] = "drl"
    command: str
    """Command that trains the same weights."""
    recipe: dict[str, Any]
    """Everything that the training read."""
    seed: NonNegativeInt
    digest: str
    """SHA-256 of the weights."""
    features: tuple[str, ...]
    hidden: Annotated[tuple[_Row, ...], Field(min_length=1)]
    offsets: _Row
    out: _Row

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        units = len(self.out)
        if self.features != FEATURES:
            raise broken_rule("is not what this pliant shows the network", "/features")
        if len(self.hidden) != len(FEATURES) or {units, *map(len, self.hidden)} != {len(self.offsets)}:
            raise broken_rule("does not have a row of weights for each feature", "/hidden")
        if self.weights.digest != self.digest:
            raise broken_rule("is not that of these weights", "/digest")
        return self

    @property
    def weights(self) -> Weights:
        return Weights(np.array(self.hidden), np.array(self.offsets), np.array(self.out))


def write_network(path: Path, weights: Weights, command: str, recipe: dict[str, Any], seed: int) -> None:
    """Equal weights give equal bytes."""
    record = TrainedNetwork(
        command=command,
        recipe=recipe,
        seed=seed,
        digest=weights.digest,
        features=FEATURES,
        hidden=tuple(tuple(row) for row in _rounded(weights.hidden)),
        offsets=tuple(_rounded(weights.offsets)),
        out=tuple(_rounded(weights.out)),
    )
    atomic_write(path, document_bytes(record, KIND, with_defaults=True))


def read_network(path: Path) -> TrainedNetwork:
    """:raises BadInputError: with every problem of the file."""
    if not path.is_file():
        raise BadInputError.one(str(path), "no such file")
    return parse_document(read_bytes(path), str(path), KIND, TrainedNetwork)


def _rounded(values: Floats) -> Any:
    """As lists of numbers of :data:`_DIGITS` digits, negative zeros positive."""
    return (np.round(values, _DIGITS) + 0.0).tolist()
