"""Which slots of a node: concrete indices for the counts that a schedule gives. Survivors keep theirs.

From what jobs hold and what they shall hold to the steps between: a pure function, the heart of ``run``.

Stops come first, then resizes, then starts; within each kind by job id. A job whose slots and batch stay
as they are is not touched.

How a running gang gets from the slots that it has to those that it shall have: a pure function.

In place: a plan that names the workers that stay and new ones for the slots that are added. The new ones
are started at once and get ready while training goes on. Where that cannot be, the gang saves a checkpoint,
leaves, and is launched again; the log says why. So does one that an earlier version started, where new ones
would not understand its workers.

Which jobs share slots, and which are on slots that another one is to get.

What a schedule gives to jobs, on top of what a log says of them: pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pliant.schemas.errors import InfeasibleError
from pliant.schemas.job import Job
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Member, Plan
from pliant.tools.run.statedir.log.fold import RunLog, Share, shares_of
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
        """The slot that ``str`` wrote."""
        node, _, index = text.rpartition("/")
        return cls(node, int(index))


def kept(held: Sequence[Slot], placement: NodeGpus) -> tuple[Slot, ...]:
    """The slots that a job goes on with: on each node the first it holds, as many as it still gets there."""
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

    :param doubt: what speaks against a slot; those with the least are chosen, of equal ones the lowest.
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


def by_node(slots: Iterable[Slot]) -> dict[str, list[int]]:
    """Slot indices by node, both in the order given."""
    nodes: dict[str, list[int]] = {}
    for slot in slots:
        nodes.setdefault(slot.node, []).append(slot.index)
    return nodes


def counts(slots: Iterable[Slot]) -> NodeGpus:
    """((node, slots on it), …) in order of the node names."""
    return tuple((node, len(indices)) for node, indices in sorted(by_node(slots).items()))


Change = Literal["start", "resume", "grow", "shrink", "move", "preempt"]


@dataclass(frozen=True, slots=True)
class Target:
    """A share on concrete slots, survivors first: what shall run."""

    share: Share
    slots: tuple[Slot, ...]

    @property
    def job(self) -> Job:
        """The job."""
        return self.share.job

    @property
    def cut(self) -> tuple[int | None, int, float]:
        """(global batch, micro-steps, learning-rate scale)."""
        return self.share.global_batch, self.share.accum, self.share.lr_scale


@dataclass(frozen=True, slots=True)
class Step:
    """A change for one job: it gets slots, goes on with others or with another cut, or gives up all."""

    job_id: str
    event: Change
    """What it is called in the log; a change of the batch alone is a ``move`` to the same place."""
    before: Target | None
    """None: it holds nothing."""
    after: Target | None
    """None: it gives up all its slots."""


def plan_steps(
    held: Mapping[str, Target],
    wanted: Mapping[str, Share],
    node_gpus: Mapping[str, int],
    started: Collection[str] = (),
    doubt: Callable[[Slot], int] | None = None,
) -> list[Step]:
    """The steps from ``held`` to ``wanted``, with concrete slots.

    :param held: by job id; jobs that hold nothing are absent.
    :param wanted: by job id; a job that is absent, or gets no GPU, gives up what it holds.
    :param node_gpus: slots of every node.
    :param started: jobs that have run before.
    :param doubt: what speaks against a slot.
    :raises InfeasibleError: the shares do not fit the nodes.
    """
    shares = {job_id: share for job_id, share in sorted(wanted.items()) if share.gpus}
    lead = _leaders(shares, held)
    survivors: dict[str, tuple[Slot, ...]] = {}
    taken: set[Slot] = set()
    for job_id, share in shares.items():
        own = held[job_id].slots if job_id in held and job_id not in lead else ()
        survivors[job_id] = kept([slot for slot in own if slot not in taken], share.placement)
        taken.update(survivors[job_id])
    gone = sorted(held.keys() - shares.keys())
    stops = [Step(job_id, "preempt", held[job_id], None) for job_id in gone]
    resizes, starts = list[Step](), list[Step]()
    given: dict[str, tuple[Slot, ...]] = {}
    for job_id, share in sorted(shares.items(), key=lambda item: item[0] in lead):
        if job_id in lead:
            slots = _in_order(given[lead[job_id]], held.get(job_id))
        else:
            slots = filled(survivors[job_id], share.placement, node_gpus, taken, doubt)
        given[job_id] = slots
        taken.update(slots)
        before, after = held.get(job_id), Target(share, slots)
        if before is None:
            starts.append(Step(job_id, "resume" if job_id in started else "start", None, after))
        elif set(before.slots) != set(after.slots) or before.cut != after.cut:
            added = len(after.slots) - len(before.slots)
            event: Change = "grow" if added > 0 else "shrink" if added < 0 else "move"
            resizes.append(Step(job_id, event, before, after))
    return [*stops, *resizes, *starts]


def _leaders(shares: Mapping[str, Share], held: Mapping[str, Target]) -> dict[str, str]:
    """Of two jobs on the same slots, the one that takes those of the other, and that other.

    They agree on it, and on the nodes. The one that holds its slots already leads; of two alike the first.
    """
    found = {}
    for job_id, share in shares.items():
        other = shares.get(share.beside or "")
        if other is not None and (other.beside, other.placement) == (job_id, share.placement):
            names = (job_id, other.job.id)
            first = min(names, key=lambda name: (not _stays(held.get(name), shares[name]), name))
            if first != job_id:
                found[job_id] = first
    return found


def _stays(target: Target | None, share: Share) -> bool:
    """Whether a job that holds slots has as many on each node as it shall have."""
    return target is not None and len(kept(target.slots, share.placement)) == len(target.slots) == share.gpus


def _in_order(slots: tuple[Slot, ...], before: Target | None) -> tuple[Slot, ...]:
    """The slots as a job has them already, where they are the same."""
    return before.slots if before is not None and set(before.slots) == set(slots) else slots


@dataclass(frozen=True, slots=True)
class Crew:
    """What the launcher knows of a gang's workers."""

    plan: Plan
    """The newest plan."""
    trains: Plan | None
    """The plan that its workers train under; None: they do not train yet."""
    reports: bool
    """Its script has reported progress."""


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
"""None: something has to happen first."""


