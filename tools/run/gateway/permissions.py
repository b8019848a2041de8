"""Who may do what in a shared run, what others see, and the limits of each user: the file of ``--roles``.

Each account may do everything with its own jobs. Operators and root may hold, release, cancel and change the
jobs of all, and drain nodes; the leads of a team may do so with the jobs of its users. Environment,
arguments and output of a job are its owner's alone.

An account sees all of its own jobs, and of the others what the roles let it see. What is not listed here as
public is left out: fields that are added later are private until they are listed.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.events import Ordered, Reloaded, RunBegan, Submitted, Trained, row_of, typed, with_only
from pliant.schemas.file_io.record import BoundedFloat, PositiveFloat, Record, problems_of
from pliant.schemas.job import Job
from pliant.schemas.schedule import TeamStanding
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.protocol import check_path_owners
from pliant.tools.run.statedir.contract.stacks import WorkerStack
from pliant.tools.run.statedir.directory import ROOT, Account
from pliant.tools.run.statedir.log.fold import AttemptState, GpuUse, JobLog, LeftOut, RetryState, RunLog
from pliant.tools.run.watch.job_page import Happened
from pliant.tools.run.watch.status import Hidden, Status
from pliant.tools.run.watch.top import Use

MAX_FILE_BYTES: Final = 1 << 20
POLL_INTERVAL_S: Final = 1.0
"""Seconds between two checks of the file."""
_log = logging.getLogger("pliant")
Visibility = Literal["public", "private"]


class AccountLimits(Record):
    """What one account may ask for; more is refused with one line, and is that account's problem alone."""

    requests_per_second: PositiveFloat = 20.0
    """Requests per second in the long run."""
    burst: int = Field(default=60, ge=1)
    """Requests at once, after a pause."""
    connections: int = Field(default=16, ge=1)
    """At one time; each ``log -f``, ``status --watch`` or ``wait`` holds at most one."""
    waiting_jobs: int = Field(default=1000, ge=0)
    """Jobs without GPUs, of those that it submitted."""
    request_bytes: int = Field(default=4 << 20, ge=1024)
    """Bytes of one request, such as a job file."""
    spool_bytes: int = Field(default=32 << 20, ge=1024)
    """Bytes of its requests that the run has not executed yet."""
    priority: BoundedFloat | None = None
    """The most that it may give its own jobs; null: any."""


class TeamRoles(Record):
    """Names of accounts, and of groups as ``@group``."""

    leads: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


class SubmitHook(Record):
    """A program that sees each job before it is submitted; see ``submit_hook.py``."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Its words; the first is a whole path."""
    user: str
    """The account that it runs as, not root."""
    timeout_seconds: Annotated[PositiveFloat, Field(le=60)] = 5.0


class Roles(Record):
    """The file of ``--roles``."""

    schema_: Literal["pliant.roles/1"] = Field(default="pliant.roles/1", alias="schema")
    operators: tuple[str, ...] = ()
    """Accounts, and groups as ``@group``, beside root."""
    teams: dict[str, TeamRoles] = Field(default_factory=dict)
    visibility: Visibility = "public"
    """Jobs of others as an account sees them: id, user, sizes, state and times, or only counts."""
    limits: AccountLimits = AccountLimits()
    limits_of: dict[str, AccountLimits] = Field(default_factory=dict)
    """Limits by account, instead of ``limits``."""
    submit_hook: SubmitHook | None = None

    def is_operator(self, who: Caller) -> bool:
        return who.uid == ROOT or who.is_among(self.operators)

    def may_order(self, who: Caller, owner: int) -> bool:
        """Whether an account may hold, release, cancel and change the jobs of another, or of its own."""
        if who.uid == owner or self.is_operator(who):
            return True
        led = [team for team in self.teams.values() if who.is_among(team.leads)]
        return owner != ROOT and any(Caller.of(owner).is_among(team.users) for team in led)

    def may_see(self, who: Caller, owner: int) -> bool:
        """Whether it sees that there is a job of that owner, and what is public of it."""
        return self.visibility == "public" or self.may_order(who, owner)

    def limits_for(self, who: Account) -> AccountLimits:
        return self.limits_of.get(who.name, self.limits)


