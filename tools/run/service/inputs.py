"""Preparation of a run: inputs read and checked, the state directory locked, the loop ready to turn."""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, LockedError, PliantError, UsageError, require
from pliant.schemas.event import Event
from pliant.schemas.events import Reloaded, typed
from pliant.schemas.file_io.archives import archived_ids
from pliant.schemas.file_io.files import PIPE, source_name
from pliant.schemas.io import (
    profile_from_columns,
    profile_to_columns,
    read_cluster,
    read_profile,
    read_schedule,
    write_cluster,
    write_profile,
    write_schedule,
)
from pliant.schemas.job import Job, trace_hash
from pliant.schemas.profile import Profile
from pliant.schemas.runinfo import PromisedBounds
from pliant.schemas.schedule import PolicyUse, Schedule
from pliant.tools.profile.throughput import Throughput
from pliant.tools.run.backends.protocol import Backend, NodeInfo
from pliant.tools.run.service.code_copy import UnusedCopies
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.launching import Submitters, runnable
from pliant.tools.run.service.loop import REFUSED_S, Loop, RunOptions
from pliant.tools.run.service.reload import ClusterFile, ReloadPlan, refusal_event, refusals, reload_plan
from pliant.tools.run.service.starters import settled
from pliant.tools.run.statedir.contract.folders import PRIVATE
from pliant.tools.run.statedir.directory import StateDir, account_name, check_own
from pliant.tools.run.statedir.kept_inputs import cluster_changes, kept_profile, text_of
from pliant.tools.run.statedir.log.events import run_event
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import LogView, Rebuilding
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import Clock, State, origin
from pliant.tools.schedule.decide import Question, policy_for
from pliant.tools.schedule.demand import check_demand
from pliant.tools.schedule.from_log import (
    CarriedOver,
    apply_events,
    reloaded,
    session_for_run,
    session_from_events,
    session_from_schedule,
)
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy, name_of, policy_class
from pliant.tools.schedule.session.saved import Basis
from pliant.tools.schedule.session.session import Session

_TOKEN: Final = "SLURM_JWT"  # noqa: S105 - its name
_log = logging.getLogger("pliant")
OpenBackend = Callable[[str, Cluster, StateDir], Backend]


