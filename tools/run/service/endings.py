"""How an attempt ended, judged from what its workers wrote; exit codes count where they wrote nothing.

Workers that an attempt has lost: where one after the other dies, another one would fare no better.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final, Literal

from pliant.tools.run.backends.protocol import UnitStatus
from pliant.tools.run.service.allocation import Slot, Target, counts
from pliant.tools.run.statedir.contract.plan import LOST_PEER, WorkerOutcome
from pliant.tools.run.statedir.log.fold import Share

_FAILED: Final = ("crashed", "cut_off")
_OWN_GROUP: Final = (
    "environment variable MASTER_ADDR expected",
    "initialize the default process group twice",
)
"""What PyTorch says where the script of an elastic job calls ``init_process_group`` itself."""
_NO_GROUP: Final = "Default process group has not been initialized"
"""What it says where something needs a group before the library has connected the workers."""
_WHOLE: Final = "; every worker has a whole copy of the model"
_CONNECTS: Final = (
    (r"\bfully_shard\(|_fully_shard\.py", "fully_shard", _WHOLE),
    (r"\bFullyShardedDataParallel\(|\bFSDP\(", "FullyShardedDataParallel", _WHOLE),
    (r"\bDistributedDataParallel\(|\bDDP\(", "DistributedDataParallel", ": job.prepare makes it"),
    (
        r"\bAccelerator\(",
        "Accelerator",
        ": job.prepare takes the place of its prepare, loss.backward() that of its backward",
    ),
    (r"\bdeepspeed\.initialize\(", "deepspeed.initialize", _WHOLE),
    (r"/lightning\w*/", "Lightning's Trainer or Fabric", ": job.prepare and job.epochs take their place"),
    (r"\binit_device_mesh\(", "init_device_mesh", _WHOLE),
)
"""What connects workers, or needs them connected: how a traceback shows it, its name, what to do instead."""
_LAUNCHED: Final = re.compile(
    r"KeyError: '(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)'|environment variable \w+ expected"
)
"""What a script says that torchrun would have started."""
_ASK_FOR_TORCHRUN: Final = 'a script on one GPU is started by python: let "command" begin with "torchrun"'


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended. ``stopped``: it can go on from its last checkpoint, on request.

    ``displaced``: likewise, and that was not its own doing, nor asked for here.
    """

    end: Literal["done", "stopped", "displaced", "failed"]
    message: str = ""
    samples_done: float | None = None
    """Samples trained so far; None: the script does not say."""
    began: bool = True
    """False: a part of it never ran, so the job cannot have brought its end about."""


def judge(
    outcomes: Mapping[int, WorkerOutcome],
    units: Sequence[UnitStatus],
    *,
    ranks: int,
    elastic: bool,
    stop_requested: bool,
    at_break: Sequence[UnitStatus] = (),
    words: Callable[[int], str] = lambda _unit: "",
    trace: Callable[[], Sequence[str]] = tuple,
    sent: str = "",
) -> Verdict:
    """The verdict on an attempt whose units have all ended.

    :param outcomes: what ranks wrote as their last act.
    :param at_break: the units when the first of them was found gone: whatever ended later was sent home.
    :param elastic: the script is one that uses the elastic library, so an outcome must be there.
    :param words: the last words on stderr of a unit, by its place in ``units``.
    :param trace: the end of what workers wrote on stderr.
    :param stop_requested: a stop was asked for, so whatever happened is not the job's fault.
    :param sent: the signal that was sent in the end, as a stop that takes long sends one; empty: none.
    """
    cause = describe(at_break or units, words)
    if stop_requested:
        cause = _stopped(units, sent) if sent else describe(at_break or units)
    verdict = (
        _by_outcomes(outcomes, units, ranks, cause) if outcomes else _by_codes(units, cause, elastic=elastic)
    )
    if elastic and (advice := _on_own_group(verdict.message, trace)):
        verdict = replace(verdict, message=f"{advice} ({verdict.message})")
    elif not elastic and ranks == 1 and _LAUNCHED.search(verdict.message):
        verdict = replace(verdict, message=f"{_ASK_FOR_TORCHRUN} ({verdict.message})")
    taken = next((unit for unit in (*at_break, *units) if unit.displaced), None)
    if taken is not None and not stop_requested and verdict.end != "done":
        return Verdict("displaced", taken.displaced, verdict.samples_done, taken.began)
    if stop_requested and verdict.end == "failed":
        return Verdict("stopped", verdict.message, verdict.samples_done)
    if not stop_requested and verdict.end == "stopped":
        return Verdict("failed", "stopped by somebody else", verdict.samples_done)
    return verdict