def read_roles(path: Path) -> Roles:
    """:raises UsageError: the file is not root's, or others can write it or replace it.
    :raises BadInputError: it does not say what it should.
    """
    check_path_owners(path.resolve().parent, ROOT)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != ROOT or status.st_mode & 0o022:
            raise UsageError(f"{path}: expected a plain file of root's that no other account can write")
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise BadInputError.one(str(path), f"has more than {MAX_FILE_BYTES:,} bytes")
    try:
        return Roles.model_validate_json(data)
    except ValidationError as error:
        raise BadInputError(problems_of(error, str(path))) from error


class RolesFile:
    """The roles in force. A change of the file counts at once; one that is wrong is warned of, and the roles
    before stay.

    :param path: None: only root has a role, and the limits are the default ones.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen = self._mark()
        self._roles = Roles() if path is None else read_roles(path)
        self._next_s = 0.0

    def __call__(self) -> Roles:
        if self._path is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + POLL_INTERVAL_S
            seen = self._mark()
            if seen != self._seen:
                self._seen = seen
                try:
                    self._roles = read_roles(self._path)
                    _log.warning("the roles have changed: %s counts", self._path)
                except PliantError as error:
                    _log.warning("the roles stay as they were: %s", error)
        return self._roles

    def _mark(self) -> tuple[int, ...]:
        try:
            status = os.lstat(self._path or "")
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_uid, status.st_mode


_CONFIG: Final = ConfigDict(ser_json_inf_nan="constants")
STATUS: Final = TypeAdapter(Status)
USES: Final = TypeAdapter(tuple[RunLog, tuple[Use, ...]], config=_CONFIG)
HISTORY: Final = TypeAdapter(list[Happened], config=_CONFIG)
STACKS: Final = TypeAdapter(list[WorkerStack])
_HIDDEN_WORD: Final = "-"
"""Stands for what is not public where a job must have something."""
_PUBLIC_DETAIL: Final = frozenset(
    {"origin_s", "policy", "decision_seconds", "once", "node", "reason", "user", "uid", "now", "order"}
)
"""Fields of events without a job that all accounts see."""
_PUBLIC_RELOAD_DETAIL: Final = frozenset({"cluster", "next_cluster", "leaving", "back", "now"})
"""Fields that the cluster follows from; the others may name jobs."""
_PUBLIC_ORDER_DETAIL: Final = frozenset({"user", "uid", "priority", "order"})
_T = TypeVar("_T")


def _public_job(job: Job) -> Job:
    """What all may see of a job: whose it is, and its sizes and times."""
    return Job(
        id=job.id,
        submit_time=job.submit_time,
        model=_HIDDEN_WORD,
        gpus=job.gpus,
        user=job.user,
        team=job.team,
        priority=job.priority,
        elastic=job.elastic,
        preemptible=job.can_save,
    )


def _public_log(job: JobLog) -> JobLog:
    return JobLog(
        _public_job(job.job),
        job.submitted_s,
        phase=job.phase,
        gpus=job.gpus,
        placement=job.placement,
        global_batch=job.global_batch,
        started_s=job.started_s,
        ended_s=job.ended_s,
        held=job.held,
        uid=job.uid,
        attempt=AttemptState(timed_out=job.attempt.timed_out, change=job.attempt.change),
        use=GpuUse(runs_from_s=job.use.runs_from_s),
        retry=RetryState(retry_s=job.retry.retry_s),
    )


class View:
    """What one account may see.

    :param owners: the accounts that submitted jobs the log does not hold yet.
    """

    def __init__(self, who: Caller, roles: Roles, log: RunLog, owners: Mapping[str, int]) -> None:
        self._who = who
        self._roles = roles
        self._log = log
        self._owners = owners

    def owner(self, job_id: str) -> int | None:
        """The account that submitted a job. Returns None if there is no such job."""
        job = self._log.jobs.get(job_id)
        if job is not None:
            return ROOT if job.uid is None else job.uid
        return self._owners.get(job_id)

    def owns(self, job_id: str) -> bool:
        return self.owner(job_id) == self._who.uid

    def sees(self, job_id: str) -> bool:
        owner = self.owner(job_id)
        return owner is not None and self._roles.may_see(self._who, owner)

    def of_log(self) -> RunLog:
        """The log without what others keep to themselves; ``active`` is left to be filled in again."""
        log = self._log
        jobs = {job_id: self._of_job(job) for job_id, job in log.jobs.items() if self.sees(job_id)}
        broken_off = {job_id: phase for job_id, phase in log.broken_off.items() if job_id in jobs}
        newest = {job_id: event for job_id, event in log.newest.items() if self.owns(job_id)}
        return RunLog(
            *(log.info, log.origin_s, log.policy_error, log.last_s, jobs),
            ends=log.ends,
            broken_off=broken_off,
            down=log.down,
            drained=log.drained,
            reloads=log.reloads,
            reload_error=log.reload_error if self._roles.is_operator(self._who) else "",
            next_cluster=log.next_cluster,
            leaving=log.leaving,
            left_out={slot: self._of_slot(left) for slot, left in log.left_out.items()},
            executed=log.executed,
            executed_s=log.executed_s,
            once=log.once,
            newest=newest,
        )

    def of_status(self, status: Status) -> Status:
        log, jobs = self.of_log(), [job for job, _ in status.submitted]
        hidden = [each for each in status.log.active.values() if not self.sees(each.job.id)]
        more = sum(not self.sees(job.id) for job in jobs)
        held = [job for job in hidden if job.gpus]
        return replace(
            status,
            log=log,
            reasons={job_id: text for job_id, text in status.reasons.items() if self.owns(job_id)},
            submitted=tuple(
                (job if self.owns(job.id) else _public_job(job), asked_s)
                for job, asked_s in status.submitted
                if self.sees(job.id)
            ),
            cancelled=frozenset(filter(self.sees, status.cancelled)),
            outlook=None if status.outlook is None else self._seen(status.outlook),
            ordered={
                about: order
                for about, order in status.ordered.items()
                if order.job is None or self.sees(order.job)
            },
            reserved=self._seen(status.reserved),
            teams=tuple(filter(self._sees_team, status.teams)),
            launched=frozenset(filter(self.sees, status.launched)),
            over=frozenset(filter(self.sees, status.over)),
            hidden=Hidden(
                len(held), round(sum(job.counted_gpus for job in held)), len(hidden) - len(held) + more
            ),
        )

    def of_use(self, use: Use) -> Use | None:
        if self.owns(use.id):
            return use
        return Use(_public_log(use.job), use.share, None, None) if self.sees(use.id) else None

    def _sees_team(self, standing: TeamStanding) -> bool:
        """Of a team all see how it stands, of a user of it those who may see their jobs."""
        is_public = not standing.user or self._roles.visibility == "public"
        return is_public or standing.user == self._who.name or self._roles.is_operator(self._who)

    def _of_slot(self, left: LeftOut) -> LeftOut:
        """A slot in quarantine, without the jobs whose workers died there."""
        return left if self._roles.is_operator(self._who) else replace(left, reason="workers failed there")

    def _of_job(self, job: JobLog) -> JobLog:
        visible = job if self.owns(job.job.id) else _public_log(job)
        beside = job.beside if job.beside is not None and self.sees(job.beside) else None
        return replace(visible, beside=beside)

    def _seen(self, by_job: Mapping[str, _T]) -> dict[str, _T]:
        return {job_id: value for job_id, value in by_job.items() if self.sees(job_id)}


def with_active_jobs(log: RunLog) -> RunLog:
    """A log that came through the gateway, with its ``active`` jobs again."""
    log.active = {job_id: job for job_id, job in log.jobs.items() if not job.ended}
    return log


def events_for(who: Caller, roles: Callable[[], Roles]) -> Callable[[Event], Event | None]:
    """What an account sees of each event, of which it is given all, in their order."""
    owners: dict[str, int] = {}

    def seen(row: Event) -> Event | None:
        event = typed(row)
        if event.job is None:
            if isinstance(event, RunBegan) or roles().is_operator(who):
                return row
            if isinstance(event, Reloaded):
                return with_only(row, _PUBLIC_RELOAD_DETAIL) if event.error is None else None
            return with_only(row, _PUBLIC_DETAIL)
        if isinstance(event, Submitted):
            owners[event.job] = ROOT if event.uid is None else event.uid
        owner = owners.get(event.job, ROOT)
        if owner == who.uid:
            return row
        if isinstance(event, Trained) or not roles().may_see(who, owner):
            return None
        public = Event(event.time, event.name, event.job, gpus=event.gpus, placement=event.placement)
        if isinstance(event, Ordered):
            return with_only(row, _PUBLIC_ORDER_DETAIL)
        return row_of(_public_submission(event, owner)) if isinstance(event, Submitted) else public

    return seen


def _public_submission(event: Submitted, owner: int) -> Submitted:
    job = _public_job(Job.model_validate(event.spec, strict=False))
    stated = {"job": job.model_dump(mode="json", exclude_defaults=True), "uid": owner}
    return Submitted(event.time, event.job, event.gpus, event.placement, stated=stated)
