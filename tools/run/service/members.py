"""The workers of an attempt by number: where each is, whether it lives, and what it has left in its files.

How patient a launcher is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from pliant.schemas.errors import BadInputError
from pliant.tools.run.service.allocation import Slot
from pliant.tools.run.service.commands import generation_of, read_plan_of, read_reached
from pliant.tools.run.statedir.contract.folders import AttemptDir, FolderCache
from pliant.tools.run.statedir.contract.plan import Plan, WorkerOutcome
from pliant.tools.run.statedir.contract.presence import BEAT_S, Heartbeats, Life, Sighting, last_beat

LOOK_S: Final = 1.0
"""Between two looks at which units have nothing to do."""


class Members:
    """All workers that the attempt's plans have ever named."""

    def __init__(self, files: AttemptDir, plan: Plan) -> None:
        self._files = files
        self._slots: dict[int, Slot] = {}
        self._presences: dict[int, str] = {}
        self._keepers: dict[int, str] = {}
        self._sightings: dict[int, Sighting] = {}
        self._beats, self._keeper_beats = Heartbeats(), Heartbeats()
        self._silent = frozenset[int]()
        self._found_s: dict[int, float] = {}
        """When silent workers were last found so."""
        self._looked_s = self._counted_s = float("-inf")
        self._idle_since_s: dict[int, float] = {}
        self._folder = FolderCache(files.path)
        self._plans: dict[int, Plan] = {}
        """The newest one, and that which trains, by generation."""
        for path in files.path.glob("plan-*.json"):
            with contextlib.suppress(BadInputError):
                own = generation_of(path) == plan.generation
                if not own and (found := read_plan_of(path)) is not None:
                    self.add(found)
        self.add(plan)

    def add(self, plan: Plan) -> None:
        """Take up the workers of a newer plan."""
        self._generation, self._workers = plan.generation, plan.workers
        self._plans[plan.generation] = plan
        for worker, member in zip(plan.workers, plan.members, strict=True):
            self._slots[worker] = Slot.parse(member.slot)
            if worker not in self._presences:
                path = self._files.presence(worker)
                self._presences[worker], self._sightings[worker] = str(path), Sighting(path)
                self._keepers[worker] = str(self._files.keeper(worker))

    def look(self) -> None:
        """Forget what the files said if they may say something else now."""
        self._folder.look()

    def trains(self) -> Plan | None:
        """The plan that the workers train under, as of the last look; None: they do not train yet."""
        return self._folder.get("reached", self._read_reached)

    def _read_reached(self) -> Plan | None:
        trains = read_reached(self._files, self._plans)
        if trains is not None:
            needed = (trains.generation, self._generation)
            self._plans = {number: plan for number, plan in self._plans.items() if number in needed}
            self._plans[trains.generation] = trains
        return trains

    def trained(self, trains: Plan) -> frozenset[int]:
        """The workers of the plan that they train under."""
        return self._folder.get("trained", lambda: frozenset(trains.workers))

    def outcome(self, worker: int) -> WorkerOutcome | None:
        """What a worker wrote as its last act, as of the last look; None: nothing."""
        return self._folder.get(f"outcome {worker}", lambda: WorkerOutcome.read(self._files.outcome(worker)))

    def outcomes(self) -> dict[int, WorkerOutcome]:
        """What the newest plan's workers wrote as their last act, by rank; as of the last look."""
        return self._folder.get(f"outcomes of {self._generation}", self._read_outcomes)

    def _read_outcomes(self) -> dict[int, WorkerOutcome]:
        found = {rank: self.outcome(worker) for rank, worker in enumerate(self._workers)}
        return {rank: outcome for rank, outcome in found.items() if outcome is not None}

    def message(self, worker: int) -> str:
        """The last word of a worker."""
        found = self.outcome(worker)
        return "" if found is None else found.message

    def lost(self, trained: Set[int], running: Set[int], newcomers: Set[int] = frozenset()) -> set[int]:
        """Workers that are gone without a word, silent, cut off, or gone with a word before they trained.

        A crash of the script in training is the job's, and would happen to the others, too, which are not
        ``newcomers``.

        :param running: units that run.
        """
        said = {self._workers[rank]: found.outcome for rank, found in self.outcomes().items()}
        parted = {
            worker
            for worker, end in said.items()
            if end == "cut_off" or (end == "crashed" and (worker not in trained or worker in newcomers))
        }
        return parted | {
            worker
            for worker in self._workers
            if worker not in said
            and (worker not in running or worker in self._silent or self.life(worker) == "gone")
        }

    def idle(self, running: Set[int], timeouts: Timeouts) -> dict[int, float]:
        """Units that run and have nothing to do, and how long each may take to end (seconds)."""
        needed = self._needed()
        limits = {
            worker: timeouts.of_idle(
                self.life(worker), ended=self.outcome(worker) is not None, needed=worker in needed
            )
            for worker in running
        }
        return {worker: limit_s for worker, limit_s in limits.items() if limit_s is not None}

    def _needed(self) -> dict[int, None]:
        """The workers of the newest plan, and those that train: without these it never comes into force."""
        trains = self.trains()
        return dict.fromkeys((*self._workers, *(() if trains is None else trains.workers)))

    def slot(self, worker: int) -> Slot:
        """Where a worker is."""
        return self._slots[worker]

    def life(self, worker: int) -> Life:
        """What the worker's own file says."""
        return self._sightings[worker].life()

    def proven(self, workers: Iterable[int], age_s: float) -> set[Slot]:
        """Slots of workers that still ran so long after their generation had begun to train."""
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
        """Workers that were found silent now: for too long they have not shown that they run.

        They show it once in :data:`BEAT_S`; asked more often than that, it finds none. On a host that is dead
        the keeper of the worker's unit, too, is silent; then a shorter time is enough. Where a kill does
        nothing, a worker is found again after that time.
        """
        if 0 <= now_s - self._looked_s < BEAT_S:
            return frozenset()
        self._looked_s = now_s
        needed = self._needed()
        self._beats.look((self._presences[worker] for worker in needed), now_s)
        quiet = [worker for worker in needed if self._beats.silence_s(self._presences[worker], 0.0)]
        self._keeper_beats.look([self._keepers[worker] for worker in quiet], now_s)
        self._silent = frozenset(worker for worker in needed if self._is_silent(worker, timeouts))
        last_s = {worker: self._found_s.get(worker, float("-inf")) for worker in self._silent}
        found = frozenset(worker for worker in last_s if now_s - last_s[worker] >= timeouts.dead_s)
        self._found_s = {**last_s, **dict.fromkeys(found, now_s)}
        return found

    def in_doubt(self, timeouts: Timeouts) -> bool:
        """Whether a worker's last beat is long ago, and it was not looked at for long enough since."""
        limit_s = timeouts.dead_s
        return any(
            self._beats.in_doubt(self._presences[worker], limit_s)
            or self._keeper_beats.in_doubt(self._keepers[worker], limit_s)
            for worker in self._needed()
        )

    def _is_silent(self, worker: int, timeouts: Timeouts) -> bool:
        silence_s = self._beats.silence_s(self._presences[worker], timeouts.silent_s)
        if silence_s < min(timeouts.dead_s, timeouts.silent_s) or self.life(worker) != "alive":
            return False
        keeper_s = self._keeper_beats.silence_s(self._keepers[worker], timeouts.dead_s)
        return silence_s >= timeouts.silent_s or keeper_s >= timeouts.dead_s

    def overdue(self, limits_s: Callable[[], Mapping[int, float]], now_s: float) -> list[int]:
        """Units that have had nothing to do for longer than each may; once in that time, if they go on.

        :param limits_s: of those that have nothing to do; asked once in :data:`LOOK_S`.
        """
        if 0 <= now_s - self._counted_s < LOOK_S:
            return []
        self._counted_s, limits = now_s, limits_s()
        self._idle_since_s = {unit: self._idle_since_s.get(unit, now_s) for unit in limits}
        found = [unit for unit, since_s in self._idle_since_s.items() if now_s - since_s >= limits[unit]]
        self._idle_since_s.update(dict.fromkeys(found, now_s))
        return found