def way_to(target: Target, crew: Crew, busy: Collection[Slot], *, in_place: bool = True) -> Way:
    """How to get there, or to the next step on the way.

    Slots that are given up are left before others that are still in use have to be free, so that two jobs
    can exchange slots.

    :param busy: slots that something still runs on, but for those of the plan's own members.
    :param in_place: the backend can change the processes of an attempt; a change of the batch alone needs
        none of that.
    """
    if target.job.elastic == "none":
        return Relaunch("the job is not elastic")
    if not in_place and {Slot.parse(member.slot) for member in crew.plan.members} != set(target.slots):
        return Relaunch("its backend starts and ends an attempt as a whole")
    if crew.trains is None:
        return Relaunch("its script does not change its workers while it trains") if crew.reports else None
    trained = set(crew.trains.workers)
    if crew.plan.generation > crew.trains.generation and trained >= set(crew.plan.workers):
        return None
    wanted = set(target.slots)
    stay = [member for member in crew.plan.members if Slot.parse(member.slot) in wanted]
    if not any(member.worker in trained for member in stay):
        return Relaunch("it keeps none of its slots")
    stay.sort(key=lambda member: member.worker not in trained)
    held = {Slot.parse(member.slot) for member in stay}
    joining = tuple(slot for slot in target.slots if slot not in held)
    if not any(slot in busy for slot in joining):
        if joining and crew.plan.protocol != PROTOCOL:
            return Relaunch("its workers are of another version than new ones")
        return InPlace(tuple(stay), joining)
    return InPlace(tuple(stay)) if len(stay) < len(crew.plan.members) else None


def companions(targets: Mapping[str, Target]) -> dict[str, str]:
    """The jobs that shall have the same slots as another one, and which that is."""
    first: dict[Slot, str] = {}
    found: dict[str, str] = {}
    for job_id, target in targets.items():
        other = first.setdefault(min(target.slots), job_id)
        if other != job_id and set(targets[other].slots) == set(target.slots):
            found[job_id], found[other] = other, job_id
    return found


class SlotUse:
    """The jobs that something of runs, or may run, on some slots.

    :param asked: the slots that will be asked for.
    :param company: the jobs that may be on the same slots, and with which other one.
    """

    def __init__(self, asked: Iterable[Slot], company: Mapping[str, str]) -> None:
        self._company = company
        self._jobs: dict[Slot, set[str]] = {slot: set() for slot in asked}

    def add(self, job_id: str, slots: Iterable[Slot]) -> None:
        """A job is on slots."""
        for slot in slots:
            if (there := self._jobs.get(slot)) is not None:
                there.add(job_id)

    def taken_from(self, job_id: str, slots: Iterable[Slot]) -> set[Slot]:
        """Those of the slots that other jobs are on, but for the one that it shares them with."""
        own = {job_id, self._company.get(job_id, job_id)}
        return {slot for slot in slots if not self._jobs[slot] <= own}


def startable(log: RunLog, schedule: Schedule, now_s: float) -> dict[str, Share]:
    """What a schedule gives to jobs, on top of a log.

    Jobs that have ended stay ended, and those that failed lately are left out until their time has come, as
    are those that are held, and those that would come to a node that was drained since, or went down. One
    that would grow there keeps what it holds.
    """
    waiting = {job_id for job_id, job in log.active.items() if job.held or (job.retry_s or 0.0) > now_s}
    out = (log.jobs.keys() - log.active.keys()) | waiting
    given = {job_id: share for job_id, share in shares_of(schedule).items() if job_id not in out}
    found = {job_id: _on_open_nodes(share, log) for job_id, share in given.items()}
    return {job_id: share for job_id, share in found.items() if share is not None}


def _on_open_nodes(share: Share, log: RunLog) -> Share | None:
    """A share, or as much of it as its job has already where the rest is on nodes that get no work now."""
    job = log.active.get(share.job.id)
    held, wanted = {} if job is None else dict(job.placement), dict(share.placement)
    if not any(
        name in log.down or (name in log.drained and count > held.get(name, 0))
        for name, count in wanted.items()
    ):
        return share
    grows = all(name not in log.down and count <= wanted.get(name, 0) for name, count in held.items())
    return job.share if job is not None and held and grows else None