def _on_own_group(message: str, trace: Callable[[], Sequence[str]]) -> str:
    """What a script does that the elastic library does, and what to do instead; empty: nothing."""
    makes = any(said in message for said in _OWN_GROUP)
    if not makes and _NO_GROUP not in message:
        return ""
    text = "\n".join(trace())
    found = next(((name, instead) for sign, name, instead in _CONNECTS if re.search(sign, text)), None)
    if found is None and not makes:
        return ""
    name, instead = found or ("init_process_group", "")
    return f'the elastic library connects the workers: leave out {name}{instead}, or set "elastic" to "none"'


def _by_outcomes(
    outcomes: Mapping[int, WorkerOutcome], units: Sequence[UnitStatus], ranks: int, cause: str
) -> Verdict:
    samples = max(outcome.samples_done for outcome in outcomes.values())
    crashed = {rank: found for rank, found in sorted(outcomes.items()) if found.outcome in _FAILED}
    if 0 in outcomes and outcomes[0].outcome == "done":
        return _by_first(outcomes[0], units)
    if crashed:
        # the others noticed only that this one was gone
        rank, found = min(crashed.items(), key=lambda one: (one[1].message.startswith(LOST_PEER), one[0]))
        return Verdict("failed", f"rank {rank} crashed: {found.message or cause}", samples)
    missing = sorted(set(range(ranks)) - set(outcomes))
    if missing:
        return Verdict("failed", f"rank {missing[0]} vanished ({cause})", samples)
    return Verdict("stopped", samples_done=samples)


def _by_first(found: WorkerOutcome, units: Sequence[UnitStatus]) -> Verdict:
    """Rank 0 is done, unless its script says otherwise by its exit code: ``sys.exit("diverged")``."""
    code = units[0].code if units else None
    if found.exit_counts and code is not None and code > 0:
        return Verdict("failed", f"the script ended with exit code {code}: its log tells more")
    return Verdict("done", samples_done=found.samples_done)


def _by_codes(units: Sequence[UnitStatus], cause: str, *, elastic: bool) -> Verdict:
    clean = bool(units) and all(unit.code == 0 for unit in units)
    if clean and not elastic:
        return Verdict("done")
    if clean:
        message = 'the script ended without an outcome: use the elastic library, or set "elastic" to "none"'
        return Verdict("failed", message)
    return Verdict("failed", cause)


def broken(units: Sequence[UnitStatus], outcomes: Mapping[int, WorkerOutcome]) -> bool:
    """Whether a part of a gang that still runs is gone for good, so that the rest only waits for it.

    A launcher that was killed after its worker had said how it ended is not.
    """
    said = {rank for rank, outcome in outcomes.items() if outcome.outcome != "crashed"}
    return any(
        unit.state == "exited" and unit.code is not None and unit.code > 0
        if rank in said
        else unit.state == "lost" or (unit.state == "exited" and unit.code != 0)
        for rank, unit in enumerate(units)
    ) or any(outcome.outcome == "crashed" for outcome in outcomes.values())


