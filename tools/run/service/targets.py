"""What each job shall run on, from the decision that gave it until the gangs have got there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace

from pliant.schemas.job import Job
from pliant.schemas.schedule import Allocation, Cut
from pliant.tools.run.backends.protocol import NodeInfo
from pliant.tools.run.service.allocation import (
    Assignment,
    Slot,
    by_node,
    changed_slots,
    companions,
)
from pliant.tools.run.service.members import WorkerFailure
from pliant.tools.run.service.reports import Displaced, Idled, MovedOff
from pliant.tools.run.statedir.slot_faults import SlotFaults


class Targets(dict[str, Assignment]):
    """Assignments by job id; jobs that shall hold nothing are absent."""

    def __init__(self) -> None:
        super().__init__()
        # The log's evidence against slots: of free ones those with the least are taken.
        self.slot_faults = SlotFaults()

    @property
    def allocations(self) -> dict[str, Allocation]:
        """What each job shall hold."""
        by_job, company = dict[str, Allocation](), companions(self)
        for job_id, target in self.items():
            held, other = target.allocation, company.get(job_id)
            by_job[job_id] = held if held.beside == other else held.model_copy(update={"beside": other})
        return by_job

    def changes_to(
        self, allocations: Mapping[str, Allocation], jobs: Mapping[str, Job], nodes: Mapping[str, NodeInfo]
    ) -> dict[str, Assignment | None]:
        """The changes for :meth:`apply` to these allocations.

        :param jobs: those that hold nothing, at least.
        :raises InfeasibleError: the nodes have too few slots.
        """
        node_gpus = {node.name: node.gpus for node in nodes.values()}
        return changed_slots(self, allocations, jobs, node_gpus, self.slot_faults.deaths_on)

    def apply(self, changes: Mapping[str, Assignment | None]) -> None:
        """Make the outcome of changes the targets."""
        for job_id, after in changes.items():
            if after is None:
                del self[job_id]
            else:
                self[job_id] = after

    def update_specs(self, jobs: Iterable[Job]) -> None:
        """These jobs were updated, and go on as they run."""
        for job in jobs:
            if (target := self.get(job.id)) is not None:
                self[job.id] = replace(target, job=job)

    # Jobs lose slots.

    def lose(self, job_id: str, failure: WorkerFailure, cut: Cut) -> tuple[Assignment, Set[Slot]]:
        """A job goes on without slots, or not at all if it cannot train on the rest.

        Returns what is left, and those of the lost slots that other jobs shall have.
        """
        left = failure.without(self[job_id], cut, shared=job_id in companions(self))
        if left.job.can_train_on(left.allocation.gpus):
            self[job_id] = left
        else:
            del self[job_id]
        others = {slot for name, other in self.items() if name != job_id for slot in other.slots}
        return left, others.intersection(failure.slots)

    def evict(self, nodes: Mapping[str, str]) -> Iterator[Displaced]:
        """Take all jobs off these nodes. Of two jobs that share slots the first gives up all.

        :param nodes: what is the matter with each, as the end of a sentence.
        """
        for job_id, target in sorted(self.items()):
            gone = tuple(slot for slot in target.slots if slot.node in nodes)
            if gone:
                reason = "; ".join(f"node {name} {nodes[name]}" for name in by_node(gone))
                left, _ = self.lose(job_id, WorkerFailure(gone, reason), target.allocation.cut)
                yield Displaced(job_id, reason, left.allocation)

    def shrink_idle(self, job_id: str, reason: str, wait_s: float) -> Idled | None:
        """Let an elastic job keep its smallest size. Returns None if it has that, or does not shrink."""
        target = self.get(job_id)
        if target is None or job_id in companions(self) or target.job.elastic == "none":
            return None
        slots = target.slots[: target.job.min_gpus]
        if len(slots) == len(target.slots) or not target.job.can_train_on(len(slots)):
            return None
        left = self[job_id] = Assignment.of(target.job, slots, target.allocation.cut)
        return Idled(job_id, reason, left.allocation, wait_s)

    def move_off(self, job_id: str, slow: str, slots: Iterable[Slot], reason: str) -> MovedOff | None:
        """Let an elastic job leave a slot for another one, in place.

        :param slots: those that it may have, the best first, whether or not they are taken.
        :returns: None if the job cannot change its slots while it trains, or there is no other slot.
        """
        target, old = self.get(job_id), Slot.parse(slow)
        if target is None or old not in target.slots or job_id in companions(self):
            return None
        if target.job.elastic == "none" or target.job.resize == "relaunch":
            return None
        taken = {slot for each in self.values() for slot in each.slots}
        new = next(
            (slot for slot in slots if slot not in taken and not self.slot_faults.deaths_on(slot)), None
        )
        if new is None or len(target.slots) == 1:
            return None
        kept = (*(slot for slot in target.slots if slot != old), new)
        moved = self[job_id] = Assignment.of(target.job, kept, target.allocation.cut)
        return MovedOff(job_id, slow, f"{reason}; it goes on on {new}", moved.allocation)
