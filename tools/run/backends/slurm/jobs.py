"""The backend for a Slurm that lends no nodes: each attempt is a Slurm job of its own, which waits its turn.

A job that is to change its size is stopped with a checkpoint and submitted again. As with leases, what runs
is known from the files of an attempt, whether or not Slurm answers; the name of the Slurm job identifies the
attempt, so no id has to be remembered.

Where several accounts share a run, root submits the jobs for them (``--uid``): to Slurm they are the
account's own, whose limits and shares count, and on the nodes nothing of them is ever root's. So their
supervisors talk to the launcher in the account's folder, which is read with its rights. An account that says
its job has ended while it runs on has it cancelled.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import shutil
import time
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from pliant.schemas.cluster import Cluster, NodeReservation
from pliant.schemas.errors import PliantError
from pliant.tools.profile.torchrun.start import node_environment
from pliant.tools.run.backends.protocol import (
    Credentials,
    Handle,
    LaunchRecord,
    NodeInfo,
    StartedUnit,
    StopLevel,
    Unit,
    UnitStatus,
    newest_attempts,
    read_record,
    write_record,
)
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm.commands import Controller, ControllerView, Later
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmStep, job_state
from pliant.tools.run.backends.slurm.units import CODES, SlurmUnit, UnitReport, prepare, units_of
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.as_user import files_of, owner_of, with_own_files
from pliant.tools.run.statedir.contract.folders import PRIVATE, FolderCache, make_log_folder, read_file
from pliant.tools.run.statedir.contract.liveness import Heartbeats
from pliant.tools.run.statedir.directory import StateDir

Stage = Literal["queued", "running", "gone"]
_FORGET_S: Final = 3600.0
"""Seconds after which an unwanted job has reached the controller, if ever."""
_AGAIN_S: Final = 1.0
"""Seconds between two attempts to cancel a job."""
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
HEARTBEAT_POLL_S: Final = 1.0
"""Seconds between two checks of supervisors' heartbeats."""
SHOWS_S: Final = 10.0
"""Seconds until files of other hosts and submitted jobs are visible here."""
UNKNOWN_S: Final = 60.0
"""Seconds until a job that another process may have submitted is listed."""
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
        # Jobs to cancel when they are listed, by name or id, and user, and when they were last cancelled.
        self._unwanted: dict[tuple[str, int], float] = {}
        # Of the jobs of attempts that this process has started or taken over. If another account is the
        # owner, others are left over from what has ended, and are cancelled.
        self._names: set[str] = set()
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

    def reservations(self) -> Sequence[NodeReservation] | None:
        """As :meth:`.commands.Controller.reservations`."""
        return self._controller.reservations(self._cluster.slurm)

    def change_cluster(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def shown(self, handle: Handle, units: Sequence[Unit]) -> Sequence[str]:
        request, options = (
            command_lines.request_of(self._cluster, units, self._name_of(handle)),
            self._cluster.slurm,
        )
        text = command_lines.script(request, options, handle.files, os.environ.get("LC_ALL"))
        return [
            shlex.join(command_lines.sbatch(request, options, handle.files, units[0].account)),
            *(f"  {line}" for line in text.splitlines()),
            *(f"task {number}: {unit.in_a_shell}" for number, unit in enumerate(units)),
        ]

    @with_own_files
    def start(self, handle: Handle, units: Sequence[Unit]) -> None:
        """Submit one job for all units of an attempt.

        :raises OSError: the attempt already has units, and a submitted job does not change.
        """
        if self._attempt(handle).units:
            raise OSError(errno.ENOTSUP, "an attempt is one job of Slurm, which does not change")
        account = units[0].account
        with files_of(handle.files):
            make_log_folder(handle.files.logs)
            prepare(handle.files, handle.files, units)
        options = self._cluster.slurm
        request = command_lines.request_of(self._cluster, units, self._name_of(handle))
        locale = os.environ.get("LC_ALL") if account is None else None
        text = command_lines.script(request, options, handle.files, locale)
        as_user.write(command_lines.script_file(handle.files), text.encode(), PRIVATE)
        started = tuple(StartedUnit.of(unit) for unit in units)
        record = LaunchRecord(job=handle.job, attempt=handle.attempt, backend=self.name, units=started)
        write_record(handle, record)
        self._attempts.pop(handle)
        self._attempt(handle).submission = Later(
            command_lines.sbatch(request, self._cluster.slurm, handle.files, account), _base(account)
        )

    @with_own_files
    def stop(self, handle: Handle, level: StopLevel, only: Collection[int] | None = None) -> None:
        """Write an order for each supervisor. Cancel what has not begun or does not heed a kill."""
        attempt, is_late = self._attempt(handle), False
        with files_of(handle.files):
            for unit in attempt.units:
                if (only is None or unit.number in only) and unit.ended() is None:
                    is_late |= unit.give_order(level)
            to_cancel = is_late or (only is None and (level == "kill" or not attempt.began))
            is_over = all(unit.ended() is not None for unit in attempt.units)
        if to_cancel:
            self._cancel(attempt.name, attempt.uid, attempt.job_id)
        if is_over:
            self._forget(handle)
        self._look()

    @with_own_files
    def poll(self, handles: Iterable[Handle]) -> Mapping[Handle, tuple[UnitStatus, ...]]:
        self._look()
        return {handle: self._statuses(handle, time.monotonic()) for handle in handles}

    def _statuses(self, handle: Handle, now_s: float) -> tuple[UnitStatus, ...]:
        attempt = self._attempt(handle)
        with files_of(handle.files):
            statuses = attempt.statuses(self._listed(attempt), now_s)
        self._keep_id(handle, attempt)
        if all(status.state != "running" for status in statuses):
            if attempt.units and (why := attempt.end_in_words()):
                _log.warning("job %s: Slurm has ended it: %s", handle.job, why)
            self._forget(handle)
        return statuses

    def _forget(self, handle: Handle) -> None:
        """All units have ended. As another account may only say so, a job that is listed on is cancelled."""
        attempt = self._attempts.pop(handle)
        if handle.kept is not None and attempt.units:
            for name in filter(None, (attempt.name, attempt.job_id)):
                self._unwanted.setdefault((name, attempt.uid), time.monotonic() + SHOWS_S)

    def _keep_id(self, handle: Handle, attempt: Attempt) -> None:
        """Let the next launcher know another account's job although that changes its name."""
        if handle.kept is None or attempt.job_id == attempt.kept_id:
            return
        if (record := read_record(handle)) is not None:
            write_record(handle, record.model_copy(update={"slurm_job": attempt.job_id}))
        attempt.kept_id = attempt.job_id

    def adopt(self, over: Container[str] = ()) -> list[Handle]:
        handles = newest_attempts(self._dirs.jobs, over)
        self._names.update(map(self._name_of, handles))
        self._controller.of_all |= self._dirs.is_shared
        if self._dirs.is_shared:
            self._cancel_left_over(newest_attempts(self._dirs.jobs), set(handles))
        return handles

    def _cancel_left_over(self, newest: Iterable[Handle], active: Container[Handle]) -> None:
        """Cancel the jobs of attempts that are over, if they are still listed, under whatever name."""
        since_s = time.monotonic() + SHOWS_S
        for handle in newest:
            if handle in active or handle.kept is None:
                continue
            with suppress(PliantError):
                if (record := read_record(handle)) is not None and record.slurm_job:
                    self._unwanted[record.slurm_job, owner_of(handle.folder).uid] = since_s

    def release(self, over: Container[str] = ()) -> int:
        return 0

    def _look(self) -> None:
        """Take up the newest view of Slurm, and cancel unwanted jobs listed there."""
        self._controller.look()
        view = self._controller.view
        if view is None or view is self._looked_at:
            return
        self._looked_at = view
        now_s = time.monotonic()
        old_s, prefix = now_s - _FORGET_S, command_lines.job_prefix(self._dirs.path)
        self._unwanted = {job: queried_s for job, queried_s in self._unwanted.items() if queried_s > old_s}
        for job in view.jobs:
            if self._controller.of_all and job.name.startswith(prefix) and job.name not in self._names:
                self._unwanted.setdefault((job.name, job.uid), now_s + SHOWS_S)
            known = {(job.name, job.uid), (job.id, job.uid)} & self._unwanted.keys()
            if known and job.state != "COMPLETING":
                self._cancel(min(known)[0], job.uid, job.id)

    def _cancel(self, name: str, uid: int, job_id: str) -> None:
        """Cancel a job; if it is still being submitted, when it is listed.

        :param job_id: empty if it is not known.
        """
        now_s = time.monotonic()
        if now_s - self._unwanted.get((name, uid), _NEVER) >= _AGAIN_S:
            for each in filter(None, (name, job_id)):
                self._unwanted[each, uid] = now_s
            by_name = command_lines.scancel_named(name, uid)
            Later(command_lines.scancel_jobs([job_id]) if job_id else by_name)

    def _listed(self, attempt: Attempt) -> JobListing:
        view = self._controller.view
        if view is None or self._controller.failure:
            return JobListing(_NEVER, None)
        own = (job for job in view.jobs if job.uid == attempt.uid and attempt.is_it(job))
        return JobListing(view.queried_s, next(own, None))

    def _attempt(self, handle: Handle) -> Attempt:
        if handle not in self._attempts:
            uid = os.getuid() if handle.kept is None else owner_of(handle.folder).uid
            units, cache = units_of(handle, self.name, handle.files), FolderCache(handle.folder)
            name = self._name_of(handle)
            self._names.add(name)
            self._controller.of_all |= handle.kept is not None
            record = None if handle.kept is None else read_record(handle)
            known = "" if record is None else record.slurm_job
            now_s = time.monotonic()
            self._attempts[handle] = Attempt(
                handle, name, units, cache, now_s, uid=uid, kept_id=known, _job_id=known
            )
        return self._attempts[handle]

    def _name_of(self, handle: Handle) -> str:
        return command_lines.job_name(handle, self._dirs.path)


@dataclass(frozen=True, slots=True)
class JobListing:
    """What Slurm last said of an attempt's job."""

    queried_s: float
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
    """Time at which this process began to watch it."""
    submission: Later | None = None
    """Submission by this process; None if another one made it."""
    uid: int = field(default_factory=os.getuid)
    """Whose job it is."""
    kept_id: str = ""
    """The id that the record of the attempt has."""
    beats: Heartbeats = field(default_factory=Heartbeats)
    _looked_s: float = float("-inf")
    _absent_s: float | None = None
    """Time at which the job was first missing from the list."""
    _job_id: str = ""
    _end: Later | None = None
    _said: str = ""

    def statuses(self, listed: JobListing, now_s: float) -> tuple[UnitStatus, ...]:
        self.folder.look()
        self._take_note(listed, now_s)
        if now_s - self._looked_s >= HEARTBEAT_POLL_S:
            self._looked_s = now_s
            self.beats.look((unit.beat_file for unit in self.units), now_s)
        stage = stage_of(listed.job)
        return tuple(self._status(unit, listed, stage, now_s) for unit in self.units)

    @property
    def job_id(self) -> str:
        """As Slurm gave it, or as it was first listed; empty while it is not known."""
        if not self._job_id and self.submission is not None and self.submission.done:
            text = self.submission.text.partition(";")[0].strip()
            self._job_id = text if text.isdecimal() else ""
        return self._job_id

    def is_it(self, job: SlurmJob) -> bool:
        """Whether one of its account's jobs is this one: the account may give any name to any of them."""
        return job.id == self.job_id if self.job_id else job.name == self.name

    @property
    def began(self) -> bool:
        return any(unit.is_taken_over() for unit in self.units)

    def _status(self, unit: SlurmUnit, listed: JobListing, stage: Stage, now_s: float) -> UnitStatus:
        ended = self.folder.get(f"exit {unit.number}", unit.ended)
        if ended is not None:
            return ended
        if self.folder.get(f"supervisor {unit.number}", unit.is_taken_over):
            status = unit.kept(self.beats, self._seen(unit, listed, stage), now_s)
            noticed = status.state == "running" and self.folder.get(f"notice {unit.number}", unit.is_noticed)
            return replace(status, noticed=True) if noticed else status
        if unit.order:  # checked after the order was given: whatever takes the unit over now finds the order
            return _RUNNING if unit.is_taken_over() else UnitStatus("exited", CODES[unit.order])
        if stage != "gone":
            return _QUEUED if stage == "queued" else _RUNNING
        if self._may_come(now_s):
            return _QUEUED
        return self._abandon(unit)

    def _seen(self, unit: SlurmUnit, listed: JobListing, stage: Stage) -> UnitReport:
        job = None if stage == "gone" else listed.job
        return UnitReport(listed.queried_s, None if job is None else SlurmStep(job.id, "", unit.name))

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
        if listed.queried_s <= asked_after or self._absent_s is not None:
            return
        self._absent_s = now_s
        if self._job_id:
            self._end = Later(command_lines.show_job(self._job_id))

    def _abandon(self, unit: SlurmUnit) -> UnitStatus:
        """Give up the start of a unit; the reason goes where its own last words would be."""
        unit.give_order("kill")
        if unit.is_taken_over():  # at the last moment
            return _RUNNING
        unit.abandon(self._why())
        return UnitStatus("exited", 1)

    def _why(self) -> str:
        if self.submission is not None and self.submission.failure:
            return f"Slurm does not take the job: {self.submission.failure}"
        ended = why_ended(job_state(self._end.text)) if self._end is not None else ""
        log = read_file(self.handle.files.logs / "slurm.log") or b""
        said = _last_line(log.decode(errors="replace"))
        facts = [ended, said] if ended or said else [f"its nodes have to see {self.handle.folder}"]
        return "Slurm's job ended before its workers began: " + "; ".join(filter(None, facts))

    def end_in_words(self) -> str:
        """Why Slurm ended the job; empty if it did not or does not say."""
        if self._end is None or not self._end.done:
            return ""
        state = job_state(self._end.text)
        return "" if state in ("COMPLETED", "FAILED") else why_ended(state)


def _base(account: Credentials | None) -> dict[str, str]:
    """The environment that a Slurm job begins with: this process's, or its account's after a login."""
    if account is None:
        return node_environment(os.environ, {})
    own = account.environment()
    commands = os.path.dirname(shutil.which("sbatch") or "")
    return {**own, "PATH": f"{own['PATH']}:{commands}" if commands else own["PATH"]}


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
    other = f"it is {word.lower().replace('_', ' ')}" if re.fullmatch("[A-Z_]+", word) else ""
    return _ENDS.get(word, other)
