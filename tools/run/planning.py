"""Plan files: what the workers of an attempt are told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from pliant.schemas.files import atomic_write, write_error
from pliant.tools.run.backends.protocol import NodeInfo
from pliant.tools.run.commands import ranked
from pliant.tools.run.layout import AttemptDir, JobDir
from pliant.tools.run.plan import Member, Plan
from pliant.tools.run.slots import Slot, counts
from pliant.tools.run.steps import Share, Target

CHECKPOINT_S: Final = 60.0


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
    )


def make_member(slot: Slot, node: NodeInfo, worker: int) -> Member:
    """A worker on a slot."""
    place: dict[str, Any] = {} if node.devices is None else {"device": "cuda", "gpu": slot.index}
    return Member(slot=str(slot), node=slot.node, address=node.address, worker=worker, **place)


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
    data = plan.model_dump_json(indent=1).encode() + b"\n"
    for path in (job.attempt(plan.attempt).plan(plan.generation), job.plan):
        try:
            path.touch(mode=0o600)
        except OSError as error:
            raise write_error(error, str(path)) from error
        atomic_write(path, data)


def read_plan(job: JobDir) -> Plan | None:
    """The plan in force; None: none was written yet."""
    return read_plan_of(job.plan)


def read_reached(attempt: AttemptDir) -> Plan | None:
    """The plan that the workers of an attempt train under; None: they do not train yet."""
    try:
        generation = int(attempt.reached.read_text())
    except (OSError, ValueError):
        return None
    return read_plan_of(attempt.plan(generation))


def read_plan_of(path: Path) -> Plan | None:
    """The plan in a file; None: there is none that can be read."""
    try:
        return Plan.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def target_of(plan: Plan, share: Share) -> Target:
    """The target that a plan was made for; ``share`` names the job."""
    slots = tuple(Slot.parse(member.slot) for member in plan.members)
    found = Share(share.job, counts(slots), plan.global_batch, plan.accum, plan.lr_scale)
    return Target(found, slots)
