"""Makes what runs equal to what shall run, job by job, without ever waiting.

``apply`` sets the targets; every ``tick`` looks at what runs, reports what ended and what the workers said,
and takes the next step towards the targets. Wherever it is interrupted, the next tick (of this process or of
another that adopted the gangs) goes on from what it finds.

Two kinds of jobs are set apart. :class:`KillList`: the work for the job failed, so its attempt is killed
until nothing of it is left. :class:`UnreadableJobs`: its files do not tell whether it runs, so it is not
started again. Files that cannot be read are read again; if they are damaged beyond repair, what may run is
asked to end, then killed, and then the job can be launched again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from typing import Final, Literal

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.tools.run.backends.protocol import Backend, Handle, NodeInfo
from pliant.tools.run.service.allocation import (
    Assignment,
    InPlace,
    Relaunch,
    Slot,
    SlotUse,
    companions,
    way_to,
)
from pliant.tools.run.service.commands import assignment_of, copies, hand_out, read_plan
from pliant.tools.run.service.drain_notices import DrainNotices
from pliant.tools.run.service.endings import Ending
from pliant.tools.run.service.gang import Gang
from pliant.tools.run.service.launching import Launching, Submitters, next_handle
from pliant.tools.run.service.reports import (
    AttemptEnded,
    Lost,
    NewProgress,
    Proven,
    Report,
    StartFailed,
    WorkerEvents,
)
from pliant.tools.run.service.stop_stages import Timeouts
from pliant.tools.run.service.targets import Targets
from pliant.tools.run.statedir.contract.folders import DamagedError, UnreadableError
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import Drain, RunLog
from pliant.tools.run.statedir.slot_faults import Faults, may_pass

STARTING_S: Final = 0.5
"""Maximum seconds that a tick starts jobs, as it does not poll meanwhile."""
NODES_S: Final = 2.0
"""Seconds between two polls of the nodes."""
RETRY_INTERVAL_S: Final = 1.0
"""Seconds between two looks at an unreadable job."""
UNSEEN_S: Final = 300.0
"""Seconds for files of a job that is being killed to become readable."""
_UNSEEN: Final = "whether it still runs cannot be found out"
_log = logging.getLogger("pliant")


class Executor:
    """The gangs of one state directory.

    An error in the work for one job ends its attempt (see ``fault.py``): what is left of it is killed, and
    then it has failed with that reason. The others go on.

    :param clock: a clock that cannot be set, for deadlines.
    :param log_bytes: most bytes of each output file of a worker that stay on disk; None for the default.
    :param submitters: the accounts that jobs run as; None for this process's.
    """

    def __init__(
        self,
        backend: Backend,
        dirs: StateDir,
        clock: Callable[[], float],
        timeouts: Timeouts | None = None,
        *,
        log_bytes: int | None = None,
        submitters: Submitters | None = None,
    ) -> None:
        self.nodes: Mapping[str, NodeInfo] = {node.name: node for node in backend.nodes()}
        self._nodes_due_s = clock()
        self.targets = Targets()
        self.gangs: dict[str, Gang] = {}
        self.backend = backend
        self._dirs = dirs
        self._clock = clock
        timeouts = timeouts or Timeouts()
        self.submitters = submitters
        self._launching = Launching(backend, dirs, timeouts, log_bytes=log_bytes, submitters=submitters)
        self._faults = Faults(dirs.path, self.kill_later)
        self._kill_list = KillList(backend, lambda job_id: next_handle(dirs, job_id))
        self._unclear = UnreadableJobs(backend, timeouts)
        # Jobs whose units could not be looked at last: nothing is changed on what is no longer so.
        self._unseen: set[str] = set()
        self._notices = DrainNotices()
        self._log = RunLog()

    @property
    def unsettled(self) -> set[str]:
        """Jobs that do not run as their targets say, or may not."""
        expected = self.targets.keys() - self._unclear.unreadable
        serving = {
            job_id
            for job_id, gang in self.gangs.items()
            if gang.serves(self.targets.get(job_id)) and not (gang.in_doubt or gang.starting)
        }
        behind = {*self._kill_list.jobs, *(expected ^ self.gangs.keys()), *(self.gangs.keys() - serving)}
        return behind - self._kill_list.out_of_sight

    @property
    def running(self) -> set[str]:
        """Jobs of which something runs, with a gang or, where they are being killed, without."""
        return {*self.gangs, *self._kill_list.jobs} - self._kill_list.out_of_sight

    @property
    def alive(self) -> set[str]:
        """Jobs of which something runs, or may, as their files cannot be read."""
        return {*self.running, *self._unclear.jobs, *self._kill_list.out_of_sight}

    def end_attempts(self, job_ids: Iterable[str]) -> None:
        """Ask what runs of these jobs to save and leave, though they may get the same slots at once."""
        for job_id in job_ids:
            if (gang := self.gangs.get(job_id)) is not None:
                with self._faults.of(job_id):
                    self.stop(gang)

    def adopt(self, log: RunLog) -> None:
        """Take over what runs in the directory; the log says what jobs shall hold."""
        self.targets.slot_faults, self._log = log.slot_faults, log
        for handle in self.backend.adopt(log.over):
            self._resume(handle)
        self.targets.clear()
        self.targets.update(
            {job_id: gang.target for job_id, gang in self.gangs.items() if job_id in log.active}
        )
        known = {slot for target in self.targets.values() for slot in target.slots}
        for job_id, target in self._unclear.targets(log).items():
            if job_id in log.active and known.isdisjoint(target.slots):
                self.targets[job_id] = target
        allocations = {job_id: job.allocation for job_id, job in log.active.items()}
        jobs = {job_id: job.job for job_id, job in log.active.items()}
        self.targets.apply(self.targets.changes_to(allocations, jobs, self.nodes))

    def _resume(self, handle: Handle) -> None:
        """Take over an attempt; one with unclear files stays as it is for now."""
        with self._faults.of(handle.job, doing="cannot be taken up"):
            try:
                self._adopt(handle, self._log)
            except (BadInputError, UnreadableError, OSError) as error:
                if isinstance(error, OSError) and not may_pass(error):
                    raise
                self._unclear.add(handle, error, self._clock(), self._log)
            else:
                self._unclear.drop(handle.job)

    def _recheck_unclear(self) -> None:
        """Take over jobs that have become clear, and end those that never will."""
        for handle in self._unclear.due(self._clock()):
            self._resume(handle)
            target, gang = self.targets.get(handle.job), self.gangs.get(handle.job)
            if target and gang and gang.target.allocation.placement == target.allocation.placement:
                others = [other.slots for job_id, other in self.targets.items() if job_id != handle.job]
                if set(gang.target.slots).isdisjoint(chain.from_iterable(others)):
                    self.targets[handle.job] = replace(target, slots=gang.target.slots)
            with self._faults.of(handle.job, tries_again=True):
                self._unclear.end_damaged(handle, self._clock())

    def _adopt(self, handle: Handle, log: RunLog) -> None:
        job, plan = log.jobs.get(handle.job), read_plan(self._dirs.job(handle.job))
        statuses = self.backend.poll([handle])[handle]
        if job is None:
            return
        if plan is None or plan.attempt != handle.attempt or not statuses:  # lost, or never written
            if not job.ended or any(status.state != "exited" for status in statuses):
                self.backend.stop(handle, "kill")
            return
        if all(status.state != "running" for status in statuses) and (
            job.ended or handle.attempt <= job.attempt.over_attempt
        ):
            return
        seen = job.attempt.seen.get(handle.attempt, 0)
        target = assignment_of(plan, job.job)
        hand_out(self._dirs.job(handle.job), plan)
        gang = self.gangs[handle.job] = self._launching.adopt(handle, plan, target, seen)
        if plan.abort:
            self.stop(gang)

    def down_nodes(self) -> dict[str, str] | None:
        """The nodes that are down now, and why. Returns None if it is too soon to look again."""
        now_s = self._clock()
        if 0 <= now_s < self._nodes_due_s:
            return None
        self._nodes_due_s = now_s + NODES_S
        self.nodes = {node.name: node for node in self.backend.nodes()}
        return {node.name: node.reason or "down" for node in self.nodes.values() if not node.up}

    def expect_jobs(self, *, waiting: bool) -> None:
        """Let the backend know whether jobs wait, if nodes come and go by that."""
        if hasattr(self.backend, "jobs_wait"):
            self.backend.jobs_wait = waiting

    @property
    def busy_nodes(self) -> set[str]:
        """Nodes on which something runs, or is to."""
        slots = chain(*(gang.busy for gang in self.gangs.values()), *(t.slots for t in self.targets.values()))
        return {slot.node for slot in slots}

    def change_cluster(self, cluster: Cluster, nodes: Iterable[NodeInfo]) -> None:
        """Go on with these nodes; what runs is left as it is."""
        self.backend.change_cluster(cluster)
        self.nodes = {node.name: node for node in nodes}

    def apply_notices(self, drains: Mapping[str, Drain], now_utc_s: float) -> dict[str, str]:
        """Have what runs on nodes with a notice leave in time.

        Returns the nodes that no job may hold any longer, for :meth:`evict`.
        """
        now_s = self._clock()
        if not self._notices.update(drains, now_utc_s, now_s) and not self._notices.by_node:
            return {}
        late = self._notices.late(now_s)
        for job_id, gang in sorted(self.gangs.items()):
            with self._faults.of(job_id):
                nodes = {slot.node for slot in gang.busy}
                notice = self._notices.of(nodes)
                gang.stages.apply_notice(notice, now_s)
                if notice is not None and now_s >= notice.stop_s:
                    name = min(nodes & late.keys())
                    self.stop(gang, f"node {name} {late[name]}")
                if notice is not None and now_s >= notice.over_s:
                    gang.end_left_over(nodes & late.keys())
        return late

    def tick(self) -> list[Report]:
        """One look and one step; returns what happened."""
        reports = self.look()
        self._reconcile()
        return [*reports, *self._finish_off()]

    def look(self) -> list[Report]:
        """What happened since the last look. Gangs that ended are dropped; nothing is started."""
        reports: list[Report] = []
        self._recheck_unclear()
        self._unseen = {*self.gangs}
        for job_id, gang in sorted(self.gangs.items()):
            if job_id not in self._kill_list.jobs:
                with self._faults.of(job_id, tries_again=True):
                    gang.statuses = self.backend.poll([gang.handle])[gang.handle]
                    self._unseen.discard(job_id)
                    reports += self._look(job_id, gang)
        return reports

    def kill_later(self, job_id: str, reason: str) -> None:
        """End a job's attempt for an error in the work for it; a tick reports its end."""
        self._kill_list.add(job_id, reason)

    def _finish_off(self) -> list[Report]:
        reports: list[Report] = []
        for job_id, attempt, reason in self._kill_list.finish_off(self.gangs, self._clock()):
            is_lost = job_id in self._kill_list.out_of_sight
            if not is_lost:
                self.gangs.pop(job_id, None)
            self.targets.pop(job_id, None)
            reports.append(AttemptEnded(job_id, attempt, Ending("failed", reason, is_final=is_lost)))
        return reports

    def _look(self, job_id: str, gang: Gang) -> Iterable[Report]:
        serves = gang.serves(self.targets.get(job_id))
        for settled, events in groupby(
            gang.reports.new_events(), partial(gang.reports.settles, plan=gang.plan)
        ):
            yield WorkerEvents(job_id, gang.handle.attempt, tuple(events), serves and settled)
        progress = gang.reports.newest()
        if progress is not None and progress.attempt == gang.handle.attempt:
            if said := gang.reports.script_events(progress):
                yield WorkerEvents(job_id, gang.handle.attempt, tuple(said), serves)
            yield NewProgress(job_id, progress, serves and progress.generation == gang.plan.generation)
        if not gang.ended:
            if not self.backend.in_place and any(status.noticed for status in gang.statuses):
                self.stop(gang, "Slurm has announced the end of its job")
            if (next_plan := gang.watch(self._clock())) is not None:
                self._launching.publish(gang, *next_plan)
            yield from self._worker_reports(job_id, gang)
            return
        yield from self._losses(job_id, gang)
        verdict = gang.verdict()
        if verdict.end != "done" and (lost := gang.reports.lost_work()) is not None:
            left, event = lost
            yield WorkerEvents(job_id, gang.handle.attempt, (event,), settled=False)
            yield NewProgress(job_id, left, settled=False)
        del self.gangs[job_id]
        if verdict.end != "stopped":
            self.targets.pop(job_id, None)
        elif verdict.message and (gang.target.job.elastic != "none" or "SIGKILL" in verdict.message):
            # SIGTERM is how a rigid job is meant to end
            _log.warning("job %s: stopped, not cleanly: %s", job_id, verdict.message)
        yield AttemptEnded(job_id, gang.handle.attempt, verdict)

    def _losses(self, job_id: str, gang: Gang) -> Iterable[Report]:
        for slots, reason in gang.losses(self._clock()):
            yield Lost(job_id, gang.handle.attempt, slots, reason)

    def _worker_reports(self, job_id: str, gang: Gang) -> Iterable[Report]:
        """What a gang found out about its slots; its target shrinks to what is left."""
        yield from self._losses(job_id, gang)
        if (failure := gang.failure()) is not None and job_id in self.targets:
            left, taken = self.targets.lose(job_id, failure, gang.target.allocation.cut)
            yield StartFailed(job_id, gang.handle.attempt, failure, left.allocation, taken)
        if (slot_faults := self.targets.slot_faults).slots:
            kept = self.targets[job_id].slots if job_id in self.targets else ()
            proven = sorted(slot for slot in gang.proven() if slot in kept and slot_faults.deaths_on(slot))
            if proven:
                yield Proven(job_id, tuple(proven))

    def _reconcile(self) -> None:
        changing = [
            (job_id, gang)
            for job_id, gang in sorted(self.gangs.items())
            if not gang.stopping and not gang.serves(self.targets.get(job_id)) and job_id not in self._unseen
        ]
        awaited = sorted(self.targets.keys() - self.alive)
        if not (changing or awaited):
            return
        asked = {*awaited, *(job_id for job_id, _ in changing)} & self.targets.keys()
        use = self._slot_use(slot for job_id in asked for slot in self.targets[job_id].slots)
        for job_id, gang in changing:
            with self._faults.of(job_id):
                if job_id not in self._kill_list.jobs:
                    self.switch(gang, self.targets.get(job_id), use)
        self._launch(awaited, use)

    def _launch(self, awaited: Iterable[str], use: SlotUse) -> None:
        """Start the jobs whose slots are free, as many as one tick has time for."""
        until_s = self._clock() + STARTING_S
        for job_id in awaited:
            if self._clock() > until_s:
                return
            target = self.targets[job_id]
            if not use.taken_from(job_id, target.slots):
                use.add(job_id, target.slots)
                with self._faults.of(job_id, doing="cannot be started"):
                    gang = self.gangs[job_id] = self._launching.prepare(job_id, target, self.nodes)
                    self._start(gang)

    def _start(self, gang: Gang) -> None:
        job_id = gang.handle.job
        try:
            self._launching.start(gang, self.nodes)
        except UnreadableError as error:  # not to be tried again beside what may run
            self.kill_later(job_id, f"cannot be started: {error}")
            return
        with self._faults.of(job_id, tries_again=True):
            gang.statuses = self.backend.poll([gang.handle])[gang.handle]

    def _slot_use(self, asked: Iterable[Slot]) -> SlotUse:
        """Which jobs run, or may run, on these slots."""
        use = SlotUse(asked, companions(self.targets) if self.backend.shares_slots else {})
        for job_id, gang in self.gangs.items():
            busy: Collection[Slot] = gang.target.slots
            with self._faults.of(job_id):
                busy = gang.busy
            use.add(job_id, busy)
        for job_id in self._unclear.jobs:
            use.add(job_id, self._unclear.busy(job_id, self.nodes))
        return use

    def switch(self, gang: Gang, target: Assignment | None, use: SlotUse) -> None:
        """Take a running gang to another target, or to none. No other place does that.

        If it cannot be done in place, the gang saves a checkpoint and leaves; then a new attempt starts from
        there.
        """
        if target is None:
            self.stop(gang)
            return
        job_id = gang.handle.job
        others = use.taken_from(job_id, target.slots)
        (trains, reports), busy = gang.training(), others | gang.leaving
        in_place = self.backend.in_place
        way = way_to(target, gang.plan, trains, busy, reports=reports, in_place=in_place)
        if isinstance(way, Relaunch):
            level = logging.INFO if target.job.resize == "relaunch" else logging.WARNING
            _log.log(level, "job %s is launched again: %s", job_id, way.reason)
            self.stop(gang, way.reason)
        elif isinstance(way, InPlace):
            self._launching.rescale(gang, target, way, self.nodes)
            use.add(job_id, gang.busy)

    def stop(self, gang: Gang, reason: str = "") -> None:
        """Ask a gang to save and leave; ``reason`` says why it is launched again, if it is."""
        if gang.stopping:
            return
        if (plan := gang.plan_to_stop(reason)) is not None:
            self._launching.publish(gang, plan)
        gang.stop(self._clock())

    def release(self, log: RunLog) -> None:
        """Give back the nodes on which nothing runs; a failure is only warned of."""
        try:
            self.backend.release(log.over)
        except ServiceMissingError as error:
            _log.warning("nodes are not given back: %s", error)

    def kill_all(self) -> None:
        """End all gangs without checkpoints. The plan says that they were to stop: that is no failure."""
        for gang in self.gangs.values():
            with self._faults.of(gang.handle.job):
                self.stop(gang)
            with self._faults.of(gang.handle.job):
                gang.stages.enter("kill", self._clock())


