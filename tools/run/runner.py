"""``pliant run``: open the state directory, take over what runs, and make it what it shall be."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import JobsFailedError, LockedError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.files import PIPE, source_name
from pliant.schemas.io import (
    profile_from_columns,
    read_schedule,
    write_cluster,
    write_profile,
    write_schedule,
)
from pliant.schemas.profile import Profile
from pliant.schemas.schedule import Schedule
from pliant.schemas.trace_hash import trace_hash
from pliant.tools.run.backends.protocol import Backend
from pliant.tools.run.clock import Clock, origin
from pliant.tools.run.dry import describe
from pliant.tools.run.executor import Executor
from pliant.tools.run.fold import RunLog
from pliant.tools.run.gang import Timeouts
from pliant.tools.run.interrupts import Interrupts
from pliant.tools.run.journal import on_clock, run_event
from pliant.tools.run.layout import StateDir
from pliant.tools.run.live import RETRIES, LiveRun, Parts
from pliant.tools.run.once import Once, steps_between
from pliant.tools.run.planning import read_plan, target_of
from pliant.tools.run.runnable import runnable
from pliant.tools.run.state import Sink, State, read_log
from pliant.tools.run.steps import Target
from pliant.tools.schedule.decide import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session import Session
from pliant.tools.schedule.speeds import Speeds
from pliant.tools.schedule.state import session_from_events, session_from_schedule

POLL_S: Final = 0.1
STATE_NAME: Final = "pliant-state"
View = Callable[[RunLog, float], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    state: Path
    """The state directory; it need not be there."""
    schedule: str | None = None
    """File of the schedule; None: what the state directory goes on with, or stdin."""
    backend: str | None = None
    """None: what the cluster says."""
    wait: bool = False
    retries: int = RETRIES
    timeouts: Timeouts = field(default_factory=Timeouts)
    sinks: tuple[Sink, ...] = ()
    """Told of every event of the log, those of earlier processes first."""


def free_state_name(folder: Path) -> Path:
    """The first of pliant-state, pliant-state-2, … in ``folder`` that is not there yet."""
    number = 1
    while (path := folder / (STATE_NAME if number == 1 else f"{STATE_NAME}-{number}")).exists():
        number += 1
    return path


def run_until_done(options: Options, view: View) -> tuple[RunLog, Signals | None]:
    """Run the schedule, and whatever its policy decides after it, until all jobs have ended.

    A first SIGINT or SIGTERM stops all jobs with checkpoints, a second one kills them; running again on the
    same state directory goes on. Returns the log, and the signal if one came.

    :raises ServiceMissingError: the log cannot be written; the jobs train on and can be taken up again.
    """
    job = _Job.read(options, resume=True)
    with job.open(options) as state, Interrupts() as interrupts:
        live = job.live(state, options)
        try:
            _loop(live, interrupts, view)
        except ServiceMissingError as error:
            if live.drained:
                _end(live, interrupts)
                raise
            left = len(live.executor.gangs)
            raise ServiceMissingError(
                f"{error}; {left} jobs train on: run again with --state {options.state} to take them up"
            ) from error
        except BaseException:
            with contextlib.suppress(PliantError):
                live.drain("the run ended with an error")
            _end(live, interrupts)
            raise
        view(state.log, job.clock())
        return state.log, interrupts.received[0] if interrupts.received else None


def run_once(options: Options) -> tuple[RunLog, list[str]]:
    """Make what runs equal to the schedule, and leave it running.

    Returns the log, and the jobs that this call has given up.
    """
    job = _Job.read(options, resume=False)
    with job.open(options) as state:
        before = len(state.log.events)
        once = job.once(state, options)
        once.begin()
        while not once.settled:
            once.step()
            time.sleep(POLL_S)
        recorded = state.log.events[before:]
        return state.log, [event.job for event in recorded if event.event == "fail" and event.job]


def dry_run_text(options: Options, *, until_done: bool) -> str:
    """The steps that a run would begin with, as text; nothing is touched."""
    job = _Job.read(options, resume=until_done)
    if job.resumed and until_done:
        name = job.schedule.policy.name
        return f'policy "{name}" decides first, from what the log then says: there are no steps before that\n'
    log = read_log(options.state) if job.dirs.events.is_file() else RunLog()
    job.executor.targets = _held(log, job.dirs)
    return describe(steps_between(log, job.schedule, job.executor), job.dirs, job.executor.nodes)


def check_failed(log: RunLog, state: Path, among: Iterable[str] | None = None) -> None:
    """Name the jobs that failed, if any did.

    :param among: the jobs to look at; None: all.
    :raises JobsFailedError: some did.
    """
    looked_at = log.jobs if among is None else among
    failed = [log.jobs[job_id] for job_id in looked_at if log.jobs[job_id].phase == "failed"]
    if failed:
        told = "\n".join(f"job {job.job.id} failed: {job.reason}" for job in failed)
        hint = f"its output: pliant log {failed[0].job.id} --state {state}"
        raise JobsFailedError(f"{told}\n{len(failed)} of {len(log.jobs)} jobs failed; {hint}")


def _held(log: RunLog, dirs: StateDir) -> dict[str, Target]:
    """What the log and the plans of a state directory say that jobs hold."""
    active = {job_id: job for job_id, job in log.active.items() if job.gpus}
    plans = {job_id: read_plan(dirs.job(job_id)) for job_id in active}
    return {job_id: target_of(plan, active[job_id].share) for job_id, plan in plans.items() if plan}


def _loop(live: LiveRun, interrupts: Interrupts, view: View) -> None:
    while not live.finished:
        live.step()
        view(live.state.log, live.clock())
        if interrupts.received:
            live.drain(f"interrupted by {interrupts.received[0].name}")
        if len(interrupts.received) > 1:
            live.executor.kill_all()
        time.sleep(POLL_S)


def _end(live: LiveRun, interrupts: Interrupts) -> None:
    """Wait for the jobs of a drained run to leave, whatever of it can still be written down."""
    while not live.finished:
        with contextlib.suppress(PliantError):
            live.step()
        if len(interrupts.received) > 1:
            live.executor.kill_all()
        time.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be run, before anything is touched."""

    schedule: Schedule
    dirs: StateDir
    executor: Executor
    clock: Clock
    trace_hash: str
    resumed: bool

    @classmethod
    def read(cls, options: Options, *, resume: bool) -> _Job:
        """Read the inputs.

        :param resume: go on with the state directory's own schedule where it holds a run.
        """
        dirs, clock = StateDir(options.state.resolve()), Clock()
        there = dirs.events.is_file() and read_log(options.state).info is not None
        if there and resume and options.schedule is not None:
            raise UsageError(
                f"{options.state} holds a run: name no schedule to go on with it, or another folder"
            )
        path = str(dirs.schedule) if there and resume else _input(options.schedule)
        found = read_schedule(path)
        schedule = runnable(found, source_name(path), Path.cwd())
        backend = open_backend(options.backend or schedule.cluster.backend, schedule.cluster, dirs)
        executor = Executor(backend, dirs, clock, options.timeouts)
        return cls(schedule, dirs, executor, clock, trace_hash(found.jobs), there)

    def open(self, options: Options) -> State:
        """Lock the state directory; the sinks get to know its log."""
        state = State(options.state, wait=options.wait)
        if self.resumed != (state.log.info is not None):
            state.close()
            raise LockedError(f"{options.state} was written by another process meanwhile: try again")
        self.clock.not_before(state.log.last_s)
        for sink in options.sinks:
            state.add_sink(sink)
        return state

    @property
    def profile(self) -> Profile | None:
        """The profile in the schedule."""
        columns = self.schedule.profile
        return None if columns is None else Profile(profile_from_columns(columns, "schedule"))

    def live(self, state: State, options: Options) -> LiveRun:
        """The loop, with its first decision made or taken over; the run's clock starts here."""
        found, log = self.schedule, state.log
        policy = make_policy(found.policy.name, found.policy.parameters)
        throughput = throughput_for(self.profile, found.cluster)
        if self.resumed:
            session = session_from_events(
                on_clock(log.events, log.origin_s or 0.0),
                policy,
                found.cluster,
                throughput,
                found.policy_state,
                seed=found.policy.seed,
                source=str(state.dirs.events),
            )
            self.executor.adopt(log)
        else:
            session = session_from_schedule(found, policy, throughput)
            self.keep_inputs(state, policy.default_interval_s)
        origin_s = origin(found.time, self.clock(), log.origin_s)
        known = {*session.jobs, *session.ended, *(verdict.job for verdict in found.rejected)}
        parts = Parts(state, found, session, self.executor, self.clock, origin_s, options.retries)
        live = LiveRun(parts, [job for job in found.jobs if job.id not in known])
        if self.resumed:
            live.carry_on()
        else:
            live.begin()
        return live

    def once(self, state: State, options: Options) -> Once:
        """One reconciliation."""
        if not self.resumed:
            self.keep_inputs(state, None)
        origin_s = origin(self.schedule.time, self.clock(), state.log.origin_s)
        return Once(
            state,
            self.executor,
            self.schedule,
            self._speeds(),
            self.clock,
            origin_s=origin_s,
            retries=options.retries,
        )

    def _speeds(self) -> Speeds:
        found = self.schedule
        throughput = throughput_for(self.profile, found.cluster)
        return Session(
            make_policy(found.policy.name, found.policy.parameters), found.cluster, throughput
        ).speeds

    def keep_inputs(self, state: State, interval_s: float | None) -> None:
        """Write what the run needs into the state directory, and the first event."""
        write_cluster(self.schedule.cluster, state.dirs.cluster)
        if self.profile is not None:
            write_profile(self.profile, state.dirs.profile)
        write_schedule(self.schedule, state.dirs.schedule)
        state.record([run_event(self.schedule, self.trace_hash, self.clock(), interval_s)])


def _input(schedule: str | None) -> str:
    if schedule is None and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no schedule: name a file, or pipe one in from pliant schedule")
    return PIPE if schedule is None else schedule


def open_backend(name: str, cluster: Cluster, dirs: StateDir) -> Backend:
    """The backend of that name.

    :raises ServiceMissingError: this version has none of that name.
    """
    if name != "local":
        raise ServiceMissingError(f'this version has no backend "{name}": use --backend local')
    from pliant.tools.run.backends.local import LocalBackend

    return LocalBackend(cluster, dirs.jobs)
