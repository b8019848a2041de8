"""``pliant run``: open the state directory, take over what runs, and make it what it shall be.

Three ways to turn the loop: until all jobs have ended, until a signal, or once. :func:`dry_run_text` shows
the first steps and the exact commands. Signals are counted instead of raised (:class:`Interrupts`), so that
the loop decides where it stops.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from types import FrameType
from typing import Final, NoReturn, Self

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import JobsFailedError, LockedError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import PIPE, check_output, write_error
from pliant.schemas.file_io.limits import spared_by_garbage_collection
from pliant.schemas.io import read_cluster
from pliant.schemas.text import counted
from pliant.tools.run.backends.protocol import Backend
from pliant.tools.run.service.allocation import Assignment, startable
from pliant.tools.run.service.commands import assignment_of, read_plan, units
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.launching import next_handle
from pliant.tools.run.service.loop import Loop, RunOptions
from pliant.tools.run.service.monitoring import MetricsFile
from pliant.tools.run.service.notices import Notices
from pliant.tools.run.service.reports import change_event
from pliant.tools.run.service.retention import Retained
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import State, read_log
from pliant.tools.schedule.plugins import Plugins

PORT: Final = 29500
"""Placeholder of the free port that a job on several nodes gets when it starts."""
POLL_S: Final = 0.1
GRACE_S: Final = 60.0
"""Seconds after the last stage of a stop for processes that survive SIGKILL."""
_CAUGHT: Final = (signal.SIGINT, signal.SIGTERM)
_log = logging.getLogger("pliant")
Body = Callable[[Callable[[], None]], int]
"""Work of a process: it gets a function to call once all is well, and returns an exit code."""


def run_until_done(options: RunOptions, view: View) -> tuple[RunLog, Signals | None]:
    """Run the schedule, and what its policy decides after it, until all jobs have ended.

    A first SIGINT or SIGTERM stops all jobs with checkpoints, a second one kills them; running again on the
    same state directory goes on. Returns the log, and the signal if one came.

    :raises ServiceMissingError: the log cannot be written; the jobs train on and can be taken up again.
    """
    return _run(options, view, _until_finished, follow=False)


def run_and_follow(options: RunOptions, view: View) -> tuple[RunLog, Signals | None]:
    """Let a policy decide as things happen, until SIGINT or SIGTERM; returns the log and the signal.

    However it ends, the jobs train on, and the next run takes them up.

    :raises ServiceMissingError: the log cannot be written.
    """
    return _run(options, view, _until_interrupted, follow=True)


def _run(options: RunOptions, view: View, turn: Turn, *, follow: bool) -> tuple[RunLog, Signals | None]:
    prepared = PreparedRun.read(options, open_backend, resume=True)
    metrics = _metrics_file(prepared)
    caught = Interrupts(reloads=follow)
    with prepared.open(past=not follow) as state, caught as interrupts, spared_by_garbage_collection():
        loop = prepared.loop(state, follow=follow)
        beside = contextlib.nullcontext() if options.beside is None else options.beside(prepared.dirs)
        try:
            with beside, Notices(prepared.dirs, loop.session.cluster.spec.notify) as notices:
                look = view if metrics is None else _both(view, metrics.look)
                spec = loop.session.cluster.spec
                retained = Retained(state, spec.retention, loop.session, notify=spec.notify)
                look = _both(look, retained.look)
                turn(loop, interrupts, look)
                while not interrupts.received and (loop.reload is not None or interrupts.reload_due):
                    loop = _reloaded(prepared, state, loop, interrupts)
                    spec = loop.session.cluster.spec
                    notices.go_on_with(spec.notify)
                    retained.go_on_with(spec.retention, loop.session, spec.notify)
                    turn(loop, interrupts, look)
        except ServiceMissingError as error:
            if loop.drained:
                _end(loop, interrupts)
                raise
            left = len(loop.executor.gangs)
            raise ServiceMissingError(
                f"{error}; {left} jobs train on: run again with --state {options.state} to take them up"
            ) from error
        except BaseException:
            if follow:
                raise
            with contextlib.suppress(PliantError):
                loop.drain("the run ended with an error")
            _end(loop, interrupts)
            raise
        view(state.log, prepared.clock())
        if metrics is not None:
            metrics.write(state.log, prepared.clock())
        if not follow:
            loop.executor.release(state.log)
        elif held := loop.executor.backend.held_nodes:
            kept, give = counted(held, "node"), f"pliant cluster release --state {options.state}"
            _log.warning("%s are kept for the next run; to give them back: %s", kept, give)
        return state.log, interrupts.received[0] if interrupts.received else None


def _reloaded(prepared: PreparedRun, state: State, loop: Loop, interrupts: Interrupts) -> Loop:
    """The loop that goes on: with another cluster, or as before where that is refused."""
    if interrupts.reload_due:
        interrupts.reload_due = False
        try:
            loop.reload = prepared.named_cluster(state.log)
            if loop.reload is None:
                named = prepared.options.cluster
                _log.warning("SIGHUP: %s", "no cluster file is named" if named is None else "nothing changes")
        except PliantError as error:
            _log.warning("the cluster stays as it is: %s", str(error).partition("\n")[0])
    file = loop.reload
    return loop if file is None else prepared.reload(file, state, loop, open_backend)


def run_once(options: RunOptions) -> tuple[RunLog, list[str]]:
    """Make what runs equal to the schedule, and leave it running.

    Returns the log, and the ids of jobs that failed in this call.

    :raises LockedError: jobs neither start nor end in the time that stops have; the next call goes on.
    """
    prepared = PreparedRun.read(options, open_backend, resume=False)
    metrics = _metrics_file(prepared)
    with prepared.open() as state:
        ended = state.log.jobs.keys() - state.log.active.keys()
        loop = prepared.reconciling(state)
        limit_s = options.timeouts.to_end() + GRACE_S
        until_s = time.monotonic() + limit_s
        while unsettled := loop.unsettled:
            if time.monotonic() >= until_s:
                what = f"{', '.join(unsettled)}: not as the schedule says after {limit_s:.0f} s"
                raise LockedError(f"{what}; the next run with --state {options.state} goes on")
            loop.step()
            time.sleep(POLL_S)
        log = state.log
        if metrics is not None:
            metrics.write(log, prepared.clock())
        spec = prepared.schedule.cluster
        Retained(state, spec.retention, notify=spec.notify).tidy(log, prepared.clock())
        if not log.active:
            loop.executor.release(log)
        left = [log.jobs[job_id] for job_id in log.jobs.keys() - ended - log.active.keys()]
        failed = sorted((job.ended_s or 0.0, job.job.id) for job in left if job.phase == "failed")
        return log, [job_id for _, job_id in failed]


def _metrics_file(prepared: PreparedRun) -> MetricsFile | None:
    """:raises PliantError: it could not be written."""
    path = prepared.options.metrics
    if path is None:
        return None
    if str(path) == PIPE:
        raise UsageError("--metrics names a file, which is replaced each minute")
    check_output(path)
    cluster = prepared.schedule.cluster
    shares = cluster.shares
    return MetricsFile(path, cluster.expanded(), (lambda _job: None) if shares is None else shares.team_of)


def _both(view: View, other: View) -> View:
    def look(log: RunLog, now_s: float) -> None:
        view(log, now_s)
        other(log, now_s)

    return look


def release_nodes(state: Path, backend: str | None = None) -> int:
    """Give back the nodes that a state directory holds and on which nothing runs; returns how many.

    :param backend: None for what its cluster says.
    :raises UsageError: no run has begun there.
    :raises LockedError: another process runs its jobs.
    """
    dirs = StateDir(state.resolve())
    if not dirs.cluster.exists():
        raise UsageError(f"{state} holds no run")
    cluster = read_cluster(dirs.cluster)
    with State(state) as directory:
        return open_backend(backend or cluster.backend, cluster, dirs).release(directory.log.over)


def dry_run_text(options: RunOptions, *, resume: bool) -> str:
    """The steps that a run would begin with, as text; nothing is touched.

    :param resume: as for :meth:`PreparedRun.read`.
    """
    prepared = PreparedRun.read(options, open_backend, resume=resume, dry=True)
    name = prepared.schedule.policy.name
    if prepared.resumed and resume:
        return f'policy "{name}" decides first, from what the log then says: there are no steps before that\n'
    log = read_log(prepared.dirs.path) if prepared.dirs.events.is_file() else RunLog()
    executor = prepared.executor
    executor.targets.update(_held(log, prepared.dirs))
    allocations = startable(log, prepared.schedule, prepared.clock())
    jobs = {job.id: job for job in prepared.schedule.jobs}
    changes = executor.targets.changes_to(allocations, jobs, executor.nodes)
    lines = (line for change in changes.items() for line in _lines(*change, log, prepared.dirs, executor))
    return "".join(f"{line}\n" for line in lines)


def _lines(
    job_id: str, after: Assignment | None, log: RunLog, dirs: StateDir, executor: Executor
) -> list[str]:
    """What happens to which slots, then each command on its own line."""
    before = executor.targets.get(job_id)
    kind = change_event(job_id, before, after, log, 0.0).event
    head = f"{kind} {job_id}: {_slots(before)} -> {_slots(after)}"
    if after is None:
        return [head]
    attempt = next_handle(dirs, job_id)
    commands = units(after, dirs.job(job_id).path, attempt.files, executor.nodes, PORT)
    shown = (f"  {line}" for line in executor.backend.shown(attempt, commands))
    return [f"{head} (attempt {attempt.attempt})", _plan(after), *shown]


def _plan(target: Assignment) -> str:
    global_batch, accum, lr_scale = target.allocation.cut
    batch = "as the script says" if global_batch is None else str(global_batch)
    return f"  plan: global batch {batch}, {accum} micro-steps, learning rate x {lr_scale:g}"


def _slots(target: Assignment | None) -> str:
    return "nothing" if target is None else " ".join(map(str, target.slots))


def _held(log: RunLog, dirs: StateDir) -> dict[str, Assignment]:
    active = {job_id: job for job_id, job in log.active.items() if job.gpus}
    plans = {job_id: read_plan(dirs.job(job_id)) for job_id in active}
    return {job_id: assignment_of(plan, active[job_id].job) for job_id, plan in plans.items() if plan}


def check_failed(log: RunLog, state: Path, among: Iterable[str] | None = None) -> None:
    """Name the jobs that failed, if any did.

    :param among: ids of the jobs to look at; None for all.
    :raises JobsFailedError: some did.
    """
    looked_at = log.jobs if among is None else among
    failed = [log.jobs[job_id] for job_id in looked_at if log.jobs[job_id].phase == "failed"]
    if failed:
        reasons = "\n".join(f"job {job.job.id} {job.end}: {job.reason}" for job in failed)
        hint = f"its output: pliant log {failed[0].job.id} --state {state}"
        raise JobsFailedError(f"{reasons}\n{len(failed)} of {counted(len(log.jobs), 'job')} failed; {hint}")


class Interrupts:
    """While entered, in the main thread, signals are only counted here.

    A signal that was ignored, as in a script's background job, stays ignored.

    :param reloads: SIGHUP asks to read the cluster file again, unless the terminal is gone.
    """

    def __init__(self, *, reloads: bool = False) -> None:
        self.received: list[signal.Signals] = []
        self.reload_due = False
        self._caught = (*_CAUGHT, signal.SIGHUP) if reloads else _CAUGHT
        self._has_terminal = _has_terminal()
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        heeded = [number for number in self._caught if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._has_terminal == _has_terminal():
            self.reload_due = True
            return
        self.received.append(signal.Signals(number))


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


View = Callable[[RunLog, float], None]
"""Is shown the log after each turn, with the time."""
Turn = Callable[[Loop, Interrupts, View], None]
"""Turns a loop until its stop condition holds."""


def _until_finished(loop: Loop, interrupts: Interrupts, view: View) -> None:
    last_wait = _LastWait()
    while not loop.finished and loop.reload is None:
        loop.step()
        view(loop.state.log, loop.clock())
        if interrupts.received:
            loop.drain(f"interrupted by {interrupts.received[0].name}")
        if last_wait.is_over(loop, interrupts):
            return
        time.sleep(POLL_S)


def _until_interrupted(loop: Loop, interrupts: Interrupts, view: View) -> None:
    while not (interrupts.received or interrupts.reload_due) and loop.reload is None:
        loop.step()
        view(loop.state.log, loop.clock())
        time.sleep(POLL_S)


def _end(loop: Loop, interrupts: Interrupts) -> None:
    """Wait for the jobs of a drained run to leave, even if that can no longer be recorded."""
    last_wait = _LastWait()
    while not loop.finished:
        with contextlib.suppress(PliantError):
            loop.step()
        if last_wait.is_over(loop, interrupts):
            return
        time.sleep(POLL_S)


class _LastWait:
    """The wait for jobs that a second signal has killed."""

    def __init__(self) -> None:
        self._until_s: float | None = None

    def is_over(self, loop: Loop, interrupts: Interrupts) -> bool:
        """Kill all jobs after a second signal; returns whether the wait for the rest is over."""
        if len(interrupts.received) < 2:
            return False
        loop.executor.kill_all()
        if self._until_s is None:
            self._until_s = time.monotonic() + GRACE_S
        if loop.finished or time.monotonic() < self._until_s:
            return False
        left = ", ".join(sorted(loop.executor.running))
        _log.warning("killed, and not gone after %.0f s: %s; the next run looks after it", GRACE_S, left)
        return True


BACKENDS: Final = Plugins(
    "backend",
    "pliant.backends",
    {
        "local": "pliant.tools.run.backends.local:open_local",
        "slurm": "pliant.tools.run.backends.slurm.backend:SlurmBackend",
        "slurm-jobs": "pliant.tools.run.backends.slurm.jobs:SlurmJobsBackend",
    },
)
"""Functions of a cluster and a state directory that make a backend, by name."""


def open_backend(name: str, cluster: Cluster, dirs: StateDir) -> Backend:
    """:raises ServiceMissingError: this version has no backend of that name.
    :raises UsageError: that of another package cannot be loaded.
    """
    make = BACKENDS.load(name)
    if make is None:
        *others, last = BACKENDS.names()
        text = f'this version has no backend "{name}": use {", ".join(others)} or {last}'
        raise ServiceMissingError(text)
    if not callable(make):
        raise UsageError(f"{BACKENDS.title(name)} is no function of a cluster and a state directory")
    backend: Backend = make(cluster, dirs)
    return backend


@dataclass(frozen=True, slots=True)
class StartedService:
    """A process in the background, or one that failed to get there."""

    pid: int
    failed: int | None = None
    """Exit code of one that ended before all was well."""
    output: str = ""
    """Output of the failed process."""


RESERVED_BYTES: Final = 1 << 16
"""Space that the messages of a run in the background find on a full disk, the one that says so included."""


def reserve_space(descriptor: int) -> None:
    """Give a file disk space for further lines, where the system can do that; its size stays."""
    size = os.fstat(descriptor).st_size
    allocate = getattr(ctypes.CDLL(None), "fallocate64", None)
    if allocate is not None:
        keep_size = 1
        allocate(*map(ctypes.c_int, (descriptor, keep_size)), *map(ctypes.c_int64, (size, RESERVED_BYTES)))


def in_background(body: Body, log: Path) -> StartedService:
    """Run ``body`` in the background; returns once it says that all is well, or has ended.

    :param log: file for its messages, in an existing folder.
    :raises PliantError: the log cannot be written.
    """
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        words = os.open(log, flags, 0o600)
    except OSError as error:
        raise write_error(error, str(log)) from error
    size_before = os.fstat(words).st_size
    reserve_space(words)
    reader, writer = os.pipe()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else this process cannot learn how it ends
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _be(body, words, writer)
    os.close(writer)
    os.close(words)
    with os.fdopen(reader, "rb") as news:
        if news.read():
            return StartedService(pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with log.open("rb") as lines:
        lines.seek(size_before)
        return StartedService(pid, code, lines.read().decode(errors="replace"))


def _be(body: Body, words: int, writer: int) -> NoReturn:
    def ready() -> None:
        nonlocal writer
        if writer >= 0:
            _point_at_nothing(0)
            os.write(writer, b"!")
            os.close(writer)
            writer = -1

    code = 1
    try:
        os.setsid()
        os.dup2(words, 2)
        _point_at_nothing(1)
        code = body(ready)
    finally:
        os._exit(code)


def _point_at_nothing(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)