class KillList:
    """Jobs whose attempts are to end, and why.

    :param next_handle: the attempt after the newest one of a job.
    """

    def __init__(self, backend: Backend, next_handle: Callable[[str], Handle]) -> None:
        self._backend = backend
        self._next_handle = next_handle
        self._reasons: dict[str, str] = {}
        # By job, since when it could be neither stopped nor looked at.
        self._unseen_s: dict[str, float] = {}
        # Jobs of which that has been so for `UNSEEN_S`: they have failed, and are not waited for.
        # What may run of them keeps its slots until it is known to be gone.
        self.out_of_sight = set[str]()

    @property
    def jobs(self) -> Set[str]:
        return self._reasons.keys()

    def add(self, job_id: str, reason: str) -> None:
        self._reasons.setdefault(job_id, reason)

    def finish_off(self, gangs: Mapping[str, Gang], now_s: float = 0.0) -> Iterator[tuple[str, int, str]]:
        """Kill them; yields (job, attempt, reason) of each of which nothing is left, or which is out of
        sight from now on.
        """
        for job_id, reason in sorted(self._reasons.items()):
            handle = gangs[job_id].handle if job_id in gangs else self._newest(job_id)
            left = None if handle is None else self._outlives_a_kill(handle)
            since_s = self._unseen_s.setdefault(job_id, now_s)
            if left != "unknown":
                del self._unseen_s[job_id]
            if left is None:
                del self._reasons[job_id]
                self.out_of_sight.discard(job_id)
            elif job_id in self.out_of_sight or left != "unknown" or now_s - since_s < UNSEEN_S:
                continue
            else:
                self.out_of_sight.add(job_id)
                _log.warning("job %s: %s: its slots stay in use", job_id, _UNSEEN)
            why = f"{reason}; {_UNSEEN}" if job_id in self.out_of_sight else reason
            yield job_id, 0 if handle is None else handle.attempt, why

    def _outlives_a_kill(self, handle: Handle) -> Literal["runs", "unknown"] | None:
        """Whether processes are left, or may be; None if not, or if that can never be found out."""
        try:
            self._backend.stop(handle, "kill")
            statuses = self._backend.poll([handle])[handle]
        except UnreadableError:  # started again beside what may run, it would train twice in one folder
            return "unknown"
        except Exception as error:  # noqa: BLE001 - it is ended for an error already
            return "unknown" if may_pass(error) else None
        return "runs" if any(status.state == "running" for status in statuses) else None

    def _newest(self, job_id: str) -> Handle | None:
        """The newest attempt that has a folder, of a job that no gang is known of."""
        with contextlib.suppress(Exception):
            following = self._next_handle(job_id)
            if following.attempt > 1:
                return Handle.of(following.job_files, following.attempt - 1)
        return None


