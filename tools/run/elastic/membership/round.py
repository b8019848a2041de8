"""One round of a rendezvous: a folder that the plan's first worker makes, with a file of each worker.

A newer plan calls away the workers that wait here. It is the only place where workers wait for each other
without a limit in seconds, and they have touched nothing of the training yet.

A round ends with a verdict that is written once, by the worker that comes first. The first worker of the
plan, when all have come, writes how far each of them is. Any worker that sees a newer plan in force writes
that. So either all go on together or none does. Where a group then does not form, the first worker calls the
next round. On several hosts the workers knock at each other's doors before (roll_call.py): the verdict then
may be that some are cut off. They end, and the others wait for a plan without them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Final, NoReturn

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership.folder_store import ASK_S, FolderStore
from pliant.tools.run.elastic.membership.interface import own_address
from pliant.tools.run.elastic.membership.plan_watch import Pace
from pliant.tools.run.elastic.membership.roll_call import Door, Place, cut_off, unreached
from pliant.tools.run.elastic.state.cursor import Cursor, written
from pliant.tools.run.statedir.contract.files import ask_server
from pliant.tools.run.statedir.contract.folders import AttemptDir

_VERDICT: Final = "verdict"
_NEWER: Final = "newer"
_APART: Final = "apart "


class CalledAwayError(Exception):
    """A newer plan is in force."""


class ApartError(RuntimeError):
    """The workers have met, but some are cut off from the others, and end."""


class CutOffError(Exception):
    """The others go on without this worker, which does not reach them."""


class Round:
    """One round of the generation that this worker is in.

    :param number: of the first round that this worker has not attended.
    :param wait: called repeatedly while waiting; sleeps, may raise, and says whether a newer plan is in
        force.
    """

    def __init__(self, context: WorkerContext, number: int, wait: Callable[[], bool]) -> None:
        self._context, self._wait = context, wait
        self.number = number
        """The round that is attended: the first worker's."""

    @property
    def folder(self) -> Path:
        """What the workers of the round share, from the verdict on until the next generation trains."""
        return self._context.attempt.meetings / f"{self._context.plan.generation}.{self.number}"

    def attend(self, cursor: Cursor | None) -> list[Cursor | None]:
        """Wait for the verdict: how far the workers are, by rank.

        :raises CalledAwayError: there will be no group of this plan.
        :raises ApartError: nor of this round.
        :raises CutOffError: the others go on without this worker.
        :raises OSError: this worker cannot make itself known.
        """
        if self._context.rank == 0:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            self._find()
        try:
            with self._door() as door:
                verdict = self._verdict(FolderStore(self.folder, self._wait), cursor, door)
        except FileNotFoundError:
            # those that were faster have gone on to another generation, and removed this one
            verdict = _NEWER
        if verdict == _NEWER:
            raise CalledAwayError
        if verdict.startswith(_APART):
            self._part([int(rank) for rank in verdict.removeprefix(_APART).split(",")])
        return [Cursor.parse(text) for text in verdict.split(",")]

    def _door(self) -> AbstractContextManager[Door | None]:
        """Where the others knock; None: all are on one host, and reach each other."""
        plan, rank = self._context.plan, self._context.rank
        if len({member.node for member in plan.members}) == 1:
            return nullcontext()
        return Door(own_address(plan, rank))

    def _verdict(self, store: FolderStore, cursor: Cursor | None, door: Door | None) -> str:
        rank, ranks = self._context.rank, range(self._context.world_size)
        if door is not None:
            store.set(f"door/{rank}", str(door.place))
        store.set(f"here/{rank}", written(cursor))
        here = [f"here/{one}" for one in ranks]
        missed = [f"missed/{one}" for one in ranks] if door is not None else []
        knocks = door is not None
        while not store.check([_VERDICT]):
            if knocks and store.check(here):
                others = [one for one in ranks if one != rank]
                found = unreached({one: Place.parse(store.get(f"door/{one}").decode()) for one in others})
                store.set(f"missed/{rank}", ",".join(map(str, found)))
                knocks = False
            elif rank == 0 and store.check([*here, *missed]):
                store.set_once(_VERDICT, self._found(store, here, missed))
            elif self._wait():
                store.set_once(_VERDICT, _NEWER)
        return store.get(_VERDICT).decode()

    def _found(self, store: FolderStore, here: list[str], missed: list[str]) -> str:
        """What the first worker finds, once all have come and knocked."""
        lists = [store.get(key).decode() for key in missed]
        gone = cut_off(
            {one: [int(rank) for rank in text.split(",") if rank] for one, text in enumerate(lists)}
        )
        if gone:
            return _APART + ",".join(map(str, gone))
        return ",".join(store.get(key).decode() for key in here)

    def _part(self, gone: list[int]) -> NoReturn:
        slots = ", ".join(self._context.plan.members[rank].slot for rank in gone)
        if self._context.rank in gone:
            raise CutOffError(f"{slots}: cut off from the other workers of the job")
        raise ApartError(f"cut off from the others: {slots}")

    def _find(self) -> None:
        """Wait for the round that the first worker calls: this one's, or a later one."""
        generation, attempt = self._context.plan.generation, self._context.attempt
        asks = Pace(ASK_S)
        while True:
            if asks.is_due():
                ask_server(attempt.path)
                ask_server(attempt.meetings)
            rounds = [_numbers(one) for one in attempt.meetings.glob(f"{generation}.*")]
            if rounds and max(rounds) >= (generation, self.number):
                self.number = max(rounds)[1]
                return
            if self._wait():
                raise CalledAwayError


def remove_earlier(attempt: AttemptDir, now: tuple[int, int]) -> None:
    """Remove what earlier rounds than that of a generation have left: all their workers have gone on.

    In the background, because on some file systems removing files takes longer than a round.
    """
    Thread(target=_remove, args=(attempt, now), name="pliant-rounds", daemon=True).start()


def _remove(attempt: AttemptDir, now: tuple[int, int]) -> None:
    for folder in attempt.meetings.glob("*.*"):
        if _numbers(folder) < now:
            shutil.rmtree(folder, ignore_errors=True)


def _numbers(folder: Path) -> tuple[int, int]:
    """Generation and round, which are its name."""
    generation, _, number = folder.name.partition(".")
    return int(generation), int(number)
