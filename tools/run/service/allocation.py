"""From what a schedule gives jobs to slots, and to the changes that lead there: pure functions.

A schedule gives counts of GPUs by node, an :class:`~pliant.schemas.schedule.Allocation` a job. Here they
become concrete slots (:class:`Assignment`), of which a job keeps those that it has. :func:`changed_slots`
compares what jobs hold with what they shall hold: stops come first, then resizes, then starts; within each
kind by job id.

:func:`way_to` says how a running gang gets to other slots. In place: a plan names the workers that stay, and
    new ones for the added slots, which get ready while training goes on. Otherwise the gang saves a
    checkpoint, leaves, and is launched again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pliant.schemas.cluster import MOST_OF_NODE
from pliant.schemas.errors import InfeasibleError
from pliant.schemas.job import Job
from pliant.schemas.schedule import Allocation, Cut, Schedule
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Member, Plan
from pliant.tools.run.statedir.log.fold import RunLog, allocation_of
from pliant.tools.schedule.jobs import NodeGpus, gpus_of


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One GPU or CPU slot; written ``node/index``."""

    node: str
    index: int

    def __str__(self) -> str:
        return f"{self.node}/{self.index}"

    @classmethod
    def parse(cls, text: str) -> Slot:
        node, _, index = text.rpartition("/")
        return cls(node, int(index))


@dataclass(frozen=True, slots=True)
class Assignment:
    """An allocation on concrete slots, survivors first: what shall run."""

    job: Job
    allocation: Allocation
    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, job: Job, slots: tuple[Slot, ...], cut: Cut) -> Assignment:
        """The job alone on these slots."""
        return cls(job, allocation_of(job.id, counts(slots), cut), slots)


def startable(log: RunLog, schedule: Schedule, now_s: float) -> dict[str, Allocation]:
    """What a schedule gives to jobs, by id, as far as the log allows it.

    Left out are jobs that have ended, wait after a failure or are held, and jobs that would come to a node
    that was drained since or went down. A job that would grow there keeps what it holds.
    """
    waiting = {job_id for job_id, job in log.active.items() if job.held or (job.retry.retry_s or 0.0) > now_s}
    out = (log.jobs.keys() - log.active.keys()) | waiting
    allocations = {
        given.job: _on_open_nodes(given, log) for given in schedule.given() if given.job not in out
    }
    return {job_id: given for job_id, given in allocations.items() if given is not None}


def _on_open_nodes(given: Allocation, log: RunLog) -> Allocation | None:
    """The allocation, or what its job holds already if the rest is on nodes that get no work now."""
    job = log.active.get(given.job)
    held, given_gpus = {} if job is None else dict(job.placement), dict(given.placement)
    if not any(
        name in log.down or (name in log.drained and count > held.get(name, 0))
        for name, count in given_gpus.items()
    ):
        return given
    grows = all(name not in log.down and count <= given_gpus.get(name, 0) for name, count in held.items())
    return job.allocation if job is not None and held and grows else None