@dataclass(slots=True)
class PreparedRun:
    """A run whose inputs are read, before anything is touched."""

    options: RunOptions
    schedule: Schedule
    dirs: StateDir
    executor: Executor
    clock: Clock
    trace_hash: str
    resumed: bool
    """Whether the state directory holds a run already."""
    view: LogView
    """Its log, from before the lock was taken."""

    @classmethod
    def read(
        cls,
        options: RunOptions,
        open_backend: OpenBackend,
        *,
        resume: bool,
        dry: bool = False,
        clock: Clock | None = None,
    ) -> PreparedRun:
        """Read the inputs.

        :param resume: go on with the state directory's own schedule if it holds a run.
        :param dry: leave the state directory as it is, its mode included.
        :param clock: of the run; None for this machine's.
        :raises UsageError: the state directory is not this user's alone, or brings inputs of its own.
        """
        dirs, clock = StateDir(options.state.resolve()), clock or Clock()
        if dirs.path.exists():
            check_own(dirs, close=not dry)
            if dirs.is_shared and not options.shared and not dry:
                text = "holds jobs of several accounts, which only pliant serve may start"
                raise UsageError(f"{options.state}: {text}")
        view = LogView(dirs, keeps_events=True)
        log = view.refresh()
        there, accepted = log.info is not None, _acknowledged(log, dirs)
        if there and resume:
            _check_inputs(options, dirs, log)
            found, name = _own_schedule(options, dirs, log), str(dirs.schedule)
            accepted = {job.id for job in found.jobs}
        elif options.question is not None and options.schedule is None:
            found, name = _empty_schedule(options, options.question, clock()), "jobs"
        else:
            name = _input(options.schedule)
            found = read_schedule(name)
            _check_policy(found, source_name(name))
        _refuse_oracle(found.policy.name)
        found = found.model_copy(update={"cluster": found.cluster.with_preemptible(options.preemptible)})
        schedule = runnable(found, source_name(name), _home(found), accepted)
        if not options.shared:  # its submitters' commands have looked at their own scripts
            jobs = tuple(settled(job)[0] for job in schedule.jobs)
            schedule = schedule.model_copy(update={"jobs": jobs})
        backend_name = options.backend or schedule.cluster.backend
        if options.shared and backend_name == "slurm-jobs" and _TOKEN in os.environ:
            raise UsageError(f"{_TOKEN} would be in the jobs of all accounts: let Slurm know root by munge")
        if backend_name == "local" and not dry:
            _require_torch(job for job in schedule.jobs if job.id not in accepted)
        backend = open_backend(backend_name, schedule.cluster, dirs)
        decided = () if there and resume else schedule.allocations  # jobs of a log are parted
        if not backend.shares_slots and any(given.beside for given in decided):
            text = (
                f"lets jobs share GPUs, and {backend_name} gives a GPU to one job: schedule for that backend"
            )
            raise BadInputError.one(source_name(name), text)
        submitters = Submitters(options.limits, root=options.allow_root_jobs) if options.shared else None
        executor = Executor(
            *(backend, dirs, clock.steady, options.timeouts),
            log_bytes=options.log_bytes,
            submitters=submitters,
        )
        return cls(options, schedule, dirs, executor, clock, trace_hash(found.jobs), there, view)

    def open(self, *, past: bool = True) -> State:
        """Lock the state directory; ``past``: pass what its log holds already to the sinks, too."""
        state = State(
            self.options.state,
            wait_s=self.options.wait_s,
            view=self.view,
            restored=self.options.restored,
            shared=self.options.shared,
        )
        if self.resumed != (state.log.info is not None):
            state.close()
            raise LockedError(f"{self.options.state} was written by another process meanwhile: try again")
        self.clock.not_before(state.log.last_s, state.quiet_s)
        state.add_sink(UnusedCopies(state), past=False)
        for sink in self.options.sinks:
            state.add_sink(sink, past=past)
        for sink in self.options.sinks_of_news:
            state.add_sink(sink, past=False)
        return state

    def loop(self, state: State, *, follow: bool) -> Loop:
        """The loop, with its first decision made or taken over; the run's clock starts here."""
        if self.resumed:  # another run may have written it while this one waited for the lock
            schedule = _own_schedule(self.options, self.dirs, state.log)
            known = {job.id for job in schedule.jobs}
            self.schedule = runnable(schedule, str(self.dirs.schedule), _home(schedule), known)
        schedule = self.schedule
        policy = make_policy(schedule.policy.name, schedule.policy.parameters)
        throughput = throughput_for(_profile(schedule), schedule.cluster)
        if self.resumed:
            session = self._session(state, policy, throughput)
            self.executor.adopt(state.log)
        else:
            session = session_from_schedule(schedule, policy, throughput)
            self._begin(state, policy.traits.default_interval_s, policy.bounds_on(schedule.cluster))
        if policy.traits.packs and not self.executor.backend.shares_slots:
            _log.warning(
                'policy "%s" packs jobs, and this backend gives a GPU to one: none share', policy.name
            )
        known = {*session.jobs, *session.book.ended, *(verdict.job for verdict in schedule.rejected)}
        loop = self._loop(state, session, known, follow=follow)
        if self.resumed:
            loop.carry_on()
            if follow:
                self._take_named_cluster(state, loop)
        else:
            loop.begin()
        return loop

    def named_cluster(self, log: RunLog) -> ClusterFile | None:
        """The cluster file that the command names, if it differs from the run's.

        :raises PliantError: it is not one.
        """
        if (named := self.options.cluster) is None or log.info is None:
            return None
        own = log.next_cluster or log.info.cluster
        cluster = read_cluster(named).keeping_reservations(own, self.clock())
        cluster = cluster.with_preemptible(self.options.preemptible)
        file = ClusterFile(cluster, source_name(named), text_of(named), user=account_name(os.geteuid()))
        return file if cluster_changes(own, cluster, file.source) else None

    def _take_named_cluster(self, state: State, loop: Loop) -> None:
        """The cluster file may have changed since the run was left, or the last change was interrupted."""
        log = state.log
        if log.reloads and log.info is not None and read_cluster(self.dirs.cluster) != log.info.cluster:
            write_cluster(log.info.cluster, self.dirs.cluster, mode=PRIVATE)
        try:
            loop.reload = self.named_cluster(log)
        except PliantError as error:
            _log.warning("the cluster stays as it is: %s", error)

    def reload(self, file: ClusterFile, state: State, loop: Loop, open_backend: OpenBackend) -> Loop:
        """The loop that goes on with a new cluster; the same one if it is refused.

        The run has the new cluster once the event that says so is in the log.
        """
        loop.reload = None
        try:
            plan, cluster, nodes = self._new_cluster(file, state.log, loop, open_backend)
            now_s, found = self.clock(), loop.schedule
            events = plan.events(file, cluster, now_s)
            session = self._session_after(events, loop, cluster)
        except (PliantError, LookupError, ValueError) as error:
            why = str(error).partition("\n")[0]
            state.record([refusal_event(file, self.clock(), why)])
            loop.again_s = self.clock() + REFUSED_S
            _log.warning("the cluster stays as it is: %s", why)
            return loop
        state.record(events)
        write_cluster(cluster, self.dirs.cluster, mode=PRIVATE)
        loop.executor.change_cluster(cluster, nodes)
        self.schedule = _on(found, cluster)
        known = {*session.jobs, *session.book.ended, *(verdict.job for verdict in found.rejected)}
        new = self._loop(state, session, known, follow=loop.follows)
        new.take_over(loop)
        return new

    def _new_cluster(
        self, file: ClusterFile, log: RunLog, loop: Loop, open_backend: OpenBackend
    ) -> tuple[ReloadPlan, Cluster, Sequence[NodeInfo]]:
        """:raises PliantError: the run cannot have that cluster."""
        if not hasattr(loop.executor.backend, "change_cluster"):  # a plug-in of an earlier version
            raise UsageError(f"{file.source}: the backend of this run takes no other cluster while it runs")
        plan = reload_plan(
            file, log, refusals(loop.schedule, _profile(loop.schedule)), loop.executor.busy_nodes
        )
        cluster = plan.cluster.with_preemptible(self.options.preemptible)
        before, busy = loop.executor.nodes, loop.executor.busy_nodes
        nodes = open_backend(self.options.backend or cluster.backend, cluster, self.dirs).nodes()
        for node in nodes:
            if node.name in busy and before[node.name].devices != node.devices:
                text = f"jobs run on node {node.name}, which would get other GPUs: name its devices"
                raise UsageError(f"{file.source}: {text}")
        return plan, cluster, nodes

    def _session_after(self, events: Sequence[Event], loop: Loop, cluster: Cluster) -> Session:
        found, origin_s = loop.schedule, loop.origin_s
        on_clock = [replace(event, time=event.time - origin_s) for event in events]
        policy = make_policy(found.policy.name, found.policy.parameters)
        session, throughput = loop.session, throughput_for(_profile(found), cluster)
        for event in on_clock:
            if isinstance(made := typed(event), Reloaded):
                session = reloaded(session, made, throughput, policy)
            else:
                apply_events(session, [event])
        return session

    def reconciling(self, state: State) -> Loop:
        """The loop that makes this one schedule true; it asks no policy."""
        schedule = self.schedule
        if not self.resumed:
            self._begin(state, None)
        policy = make_policy(schedule.policy.name, schedule.policy.parameters)
        session = session_for_run(
            policy, schedule.cluster, throughput_for(_profile(schedule), schedule.cluster)
        )
        loop = self._loop(state, session, state.log.jobs.keys(), asks=False)
        loop.reconcile()
        return loop

    def _loop(
        self, state: State, session: Session, known: Set[str], *, asks: bool = True, follow: bool = False
    ) -> Loop:
        """A loop with this session, of which snapshots are made from now on; ``known`` jobs have arrived."""
        schedule = self.schedule
        origin_s = origin(schedule.time, self.clock(), state.log.origin_s)
        basis = Basis.of(schedule.cluster, _profile(schedule), origin_s)
        new = partial(session_for_run, session.policy, schedule.cluster, session.cluster.speeds.throughput)
        state.rebuilding = Rebuilding(basis, new)
        if not self.executor.backend.shares_slots:
            session.evictions.separate_all()
        ahead = [job for job in schedule.jobs if job.id not in known]
        if ahead and (archived := archived_ids(self.dirs.events)):
            ahead = [job for job in ahead if job.id not in archived]
        return Loop(
            *(state, schedule, session, self.executor),
            clock=self.clock,
            origin_s=origin_s,
            retries=self.options.retries,
            asks=asks,
            follow=follow,
            ahead=ahead,
        )

    def _session(self, state: State, policy: Policy, throughput: Throughput) -> Session:
        schedule, source = self.schedule, str(self.dirs.events)
        kept, events = state.history(
            Basis.of(schedule.cluster, _profile(schedule), state.log.origin_s or 0.0)
        )
        session = session_from_events(
            events,
            policy,
            schedule.cluster,
            throughput,
            CarriedOver.by(schedule),
            seed=schedule.policy.seed,
            source=source,
            saved=kept,
        )
        check_demand([job.spec for job in session.jobs.values()], policy, source, session.policy_host.demand)
        return session

    def _begin(self, state: State, interval_s: float | None, bounds: PromisedBounds | None = None) -> None:
        """Write what the run needs into the state directory, and the first event.

        From then on ``pliant submit`` checks jobs against it; earlier ones are checked when they are taken
        up.

        :raises BadInputError: one of them has the id of another job of the schedule.
        """
        spool = Spool(self.dirs)
        with spool.locked():
            self._check_submitted(spool)
            if (profile := _profile(self.schedule)) is not None:
                write_profile(profile, self.dirs.profile, mode=PRIVATE)
            write_schedule(self.schedule, self.dirs.schedule, mode=PRIVATE)
            write_cluster(self.schedule.cluster, self.dirs.cluster, mode=PRIVATE)
            begun = run_event(self.schedule, self.trace_hash, self.clock(), interval_s, bounds)
            state.record([begun])

    def _check_submitted(self, spool: Spool) -> None:
        """A job may be both submitted and in the schedule if it is the same."""
        planned = {job.id: _what_stays(job) for job in self.schedule.jobs}
        for job in (job for request in spool.requests() for job in request.jobs):
            if planned.get(job.id, _what_stays(job)) != _what_stays(job):
                text = f'job "{job.id}" is in the schedule, too, and another one there'
                raise BadInputError.one(str(self.dirs.spool), text)


