"""The backend for a Slurm that lends no nodes: each attempt is a Slurm job of its own, which waits its turn.

A job that is to change its size is stopped with a checkpoint and submitted again. As with leases, what runs
is known from the files of an attempt, whether or not Slurm answers; the name of the Slurm job identifies the
attempt, so no id has to be remembered.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pliant.schemas.cluster import Cluster
from pliant.schemas.file_io.files import atomic_write
from pliant.tools.profile.torchrun.start import child_environment
from pliant.tools.run.backends.protocol import (
    Handle,
    LaunchRecord,
    NodeInfo,
    StartedUnit,
    StopLevel,
    Unit,
    UnitStatus,
    newest_attempts,
    write_record,
)
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm.controller import Controller, ControllerView, Later
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmStep, job_state
from pliant.tools.run.backends.slurm.units import CODES, SlurmUnit, UnitReport, no_orders, units_of
from pliant.tools.run.statedir.contract.folders import PRIVATE, FolderCache, make_log_folder, open_log
from pliant.tools.run.statedir.contract.presence import Heartbeats
from pliant.tools.run.statedir.directory import StateDir

Stage = Literal["queued", "running", "gone"]
_FORGET_S: Final = 3600.0
"""By then an unwanted job has reached the controller, if ever."""
_AGAIN_S: Final = 1.0
"""Between two attempts to cancel a job."""
_QUEUED_STATES: Final = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_GONE: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REVOKED", "TIMEOUT"}
)
_USUAL: Final = frozenset({"", "None", "Priority", "Resources", "BeginTime", "Cleaning"})
"""Reasons for waiting that need no help."""
_ENDS: Final = {
    "BOOT_FAIL": "its nodes did not boot",
    "CANCELLED": "somebody cancelled it",
    "DEADLINE": "its deadline has passed",
    "NODE_FAIL": "one of its nodes failed",
    "OUT_OF_MEMORY": "it took more memory than it has",
    "PREEMPTED": "another job took its place",
    "TIMEOUT": "its time was up",
}
BEAT_S: Final = 1.0
"""Between two looks at whether keepers live."""
SHOWS_S: Final = 10.0
"""Until a file written on another host is seen here, and a submitted job is listed."""
UNKNOWN_S: Final = 60.0
"""Until a job is listed that another process may just have submitted."""
_RUNNING: Final = UnitStatus("running")
_QUEUED: Final = UnitStatus("running", queued=True)
_NEVER: Final = float("-inf")
_log = logging.getLogger("pliant")


class SlurmJobsBackend:
    """Jobs of a Slurm whose nodes all see the state directory under the same path."""

    name = "slurm-jobs"
    in_place = False
    shares_slots = False
    held_nodes = 0

    def __init__(self, cluster: Cluster, dirs: StateDir) -> None:
        self._cluster, self._dirs = cluster, dirs
        self._controller = Controller(())
        self._attempts: dict[Handle, Attempt] = {}
        self._unwanted: dict[str, float] = {}
        """Names of jobs to cancel when they are listed, and when they were last cancelled."""
        self._looked_at: ControllerView | None = None

    def nodes(self) -> Sequence[NodeInfo]:
        """The nodes of the cluster file, all up: Slurm chooses those of a job.

        :raises ServiceMissingError: Slurm does not answer.
        """
        if self._controller.view is None:
            self._controller.first()
        gpus = self._cluster.slots == "gpu"
        return [
            NodeInfo(node.name, node.gpus, devices=tuple(map(str, range(node.gpus))) if gpus else None)
            for node in self._cluster.expanded()
        ]

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        request, options = (
            command_lines.request_of(self._cluster, units, self._name_of(handle)),
            self._cluster.slurm,
        )
        text = command_lines.script(request, options, handle.files, os.environ.get("LC_ALL"))
        return [
            shlex.join(command_lines.sbatch(request, options, handle.files)),
            *(f"  {line}" for line in text.splitlines()),
            *(f"task {number}: {unit.in_a_shell}" for number, unit in enumerate(units)),
        ]

    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Submit one job for all units of an attempt.

        :raises OSError: the attempt already has units, and a submitted job does not change.
        """
        if self._attempt(handle).units:
            raise OSError(errno.ENOTSUP, "an attempt is one job of Slurm, which does not change")
        make_log_folder(handle.files.logs)
        no_orders(handle, range(len(units)))
        options = self._cluster.slurm
        request = command_lines.request_of(self._cluster, units, self._name_of(handle))
        text = command_lines.script(request, options, handle.files, os.environ.get("LC_ALL"))
        atomic_write(command_lines.script_file(handle.files), text.encode(), mode=PRIVATE)
        started = tuple(StartedUnit.of(unit) for unit in units)
        record = LaunchRecord(job=handle.job, attempt=handle.attempt, backend=self.name, units=started)
        write_record(handle, record)
        self._attempts.pop(handle)
        self._attempt(handle).submission = Later(
            command_lines.sbatch(request, self._cluster.slurm, handle.files),
            child_environment(os.environ, {}),
        )

    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """Write an order for each keeper. Cancel what has not begun or does not heed a kill."""
        attempt, is_late = self._attempt(handle), False
        for unit in attempt.units:
            if (only is None or unit.number in only) and unit.ended() is None:
                is_late |= unit.give_order(level)
        if is_late or (only is None and (level == "kill" or not attempt.began)):
            self._cancel(attempt.name)
        if all(unit.ended() is not None for unit in attempt.units):
            self._attempts.pop(handle)
        self._look()

    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        self._look()
        return {handle: self._statuses(handle, time.monotonic()) for handle in handles}

    def _statuses(self, handle: Handle, now_s: float) -> tuple[UnitStatus, ...]:
        attempt = self._attempt(handle)
        found = attempt.statuses(self._listed(attempt), now_s)
        if all(status.state != "running" for status in found):
            if attempt.units and (why := attempt.end_in_words()):
                _log.warning("job %s: Slurm has ended it: %s", handle.job, why)
            self._attempts.pop(handle)
        return found

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        return newest_attempts(self._dirs.jobs, over)

    def release(self, over: Container[str] = ()) -> int:
        return 0

    def _look(self) -> None:
        """Take up the newest view of Slurm, and cancel unwanted jobs listed there."""
        self._controller.look()
        view = self._controller.view
        if view is None or view is self._looked_at:
            return
        self._looked_at = view
        old_s = time.monotonic() - _FORGET_S
        self._unwanted = {name: asked_s for name, asked_s in self._unwanted.items() if asked_s > old_s}
        for job in view.jobs:
            if job.name in self._unwanted and job.state != "COMPLETING":
                self._cancel(job.name)

    def _cancel(self, name: str) -> None:
        """Cancel a job; if it is still being submitted, when it is listed."""
        now_s = time.monotonic()
        if now_s - self._unwanted.get(name, _NEVER) >= _AGAIN_S:
            self._unwanted[name] = now_s
            Later(command_lines.scancel_named(name, os.getuid()))

    def _listed(self, attempt: Attempt) -> JobListing:
        view = self._controller.view
        if view is None or self._controller.failure:
            return JobListing(_NEVER, None)
        return JobListing(view.asked_s, next((job for job in view.jobs if job.name == attempt.name), None))

    def _attempt(self, handle: Handle) -> Attempt:
        if handle not in self._attempts:
            units, cache = units_of(handle, self.name), FolderCache(handle.folder)
            self._attempts[handle] = Attempt(handle, self._name_of(handle), units, cache, time.monotonic())
        return self._attempts[handle]

    def _name_of(self, handle: Handle) -> str:
        return command_lines.job_name(handle, self._dirs.path)