Stage = Literal["abort", "term", "kill"]
"""Of a stop: the plan says so, then SIGTERM, then SIGKILL."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each stage of a stop is given before the next one, and other patience."""

    abort_s: float = 60.0
    term_s: float = 30.0
    kill_s: float = 5.0
    broken_s: float = 5.0
    """For SIGTERM to the rest of a gang that lost a worker: it only waits for the lost one."""
    silent_s: float = 30.0
    """For a worker to show that it runs, before it is killed; the script may hold the interpreter long."""
    dead_s: float = 10.0
    """For a worker and the keeper of its unit, before their host counts as dead."""
    exit_s: float = 10.0
    """For a launcher to end after its worker has."""
    linger_s: float = 300.0
    """For a worker to end after it has written its outcome."""

    def to_end(self) -> float:
        """Seconds of all stages together."""
        return self.abort_s + self.term_s + self.kill_s

    def of(self, stage: Stage) -> float:
        """Seconds of one stage."""
        return {"abort": self.abort_s, "term": self.term_s, "kill": self.kill_s}[stage]

    def of_idle(self, life: Life, *, ended: bool, needed: bool) -> float | None:
        """Seconds for a unit to end that has nothing to do any more; None: it has.

        :param life: of its worker.
        :param ended: the worker has written how it ended.
        :param needed: a plan that is in force, or may come into force, names the worker.
        """
        if life == "gone" or (ended and life == "absent"):
            return self.exit_s
        if ended:
            return self.linger_s
        return None if needed else self.abort_s