def _home(schedule: Schedule) -> Path:
    """Where jobs start that name no folder from / on; asked for only then, as it may have been removed."""
    absolute = all(os.path.isabs(job.workdir or "") for job in schedule.jobs)
    return Path("/") if absolute else Path.cwd()


def _what_stays(job: Job) -> Job:
    """A job without its time and priority, which may change before it is taken up."""
    return job.model_copy(update={"submit_time": 0.0, "priority": 0.0})


def _acknowledged(log: RunLog, dirs: StateDir) -> set[str]:
    """Jobs that the directory has accepted: a fault of one ends that job alone."""
    asked = {job.id for request in Spool(dirs).requests() for job in request.jobs}
    return asked | log.jobs.keys()


def _check_inputs(options: RunOptions, dirs: StateDir, log: RunLog) -> None:
    """The command that began a run may be given again; its cluster file may have changed, or be wrong.

    :raises UsageError: another file that is named differs from what the run began with.
    """
    kept_profile(dirs.profile, options.profile)
    if options.schedule is None:
        return
    schedule = read_schedule(options.schedule)
    if log.info is not None and trace_hash(schedule.jobs) != log.info.trace_hash:
        text = "holds a run that began with other jobs: name no schedule to go on with it, or another folder"
        raise UsageError(f"{options.state} {text}")


