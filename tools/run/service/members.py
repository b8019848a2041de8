"""The workers of an attempt: where each is, whether it lives, what its files say.

:class:`GangMembers` looks at the workers' files, and :class:`Lifetimes` judges deaths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.schedule import Cut
from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.allocation import Assignment, Slot
from pliant.tools.run.service.commands import generation_of, read_plan_of, read_reached
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.statedir.contract.as_user import own_files
from pliant.tools.run.statedir.contract.folders import AttemptDir, FolderCache
from pliant.tools.run.statedir.contract.liveness import (
    HEARTBEAT_S,
    Heartbeats,
    Life,
    LivenessProbe,
    last_beat,
)
from pliant.tools.run.statedir.contract.plan import Plan, WorkerOutcome

POLL_INTERVAL_S: Final = 1.0
"""Seconds between two checks for idle units."""
YOUNG_S: Final = 5.0
"""Seconds of training below which a worker died young."""
TOO_MANY: Final = 5
"""Young deaths in a row after which a slot gets no worker for a while."""


class GangMembers:
    """The workers that the attempt's plans have ever named, by number."""

    def __init__(self, files: AttemptDir, plan: Plan) -> None:
        self._files = files
        self._slots: dict[int, Slot] = {}
        self._worker_files: dict[int, str] = {}
        self._supervisors: dict[int, str] = {}
        self._probes: dict[int, LivenessProbe] = {}
        self._beats, self._supervisor_beats = Heartbeats(), Heartbeats()
        self._silent = frozenset[int]()
        # When silent workers were last found so.
        self._found_s: dict[int, float] = {}
        self._looked_s = self._counted_s = float("-inf")
        self._idle_since_s: dict[int, float] = {}
        self._folder = FolderCache(files.path)
        # The newest one and the one that trains, by generation.
        self._plans: dict[int, Plan] = {}
        with own_files():
            self._add_former(plan)
        self.add(plan)

    def _add_former(self, plan: Plan) -> None:
        for path in (self._files.kept or self._files.path).glob("plan-*.json"):
            with contextlib.suppress(BadInputError):
                own = generation_of(path) == plan.generation
                if not own and (found := read_plan_of(path)) is not None:
                    self.add(found)

    def add(self, plan: Plan) -> None:
        self._generation, self._workers = plan.generation, plan.workers
        self._plans[plan.generation] = plan
        for worker, member in zip(plan.workers, plan.members, strict=True):
            self._slots[worker] = Slot.parse(member.slot)
            if worker not in self._worker_files:
                path = self._files.presence(worker)
                self._worker_files[worker], self._probes[worker] = str(path), LivenessProbe(path)
                self._supervisors[worker] = str(self._files.supervisor(worker))

    def look(self) -> None:
        """Forget what the files said if they may have changed."""
        self._folder.look()

    def trains(self) -> Plan | None:
        """The plan that the workers train under as of the last look. Returns None if none does yet."""
        return self._folder.get("reached", self._read_reached)

    def _read_reached(self) -> Plan | None:
        trains = read_reached(self._files, self._plans)
        if trains is not None:
            needed = (trains.generation, self._generation)
            self._plans = {number: plan for number, plan in self._plans.items() if number in needed}
            self._plans[trains.generation] = trains
        return trains

    def outcome(self, worker: int) -> WorkerOutcome | None:
        """What a worker wrote as its last act, as of the last look. Returns None if nothing."""
        written = self._written(worker)
        return None if written is None or written.goes_on else written

    def outcomes(self) -> dict[int, WorkerOutcome]:
        """The outcomes of the newest plan's workers, by rank."""
        return self._folder.get(f"outcomes of {self._generation}", self._read_outcomes)

    def outcomes_with(self, units: Sequence[UnitStatus]) -> dict[int, WorkerOutcome]:
        """The same, with those of workers that trained to the end and whose unit then ended with code 0.

        :param units: of the newest plan's workers.
        """
        clean = {rank for rank, unit in enumerate(units) if unit.state == "exited" and unit.code == 0}
        written = {rank: self._written(self._workers[rank]) for rank in clean}
        return self.outcomes() | {rank: each for rank, each in written.items() if each is not None}

    def _read_outcomes(self) -> dict[int, WorkerOutcome]:
        outcomes = {rank: self.outcome(worker) for rank, worker in enumerate(self._workers)}
        return {rank: outcome for rank, outcome in outcomes.items() if outcome is not None}

    def _written(self, worker: int) -> WorkerOutcome | None:
        return self._folder.get(f"outcome {worker}", lambda: WorkerOutcome.read(self._files.outcome(worker)))

    def _has_trained(self, worker: int) -> bool:
        """Whether its training is over, so that it may have become another program (``exec``)."""
        written = self._written(worker)
        return written is not None and written.goes_on

    def message(self, worker: int) -> str:
        outcome = self.outcome(worker)
        return "" if outcome is None else outcome.message

    def lost(self, trained: Set[int], running: Set[int], newcomers: Set[int] = frozenset()) -> set[int]:
        """Workers that are gone without a word, silent, cut off, or crashed before they trained.

        A crash in training is the script's fault and would hit the others, too, unless the worker is a
        newcomer.
        """
        ends = {self._workers[rank]: found.outcome for rank, found in self.outcomes().items()}
        parted = {
            worker
            for worker, end in ends.items()
            if end == "cut_off" or (end == "crashed" and (worker not in trained or worker in newcomers))
        }
        return parted | {
            worker
            for worker in self._workers
            if worker not in ends
            and (
                worker not in running
                or (not self._has_trained(worker) and (worker in self._silent or self.life(worker) == "gone"))
            )
        }

    def idle(self, running: Set[int], timeouts: Timeouts) -> dict[int, float]:
        """Running units that have nothing to do any more, and the seconds that each may take to end."""
        needed = self._needed()
        limits = {
            worker: timeouts.of_idle(
                self.life(worker), ended=self.outcome(worker) is not None, needed=worker in needed
            )
            for worker in running
            if not self._has_trained(worker)
        }
        return {worker: limit_s for worker, limit_s in limits.items() if limit_s is not None}

    def _needed(self) -> dict[int, None]:
        """The workers of the newest plan, and those that train: that plan needs both to come into force."""
        trains = self.trains()
        return dict.fromkeys((*self._workers, *(() if trains is None else trains.workers)))

    def slot(self, worker: int) -> Slot:
        return self._slots[worker]

    def life(self, worker: int) -> Life:
        return self._probes[worker].life()

    def proven(self, workers: Iterable[int], age_s: float) -> set[Slot]:
        """Slots of workers that ran this long after their generation had begun to train."""
        try:
            since_s = self._files.reached.stat().st_mtime
        except OSError:
            return set()
        return {
            self._slots[worker]
            for worker in workers
            if worker in self._slots and last_beat(self._files.presence(worker)) >= since_s + age_s
        }

    def listen(self, now_s: float, timeouts: Timeouts) -> frozenset[int]:
        """Workers newly found silent: for too long they have not shown that they run.

        They show it once in :data:`HEARTBEAT_S`, so it looks no more often. On a dead host the supervisor of
        the worker's unit is silent, too; then a shorter time is enough. If a kill does nothing, a worker is
        found again after that time.
        """
        if 0 <= now_s - self._looked_s < HEARTBEAT_S:
            return frozenset()
        self._looked_s = now_s
        needed = self._needed()
        self._beats.look((self._worker_files[worker] for worker in needed), now_s)
        quiet = [worker for worker in needed if self._beats.silence_s(self._worker_files[worker], 0.0)]
        self._supervisor_beats.look([self._supervisors[worker] for worker in quiet], now_s)
        self._silent = frozenset(worker for worker in needed if self._is_silent(worker, timeouts))
        last_s = {worker: self._found_s.get(worker, float("-inf")) for worker in self._silent}
        silent = frozenset(worker for worker in last_s if now_s - last_s[worker] >= timeouts.dead_s)
        self._found_s = {**last_s, **dict.fromkeys(silent, now_s)}
        return silent

    def in_doubt(self, timeouts: Timeouts) -> bool:
        """Whether a worker's last beat is long ago, but it was not watched for long enough since."""
        limit_s = timeouts.dead_s
        return any(
            self._beats.in_doubt(self._worker_files[worker], limit_s)
            or self._supervisor_beats.in_doubt(self._supervisors[worker], limit_s)
            for worker in self._needed()
        )

    def _is_silent(self, worker: int, timeouts: Timeouts) -> bool:
        silence_s = self._beats.silence_s(self._worker_files[worker], timeouts.silent_s)
        if silence_s < min(timeouts.dead_s, timeouts.silent_s) or self.life(worker) != "alive":
            return False
        supervisor_s = self._supervisor_beats.silence_s(self._supervisors[worker], timeouts.dead_s)
        return silence_s >= timeouts.silent_s or supervisor_s >= timeouts.dead_s

    def overdue(self, limits_s: Callable[[], Mapping[int, float]], now_s: float) -> list[int]:
        """Units that have been idle for longer than they may, each once in that time."""
        if 0 <= now_s - self._counted_s < POLL_INTERVAL_S:
            return []
        self._counted_s, limits = now_s, limits_s()
        self._idle_since_s = {unit: self._idle_since_s.get(unit, now_s) for unit in limits}
        due = [unit for unit, since_s in self._idle_since_s.items() if now_s - since_s >= limits[unit]]
        self._idle_since_s.update(dict.fromkeys(due, now_s))
        return due


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Slots that the job does without from now on."""

    slots: tuple[Slot, ...]
    reason: str

    def and_also(self, other: WorkerFailure) -> WorkerFailure:
        slots = tuple(dict.fromkeys([*self.slots, *other.slots]))
        return WorkerFailure(slots, f"{self.reason}; {other.reason}")

    def without(self, target: Assignment, cut: Cut, *, shared: bool) -> Assignment:
        """What is left of a target, with the cut of the plan that the others train under.

        :param shared: another job has the same slots. Two jobs share all slots or none, so nothing is left.
        """
        slots = tuple(slot for slot in target.slots if slot not in self.slots)
        if len(slots) == len(target.slots):
            return target
        if shared:
            slots = ()
        return Assignment.of(target.job, slots, cut)


def slots_text(slots: Iterable[Slot]) -> str:
    return ", ".join(map(str, slots))


class Lifetimes:
    """Lifetimes of an attempt's workers, by slot, as far as one launcher has seen them.

    A slot on which several workers in a row die young gets no replacement for a while: that would fail, too.
    """

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._young: dict[Slot, int] = {}

    def train(self, workers: Mapping[int, Slot], now_s: float) -> None:
        """Note that workers train; one that has done so for long enough clears its slot."""
        for worker, slot in workers.items():
            if now_s - self._since_s.setdefault(worker, now_s) >= YOUNG_S:
                self._young[slot] = 0

    def newcomers(self, trained: Set[int], now_s: float) -> frozenset[int]:
        """Workers that joined a training gang a short time ago; the others got past what these fail by."""
        since_s = {worker: self._since_s.get(worker, now_s) for worker in trained}
        first_s = min(since_s.values(), default=now_s)
        return frozenset(one for one, at_s in since_s.items() if first_s < at_s and now_s - at_s < YOUNG_S)

    def mark_lost(
        self, slots: Mapping[int, Slot], trained: Set[int], message: Callable[[int], str], now_s: float
    ) -> WorkerFailure | None:
        """Count lost workers; returns the slots among theirs that should get no replacement for a while.

        A slot whose worker never began to train counts as failed at once, and so does that of a newcomer
        that says what it died of.

        :param slots: by worker.
        :param trained: workers that began to train.
        :param message: the last word of a worker.
        """
        new = self.newcomers(trained, now_s)
        early = [worker for worker in slots if worker not in trained or (worker in new and message(worker))]
        blamed = {
            slot: blame
            for worker, slot in slots.items()
            if worker not in early and (blame := self._count(worker, slot, now_s))
        }
        bad = tuple(dict.fromkeys([*(slots[worker] for worker in early), *blamed]))
        if not bad:
            return None
        reasons = list(blamed.values())
        if early:
            when = "in their first steps" if trained >= set(early) else "before they trained"
            died = f"the new workers on {slots_text(slots[worker] for worker in early)} ended {when}"
            reasons.insert(0, ": ".join([died, *filter(None, map(message, early))][:2]))
        return WorkerFailure(bad, "; ".join(reasons))

    def _count(self, worker: int, slot: Slot, now_s: float) -> str:
        young = now_s - self._since_s.get(worker, now_s) < YOUNG_S
        self._young[slot] = self._young.get(slot, 0) + 1 if young else 0
        if self._young[slot] < TOO_MANY:
            return ""
        return f"lost {self._young.pop(slot)} workers in a row on {slot}"
