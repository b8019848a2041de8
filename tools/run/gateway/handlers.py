"""Handlers of requests: the account is proven, its permissions are checked, then the request is executed.

Orders go the way of all orders: checked, and in the spool on disk before the answer, with the account that
gave them.

What would become of jobs is computed by processes of their own, a few at a time (:class:`WhatIfRunner`). The
run is replayed on by code of the command line, which imports both; the gateway may not, so it
starts that as a process. It is root's, and looks at all jobs; it leaves out of its answer what the account
may not see, and ends by itself after some seconds of the processor.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import BadInputError, InfeasibleError, LockedError, PliantError, UsageError
from pliant.schemas.io import cluster_of, job_file
from pliant.schemas.job import Job
from pliant.schemas.text import counted, one_line
from pliant.tools.run.gateway import protocol as asked
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.permissions import (
    HISTORY,
    STACKS,
    STATUS,
    USES,
    AccountLimits,
    Roles,
    View,
    events_for,
)
from pliant.tools.run.gateway.protocol import WhatIfQuestion, error_of
from pliant.tools.run.gateway.submit_hook import through_hook
from pliant.tools.run.service import submit as requests
from pliant.tools.run.service.reload import ClusterFile, order_reload, order_reservation
from pliant.tools.run.statedir.directory import ROOT, StateDir, check_job
from pliant.tools.run.statedir.log.archive import with_archived
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import LogView
from pliant.tools.run.statedir.requests import Spool, submitted_jobs, submitters_of
from pliant.tools.run.statedir.state import no_such_job
from pliant.tools.run.watch.attempt_code import recorded_code
from pliant.tools.run.watch.job_page import error_lines, history
from pliant.tools.run.watch.job_stacks import job_stacks
from pliant.tools.run.watch.job_status import status_of
from pliant.tools.run.watch.output import JobOutput, events_to_come, job_events, last_events
from pliant.tools.run.watch.status import Status, Watcher
from pliant.tools.run.watch.top import UseMeter
from pliant.tools.schedule.registry import policy_names

MAX_CONCURRENT: Final = 2
"""Maximum predictions of all accounts at a time."""
RESPONSE_TIMEOUT_S: Final = 40.0
"""Response timeout; clients wait a little longer."""
CPU_LIMIT_S: Final = 30
"""CPU seconds of one prediction."""
MEMORY_LIMIT_BYTES: Final = 4 << 30
"""Memory limit of one prediction."""
WHATIF_PROGRAM: Final = ("-P", "-m", "pliant.cli.whatif_answer")
"""Program that reads a question from stdin, and writes a line with ``cpu_s`` and the answer to stdout."""
_ERRORS_OF_QUESTIONS: Final = frozenset(
    {UsageError.exit_code, BadInputError.exit_code, InfeasibleError.exit_code}
)
"""Errors that are about the question. Others may be about jobs that the account does not see."""
_log = logging.getLogger("pliant")


class WhatIfRunner:
    """Runs predictions for one state directory; safe for several threads."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._places = threading.BoundedSemaphore(MAX_CONCURRENT)
        # By account: one question at a time.
        self._turns: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        # Milliseconds of the processor by account that are not charged yet.
        self._spent: Counter[int] = Counter()
        # Of what was spent.
        self._lock = threading.Lock()

    def of(self, request: WhatIfQuestion, who: Caller, seen: Collection[str], own: Collection[str]) -> bytes:
        """The answer, as JSON, about the jobs that the account sees.

        :param own: the jobs of which it may know everything.
        :raises PliantError: the question makes no sense, or is not answered in time.
        """
        question = {"question": request.model_dump(mode="json"), "seen": [*seen], "own": [*own]}
        until_s = time.monotonic() + RESPONSE_TIMEOUT_S
        with self._turn(who, until_s):
            head, answer = self._run_whatif(json.dumps(question).encode(), until_s - time.monotonic())
            with self._lock:
                self._spent[who.uid] += round(1000 * float(head.get("cpu_s", CPU_LIMIT_S)))
        if head.get("ok") is True:
            return answer
        error = error_of(head)
        if error.exit_code in _ERRORS_OF_QUESTIONS:
            raise error
        _log.warning("gateway: a prediction for %s was not made: %s", who.account, error)
        raise PliantError("no prediction was made; the messages of the run say why")

    def spent_s(self, uid: int) -> float:
        """Seconds of the processor since the last call."""
        with self._lock:
            return self._spent.pop(uid, 0) / 1000

    @contextmanager
    def _turn(self, who: Caller, until_s: float) -> Iterator[None]:
        """:raises LockedError: others are at it."""
        with _taken(self._turns[who.uid], until_s), _taken(self._places, until_s):
            yield

    def _run_whatif(self, question: bytes, within_s: float) -> tuple[dict[str, Any], bytes]:
        argv = [sys.executable, *WHATIF_PROGRAM, str(self._state)]
        try:
            done = subprocess.run(
                argv, input=question, capture_output=True, timeout=max(within_s, 0.1), cwd="/", check=False
            )
        except subprocess.TimeoutExpired:
            return {"exit": LockedError.exit_code, "error": f"no answer within {RESPONSE_TIMEOUT_S:g} s"}, b""
        if done.returncode == -signal.SIGXCPU:
            text = f"no answer within {CPU_LIMIT_S} s of the processor: too many jobs for this policy"
            return {"exit": InfeasibleError.exit_code, "error": text}, b""
        head, _, answer = done.stdout.partition(b"\n")
        try:
            return dict(json.loads(head)), answer
        except ValueError:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            return {"exit": 1, "error": f"its process ended with code {done.returncode}: {last}"}, b""


