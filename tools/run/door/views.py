"""What an account sees of a shared run: all of its own jobs, and of the others what the roles let it see.

What is not listed here as public is left out: fields that are added later are private until they are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter

from pliant.schemas.event import ORDERS, Event
from pliant.schemas.job import Job
from pliant.schemas.schedule import TeamStanding
from pliant.tools.run.door.roles import Person, Roles
from pliant.tools.run.service.stacks import WorkerStack
from pliant.tools.run.statedir.directory import ROOT
from pliant.tools.run.statedir.log.fold import WORKER_EVENTS, JobLog, RunLog
from pliant.tools.run.watch.job_page import Happened
from pliant.tools.run.watch.status import Hidden, Status
from pliant.tools.run.watch.top import Use

_CONFIG: Final = ConfigDict(ser_json_inf_nan="constants")
STATUS: Final = TypeAdapter(Status)
USES: Final = TypeAdapter(tuple[RunLog, tuple[Use, ...]], config=_CONFIG)
HISTORY: Final = TypeAdapter(list[Happened], config=_CONFIG)
STACKS: Final = TypeAdapter(list[WorkerStack])
HELD_BACK: Final = "-"
"""Stands for what is not public where a job must have something."""
_OF_ALL: Final = frozenset(
    {"origin_s", "policy", "decision_seconds", "once", "node", "reason", "user", "uid", "now", "order"}
)
"""What the detail of an event that is about no job says to all."""
_OF_AN_ORDER: Final = frozenset({"user", "uid", "priority", "order"})
_T = TypeVar("_T")


def public_job(job: Job) -> Job:
    """What all may see of a job: whose it is, and its sizes and times."""
    return Job(
        id=job.id,
        submit_time=job.submit_time,
        model=HELD_BACK,
        gpus=job.gpus,
        user=job.user,
        team=job.team,
        priority=job.priority,
        elastic=job.elastic,
    )


def public_log(job: JobLog) -> JobLog:
    return JobLog(
        public_job(job.job),
        job.submitted_s,
        phase=job.phase,
        gpus=job.gpus,
        placement=job.placement,
        global_batch=job.global_batch,
        started_s=job.started_s,
        ended_s=job.ended_s,
        change=job.change,
        held=job.held,
        retry_s=job.retry_s,
        uid=job.uid,
    )


class View:
    """What one account may see.

    :param owners: the accounts that submitted jobs the log does not hold yet.
    """

    def __init__(self, who: Person, roles: Roles, log: RunLog, owners: Mapping[str, int]) -> None:
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
        newest = {job_id: found for job_id, found in log.newest.items() if self.owns(job_id)}
        return RunLog(
            *(log.info, log.origin_s, log.policy_error, log.last_s, jobs),
            ends=log.ends,
            broken_off=broken_off,
            down=log.down,
            drained=log.drained,
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
                (job if self.owns(job.id) else public_job(job), asked_s)
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
        return Use(public_log(use.job), use.share, None, None) if self.sees(use.id) else None

    def _sees_team(self, standing: TeamStanding) -> bool:
        """Of a team all see how it stands, of a user of it those who may see their jobs."""
        is_public = not standing.user or self._roles.visibility == "public"
        return is_public or standing.user == self._who.name or self._roles.is_operator(self._who)

    def _of_job(self, job: JobLog) -> JobLog:
        found = job if self.owns(job.job.id) else public_log(job)
        beside = job.beside if job.beside is not None and self.sees(job.beside) else None
        return replace(found, beside=beside)

    def _seen(self, by_job: Mapping[str, _T]) -> dict[str, _T]:
        return {job_id: found for job_id, found in by_job.items() if self.sees(job_id)}


def filled_in(log: RunLog) -> RunLog:
    """A log that came through the door, with its ``active`` jobs again."""
    log.active = {job_id: job for job_id, job in log.jobs.items() if not job.ended}
    return log


def events_for(who: Person, roles: Callable[[], Roles]) -> Callable[[Event], Event | None]:
    """What an account sees of each event, of which it is given all, in their order."""
    owners: dict[str, int] = {}

    def seen(event: Event) -> Event | None:
        detail = event.detail or {}
        if event.event == "submit" and event.job is not None:
            owners[event.job] = int(detail.get("uid", ROOT))
        if event.job is None:
            begins = "trace_hash" in detail  # a RunInfo
            return event if begins or roles().is_operator(who) else replace(event, detail=_of_all(detail))
        owner = owners.get(event.job, ROOT)
        if owner == who.uid:
            return event
        if event.event in WORKER_EVENTS or not roles().may_see(who, owner):
            return None
        shown = Event(event.time, event.event, event.job, gpus=event.gpus, placement=event.placement)
        return replace(shown, detail=_public_detail(event.event, detail))

    return seen


def _of_all(detail: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in detail.items() if name in _OF_ALL}


def _public_detail(name: str, detail: Mapping[str, Any]) -> dict[str, Any] | None:
    if name in ORDERS:
        return {each: value for each, value in detail.items() if each in _OF_AN_ORDER}
    if name != "submit":
        return None
    job = public_job(Job.model_validate(detail["job"], strict=False))
    return {"job": job.model_dump(mode="json", exclude_defaults=True), "uid": detail.get("uid", ROOT)}
