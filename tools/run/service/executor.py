"""Makes what runs equal to what shall run, job by job, without ever waiting.

``apply`` says what shall run; every ``tick`` looks at what runs, reports what ended and what the workers
said, and takes the next step towards the targets. It is driven by levels, not by edges: whatever it is
interrupted in, the next tick (of this process or of another that adopted the gangs) goes on from what it
finds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.file_io.files import make_folder
from pliant.tools.run.backends.addresses import port_to_meet_at
from pliant.tools.run.backends.protocol import Backend, Handle, NodeInfo, Unit
from pliant.tools.run.service.allocation.change_steps import Step, Target, plan_steps
from pliant.tools.run.service.allocation.how_to_rescale import InPlace, Relaunch, way_to
from pliant.tools.run.service.allocation.slots import Slot, by_node
from pliant.tools.run.service.attempt.commands import meets_at_port, units
from pliant.tools.run.service.attempt.gang import Gang, NextPlan
from pliant.tools.run.service.attempt.how_it_ended import Verdict
from pliant.tools.run.service.attempt.lost_workers import Setback
from pliant.tools.run.service.attempt.plan_file import (
    last_generation,
    make_member,
    make_plan,
    read_plan,
    target_of,
    write_plan,
)
from pliant.tools.run.service.attempt.timeouts import Timeouts
from pliant.tools.run.service.faulty_jobs import Condemned, UnclearJobs
from pliant.tools.run.service.reports import Displaced, Ended, Hindered, Progressed, Proven, Report, Said
from pliant.tools.run.service.runnable import check_startable
from pliant.tools.run.statedir.contract.files import DamagedError, UnreadableError
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.fault import Faults, may_pass
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.suspects import Suspects
from pliant.tools.run.statedir.private import check_job
from pliant.tools.run.statedir.share import Share

STARTING_S: Final = 0.5
"""One tick starts jobs for this long, in which it does not look at what runs; the next one goes on."""
NODES_S: Final = 2.0
"""Between two looks at the nodes."""
_log = logging.getLogger("pliant")


class Executor:
    """The gangs of one state directory.

    An error in the work for one job ends its attempt (see ``fault.py``): what is left of it is killed, and
    then it has failed with that reason. The others go on.

    :param clock: a clock that cannot be set: deadlines are measured with it.
    :param log_bytes: most bytes of each output file of a worker that stay on disk; None: the default.
    """

    def __init__(
        self,
        backend: Backend,
        dirs: StateDir,
        clock: Callable[[], float],
        timeouts: Timeouts | None = None,
        *,
        log_bytes: int | None = None,
    ) -> None:
        self.nodes: Mapping[str, NodeInfo] = {node.name: node for node in backend.nodes()}
        self._nodes_due_s = clock()
        self.targets: dict[str, Target] = {}
        self.gangs: dict[str, Gang] = {}
        self.suspects = Suspects()
        """The log's evidence against slots: of free ones those with the least are taken."""
        self._backend = backend
        self._dirs = dirs
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._log_bytes = log_bytes
        self._faults = Faults(dirs.path, self.condemn)
        self._condemned = Condemned(backend, lambda job_id: next_handle(dirs, job_id))
        self._unclear = UnclearJobs(backend, self._timeouts)
        self._log = RunLog()

    @property
    def unsettled(self) -> set[str]:
        """Jobs that something else runs of than the targets say, or may do so."""
        wanted = self.targets.keys() - self._unclear.unreadable
        serving = {
            job_id
            for job_id, gang in self.gangs.items()
            if gang.serves(self.targets.get(job_id)) and not (gang.in_doubt or gang.starting)
        }
        return {*self._condemned.jobs, *(wanted ^ self.gangs.keys()), *(self.gangs.keys() - serving)}

    def released(self, ended: Iterable[str]) -> list[str]:
        """Those of the jobs that have ended of which nothing runs any more."""
        busy = (self.gangs, self._condemned.jobs, self._unclear.jobs)
        return [job_id for job_id in ended if not any(job_id in jobs for jobs in busy)]

    @property
    def held(self) -> dict[str, Share]:
        """What each job shall hold; two jobs with the same slots are beside each other."""
        first: dict[Slot, str] = {}
        shares = {job_id: target.share for job_id, target in self.targets.items()}
        for job_id, target in self.targets.items():
            other = first.setdefault(min(target.slots), job_id)
            if other != job_id:
                shares[job_id] = replace(shares[job_id], beside=other)
                shares[other] = replace(shares[other], beside=job_id)
        return shares

    def steps_to(self, wanted: Mapping[str, Share], log: RunLog) -> list[Step]:
        """What :meth:`apply` needs for the shares to run."""
        started = {job_id for job_id, job in log.active.items() if job.started_s is not None}
        node_gpus = {node.name: node.gpus for node in self.nodes.values()}
        return plan_steps(self.targets, wanted, node_gpus, started, self.suspects.deaths_on)

    def shown(self, handle: Handle, commands: Sequence[Unit]) -> Sequence[str]:
        """What would be run to start units, in lines for people."""
        return self._backend.shown(handle, commands)

    def apply(self, steps: Iterable[Step]) -> None:
        """Make the outcome of the steps the target; the next ticks get there."""
        for step in steps:
            if step.after is None:
                del self.targets[step.job_id]
            else:
                self.targets[step.job_id] = step.after

    def adopt(self, log: RunLog) -> None:
        """Take over whatever runs in the directory; the targets are what the log says jobs shall hold."""
        self.suspects, self._log = log.suspects, log
        for handle in self._backend.adopt(log.over):
            self._take_up(handle)
        self.targets = {job_id: gang.target for job_id, gang in self.gangs.items() if job_id in log.active}
        shares = {job_id: job.share for job_id, job in log.active.items()}
        self.apply(self.steps_to(shares, log))

    def _take_up(self, handle: Handle) -> None:
        """Take over an attempt; one with unclear files is left as it is for now."""
        with self._faults.of(handle.job, doing="cannot be taken up"):
            try:
                self._adopt(handle, self._log)
            except (BadInputError, UnreadableError, OSError) as error:
                if isinstance(error, OSError) and not may_pass(error):
                    raise
                self._unclear.add(handle, error, self._clock())
            else:
                self._unclear.drop(handle.job)

    def _look_at_unclear(self) -> None:
        """Take over what has become clear, and end what never will."""
        for handle in self._unclear.due(self._clock()):
            self._take_up(handle)
            target, gang = self.targets.get(handle.job), self.gangs.get(handle.job)
            if target and gang and gang.target.share.placement == target.share.placement:
                self.targets[handle.job] = replace(target, slots=gang.target.slots)
            with self._faults.of(handle.job, tries_again=True):
                self._unclear.end_damaged(handle, self._clock())

    def _adopt(self, handle: Handle, log: RunLog) -> None:
        job, plan = log.jobs.get(handle.job), read_plan(self._dirs.job(handle.job))
        statuses = self._backend.poll([handle])[handle]
        if job is None:
            return
        if plan is None or plan.attempt != handle.attempt or not statuses:  # lost, or never written
            if not job.ended or any(status.state != "exited" for status in statuses):
                self._backend.stop(handle, "kill")
            return
        if all(status.state != "running" for status in statuses) and (
            job.ended or handle.attempt <= job.over_attempt
        ):
            return
        seen = job.seen.get(handle.attempt, 0)
        target = target_of(plan, job.share)
        gang = self._gang(handle, plan, target, seen=seen)
        if plan.abort:
            self.stop(gang)

    def down_nodes(self) -> dict[str, str] | None:
        """The nodes that are down now, and why; None: not looked at again so soon."""
        now_s = self._clock()
        if 0 <= now_s < self._nodes_due_s:
            return None
        self._nodes_due_s = now_s + NODES_S
        self.nodes = {node.name: node for node in self._backend.nodes()}
        return {node.name: node.reason or "down" for node in self.nodes.values() if not node.up}

    def leave(self, down: Mapping[str, str]) -> Iterator[Report]:
        """Take all jobs off nodes that are down: they go on with what they have left, or not at all.

        Of two that share slots the first gives up all of them.
        """
        for job_id, target in sorted(self.targets.items()):
            gone = tuple(slot for slot in target.slots if slot.node in down)
            if not gone:
                continue
            reason = "; ".join(f"node {name} is down: {down[name]}" for name in by_node(gone))
            shared = self._company(job_id, target) is not None
            left = Setback(gone, reason).without(target, target.cut, shared=shared)
            if left.share.gpus < left.job.min_gpus:
                del self.targets[job_id]
            else:
                self.targets[job_id] = left
            yield Displaced(job_id, reason, left.share)

    def tick(self) -> list[Report]:
        """One look and one step; returns what happened, in order of the job ids."""
        reports = self.look()
        self._reconcile()
        return [*reports, *self._finish_off()]

    def look(self) -> list[Report]:
        """What happened since the last look. Gangs that ended are dropped, and nothing is started."""
        reports: list[Report] = []
        self._look_at_unclear()
        for job_id, gang in sorted(self.gangs.items()):
            if job_id not in self._condemned.jobs:
                with self._faults.of(job_id, tries_again=True):
                    gang.statuses = self._backend.poll([gang.handle])[gang.handle]
                    reports += self._look(job_id, gang)
        return reports

    def condemn(self, job_id: str, reason: str) -> None:
        """End a job's attempt for an error in the work for it; a tick reports its end."""
        self._condemned.add(job_id, reason)

    def _finish_off(self) -> list[Report]:
        """Kill what is condemned, and report the end of that which nothing is left of."""
        ended = [*self._condemned.finish_off(self.gangs)]
        for job_id, _, _ in ended:
            self.gangs.pop(job_id, None)
            self.targets.pop(job_id, None)
        return [Ended(job_id, attempt, Verdict("failed", reason)) for job_id, attempt, reason in ended]

    def _look(self, job_id: str, gang: Gang) -> Iterable[Report]:
        serves = gang.serves(self.targets.get(job_id))
        for settled, events in groupby(gang.tail.read(), gang.settles):
            yield Said(job_id, gang.handle.attempt, tuple(events), serves and settled)
        progress = gang.progress.fresh()
        if progress is not None and progress.attempt == gang.handle.attempt:
            yield Progressed(job_id, progress, serves and progress.generation == gang.plan.generation)
        if not gang.ended:
            if (found := gang.watch(self._clock())) is not None:
                self._publish(gang, found)
            yield from self._hear(job_id, gang)
            return
        verdict = gang.verdict()
        del self.gangs[job_id]
        if verdict.end != "stopped":
            self.targets.pop(job_id, None)
        elif verdict.message:
            _log.warning("job %s: stopped, not cleanly: %s", job_id, verdict.message)
        yield Ended(job_id, gang.handle.attempt, verdict)

    def _hear(self, job_id: str, gang: Gang) -> Iterable[Report]:
        """What a gang found out about its slots; its target is what is left of it."""
        target = self.targets.get(job_id)
        if (setback := gang.setback()) is not None and target is not None:
            shared = self._company(job_id, target) is not None
            after = self.targets[job_id] = setback.without(target, gang.target.cut, shared=shared)
            if after.share.gpus < after.job.min_gpus:
                del self.targets[job_id]
            held = {slot for name, other in self.targets.items() if name != job_id for slot in other.slots}
            yield Hindered(
                job_id, gang.handle.attempt, setback, after.share, held.intersection(setback.slots)
            )
        if self.suspects.slots:
            proven = sorted(slot for slot in gang.proven() if self.suspects.deaths_on(slot))
            if proven:
                yield Proven(job_id, tuple(proven))

    def _reconcile(self) -> None:
        for job_id, gang in sorted(self.gangs.items()):
            with self._faults.of(job_id):
                target = self.targets.get(job_id)
                if job_id not in self._condemned.jobs and not gang.stopping and not gang.serves(target):
                    self.switch(gang, target)
        taken = {*self.gangs, *self._condemned.jobs, *self._unclear.jobs}
        awaited = sorted(self.targets.keys() - taken)
        busy = self._busy() if awaited else set()
        until_s = self._clock() + STARTING_S
        for job_id in awaited:
            if self._clock() > until_s:
                return
            target = self.targets[job_id]
            if busy.isdisjoint(target.slots) or self._may_join(job_id, target):
                busy.update(target.slots)
                with self._faults.of(job_id, doing="cannot be started"):
                    self._launch(job_id, target)

    def _may_join(self, job_id: str, target: Target) -> bool:
        """Whether nothing is on its slots but the job that it is to share them with."""
        other = self._company(job_id, target) if self._backend.shares_slots else None
        return other is not None and self._busy(but=(job_id, other)).isdisjoint(target.slots)

    def _company(self, job_id: str, target: Target) -> str | None:
        """The job that shall have the same slots; None: it shall have them alone."""
        wanted = set(target.slots)
        same = (name for name, each in self.targets.items() if name != job_id and wanted == set(each.slots))
        return next(same, None)

    def _busy(self, but: Collection[str] = ()) -> set[Slot]:
        """Slots that something runs on, or may run on; jobs to leave out of it."""
        busy: set[Slot] = set()
        for job_id, gang in self.gangs.items():
            if job_id in but:
                continue
            busy.update(gang.target.slots)
            with self._faults.of(job_id):
                busy.update(gang.busy)
        for job_id in self._unclear.jobs & self.targets.keys():
            busy.update(self.targets[job_id].slots)
        return busy

    def switch(self, gang: Gang, target: Target | None) -> None:
        """Take a running gang to another target, or to none. The one place where that is done.

        In place where that can be; else the gang saves a checkpoint and leaves, and once its processes are
        gone, a new attempt starts from it.
        """
        if target is None:
            self.stop(gang)
            return
        besides = (gang, self.gangs.get(self._company(gang.handle.job, target) or ""))
        others = {slot for one in self.gangs.values() if one not in besides for slot in one.busy}
        way = way_to(target, gang.crew(), others | gang.leaving, in_place=self._backend.in_place)
        if isinstance(way, Relaunch):
            _log.warning("job %s is launched again: %s", gang.handle.job, way.reason)
            self.stop(gang, way.reason)
        elif isinstance(way, InPlace):
            self._rescale(gang, target, way)

    def stop(self, gang: Gang, reason: str = "") -> None:
        """Ask a gang to save and leave; ``reason``: why it is launched again, where it will be."""
        if gang.stopping:
            return
        if (plan := gang.plan_to_stop(reason)) is not None:
            self._publish(gang, plan)
        gang.stop(self._clock())

    def _publish(self, gang: Gang, change: NextPlan) -> None:
        """Put a newer plan before the workers of an attempt. Where it cannot be written, none is in force."""
        write_plan(self._dirs.job(gang.handle.job), change.plan)
        gang.take_up(change)

    def _rescale(self, gang: Gang, target: Target, way: InPlace) -> None:
        """Publish the plan first: workers that are not in it would leave as soon as they start."""
        first = len(gang.statuses)
        joining = [
            make_member(slot, self.nodes[slot.node], worker) for worker, slot in enumerate(way.joining, first)
        ]
        slots = tuple(Slot.parse(member.slot) for member in (*way.members, *joining))
        self._publish(gang, gang.plan_for(Target(target.share, slots), way.members, joining))
        if joining:
            added = Target(target.share, way.joining)
            try:
                commands = self._commands(added, gang.handle, first=first)
                self._backend.start(gang.handle, commands)
            except OSError as error:
                reason = f"new workers cannot be started: {error.strerror or error}"
                self._publish(gang, gang.plan_without(way.members, Setback(way.joining, reason)))
            gang.statuses = self._backend.poll([gang.handle])[gang.handle]

    def _launch(self, job_id: str, target: Target) -> None:
        check_startable(target.job)
        check_job(self._dirs, job_id)
        job_dir = self._dirs.job(job_id)
        try:
            before = read_plan(job_dir)
        except DamagedError:  # nothing runs under it, and its number is known
            before = None
        handle = next_handle(self._dirs, job_id)
        make_folder(handle.folder, exist_ok=False, mode=0o700)
        generation = max(last_generation(job_dir), before.generation if before else 0) + 1
        reason = before.reason if before is not None and before.abort else ""
        plan = make_plan(target, generation, handle.attempt, self.nodes, reason)
        write_plan(job_dir, plan)
        first = self.nodes[target.slots[0].node]
        port = port_to_meet_at(first.address) if meets_at_port(target) else 0
        commands = self._commands(target, handle, port=port)
        self._backend.start(handle, commands)
        self._gang(handle, plan, target)

    def _commands(self, target: Target, handle: Handle, *, first: int = 0, port: int = 0) -> list[Unit]:
        job, files, most = handle.job_files.path, handle.files, self._log_bytes
        return units(target, job, files, self.nodes, port, first=first, log_bytes=most)

    def _gang(self, handle: Handle, plan: Plan, target: Target, seen: int = 0) -> Gang:
        gang = Gang(handle, plan, target, self._backend, timeouts=self._timeouts, seen=seen)
        gang.statuses = self._backend.poll([handle])[handle]
        self.gangs[handle.job] = gang
        return gang

    @property
    def shares_slots(self) -> bool:
        """Whether its backend lets two jobs run on one slot."""
        return self._backend.shares_slots

    @property
    def held_nodes(self) -> int:
        """Nodes that this directory keeps from others."""
        return self._backend.held_nodes

    def release(self, log: RunLog) -> None:
        """Give back the nodes on which nothing runs; where that fails, somebody else has to."""
        try:
            self._backend.release(log.over)
        except ServiceMissingError as error:
            _log.warning("nodes are not given back: %s", error)

    def kill_all(self) -> None:
        """End every gang at once, checkpoints or not."""
        for gang in self.gangs.values():
            with self._faults.of(gang.handle.job):
                gang.kill(self._clock())


def next_handle(dirs: StateDir, job_id: str) -> Handle:
    """The attempt after the newest one that has a folder."""
    number = dirs.job(job_id).newest_attempt() + 1
    return Handle(job_id, number, dirs.job(job_id).attempt(number).path)