@contextmanager
def _taken(lock: threading.Lock | threading.BoundedSemaphore, until_s: float) -> Iterator[None]:
    if not lock.acquire(timeout=max(0.0, until_s - time.monotonic())):
        raise LockedError("other predictions are being made: try again in a moment")
    try:
        yield
    finally:
        lock.release()


CACHE_TTL_S: Final = 0.25
"""Seconds for which one status serves all accounts."""
POLL_INTERVAL_S: Final = 0.5


class RequestHandlers:
    """Handles requests to one state directory; safe for several threads."""

    def __init__(self, dirs: StateDir) -> None:
        self._dirs = dirs
        # Of all below.
        self._lock = threading.Lock()
        self._view = LogView(dirs, keeps_events=True)
        self._spool = Spool(dirs)
        self._watcher = Watcher(dirs.path, view=self._view)
        self._meter = UseMeter(dirs.path, watcher=self._watcher)
        self._looked: dict[bool, tuple[float, Status]] = {}
        self._whatif = WhatIfRunner(dirs.path)
        # By account: it has the whole log read once at a time.
        self._heavy: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    def to(
        self, request: asked.AnyRequest, who: Caller, roles: Roles, limits: AccountLimits
    ) -> bytes | Iterator[bytes]:
        """The answer, as JSON, or piece by piece.

        :raises PliantError: it is refused, or cannot be done.
        """
        match request:
            case asked.SubmitJobs():
                return _json(self._submit(request, who, roles, limits))
            case asked.CancelJobs():
                return _json(self._cancel(request, who, roles, limits))
            case asked.OrderJobs():
                return _json(self._order_jobs(request, who, roles, limits))
            case asked.OrderNodes() | asked.ReloadCluster() | asked.ReserveNodes():
                return _json(self._order_nodes(request, who, roles))
            case asked.Look():
                return self._look(request, who, roles)
            case asked.Describe():
                return _json(self._describe(request, who, roles))
            case asked.MeasureUse():
                return self._use(who, roles)
            case asked.ReadOutput():
                return self._output(request, who, roles)
            case asked.ReadEvents():
                return self._events(request, who, roles)
            case asked.AwaitEnds():
                return self._ends(request, who, roles)
            case asked.ReadStacks():
                return self._stacks(request, who, roles)
            case asked.WhatIfQuestion():
                return self._foresee(request, who, roles, limits)

    def spent_s(self, uid: int) -> float:
        """Seconds of the processor that other processes have spent for an account since the last call."""
        return self._whatif.spent_s(uid)

    # Orders.

    def _submit(
        self, request: asked.SubmitJobs, who: Caller, roles: Roles, limits: AccountLimits
    ) -> dict[str, Any]:
        jobs = through_hook(_own_jobs(request, who, limits), roles.submit_hook, who)
        with self._changing():
            self._check_waiting(who, limits, len(jobs))
            self._check_room(who, limits, len(request.jobs))
            if request.numbered:
                known = requests.known_ids(self._dirs, self._spool, self._view)
                known |= {path.name for path in self._dirs.jobs.iterdir()}
                jobs = _numbered(jobs, known)
            ids = requests.submit(
                *(self._dirs.path, jobs, request.source),
                folder=Path("/"),
                now_s=time.time(),
                by=who.account,
                view=self._view,
            )
        submitted = requests.SubmissionResult.of(self._dirs.path, jobs, ids)
        return dict(zip(asked.SUBMITTED_FIELDS, submitted, strict=True))

    def _cancel(
        self, request: asked.CancelJobs, who: Caller, roles: Roles, limits: AccountLimits
    ) -> dict[str, Any]:
        with self._changing():
            self._check_theirs(request.jobs, who, roles, "cancel")
            self._check_room(who, limits, sum(map(len, request.jobs)))
            requests.cancel(self._dirs.path, request.jobs, by=who.account, view=self._view)
        return {}

    def _order_jobs(
        self, request: asked.OrderJobs, who: Caller, roles: Roles, limits: AccountLimits
    ) -> dict[str, Any]:
        with self._changing():
            view = self._check_theirs(request.jobs, who, roles, request.action)
            each = len(request.model_dump_json(exclude={"jobs"}, exclude_none=True))  # a file for each job
            self._check_room(who, limits, each * len({*request.jobs}))
            if request.priority is not None and not roles.is_operator(who):
                for job_id in filter(view.owns, request.jobs):
                    _check_priority(job_id, request.priority, limits)
            if request.action == "requeue":
                own = (self._view.log.jobs.get(job_id) for job_id in request.jobs if view.owns(job_id))
                self._check_waiting(who, limits, sum(job is not None and job.ended for job in own))
            if request.action == "release":
                self._check_holders(request.jobs, who, roles)
            ended = requests.order_jobs(
                *(self._dirs.path, request.action, request.jobs),
                priority=request.priority,
                changes=request.changes,
                from_start=request.from_start,
                by=who.account,
                view=self._view,
            )
        ignores = None if request.priority is None else requests.policy_ignoring_priority(self._dirs.path)
        return {"ended": ended, "deaf": ignores}

    def _order_nodes(
        self, request: asked.OrderNodes | asked.ReloadCluster | asked.ReserveNodes, who: Caller, roles: Roles
    ) -> list[str]:
        """The lines that tell what a new cluster leads to."""
        if not roles.is_operator(who):
            does = {"reload": "change the cluster", "reserve": "reserve nodes"}.get(request.ask, "")
            does = f"{request.action} nodes" if request.ask == "nodes" else does
            raise UsageError(f"only operators {does}, and {who.name} is none")
        with self._changing():
            if request.ask == "reload":
                text, name = request.cluster, request.source
                file = ClusterFile(cluster_of(text.encode(), name), name, text, now=request.now)
                return order_reload(self._dirs.path, file, dry_run=request.dry_run, by=who.account)
            if request.ask == "reserve":
                change = request.reservation or request.cancel
                return order_reservation(self._dirs.path, change, dry_run=request.dry_run, by=who.account)
            requests.order_nodes(
                *(self._dirs.path, request.action, request.nodes),
                reason=request.reason,
                now=request.now,
                within_s=request.within_s,
                by=who.account,
            )
        return []

    def _check_theirs(self, job_ids: Sequence[str], who: Caller, roles: Roles, action: str) -> View:
        """:raises UsageError: a job is not there, or not theirs to change; then nothing is done."""
        log, owners = self._known()
        view = View(who, roles, log, owners)
        if unknown := [job_id for job_id in job_ids if not view.sees(job_id)]:
            known = [job_id for job_id in (*log.jobs, *owners) if view.sees(job_id)]
            raise no_such_job(self._dirs.path, unknown, known, "nothing was ordered")
        for job_id in job_ids:
            owner = view.owner(job_id)
            if owner is None or not roles.may_order(who, owner):
                name = Caller.of(owner or ROOT).name
                text = f"job {job_id} belongs to {name}, and {who.name} may not {action} it"
                raise UsageError(f"{text}: nothing was ordered")
        return view

    def _check_holders(self, job_ids: Sequence[str], who: Caller, roles: Roles) -> None:
        """:raises UsageError: somebody else holds a job who had to be asked: an operator, or a lead."""
        log, requested = self._view.log, self._spool.requests()
        for job_id in job_ids:
            job = log.jobs.get(job_id)
            holder = None if job is None or job.held is None else job.held_by
            for request in requested:
                order = request.order
                if order is not None and order.job == job_id and order.action in ("hold", "release"):
                    holder = order.uid if order.action == "hold" else None
            if holder not in (None, who.uid) and not roles.is_operator(who):
                name = Caller.of(holder or ROOT).name
                raise UsageError(f"job {job_id} is held by {name}, who can release it, as operators can")

    def _check_waiting(self, who: Caller, limits: AccountLimits, more: int) -> None:
        """:raises LockedError: with so many jobs more too many of the account would wait."""
        log, owners = self._known()
        waiting = sum(job.uid == who.uid and not job.gpus for job in log.active.values())
        waiting += sum(uid == who.uid and job_id not in log.jobs for job_id, uid in owners.items())
        if more and waiting + more > limits.waiting_jobs:
            text = f"{who.name} has {counted(waiting, 'job')} that wait, and {limits.waiting_jobs} may"
            raise LockedError(f"{text}: nothing was asked for; try again once some of them have begun")

    def _check_room(self, who: Caller, limits: AccountLimits, more: int) -> None:
        """:raises LockedError: too much of what the account asked for has not been taken up yet."""
        waiting = self._spool.bytes_of(who.uid)
        if waiting + more > limits.spool_bytes:
            text = f"{waiting:,} bytes of {who.name} wait to be taken up, and {limits.spool_bytes:,} may"
            raise LockedError(f"{text}: try again in a moment")

    # Views.

    def _look(self, request: asked.Look, who: Caller, roles: Roles) -> bytes:
        with self._lock:
            status, owners = self._status(ahead=request.ahead), self._known()[1]
        if request.archived:
            with self._heavy[who.uid]:
                wanted = None if "*" in request.archived else request.archived
                status = replace(status, log=with_archived(status.log, self._dirs, wanted))
        with self._lock:
            return STATUS.dump_json(View(who, roles, status.log, owners).of_status(status), by_alias=True)

    def _describe(self, request: asked.Describe, who: Caller, roles: Roles) -> dict[str, Any]:
        with self._lock:
            view = self._seen(who, roles, request.job)
            owns = view.owns(request.job)
            job = status_of(self._status(ahead=False), request.job, time.time()) if owns else None
        seen = events_for(who, lambda: roles)
        with self._heavy[who.uid]:
            happened = history(self._dirs, request.job, shown=seen)
        errors = [] if job is None else error_lines(self._dirs, job)
        code = recorded_code(self._dirs, request.job) if owns else []
        told = {"history": HISTORY.dump_python(happened, mode="json"), "errors": errors}
        return told | {"code": [each.model_dump(mode="json") for each in code]}

    def _use(self, who: Caller, roles: Roles) -> bytes:
        with self._lock:
            log, uses = self._meter.look()
            view = View(who, roles, log, self._known()[1])
            seen = tuple(use_seen for use in uses if (use_seen := view.of_use(use)) is not None)
            return USES.dump_json((view.of_log(), seen), by_alias=True)

    def _output(self, request: asked.ReadOutput, who: Caller, roles: Roles) -> Iterator[bytes]:
        with self._lock:
            self._check_own(request.job, who, roles, "its output is")
        return self._printed(request)

    def _printed(self, request: asked.ReadOutput) -> Iterator[bytes]:
        check_job(self._dirs, request.job)
        output = JobOutput(self._dirs, request.job, request.lines, request.attempt, request.rank)
        while request.follow and not self._has_ended(request.job):
            yield from output.fresh()
            yield b""
            time.sleep(POLL_INTERVAL_S)
        yield from output.fresh()

    def _stacks(self, request: asked.ReadStacks, who: Caller, roles: Roles) -> bytes:
        with self._lock:
            self._check_own(request.job, who, roles, "its stacks are")
            status = self._status(ahead=False)
        with self._heavy[who.uid]:
            stacks = job_stacks(self._dirs.path, request.job, within_s=request.within_s, status=status)
        return STACKS.dump_json(stacks)

    def _foresee(
        self, request: asked.WhatIfQuestion, who: Caller, roles: Roles, limits: AccountLimits
    ) -> bytes:
        jobs = _own_jobs(request, who, limits) if request.jobs else []
        if len(jobs) > limits.waiting_jobs:
            raise UsageError(f"{counted(len(jobs), 'job')}, and {limits.waiting_jobs} of {who.name} may wait")
        if request.parameters or (request.policy is not None and request.policy not in policy_names()):
            text = "in a run of another account: name one that pliant policies lists, without --param"
            raise UsageError(f"only policies as they are can be asked about {text}")
        with self._lock:
            log, owners = self._known()
            view = View(who, roles, log, owners)
            known = [each for each in (*log.jobs, *owners) if view.sees(each)]
            if unknown := [job_id for job_id in request.cancel if not view.sees(job_id)]:
                raise no_such_job(self._dirs.path, unknown, known)
            own = [each for each in known if view.owns(each)]
        new = [job.id for job in jobs]
        text = job_file(jobs).decode() if jobs else ""
        return self._whatif.of(
            request.model_copy(update={"jobs": text}), who, seen=[*known, *new], own=[*own, *new]
        )

    def _check_own(self, job_id: str, who: Caller, roles: Roles, what: str) -> None:
        """:raises UsageError: there is no such job that they see, or it is another's."""
        view = self._seen(who, roles, job_id)
        if not view.owns(job_id):
            name = Caller.of(view.owner(job_id) or ROOT).name
            raise UsageError(f"job {job_id} belongs to {name}: {what} for its owner")

    def _events(self, request: asked.ReadEvents, who: Caller, roles: Roles) -> Iterator[bytes]:
        seen = events_for(who, lambda: roles)
        if request.job is not None:
            with self._lock:
                self._check_own(request.job, who, roles, "what it did is")
            pieces = job_events(self._dirs.path, request.job, shown=seen)
        elif request.follow:
            pieces = events_to_come(self._dirs.path, request.last, shown=seen)
        else:
            pieces = last_events(self._dirs.path, request.last, shown=seen)
        for _ in range(2):  # the head, and the events so far, for which all of the log is read
            with self._heavy[who.uid]:
                if (data := next(pieces, None)) is None:
                    return
            yield data
        yield from pieces

    def _ends(self, request: asked.AwaitEnds, who: Caller, roles: Roles) -> Iterator[bytes]:
        left = list(dict.fromkeys(request.jobs))
        while True:
            with self._lock:
                for job_id in left:
                    view = self._seen(who, roles, job_id)
                jobs = self._view.log.jobs
                ended = [jobs[job_id] for job_id in left if job_id in jobs and jobs[job_id].ended]
            for job in ended:
                left.remove(job.job.id)
                reason = job.reason if view.owns(job.job.id) else ""
                yield _json({"id": job.job.id, "phase": job.end, "reason": one_line(reason)})
            if not left:
                return
            yield b""
            time.sleep(POLL_INTERVAL_S)

    def _has_ended(self, job_id: str) -> bool:
        with self._lock:
            job = self._view.refresh().jobs.get(job_id)
            return job is not None and job.ended

    def _seen(self, who: Caller, roles: Roles, job_id: str) -> View:
        """:raises UsageError: there is no job of that name that they see."""
        log, owners = self._known()
        log = with_archived(log, self._dirs, [job_id] if job_id not in owners else [])
        view = View(who, roles, log, owners)
        if not view.sees(job_id):
            known = [each for each in (*log.jobs, *owners) if view.sees(each)]
            raise no_such_job(self._dirs.path, [job_id], known)
        return view

    # The state.

    def _known(self) -> tuple[RunLog, dict[str, int]]:
        """The log, and the accounts of the jobs that it does not hold yet.

        The spool is read first: jobs move from there to the log.
        """
        pending = self._spool.requests()
        owners = {job.id: ROOT for request in pending for job in request.jobs} | submitters_of(pending)[0]
        return self._view.refresh(), owners

    def _status(self, *, ahead: bool) -> Status:
        at_s, status = self._looked.get(ahead, (float("-inf"), None))
        if status is None or time.monotonic() - at_s > CACHE_TTL_S:
            status = self._watcher.look(ahead=ahead)
            self._looked[ahead] = time.monotonic(), status
        return status

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                self._looked.clear()


