"""Starts attempts, and workers that join one: first their plan is on disk, then their processes start."""

from __future__ import annotations

from collections.abc import Mapping

from pliant.schemas.file_io.files import make_folder
from pliant.tools.run.backends.addresses import port_to_meet_at
from pliant.tools.run.backends.protocol import Backend, Handle, NodeInfo, Unit
from pliant.tools.run.service.allocation.change_steps import Target
from pliant.tools.run.service.allocation.how_to_rescale import InPlace
from pliant.tools.run.service.allocation.slots import Slot
from pliant.tools.run.service.attempt.commands import meets_at_port, units
from pliant.tools.run.service.attempt.gang import Gang, NextPlan
from pliant.tools.run.service.attempt.lost_workers import Setback
from pliant.tools.run.service.attempt.plan_file import (
    last_generation,
    make_member,
    make_plan,
    read_plan,
    write_plan,
)
from pliant.tools.run.service.attempt.timeouts import Timeouts
from pliant.tools.run.service.runnable import check_startable
from pliant.tools.run.statedir.contract.files import DamagedError
from pliant.tools.run.statedir.contract.plan import Plan
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.private import check_job

Nodes = Mapping[str, NodeInfo]
"""By name."""


class Launching:
    """What one state directory needs to start something on its backend.

    :param log_bytes: most bytes of each output file of a worker that stay on disk; None: the default.
    """

    def __init__(
        self, backend: Backend, dirs: StateDir, timeouts: Timeouts, *, log_bytes: int | None = None
    ) -> None:
        self._backend = backend
        self._dirs = dirs
        self._timeouts = timeouts
        self._log_bytes = log_bytes

    def launch(self, job_id: str, target: Target, nodes: Nodes) -> Gang:
        """Start the next attempt of a job.

        :raises BadInputError: the job cannot be started here and now.
        :raises OSError: its processes cannot be started.
        """
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
        plan = make_plan(target, generation, handle.attempt, nodes, reason)
        write_plan(job_dir, plan)
        first = nodes[target.slots[0].node]
        port = port_to_meet_at(first.address) if meets_at_port(target) else 0
        self._backend.start(handle, self._commands(target, handle, nodes, port=port))
        return self.gang(handle, plan, target)

    def gang(self, handle: Handle, plan: Plan, target: Target, seen: int = 0) -> Gang:
        """The gang of an attempt that was started.

        :param seen: how many of its workers' events were read before.
        """
        gang = Gang(handle, plan, target, self._backend, timeouts=self._timeouts, seen=seen)
        gang.statuses = self._backend.poll([handle])[handle]
        return gang

    def publish(self, gang: Gang, change: NextPlan) -> None:
        """Put a newer plan before the workers of an attempt. Where it cannot be written, none is in force."""
        write_plan(self._dirs.job(gang.handle.job), change.plan)
        gang.take_up(change)

    def rescale(self, gang: Gang, target: Target, way: InPlace, nodes: Nodes) -> None:
        """Change the workers of an attempt while it trains.

        The plan comes first: workers that are not in it would leave as soon as they start.
        """
        first = len(gang.statuses)
        joining = [
            make_member(slot, nodes[slot.node], worker) for worker, slot in enumerate(way.joining, first)
        ]
        slots = tuple(Slot.parse(member.slot) for member in (*way.members, *joining))
        self.publish(gang, gang.plan_for(Target(target.share, slots), way.members, joining))
        if not joining:
            return
        added = Target(target.share, way.joining)
        try:
            self._backend.start(gang.handle, self._commands(added, gang.handle, nodes, first=first))
        except OSError as error:
            reason = f"new workers cannot be started: {error.strerror or error}"
            self.publish(gang, gang.plan_without(way.members, Setback(way.joining, reason)))
        gang.statuses = self._backend.poll([gang.handle])[gang.handle]

    def _commands(
        self, target: Target, handle: Handle, nodes: Nodes, *, first: int = 0, port: int = 0
    ) -> list[Unit]:
        job, files, most = handle.job_files.path, handle.files, self._log_bytes
        return units(target, job, files, nodes, port, first=first, log_bytes=most)


def next_handle(dirs: StateDir, job_id: str) -> Handle:
    """The attempt after the newest one that has a folder."""
    number = dirs.job(job_id).newest_attempt() + 1
    return Handle(job_id, number, dirs.job(job_id).attempt(number).path)