@dataclass(frozen=True, slots=True)
class JobListing:
    """What Slurm last said of an attempt's job."""

    asked_s: float
    """Long ago if Slurm does not answer."""
    job: SlurmJob | None


@dataclass(slots=True)
class Attempt:
    """The units of one attempt, and the Slurm job that they run in."""

    handle: Handle
    name: str
    units: list[SlurmUnit]
    folder: FolderCache
    since_s: float
    """When this process began to look at it."""
    submission: Later | None = None
    """By this process; None if another one made it."""
    beats: Heartbeats = field(default_factory=Heartbeats)
    _looked_s: float = float("-inf")
    _absent_s: float | None = None
    """When the job was first missing from the list."""
    _job_id: str = ""
    _end: Later | None = None
    _said: str = ""

    def statuses(self, listed: JobListing, now_s: float) -> tuple[UnitStatus, ...]:
        self.folder.look()
        self._take_note(listed, now_s)
        if now_s - self._looked_s >= BEAT_S:
            self._looked_s = now_s
            self.beats.look((unit.beat_file for unit in self.units), now_s)
        stage = stage_of(listed.job)
        return tuple(self._status(unit, listed, stage, now_s) for unit in self.units)

    @property
    def began(self) -> bool:
        return any(unit.is_taken_over() for unit in self.units)

    def _status(self, unit: SlurmUnit, listed: JobListing, stage: Stage, now_s: float) -> UnitStatus:
        ended = self.folder.get(f"exit {unit.number}", unit.ended)
        if ended is not None:
            return ended
        if self.folder.get(f"keeper {unit.number}", unit.is_taken_over):
            status = unit.kept(self.beats, self._seen(unit, listed, stage), now_s)
            noticed = status.state == "running" and self.folder.get(f"notice {unit.number}", unit.is_noticed)
            return replace(status, noticed=True) if noticed else status
        if unit.order:  # checked after the order was given: whatever takes the unit over now finds the order
            return _RUNNING if unit.is_taken_over() else UnitStatus("exited", CODES[unit.order])
        if stage != "gone":
            return _QUEUED if stage == "queued" else _RUNNING
        if self._may_come(now_s):
            return _QUEUED
        return self._give_up(unit)

    def _seen(self, unit: SlurmUnit, listed: JobListing, stage: Stage) -> UnitReport:
        job = None if stage == "gone" else listed.job
        return UnitReport(listed.asked_s, None if job is None else SlurmStep(job.id, "", unit.name))

    def _may_come(self, now_s: float) -> bool:
        """Whether a job that is not listed may still come, or its files may still be seen."""
        if self.submission is not None:
            if not self.submission.done:
                return True
            if self.submission.failure:
                return False
        if self._absent_s is None:
            return True
        known = bool(self._job_id) or self.submission is not None
        return now_s - self._absent_s < (SHOWS_S if known else UNKNOWN_S)

    def _take_note(self, listed: JobListing, now_s: float) -> None:
        """Remember the job while it is listed, and ask how it ended when it is gone."""
        if stage_of(listed.job) != "gone" and listed.job is not None:
            self._job_id, self._absent_s = listed.job.id, None
            if (reason := unusual(listed.job)) and reason != self._said:
                self._said = reason
                _log.warning("job %s waits in Slurm's queue: %s", self.handle.job, reason)
            return
        asked_after = self.since_s if self.submission is None else self.submission.ended_s
        if listed.asked_s <= asked_after or self._absent_s is not None:
            return
        self._absent_s = now_s
        if self._job_id:
            self._end = Later(command_lines.show_job(self._job_id))

    def _give_up(self, unit: SlurmUnit) -> UnitStatus:
        """Give up the start of a unit; the reason goes where its own last words would be."""
        unit.give_order("kill")
        if unit.is_taken_over():  # at the last moment
            return _RUNNING
        files = self.handle.files
        with suppress(OSError), open_log(files.launcher_log(unit.number)) as log:
            log.write(f"pliant: {self._why()}\n".encode())
        atomic_write(files.exit_code(unit.number), b"1\n", mode=PRIVATE)
        return UnitStatus("exited", 1)

    def _why(self) -> str:
        if self.submission is not None and self.submission.failure:
            return f"Slurm does not take the job: {self.submission.failure}"
        ended = why_ended(job_state(self._end.text)) if self._end is not None else ""
        log = self.handle.files.logs / "slurm.log"
        said = _last_line(log.read_text(errors="replace")) if log.is_file() else ""
        facts = [ended, said] if ended or said else [f"its nodes have to see {self.handle.folder}"]
        return "Slurm's job ended before its workers began: " + "; ".join(filter(None, facts))

    def end_in_words(self) -> str:
        """Why Slurm ended the job; empty if it did not or does not say."""
        if self._end is None or not self._end.done:
            return ""
        state = job_state(self._end.text)
        return "" if state in ("COMPLETED", "FAILED") else why_ended(state)


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def stage_of(job: SlurmJob | None) -> Stage:
    """Whether a job waits, runs or is gone; a job that Slurm does not list is None."""
    if job is None or job.state in _GONE:
        return "gone"
    return "queued" if job.state in _QUEUED_STATES else "running"


def unusual(job: SlurmJob) -> str:
    """The reason for which a job waits, if that may need help."""
    return job.reason if stage_of(job) == "queued" and job.reason not in _USUAL else ""


def why_ended(state: str) -> str:
    word = state.split(maxsplit=1)[0] if state.split() else ""
    return _ENDS.get(word, f"it is {word.lower().replace('_', ' ')}" if word else "")
