"""What can be seen of a state directory without its lock: log, requests, runner, predictions.

:class:`Watcher` looks repeatedly. :class:`LiveState` is one moment, as sessions: to be asked what is to come,
and what was predicted before. :func:`decide_between_runs` is ``pliant schedule --state``: a decision taken at
a moment when no run writes. The first two write nothing.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pliant.schemas.cluster import Cluster, Preemptible
from pliant.schemas.errors import BadInputError, PliantError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.events import Decided, Submitted, typed
from pliant.schemas.file_io.archives import all_events
from pliant.schemas.io import read_cluster, read_schedule
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.schemas.runinfo import RunInfo
from pliant.schemas.schedule import Schedule, TeamStanding
from pliant.schemas.text import clock_text, counted, span_text
from pliant.tools.run.backends.protocol import Handle, read_record
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.directory import Lock, StateDir, check_seen, holder_of
from pliant.tools.run.statedir.kept_inputs import kept_cluster, kept_profile
from pliant.tools.run.statedir.log.archive import with_archived
from pliant.tools.run.statedir.log.fold import AS_JSON, Drain, JobLog, LeftOut, RunLog
from pliant.tools.run.statedir.log.snapshot import LogView
from pliant.tools.run.statedir.log.worker_reports import (
    Reports,
    measured_ranges,
    measured_speeds,
    refined,
    reported,
)
from pliant.tools.run.statedir.requests import Order, Request, Spool, requested
from pliant.tools.run.statedir.state import Clock, no_state_directory, passed_since, size_and_time
from pliant.tools.schedule.decide import (
    LogHistory,
    Question,
    decide_from_history,
    reject_unfit,
    session_from_history,
)
from pliant.tools.schedule.from_log import SessionFold, session_for_run
from pliant.tools.schedule.policy import Reserved
from pliant.tools.schedule.predict_start import StartPrediction, copy_of, predictions
from pliant.tools.schedule.registry import make_policy, policy_class
from pliant.tools.schedule.session.quarantine import node_of
from pliant.tools.schedule.session.saved import Basis, SavedSession
from pliant.tools.schedule.session.session import Session

PREDICTION_INTERVAL_S: Final = 5.0
"""Seconds after which a watcher predicts again without news, as speeds change."""
TIME_LIMIT_S: Final = 1.0
"""Time limit of a prediction; later starts are not shown."""
MAX_LOG_LEAD_S: Final = 5.0
"""Seconds by which the log may be ahead of the clock before the clock counts as set back."""
CLOCK_TOLERANCE_S: Final = 1.0
"""Seconds by which the time of a file may precede an earlier log entry."""
_log = logging.getLogger("pliant")


class Hidden(NamedTuple):
    """Jobs of others that are not shown."""

    running: int = 0
    gpus: int = 0
    """GPUs that they hold."""
    waiting: int = 0

    @property
    def words(self) -> str:
        """Empty if there are none."""
        if not (self.running or self.waiting):
            return ""
        on = f"{counted(self.running, 'job')} on {counted(self.gpus, 'GPU')}"
        return f"others have {on}, and {self.waiting} that wait"


@dataclass(frozen=True, slots=True)
class Status:
    """What can be seen at one moment."""

    __pydantic_config__ = AS_JSON

    log: RunLog
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Last reason of the policy for each job."""
    submitted: tuple[tuple[Job, float], ...] = ()
    """Jobs that no run has taken up yet, with their submission times by the system's clock."""
    cancelled: frozenset[str] = frozenset()
    holder: int | None = None
    outlook: Mapping[str, StartPrediction] | None = None
    """Predicted starts and ends; None if no prediction was made."""
    ordered: Mapping[str, Order] = field(default_factory=dict)
    """The newest order by job, or by "node NAME", that no run has executed yet."""
    reserved: Mapping[str, tuple[Reserved, ...]] = field(default_factory=dict)
    """Planned later allocations, if the policy plans ahead; times are UTC."""
    launched: frozenset[str] = frozenset()
    """Running jobs whose scripts may never report, as they need not use the library."""
    over: frozenset[str] = frozenset()
    """Running jobs whose processes have all ended, which no run has recorded yet."""
    teams: tuple[TeamStanding, ...] = ()
    """Standing of teams after the last decision, where they share the cluster."""
    closed_gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs on which no job runs, by node, of nodes that are drained or down; without full nodes, unless no
    node is in service.
    """
    hidden: Hidden = field(default_factory=Hidden)
    """Counts of others' private jobs in a shared run."""