@dataclass(slots=True)
class _Case:
    handle: Handle
    plans: Sequence[Plan]
    """Those of the attempt that can be read."""
    nodes: Collection[str]
    """Nodes of the job by the log."""
    look_s: float
    reason: str = ""
    damaged: bool = False
    kill_s: float = float("inf")


class UnreadableJobs:
    """Jobs whose files do not tell whether they run."""

    def __init__(self, backend: Backend, timeouts: Timeouts) -> None:
        self._backend, self._timeouts = backend, timeouts
        self._cases: dict[str, _Case] = {}

    @property
    def jobs(self) -> Set[str]:
        return self._cases.keys()

    @property
    def unreadable(self) -> Set[str]:
        """The jobs that are left as they are; the others are being ended."""
        return {job_id for job_id, case in self._cases.items() if not case.damaged}

    def targets(self, log: RunLog) -> dict[str, Assignment]:
        """Where the jobs were by the newest plans that can be read."""
        return {
            job_id: assignment_of(case.plans[-1], log.jobs[job_id].job)
            for job_id, case in self._cases.items()
            if case.plans and job_id in log.jobs
        }

    def busy(self, job_id: str, nodes: Mapping[str, NodeInfo]) -> Iterable[Slot]:
        """Slots that a job may run on: all that its plans name, or all of its nodes if none can be read."""
        case = self._cases[job_id]
        if case.plans:
            return {Slot.parse(member.slot) for plan in case.plans for member in plan.members}
        return [
            Slot(name, index) for name in case.nodes if name in nodes for index in range(nodes[name].gpus)
        ]

    def add(self, handle: Handle, error: Exception, now_s: float, log: RunLog) -> None:
        """Leave a job as it is, with one warning for each reason."""
        case, reason = self._cases.get(handle.job), str(error).partition("\n")[0]
        if case is None:
            job = log.jobs.get(handle.job)
            nodes = () if job is None else dict(job.placement)
            case = self._cases[handle.job] = _Case(handle, copies(handle.files), nodes, now_s)
        if reason != case.reason:
            _log.warning("job %s is left as it is: %s", handle.job, reason)
        case.reason, case.damaged, case.look_s = (
            reason,
            isinstance(error, DamagedError),
            now_s + RETRY_INTERVAL_S,
        )

    def drop(self, job_id: str) -> None:
        self._cases.pop(job_id, None)

    def due(self, now_s: float) -> list[Handle]:
        return [case.handle for _, case in sorted(self._cases.items()) if now_s >= case.look_s]

    def end_damaged(self, handle: Handle, now_s: float) -> None:
        """End what may run of a job that will never become clear; drop it once nothing is left."""
        case = self._cases.get(handle.job)
        if case is None or not case.damaged:
            return
        if all(status.state != "running" for status in self._backend.poll([handle])[handle]):
            self._backend.stop(handle, "kill")
            self.drop(handle.job)
        elif case.kill_s == float("inf"):
            case.kill_s = now_s + self._timeouts.term_s
            self._backend.stop(handle, "term")
        elif now_s >= case.kill_s:
            self._backend.stop(handle, "kill")