def _check_policy(schedule: Schedule, source: str) -> None:
    """Refuse a schedule file whose policy is not here, or has other parameters."""
    try:
        make_policy(schedule.policy.name, schedule.policy.parameters)
    except UsageError as error:
        raise BadInputError.one(source, str(error), pointer="/policy") from error


def _require_torch(jobs: Iterable[Job]) -> None:
    """A rigid job on one GPU is any Python script; others train with torch, which is not always installed.

    :raises ServiceMissingError: it is not, and one of the jobs does.
    """
    for job in jobs:
        if job.own_python is not None or job.is_one_process:
            continue
        if job.elastic != "none" or job.gpus.requested > 1 or job.names_torchrun:
            require("torch", f'job "{job.id}" trains with torch')


def _refuse_oracle(name: str) -> None:
    if policy_class(name).traits.needs_future:
        raise UsageError(f'policy "{name}" knows the jobs to come: it is for replays, not for a run')


def _own_schedule(options: RunOptions, dirs: StateDir, log: RunLog) -> Schedule:
    """The schedule that a run goes on with, under the policy that is asked for, on the log's cluster."""
    schedule, question = read_schedule(dirs.schedule), options.question
    if log.reloads and log.info is not None and schedule.cluster != log.info.cluster:
        schedule = _on(schedule, log.info.cluster)
    schedule = schedule.model_copy(update={"cluster": schedule.cluster.with_preemptible(options.preemptible)})
    if question is None:
        return schedule
    policy = policy_for(question, _profile(schedule))
    demand, forecast = question.predicts(schedule)
    return schedule.model_copy(
        update={"policy": _use(question, policy), "demand": demand, "forecast": forecast}
    )


