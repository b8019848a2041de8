"""One unit on a node of a Slurm: wanted, started by srun, taken over by its supervisor, ended.

All that counts is in its files, so any later launcher can take it up. It is started again as often as needed
until a supervisor has taken it over, and never after.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pliant.schemas.errors import PliantError
from pliant.tools.profile.torchrun.start import node_environment
from pliant.tools.run.backends.host import spawn
from pliant.tools.run.backends.protocol import (
    UNKNOWN_UNIT,
    Handle,
    LaunchRecord,
    StartedUnit,
    StopLevel,
    Unit,
    UnitStatus,
    read_or_rebuild,
)
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm.commands import CONF, of_slurm
from pliant.tools.run.backends.slurm.parsing import SlurmStep
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import (
    PRIVATE,
    AttemptDir,
    look_again,
    open_log,
    read_file,
    refresh_folder,
)
from pliant.tools.run.statedir.contract.liveness import Heartbeats

SUPERVISOR: Final = str(Path(__file__).with_name("step.py"))
START_S: Final = 60.0
"""Seconds from the start of srun until a supervisor has taken over the unit."""
SHOWS_S: Final = 10.0
"""Seconds until a file written on another host is visible here."""
TRIES: Final = 5
RETRY_INTERVAL_S: Final = 2.0
"""Seconds between two tries to start a unit."""
DEAD_S: Final = 12.0
"""Seconds of silence after which a supervisor and its node are lost."""
GONE_S: Final = 5.0
"""The same if Slurm says that the step has ended."""
_OF_NODES: Final = ("connection failure", "Node failure", "Socket timed out", "Zero Bytes were transmitted")
"""Messages of srun if a node, or its daemon, does not answer."""
_RUNNING: Final = UnitStatus("running")
_STARTING: Final = UnitStatus("running", starting=True)
_WAITS: Final = UnitStatus("running", queued=True)
_ASKED: Final = UnitStatus("running", queued=True, starting=True)
MOST_UNITS: Final = 4096
"""Maximum units that a damaged record is assumed to have had."""
CODES: Final = {"term": -signal.SIGTERM, "kill": -signal.SIGKILL}


@dataclass(frozen=True, slots=True)
class UnitReport:
    """What Slurm last said of a unit."""

    queried_s: float
    """Long ago if Slurm did not answer."""
    step: SlurmStep | None


@dataclass(frozen=True, slots=True)
class StepPlace:
    """Where a unit may be started."""

    lease_id: str
    gres: str
    gpus: str
    """GPUs in the form that ``step.py`` takes."""
    cpus: int | None = None


def own_folder(handle: Handle) -> AttemptDir:
    """Where launcher and supervisors of the same account talk: no job's user can write there."""
    return AttemptDir(handle.kept or handle.folder)