class Watcher:
    """Looks at a state directory again and again, and reads no part of the log twice.

    :param view: of its log; None for one of its own.
    :raises UsageError: there is no log and no submission, or they are not this user's to see.
    """

    def __init__(self, state: Path, *, view: LogView | None = None) -> None:
        self.dirs = StateDir(state.resolve())
        self._spool = Spool(self.dirs)
        if not (self.dirs.events.is_file() or self.dirs.spool.is_dir()):
            raise no_state_directory(state)
        check_seen(self.dirs)
        self._view = view or LogView(self.dirs, keeps_events=True)
        self._outlook: Mapping[str, StartPrediction] = {}
        self._looked_ahead: tuple[float, object] = (float("-inf"), None)
        self._reports = Reports(self.dirs)

    def look(self, *, ahead: bool = False, archived: Sequence[str] = ()) -> Status:
        """:param ahead: predict when jobs start and end.
        :param archived: ids or names of jobs to look for in archives, too; "*" for all.

        :raises BadInputError: the log is damaged.
        """
        requests = self._spool.requests()  # before the log: jobs move from the spool to the log
        log = self._view.refresh()
        self._reports.lay_over(log)
        schedule = self._schedule()
        asked = ((job, request.asked_s) for request in requests for job in request.jobs)
        submitted = tuple((job, asked_s) for job, asked_s in asked if job.id not in log.jobs)
        cancelled = frozenset(job_id for request in requests for job_id in request.cancelled)
        ordered = {
            request.order.job or f"node {request.order.node or ''}": request.order
            for request in requests
            if request.order is not None and request.number not in log.executed
        }
        holder = holder_of(self.dirs.lock)
        expected = self._look_ahead(schedule, requests) if ahead else None
        self._view.forget()
        if archived:
            log = with_archived(log, self.dirs, None if "*" in archived else archived)
        reasons, (launched, over) = _reasons(schedule), _attempts(self.dirs, log, by_a_run=holder is not None)
        return Status(
            log,
            reasons,
            submitted,
            cancelled,
            holder,
            expected,
            ordered,
            reserved=_reserved(schedule, log.origin_s or 0.0),
            launched=launched,
            over=over,
            teams=() if schedule is None else schedule.teams,
            closed_gpus=_closed_gpus(self.dirs, log),
        )

    def _look_ahead(
        self, schedule: Schedule | None, requests: Sequence[Request]
    ) -> Mapping[str, StartPrediction]:
        log, began_s = self._view.log, time.monotonic()
        seen = (log.last_s, len(requests), None if schedule is None else schedule.time)
        since_s, known = self._looked_ahead
        if seen != known or began_s - since_s >= PREDICTION_INTERVAL_S:
            now_s = max(time.time(), log.last_s)
            self._outlook = outlook(self._view, self.dirs, schedule, requests, now_s)
            self._looked_ahead = (began_s, seen)
        return self._outlook

    def _schedule(self) -> Schedule | None:
        try:
            return read_schedule(self.dirs.schedule)
        except PliantError:
            return None


def _reasons(schedule: Schedule | None) -> dict[str, str]:
    if schedule is None:
        return {}
    held = {given.job: given.reason for given in schedule.allocations}
    return held | {verdict.job: verdict.reason for verdict in schedule.waiting}


def _reserved(schedule: Schedule | None, origin_s: float) -> dict[str, tuple[Reserved, ...]]:
    if schedule is None:
        return {}
    planned = {given.job: given.reserved for given in schedule.allocations}
    planned |= {verdict.job: verdict.reserved for verdict in schedule.waiting}
    return {
        job_id: tuple(
            Reserved(span.from_ + origin_s, span.until + origin_s, span.placement, span.servers)
            for span in spans
        )
        for job_id, spans in planned.items()
    }