def _on(found: Schedule, cluster: Cluster) -> Schedule:
    """A schedule on another cluster, before its first decision there."""
    on = {"cluster": cluster, "allocations": (), "policy_state": None, "forecast": None}
    return found.model_copy(update=on)


def _empty_schedule(options: RunOptions, question: Question, now_s: float) -> Schedule:
    """What a live run begins with: no decision, no job, and a clock that shows UTC."""
    if options.cluster is None:
        raise UsageError(f"{options.state} holds no run: name its --cluster to begin one")
    profile = None if options.profile is None else read_profile(options.profile)
    demand, forecast = question.predicts()
    return Schedule(
        demand=demand,
        forecast=forecast,
        time=now_s,
        policy=_use(question, policy_for(question, profile)),
        cluster=read_cluster(options.cluster),
        profile=None if profile is None else profile_to_columns(profile.rows),
    )


def _profile(schedule: Schedule) -> Profile | None:
    columns = schedule.profile
    return None if columns is None else Profile(profile_from_columns(columns, "schedule"))


def _use(question: Question, policy: Policy) -> PolicyUse:
    return PolicyUse(name=name_of(type(policy)), parameters=dict(policy.parameters), seed=question.seed)


def _input(schedule: str | None) -> str:
    if schedule is None and not _may_be_piped_in():
        raise UsageError(
            "no schedule: name a file, or pipe one in from pliant schedule; "
            "pliant run --follow decides itself"
        )
    return PIPE if schedule is None else schedule


def _may_be_piped_in() -> bool:
    """Whether stdin is anything but a terminal, /dev/null or closed."""
    try:
        return sys.stdin is not None and not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):
        return True