class SlurmUnit:
    """One unit of an attempt, and what is known of it.

    :param talk: the folder of what its supervisor and the launcher tell each other.
    """

    def __init__(self, handle: Handle, number: int, started: StartedUnit, talk: AttemptDir) -> None:
        self.number = number
        self.node = started.node
        self.name = command_lines.step_name(handle.job, handle.attempt, number)
        self.order = _read_order(talk.orders(number))
        self.srun: int | None = None
        self._files, self._started, self._talk = handle.files, started, talk
        self._tries = 0
        # When srun was last started, and when it ended.
        self._since_s = self._ended_s = float("-inf")
        self._code = 0
        # Whether Slurm ended the unit before any order was given.
        self._taken = False
        self._ordered_s = time.monotonic() if self.order == "kill" else float("inf")

    @property
    def is_requested(self) -> bool:
        return not self.order and bool(self._started.argv)

    @property
    def beat_file(self) -> str:
        return str(self._talk.supervisor(self.number))

    @property
    def slots(self) -> tuple[str, ...]:
        """Places of its GPUs among those of its lease; empty on CPU slots."""
        return tuple(filter(None, self._started.env.get("CUDA_VISIBLE_DEVICES", "").split(",")))

    def ended(self) -> UnitStatus | None:
        text = read_file(self._talk.exit_code(self.number))
        if text is None:
            return None
        try:
            return UnitStatus("exited", int(text), displaced=self._displaced())
        except ValueError:
            return UnitStatus("lost")

    def _displaced(self) -> str:
        """Why it was ended without an order; empty if it was not."""
        if not self.order:
            self._taken = look_again(self._talk.displaced(self.number)) is not None or self.is_noticed()
        if not self._taken:
            return ""
        # A script that saves at the notice may have ended before the launcher has read of it.
        has = "announced the end of" if self.is_noticed() else "ended"
        return f"Slurm has {has} what ran on node {self.node}"

    def is_noticed(self) -> bool:
        """Whether Slurm has announced its end."""
        return look_again(self._talk.notice(self.number)) is not None

    def is_taken_over(self) -> bool:
        return look_again(self.beat_file) is not None

    def kept(self, beats: Heartbeats, seen: UnitReport, now_s: float) -> UnitStatus:
        silence_s = beats.silence_s(self.beat_file, DEAD_S)
        gone = seen.step is None and seen.queried_s > now_s - GONE_S / 2
        if silence_s < (GONE_S if gone else DEAD_S):
            return _RUNNING
        refresh_folder(self._talk.path)  # it may have ended well, unknown to this host
        if (ended := self.ended()) is not None:
            return ended
        displaced = self._displaced()
        self.give_order("kill")  # if it comes back, it finds that the others went on without it
        return UnitStatus("lost", displaced=displaced)

    def starting(
        self,
        place: StepPlace | None,
        seen: UnitReport,
        env: Mapping[str, str],
        now_s: float,
        *,
        asking: bool = False,
    ) -> UnitStatus:
        """The status of a unit that seems to have no supervisor, after the next step to its start.

        :param place: None if it cannot be started now.
        :param asking: a lease has just been asked for.
        """
        if not self.is_requested:
            return self._status_after_order()
        waits_s = now_s - max(self._since_s, self._ended_s)
        if self.srun is not None:
            return self._abandon_start() if waits_s >= START_S else _STARTING
        if seen.step is not None and seen.queried_s > self._ended_s:
            return _RUNNING
        if self._tries and waits_s < (SHOWS_S if self._code == 0 else RETRY_INTERVAL_S):
            return _STARTING
        if (self._tries and self._code == 0) or self._tries >= TRIES:
            return self._abandon_start()
        if place is None:
            waits = _ASKED if asking else _WAITS
            return replace(waits, queued=False) if self._tries else waits
        if self._shows():  # another launcher has started it
            return _RUNNING
        self._start(place, env, now_s)
        return _STARTING

    def _status_after_order(self) -> UnitStatus:
        """Its status after an order to end, which any supervisor that takes it over now will find."""
        if self.is_taken_over():
            return _RUNNING
        return UnitStatus("exited", CODES[self.order]) if self.order else UnitStatus("lost")

    def argv(self, place: StepPlace) -> tuple[str, ...]:
        log = None if self._files.kept is not None else self._files.launcher_log(self.number)
        step = command_lines.StepRequest(place.lease_id, self.name, log, place.gres, place.cpus)
        supervisor = [
            sys.executable,
            "-I",
            "-S",
            SUPERVISOR,
            str(self._talk.path),
            str(self.number),
            place.gpus,
        ]
        if self._files.kept is None:
            supervisor += [self._started.cwd, *self._started.argv]
        return command_lines.srun_step(step, supervisor)

    def _start(self, place: StepPlace, env: Mapping[str, str], now_s: float) -> None:
        if self._files.kept is None:
            own = {**node_environment(env, self._started.env), **of_slurm(env, CONF)}
            own.pop("CUDA_VISIBLE_DEVICES", None)
        else:  # its supervisor is root and gives the unit its environment
            own = of_slurm(env, "PATH", CONF)
        with open_log(self._srun_log) as log:
            self.srun = spawn(self.argv(place), own, log)
        self._tries, self._since_s = self._tries + 1, now_s

    def reap(self, now_s: float) -> None:
        if self.srun is None:
            return
        try:
            pid, status = os.waitpid(self.srun, os.WNOHANG)
        except ChildProcessError:  # the system takes note of ends by itself
            pid, status = self.srun, 0
        if pid:
            self.srun, self._ended_s = None, now_s
            self._code = os.waitstatus_to_exitcode(status)
            if self._code and "contact slurm controller" in self._last_error():
                self._tries -= 1

    def _shows(self) -> bool:
        """Whether its node has left files that this host did not see before."""
        refresh_folder(self._talk.path)
        return self.is_taken_over() or self.ended() is not None

    def _abandon_start(self) -> UnitStatus:
        """Give up its start; the reason goes where its own last words would be.

        The unit is not at fault if the node does not answer or srun hangs.
        """
        if self._shows():
            return _RUNNING
        self.give_order("kill")
        if self.is_taken_over():  # at the last moment
            return _RUNNING
        said, folder = self._last_error(), self._files.path
        if self.srun is not None or any(words in said for words in _OF_NODES):
            why = said or f"srun has not ended after {START_S:.0f} s"
            return UnitStatus("lost", displaced=f"nothing starts on node {self.node}: {why}", began=False)
        if self._code == 0 or "No such file" in said or not said:
            unseen = f"node {self.node} does not see {folder}: it must be shared"
            said = f"{unseen}: {said}" if said else unseen
        self.abandon(f"no step on node {self.node}: {said}")
        return UnitStatus("exited", 1)

    def abandon(self, why: str) -> None:
        """Note that it failed to start, and why."""
        path = self._files.launcher_log(self.number)
        with files_of(self._files), suppress(OSError), open_log(path) as log:
            log.write(f"pliant: {why}\n".encode())
        put(self._talk.exit_code(self.number), b"1\n")

    @property
    def _srun_log(self) -> Path:
        """Of another account's unit, it is where that account cannot pretend that a node has failed."""
        return (self._files.kept or self._files.logs) / f"srun-{self.number}.log"

    def _last_error(self) -> str:
        """The last error of srun, whose output also has other lines."""
        try:
            lines = self._srun_log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        errors = [line.partition("error: ")[2].strip() for line in lines]
        return next(filter(None, reversed(errors)), "")

    def give_order(self, level: StopLevel) -> bool:
        """Ask for its end. Returns whether it has not heeded a kill, so that Slurm must end it."""
        if self.order == "kill":
            return time.monotonic() - self._ordered_s >= RETRY_INTERVAL_S
        if level != self.order:
            self._displaced()  # before the order, which may itself follow from the end of another unit
            put(self._talk.orders(self.number), level.encode() + b"\n")
            self.order, self._ordered_s = level, time.monotonic()
        return False