def changed_slots(
    held: Mapping[str, Assignment],
    wanted: Mapping[str, Allocation],
    jobs: Mapping[str, Job],
    node_gpus: Mapping[str, int],
    doubt: Callable[[Slot], int] | None = None,
) -> dict[str, Assignment | None]:
    """By job that gets other slots or another cut what it then has; None: it gives up all of them.

    :param held: by job id; jobs that hold nothing are absent.
    :param wanted: by job id; a job that is absent, or gets no GPU, gives up what it holds.
    :param jobs: those of ``wanted`` that hold nothing, at least.
    :param node_gpus: slots of every node.
    :param doubt: what speaks against a slot.
    :raises InfeasibleError: the allocations do not fit the nodes.
    """
    given = {job_id: each for job_id, each in sorted(wanted.items()) if each.gpus}
    lead = _leaders(given, held)
    survivors: dict[str, tuple[Slot, ...]] = {}
    taken: set[Slot] = set()
    for job_id, allocation in given.items():
        own = held[job_id].slots if job_id in held and job_id not in lead else ()
        survivors[job_id] = kept([slot for slot in own if slot not in taken], allocation.placement)
        taken.update(survivors[job_id])
    changes: dict[str, Assignment | None] = dict.fromkeys(sorted(held.keys() - given.keys()))
    starts = dict[str, Assignment]()
    placed: dict[str, tuple[Slot, ...]] = {}
    for job_id, allocation in sorted(given.items(), key=lambda item: item[0] in lead):
        before = held.get(job_id)
        if job_id in lead:
            slots = placed[lead[job_id]]
            if before is not None and set(before.slots) == set(slots):
                slots = before.slots  # in its own order
        else:
            job = jobs[job_id] if job_id in jobs else held[job_id].job
            if job.on_cpus:
                slots = survivors[job_id] or _beside_gpus(allocation.placement, taken)
            else:
                slots = filled(survivors[job_id], allocation.placement, node_gpus, taken, doubt)
        placed[job_id] = slots
        taken.update(slots)
        job = jobs[job_id] if before is None or job_id in jobs else before.job
        after = Assignment(job, allocation, slots)
        if before is None:
            starts[job_id] = after
        elif set(before.slots) != set(slots) or before.allocation.cut != allocation.cut:
            changes[job_id] = after
    return changes | starts


def _leaders(given: Mapping[str, Allocation], held: Mapping[str, Assignment]) -> dict[str, str]:
    """For each of two jobs on the same slots that follows the other: that other.

    Both name each other and the same nodes. The job that holds its slots already leads; if both or neither
    do, the first by id.
    """
    leaders = {}
    for job_id, allocation in given.items():
        other = given.get(allocation.beside or "")
        if other is not None and (other.beside, other.placement) == (job_id, allocation.placement):
            names = (job_id, other.job)
            first = min(names, key=lambda name: (not _stays(held.get(name), given[name]), name))
            if first != job_id:
                leaders[job_id] = first
    return leaders


def _stays(before: Assignment | None, given: Allocation) -> bool:
    """Whether a job holds exactly as many slots on each node as it shall have."""
    return before is not None and len(kept(before.slots, given.placement)) == len(before.slots) == given.gpus


def kept(held: Sequence[Slot], placement: NodeGpus) -> tuple[Slot, ...]:
    """The slots that a job keeps: on each node the first that it holds, as many as it still gets there."""
    left = dict(placement)
    survivors = []
    for slot in held:
        if left.get(slot.node, 0):
            left[slot.node] -= 1
            survivors.append(slot)
    return tuple(survivors)


def filled(
    survivors: Sequence[Slot],
    placement: NodeGpus,
    node_gpus: Mapping[str, int],
    taken: Container[Slot],
    doubt: Callable[[Slot], int] | None = None,
) -> tuple[Slot, ...]:
    """``survivors`` and, after them, slots not ``taken`` that the placement still asks for.

    :param doubt: what speaks against a slot; those with the least are chosen, ties by index.
    :raises InfeasibleError: a node has fewer slots free.
    """
    if len(survivors) == gpus_of(placement):
        return tuple(survivors)
    slots = list(survivors)
    for node, count in placement:
        missing = count - sum(slot.node == node for slot in survivors)
        if not missing:
            continue
        free = [
            slot
            for index in range(node_gpus.get(node, 0))
            if (slot := Slot(node, index)) not in taken and slot not in slots
        ]
        if missing > len(free):
            raise InfeasibleError(f"node {node} has {len(free)} free slots, {missing} more are asked for")
        slots += sorted(free, key=doubt)[:missing]
    return tuple(slots)


def _beside_gpus(placement: NodeGpus, taken: Container[Slot]) -> tuple[Slot, ...]:
    """A slot for a job without GPUs: the first that is not taken, of those that no GPU can have."""
    ((name, _),) = placement
    behind = (Slot(name, index) for index in itertools.count(MOST_OF_NODE))
    return (next(slot for slot in behind if slot not in taken),)


