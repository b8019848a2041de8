"""Plan files: what the workers of an attempt shall do."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pliant.schemas.errors import BadInputError
from pliant.schemas.text.digits import whole_number
from pliant.tools.run.backends.protocol import NodeInfo
from pliant.tools.run.service.allocation.change_steps import Target
from pliant.tools.run.service.allocation.slots import Slot, counts
from pliant.tools.run.service.attempt.commands import ranked
from pliant.tools.run.statedir.contract.files import DamagedError, read_file, read_record, write_record
from pliant.tools.run.statedir.contract.folders import AttemptDir, JobDir
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Member, Plan
from pliant.tools.run.statedir.log.retry_rule import CHECKPOINT_S
from pliant.tools.run.statedir.share import Share

_log = logging.getLogger("pliant")


def make_plan(
    target: Target, generation: int, attempt: int, nodes: Mapping[str, NodeInfo], reason: str = ""
) -> Plan:
    """The plan of a new attempt; members are in order of rank.

    :param reason: why the attempt before had to be left.
    """
    job, share = target.job, target.share
    return Plan(
        job=job.id,
        generation=generation,
        attempt=attempt,
        members=tuple(make_member(slot, nodes[slot.node], rank) for rank, slot in enumerate(ranked(target))),
        global_batch=share.global_batch,
        accum=share.accum,
        lr_scale=share.lr_scale,
        seed=job.seed,
        checkpoint_s=job.checkpoint_seconds or CHECKPOINT_S,
        reason=reason,
        protocol=PROTOCOL,
    )


def make_member(slot: Slot, node: NodeInfo, worker: int) -> Member:
    """A worker on a slot."""
    device: Literal["cpu", "cuda"] = "cpu" if node.devices is None else "cuda"
    return Member(slot=str(slot), node=slot.node, address=node.address, device=device, worker=worker)


def next_plan(plan: Plan, members: Iterable[Member], cut: tuple[int | None, int, float]) -> Plan:
    """The next generation of an attempt.

    :param members: in order of rank, workers that train already before those that are added.
    :param cut: (global batch, micro-steps, learning-rate scale).
    """
    batch, accum, lr_scale = cut
    changed = {"members": tuple(members), "global_batch": batch, "accum": accum, "lr_scale": lr_scale}
    return plan.model_copy(update={"generation": plan.generation + 1, **changed})


def aborted(plan: Plan, reason: str = "") -> Plan:
    """The next generation of a plan: stop at a step boundary."""
    return plan.model_copy(update={"generation": plan.generation + 1, "abort": True, "reason": reason})


def write_plan(job: JobDir, plan: Plan) -> None:
    """Replace the plan file, and keep a copy; only their owner can read them."""
    for path in (job.attempt(plan.attempt).plan(plan.generation), job.plan):
        write_record(path, "plan", plan)


def read_plan(job: JobDir) -> Plan | None:
    """The plan in force; None: none was written yet.

    One that is damaged or lost is replaced by its copy in the attempt's folder.

    :raises UnreadableError: it cannot be read at the moment.
    :raises DamagedError: it is damaged or lost, and its copy is damaged.
    :raises BadInputError: it is of an unknown version.
    """
    damage: DamagedError | None = None
    try:
        if (found := read_plan_of(job.plan)) is not None:
            return found
    except DamagedError as error:
        damage = error
    copies = sorted(job.path.glob("attempts/*/plan-*.json"), key=generation_of)
    plan = read_plan_of(copies[-1]) if copies else None
    if plan is None:
        if damage is not None:
            raise damage
        return None
    _log.warning("%s; its copy %s takes its place", damage or f"{job.plan}: is lost", copies[-1])
    write_record(job.plan, "plan", plan)
    return plan


def last_generation(job: JobDir) -> int:
    """The newest generation that was ever written; 0: none was."""
    return max(map(generation_of, job.path.glob("attempts/*/plan-*.json")), default=0)


def generation_of(path: Path) -> int:
    """The generation that a copy of a plan is named after; 0: it is not a copy of one."""
    return whole_number(path.stem.removeprefix("plan-")) or 0


def read_reached(attempt: AttemptDir, known: Mapping[int, Plan]) -> Plan | None:
    """The plan that the workers of an attempt train under; None: they do not train yet.

    :param known: plans of the attempt by generation: they never change, so they are not read again.
    :raises UnreadableError: it cannot be read at the moment.
    """
    text = read_file(attempt.reached)
    generation = None if text is None else whole_number(text.decode("ascii", "replace").strip())
    if generation is None or generation in known:
        return None if generation is None else known[generation]
    try:
        return read_plan_of(attempt.plan(generation))
    except BadInputError:
        return None


def read_plan_of(path: Path) -> Plan | None:
    """The plan in a file; None: there is none.

    :raises UnreadableError: it cannot be read at the moment.
    :raises DamagedError: it is damaged.
    :raises BadInputError: it is of an unknown version.
    """
    return read_record(path, "plan", Plan)


def target_of(plan: Plan, share: Share) -> Target:
    """The target that a plan was made for; ``share`` names the job."""
    slots = tuple(Slot.parse(member.slot) for member in plan.members)
    found = Share(share.job, counts(slots), plan.global_batch, plan.accum, plan.lr_scale)
    return Target(found, slots)