def put(path: Path, data: bytes) -> None:
    """Replace a small file; in the folder of another account, as far as that account lets it happen."""
    try:
        as_user.write(path, data, PRIVATE)
    except PliantError:
        if not as_user.is_other():
            raise


def record_of(handle: Handle, backend: str, talk: AttemptDir) -> LaunchRecord | None:
    """The record of an attempt, rebuilt from the files of its units if it is damaged."""

    def found() -> tuple[StartedUnit, ...]:
        numbers = (path.name.removeprefix("orders-") for path in talk.path.glob("orders-*"))
        last = max((int(number) for number in numbers if number.isdecimal()), default=-1)
        return (UNKNOWN_UNIT,) * (min(last, MOST_UNITS) + 1)

    return read_or_rebuild(handle, backend, found)


def units_of(handle: Handle, backend: str, talk: AttemptDir) -> list[SlurmUnit]:
    with files_of(talk):
        units = record.units if (record := record_of(handle, backend, talk)) else ()
        return [SlurmUnit(handle, number, unit, talk) for number, unit in enumerate(units)]


def prepare(talk: AttemptDir, files: AttemptDir, units: Sequence[Unit], first: int = 0) -> None:
    """Write what supervisors find: files of orders, which they can then always open, and what starts as whom.

    :param talk: the folder of both.
    :param first: number of the first unit.
    :raises PliantError: they cannot be written.
    """
    for number, unit in enumerate(units, first):
        as_user.write(talk.orders(number), b"", PRIVATE)
        if unit.account is not None:
            account = unit.account.order({**unit.account.environment(), **unit.env})
            told = {"account": account, "attempt": str(files.path), "cwd": unit.cwd, "argv": unit.argv}
            as_user.write(talk.start_order(number), json.dumps(told).encode(), PRIVATE)


def _read_order(path: Path) -> str:
    text = (read_file(path) or b"").decode(errors="replace").strip()
    return text if text in CODES else ""