def by_node(slots: Iterable[Slot]) -> dict[str, list[int]]:
    """Slot indices by node, both in the order given."""
    nodes: dict[str, list[int]] = {}
    for slot in slots:
        nodes.setdefault(slot.node, []).append(slot.index)
    return nodes


def counts(slots: Iterable[Slot]) -> NodeGpus:
    """((node, slots on it), …) in order of the node names."""
    return tuple((node, len(indices)) for node, indices in sorted(by_node(slots).items()))


@dataclass(frozen=True, slots=True)
class Relaunch:
    """Checkpoint, leave, launch."""

    reason: str


@dataclass(frozen=True, slots=True)
class InPlace:
    """A plan with these members, and with new workers on these slots."""

    members: tuple[Member, ...]
    joining: tuple[Slot, ...] = ()


Way = Relaunch | InPlace | None
"""Way to a target; None if something has to happen first."""


def way_to(
    target: Assignment,
    plan: Plan,
    trains: Plan | None,
    busy: Collection[Slot],
    *,
    reports: bool = True,
    in_place: bool = True,
) -> Way:
    """How a gang gets to its target, or to the next step on the way.

    Slots that are given up are left before busy ones have to be free, so that two jobs can exchange slots.

    :param plan: its newest plan.
    :param trains: the plan that its workers train under; None if they do not train yet.
    :param busy: slots that something still runs on, except those of the plan's own members.
    :param reports: its script has reported progress.
    :param in_place: the backend can change the processes of an attempt; a change of the batch alone needs
        none of that.
    """
    if target.job.resize == "relaunch":
        return Relaunch("it is resized by a relaunch")
    if target.job.elastic == "none":
        return Relaunch("the job is not elastic")
    if not in_place and {Slot.parse(member.slot) for member in plan.members} != set(target.slots):
        return Relaunch("its backend starts and ends an attempt as a whole")
    if trains is None:
        return Relaunch("its script does not change its workers while it trains") if reports else None
    trained = set(trains.workers)
    if plan.generation > trains.generation and trained >= set(plan.workers):
        return None
    slots = set(target.slots)
    stay = [member for member in plan.members if Slot.parse(member.slot) in slots]
    if not any(member.worker in trained for member in stay):
        return Relaunch("it keeps none of its slots")
    stay.sort(key=lambda member: member.worker not in trained)
    held = {Slot.parse(member.slot) for member in stay}
    joining = tuple(slot for slot in target.slots if slot not in held)
    if not any(slot in busy for slot in joining):
        if joining and plan.protocol != PROTOCOL:
            return Relaunch("its workers are of another version than new ones")
        return InPlace(tuple(stay), joining)
    return InPlace(tuple(stay)) if len(stay) < len(plan.members) else None


def companions(targets: Mapping[str, Assignment]) -> dict[str, str]:
    """Jobs that shall have the same slots as another job, each with that other."""
    first: dict[Slot, str] = {}
    company: dict[str, str] = {}
    for job_id, target in targets.items():
        other = first.setdefault(min(target.slots), job_id)
        if other != job_id and set(targets[other].slots) == set(target.slots):
            company[job_id], company[other] = other, job_id
    return company


class SlotUse:
    """Which jobs run, or may run, on some slots.

    :param asked: the slots that will be asked for.
    :param company: the jobs that may be on the same slots, and with which other one.
    """

    def __init__(self, asked: Iterable[Slot], company: Mapping[str, str]) -> None:
        self._company = company
        self._jobs: dict[Slot, set[str]] = {slot: set() for slot in asked}

    def add(self, job_id: str, slots: Iterable[Slot]) -> None:
        for slot in slots:
            if (there := self._jobs.get(slot)) is not None:
                there.add(job_id)

    def taken_from(self, job_id: str, slots: Iterable[Slot]) -> set[Slot]:
        """The slots that other jobs are on, except for the job that it shares them with."""
        own = {job_id, self._company.get(job_id, job_id)}
        return {slot for slot in slots if not self._jobs[slot] <= own}