def describe(units: Sequence[UnitStatus], words: Callable[[int], str] = lambda _unit: "") -> str:
    """The exit of the first unit that did not end well, in words.

    :param words: the last words of a unit, by its place in ``units``.
    """
    place = next((i for i, unit in enumerate(units) if unit.state != "running" and unit.code != 0), None)
    if place is None:
        return "no exit code"
    code = units[place].code
    if code is None:
        return "killed, no exit code"
    if code < 0:
        by_whom = ", which the system sends where memory runs out" if -code == signal.SIGKILL else ""
        return f"killed by {_name(-code)}{by_whom}"
    return ": ".join(filter(None, (f"exit code {code}", words(place))))


def _stopped(units: Sequence[UnitStatus], sent: str) -> str:
    """What a signal that was sent to stop units did."""
    code = next((unit.code for unit in units if unit.code is not None and unit.code > 0), None)
    return f"ended by {sent}, which was sent to stop it" + ("" if code is None else f" (exit code {code})")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class Setback:
    """Slots that the job does without from now on."""

    slots: tuple[Slot, ...]
    reason: str

    def and_also(self, other: Setback) -> Setback:
        """Both."""
        slots = tuple(dict.fromkeys([*self.slots, *other.slots]))
        return Setback(slots, f"{self.reason}; {other.reason}")

    def without(self, target: Target, cut: tuple[int | None, int, float], *, shared: bool) -> Target:
        """What is left of a target; ``cut`` is that of the plan that the others train under.

        :param shared: another job has the same slots. Two jobs share all slots or none, so nothing is left.
        """
        slots = tuple(slot for slot in target.slots if slot not in self.slots)
        if len(slots) == len(target.slots):
            return target
        if shared:
            slots = ()
        return Target(Share(target.job, counts(slots), *cut), slots)


def listed(slots: Iterable[Slot]) -> str:
    """Slots in a sentence."""
    return ", ".join(map(str, slots))


YOUNG_S: Final = 5.0
"""A worker that is lost before it has trained for so long has died young."""
TOO_MANY: Final = 5
"""After this many in a row the slot gets no further one for a while."""


class LostWorkers:
    """How old workers get, by slot; what one launcher has seen of one attempt."""

    def __init__(self) -> None:
        self._since_s: dict[int, float] = {}
        self._young: dict[Slot, int] = {}

    def train(self, workers: Mapping[int, Slot], now_s: float) -> None:
        """Workers are seen to train, each on its slot; one that grows old clears it."""
        for worker, slot in workers.items():
            if now_s - self._since_s.setdefault(worker, now_s) >= YOUNG_S:
                self._young[slot] = 0

    def newcomers(self, trained: Set[int], now_s: float) -> frozenset[int]:
        """Workers that have joined others and trained with them for a short time only.

        What one of these fails by, the others have got past.

        :param trained: the workers that train together.
        """
        since_s = {worker: self._since_s.get(worker, now_s) for worker in trained}
        first_s = min(since_s.values(), default=now_s)
        return frozenset(one for one, at_s in since_s.items() if first_s < at_s and now_s - at_s < YOUNG_S)

    def lose(
        self, slots: Mapping[int, Slot], trained: Set[int], message: Callable[[int], str], now_s: float
    ) -> Setback | None:
        """Count workers that are lost; the slots of theirs that should get no other one for a while.

        :param slots: by worker.
        :param trained: the workers that trained, how old they got is known where they were seen to; a slot on
            which one did not get so far has failed at once. So has that of one that had just joined others
            and says what it died of: another one would do the same, and each takes time from the others.
        :param message: what a worker said as its last word.
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
            died = f"the new workers on {listed(slots[worker] for worker in early)} ended {when}"
            reasons.insert(0, ": ".join([died, *filter(None, map(message, early))][:2]))
        return Setback(bad, "; ".join(reasons))

    def _count(self, worker: int, slot: Slot, now_s: float) -> str:
        young = now_s - self._since_s.get(worker, now_s) < YOUNG_S
        self._young[slot] = self._young.get(slot, 0) + 1 if young else 0
        if self._young[slot] < TOO_MANY:
            return ""
        return f"lost {self._young.pop(slot)} workers in a row on {slot}"