def _own_jobs(
    request: asked.SubmitJobs | asked.WhatIfQuestion, who: Caller, limits: AccountLimits
) -> list[Job]:
    return [_owned(job, who, limits) for job in submitted_jobs(request.jobs, request.source)]


def _owned(job: Job, who: Caller, limits: AccountLimits) -> Job:
    """A job with the name of the account that submits it.

    :raises UsageError: it states another user.
    :raises BadInputError: it has no command or no folder of its own.
    """
    if job.user not in ("", who.name):
        raise UsageError(f'job "{job.id}" states the user {job.user}, and {who.name} submits it')
    if job.workdir is None or not job.workdir.startswith("/"):
        raise BadInputError(f'job "{job.id}": expected the whole path of its folder')
    _check_priority(job.id, job.priority, limits)
    return job.model_copy(update={"user": who.name})


def _numbered(jobs: list[Job], known: Collection[str]) -> list[Job]:
    """One job, or one array, with a number in its name if that is in use."""
    array = jobs[0].array if jobs else None
    if array is None or any(job.array is None or job.array.name != array.name for job in jobs):
        if len(jobs) != 1:
            return jobs
        return [jobs[0].model_copy(update={"id": requests.free_id(jobs[0].id, known)})]
    endings = [job.id.removeprefix(array.name) for job in jobs]
    name = requests.free_id(array.name, known, endings)
    return [
        job.model_copy(
            update={
                "id": f"{name}{ending}",
                "array": None if job.array is None else job.array.model_copy(update={"name": name}),
            }
        )
        for job, ending in zip(jobs, endings, strict=True)
    ]


def _check_priority(job_id: str, priority: float, limits: AccountLimits) -> None:
    if limits.priority is not None and priority > limits.priority:
        text = f"priority {priority:g} is more than its user may give ({limits.priority:g})"
        raise UsageError(f"job {job_id}: {text}")


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()