def _attempts(dirs: StateDir, log: RunLog, *, by_a_run: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Jobs that were launched and may never report their first step; jobs whose processes have all ended.

    :param by_a_run: a run is there, which records an end at once, or launches the job again.
    """
    launched, over = set(), set()
    for job_id, job in log.active.items():
        attempt = _newest_attempt(dirs.job(job_id), job) if job.gpus else None
        if attempt is None:
            continue
        if not by_a_run and _is_over(attempt):
            over.add(job_id)
        elif _may_never_report(job):
            launched.add(job_id)
    return frozenset(launched), frozenset(over)


def launched_jobs(dirs: StateDir, log: RunLog) -> frozenset[str]:
    """:attr:`Status.launched`, for a run that looks at its own jobs."""
    return frozenset(
        job_id
        for job_id, job in log.active.items()
        if job.gpus and _may_never_report(job) and _newest_attempt(dirs.job(job_id), job) is not None
    )


def _may_never_report(job: JobLog) -> bool:
    """Whether the first step is still to come, and the script need not use the library."""
    return job.attempt.change is not None and not job.job.changes_in_place


def _newest_attempt(folder: JobDir, job: JobLog) -> Handle | None:
    """The attempt that was launched since the job was given its GPUs. Returns None if there is none yet."""
    number = folder.newest_attempt()
    attempt = folder.attempt(number)
    try:
        since_launch_s = attempt.launch.stat().st_mtime - job.attempt.launched_s
    except OSError:
        return None
    is_new = number > job.attempt.over_attempt and since_launch_s >= -CLOCK_TOLERANCE_S
    return Handle.of(folder, number) if is_new else None


def _is_over(attempt: Handle) -> bool:
    """Whether each process that was launched has left its exit code."""
    with files_of(attempt.files):
        if not os.path.lexists(attempt.files.exit_code(0)):
            return False
    try:
        record = read_record(attempt)
    except PliantError:
        return False
    with files_of(attempt.files):
        return record is not None and all(
            os.path.lexists(attempt.files.exit_code(unit)) for unit in range(len(record.units))
        )


def _closed_gpus(dirs: StateDir, log: RunLog) -> dict[str, int]:
    closed = log.drained.keys() | log.down.keys()
    if not closed:
        return {}
    try:
        nodes = {node.name: node.gpus for node in read_cluster(dirs.cluster).expanded()}
    except PliantError:
        return {}
    free = {name: gpus for name, gpus in nodes.items() if name in closed}
    for job in log.active.values():
        for name, gpus in job.placement if job.beside is None or job.beside > job.job.id else ():
            if name in free:
                free[name] -= gpus
    return {name: gpus for name, gpus in free.items() if gpus > 0 or closed >= nodes.keys()}


def run_line(status: Status, state: Path) -> str:
    if status.holder is not None:
        return f"process {status.holder or '?'} runs {state}"
    if status.log.once:
        last = clock_text(status.log.last_s, time.time())
        return f"no run uses {state} now; the next call of pliant run goes on (the last wrote at {last})"
    if status.log.info is None:
        return (
            f"no run has used {state} yet: begin one with pliant run --state {state}, from cron or --follow"
        )
    return f"no run uses {state}; go on with: pliant run --follow --state {state}"


def closed_lines(status: Status, now_s: float) -> list[str]:
    """The nodes that get no work: those that are down, and those that are or will be drained; and slots."""
    down = [f"node {name} is down: {why}" for name, why in sorted(status.log.down.items())]
    lines = [_drained(status.log, name, drain, now_s) for name, drain in sorted(status.log.drained.items())]
    waiting = [order for _, order in sorted(status.ordered.items()) if order.job is None]
    lines += [_left_out(slot, left, now_s) for slot, left in sorted(status.log.out_of_service(now_s).items())]
    return [*down, *lines, *(f"{order.user} has ordered to {order.words}" for order in waiting)]


def _left_out(slot: str, left: LeftOut, now_s: float) -> str:
    node = node_of(slot)
    until = f"pliant resume {node}" if left.is_sick else clock_text(left.until_s, now_s)
    return f"slot {slot} gets no job until {until}: {left.reason}"


def _drained(log: RunLog, name: str, drain: Drain, now_s: float) -> str:
    on_it = sum(name in dict(job.placement) for job in log.active.values())
    left = f"; {counted(on_it, 'job')} {'to leave it' if drain.now else 'to finish there'}" if on_it else ""
    if on_it and drain.until_s is not None:
        left += f" by {clock_text(drain.until_s, now_s)}"
    why = f": {drain.reason}" if drain.reason else ""
    return f"node {name} is drained by {drain.user} since {clock_text(drain.since_s, now_s)}{why}{left}"


def clock_line(status: Status, now_s: float) -> str:
    """What it means that the log is ahead of this machine's clock, ``now_s``; empty if it is not."""
    ahead_s = status.log.last_s - now_s
    if ahead_s < MAX_LOG_LEAD_S:
        return ""
    return (
        f"the log is {span_text(ahead_s)} ahead of this machine's clock, which was set back since; "
        "until it has caught up, times in the log advance at half its speed"
    )


def policy_line(status: Status) -> str:
    error = status.log.policy_error
    return f"the policy fails: {error}; what runs goes on as it is" if error else ""


def outlook(
    view: LogView, dirs: StateDir, schedule: Schedule | None, requests: Sequence[Request], now_s: float
) -> Mapping[str, StartPrediction]:
    """When the jobs start and end; only ends if the policy cannot be asked."""
    log = view.log
    if log.info is None or not (log.active or requests):
        return {}
    if not requests and measured_speeds(log).keys() == log.active.keys():  # the policy knows nothing to add
        return measured_ends(log, now_s)
    try:
        with redirect_stdout(sys.stderr):  # a policy may print, and stdout is for the answer
            return _predictions(view, dirs, schedule, requests, now_s)
    except Exception as error:  # noqa: BLE001 - a policy is anybody's code, and may not even be installed here
        _log.debug("no start can be predicted: %s", error)
        return measured_ends(log, now_s)


def measured_ends(log: RunLog, now_s: float) -> dict[str, StartPrediction]:
    ends = {}
    for job_id, speed in measured_speeds(log).items():
        job = refined(log.jobs[job_id], log.newest.get(job_id))
        if job.total_samples is not None:
            left_s = max(0.0, job.total_samples - job.samples_done) / speed
            ends[job_id] = StartPrediction(end_s=now_s + left_s, source="measured")
    return ends


def _predictions(
    view: LogView, dirs: StateDir, schedule: Schedule | None, requests: Sequence[Request], now_s: float
) -> Mapping[str, StartPrediction]:
    session, _ = live_session(view, dirs, schedule, requests, now_s)
    log = view.log
    return predictions(
        *(session, now_s, measured_speeds(log)),
        decides_now=True,
        within_s=TIME_LIMIT_S,
        ranges=measured_ranges(log),
    )


def live_session(
    view: LogView,
    dirs: StateDir,
    schedule: Schedule | None,
    requests: Sequence[Request],
    now_s: float,
    *,
    question: Question | None = None,
    cluster: Cluster | None = None,
) -> tuple[Session, Profile | None]:
    """The session where the log ends, with the newest reports of workers and what was asked for until now.

    :param question: another policy than the one that decides there.
    :param cluster: another cluster than the one that the run has; the policy then sees the whole history.
    """
    question = question or policy_in_use(view.log.info, schedule)
    asked = requested(requests, view.log, now_s, rigid=_is_rigid(question, requests))
    more = [*reported(dirs, view.log, now_s), *asked]
    if cluster is not None and schedule is not None:
        schedule = schedule.model_copy(update={"policy_state": None})
    past = history(view, now_s, more, schedule, str(dirs.events))
    session, profile = session_from_history(past, question, now_s=now_s, cluster=cluster)
    new = [event.job for event in asked if event.event == Submitted.name and event.job]
    reject_unfit(session, new, now_s)
    return session, profile


def _is_rigid(question: Question, requests: Iterable[Request]) -> bool:
    """Whether updates of jobs meet a policy that gives each the GPUs that it requests."""
    updates = any(each.order is not None and each.order.changes is not None for each in requests)
    return updates and policy_class(question.policy).traits.elasticity == "none"


def policy_in_use(info: RunInfo | None, schedule: Schedule | None) -> Question:
    if schedule is not None:
        used = schedule.policy
        return Question(used.name, used.parameters, used.seed)
    if info is None:
        raise ValueError("no policy has decided yet")
    return Question(info.policy, info.parameters, info.seed)


@dataclass(frozen=True, slots=True)
class BetweenRuns:
    """A state directory at a moment when no run wrote."""

    dirs: StateDir
    log: RunLog
    schedule: Schedule | None
    requests: tuple[Request, ...]
    view: LogView
    quiet_s: float


def decide_between_runs(
    state: str,
    question: Question,
    now_s: float | None = None,
    *,
    wait_s: float = 0.0,
    cluster: str | None = None,
    profile: str | None = None,
    usual_cluster: str | None = None,
    preemptible: Preemptible | None = None,
) -> Schedule:
    """The next decision of a state directory that no run holds.

    :param now_s: decide at this time; None for the clock's, with the newest reports of workers.
    :param wait_s: how long to wait for a run that holds it.
    :param cluster: file to begin a run with, like ``profile``.
    :param usual_cluster: file for that where none is named; a run that has begun may have another one.
    :param preemptible: whose GPUs the policy may take; None for what the cluster says.
    :raises LockedError: a run still holds it.
    :raises UsageError: ``cluster`` or ``profile`` differs from what the run began with.
    """
    clock, status = Clock(), read_status(Path(state), wait_s=wait_s)
    at, log, begun = status.dirs, status.log, status.log.info is not None
    if not begun and cluster is None:  # one that is there was left by a call that died before the first event
        cluster = usual_cluster
    if not begun and not log.jobs and cluster is None:
        if at.events.exists():
            raise BadInputError.one(
                str(at.events), "has no events, expected a run: nothing was started here yet"
            )
        raise UsageError(f"{state} holds no run: name its --cluster to begin one")
    clock.not_before(log.last_s, status.quiet_s)
    at_s = clock() if now_s is None else now_s
    asked = requested(status.requests, log, at_s, rigid=_is_rigid(question, status.requests))
    newest = reported(at, log, at_s) if now_s is None else []

    rows, kept = (
        kept_profile(at.profile, profile, begun=begun),
        kept_cluster(at.cluster, cluster, begun=begun),
    )
    return decide_from_history(
        history(status.view, at_s, [*newest, *asked], status.schedule, str(at.events)),
        question,
        now_s=at_s,
        cluster=None if kept is None else kept.with_preemptible(preemptible),
        profile=None if rows is None else Profile(rows),
        new=[event.job for event in asked if event.event == Submitted.name and event.job],
    )


def history(
    view: LogView, now_s: float, more: Iterable[Event], previous: Schedule | None, source: str
) -> LogHistory:
    """What happened until now, with what the next run will first add to the log (``more``)."""

    def since(basis: Basis) -> tuple[SavedSession | None, Iterable[Event]]:
        kept, events = view.history(basis, now_s)
        return kept, (*events, *more)

    log = view.log
    return LogHistory(log.info, log.origin_s or 0.0, since, measured_speeds(log), previous, source)


def read_status(state: Path, *, wait_s: float = 0.0) -> BetweenRuns:
    """Look at a state directory while no run writes to it.

    The lock is held only to read the small files and the length of the log, which is read afterwards: the log
    only grows.

    :raises LockedError: a run still holds it after ``wait_s``.
    :raises BadInputError: the log is damaged, or another file cannot be read.
    """
    dirs = StateDir(state.resolve())
    if dirs.path.exists():
        check_seen(dirs)
    with Lock(dirs.lock).shared(wait_s=wait_s):
        requests = tuple(Spool(dirs).requests())
        schedule = read_schedule(dirs.schedule) if dirs.schedule.exists() else None
        size, written_s = size_and_time(dirs)
        quiet_s = passed_since(dirs.events)
    view = LogView(dirs, keeps_events=True)
    log = view.refresh(to_the_end=True, until=size) if written_s else view.log
    return BetweenRuns(dirs, log, schedule, requests, view, quiet_s)


class PastMoment(NamedTuple):
    """What was known at a moment of the past."""

    time_s: float
    session: Session
    """Session that this uses up."""
    measured: Mapping[str, float]


class LiveState:
    """What can be seen of a run, and of the jobs that it is to take up.

    :raises UsageError: no run has begun there, or it is not this user's to see.
    :raises BadInputError: the log is damaged.
    """

    def __init__(self, state: Path) -> None:
        self.path = state
        self._dirs = StateDir(state.resolve())
        if not (self._dirs.events.is_file() or self._dirs.spool.is_dir()):
            raise no_state_directory(state)
        check_seen(self._dirs)
        self._requests = Spool(self._dirs).requests()
        self._view = LogView(self._dirs)
        self.log: RunLog = self._view.refresh()
        if self.log.info is None:
            raise UsageError(f"{state} holds no run yet: there is nothing to predict from")
        self._schedule = read_schedule(self._dirs.schedule) if self._dirs.schedule.exists() else None
        self.now_s = max(time.time(), self.log.last_s)
        self.policy = policy_in_use(self.log.info, self._schedule)
        self.cluster: Cluster = self.log.info.cluster
        # Samples per second of running jobs; known once a session was made.
        self.measured: Mapping[str, float] = {}
        self.profile: Profile | None = None
        self._events: list[Event] | None = None

    def session(self, question: Question | None = None, cluster: Cluster | None = None) -> Session:
        """The session as it stands; under another policy or on another cluster, if one is named.

        :raises UsageError: the policy or a parameter is unknown, or it needs a profile.
        """
        with redirect_stdout(sys.stderr):  # a policy may print, and stdout is for the answer
            session, self.profile = live_session(
                *(self._view, self._dirs, self._schedule, self._requests, self.now_s),
                question=question,
                cluster=cluster,
            )
        self.measured = measured_speeds(self.log)
        return session

    def coming(self) -> list[Job]:
        """Jobs that arrive later."""
        asked = [
            job for request in self._requests for job in request.jobs if not request.is_due(job, self.now_s)
        ]
        cancelled = {job_id for request in self._requests for job_id in request.cancelled}
        return [job for job in asked if job.id not in self.log.jobs and job.id not in cancelled]

    def events(self) -> list[Event]:
        """All events of the log and its archives."""
        if self._events is None:
            self._events = [event for block in all_events(self._dirs.events) for event in block]
        return self._events

    def past(self, moments: int, session: Session) -> Iterator[PastMoment]:
        """What was known at that many moments, evenly spread over the time in which this policy has decided.

        :param session: of the present.
        """
        times = self._moments(moments)
        policy = make_policy(self.policy.policy, self.policy.parameters)
        new = session_for_run(policy, session.cluster.spec, session.cluster.speeds.throughput, session.seed)
        reloads = self.log.reloads > 0
        fold, log = SessionFold(new, str(self._dirs.events), reloads=reloads), RunLog()
        for event in self.events():
            while times and event.time > times[0]:
                yield PastMoment(times[0], _at(fold, times[0]), measured_speeds(log))
                del times[0]
            if not times:
                return
            fold.add(event)
            log.add(event)

    def _moments(self, count: int) -> list[float]:
        events = self.events()
        name, begins_s, ends_s = self.policy.policy, events[0].time, events[-1].time
        for event in map(typed, events):
            if isinstance(event, Decided) and event.policy not in (None, name):
                begins_s = event.time
        span_s = ends_s - begins_s
        return (
            [begins_s + span_s * (number + 1) / (count + 1) for number in range(count)] if span_s > 0 else []
        )


def _at(fold: SessionFold, time_s: float) -> Session:
    session = copy_of(fold.finish())
    session.restore_state(None)
    session.cluster.at(time_s)
    return session
