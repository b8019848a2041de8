"""Plan files: what the workers of an attempt are told."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from pliant.schemas.files import atomic_write
from pliant.tools.run.backends.protocol import NodeInfo
from pliant.tools.run.commands import ranked
from pliant.tools.run.layout import JobDir
from pliant.tools.run.plan import Member, Plan
from pliant.tools.run.slots import Slot, counts
from pliant.tools.run.steps import Share, Target

CHECKPOINT_S: Final = 60.0


def make_plan(target: Target, generation: int, attempt: int, nodes: Mapping[str, NodeInfo]) -> Plan:
    """The plan of a new attempt; members are in order of rank, and its token is new."""
    job, share = target.job, target.share
    return Plan(
        job=job.id,
        generation=generation,
        attempt=attempt,
        members=tuple(_member(slot, nodes[slot.node]) for slot in ranked(target)),
        global_batch=share.global_batch,
        accum=share.accum,
        lr_scale=share.lr_scale,
        seed=job.seed,
        checkpoint_s=job.checkpoint_seconds or CHECKPOINT_S,
        token=secrets.token_hex(16),
    )


def _member(slot: Slot, node: NodeInfo) -> Member:
    if node.devices is None:
        return Member(slot=str(slot), node=slot.node, address=node.address)
    return Member(slot=str(slot), node=slot.node, address=node.address, device="cuda", gpu=slot.index)


def aborted(plan: Plan) -> Plan:
    """The next generation of a plan: stop at a step boundary."""
    return plan.model_copy(update={"generation": plan.generation + 1, "abort": True})


def write_plan(job: JobDir, plan: Plan) -> None:
    """Replace the plan file; only its owner can read it, for it holds the token."""
    job.plan.touch(mode=0o600)
    atomic_write(job.plan, plan.model_dump_json(indent=1).encode() + b"\n")


def read_plan(job: JobDir) -> Plan | None:
    """The plan in force; None: none was written yet."""
    try:
        return Plan.model_validate_json(job.plan.read_bytes())
    except (OSError, ValidationError):
        return None


def target_of(plan: Plan, share: Share) -> Target:
    """The target that a plan was made for; ``share`` names the job."""
    slots = tuple(Slot.parse(member.slot) for member in plan.members)
    found = Share(share.job, counts(slots), plan.global_batch, plan.accum, plan.lr_scale)
    return Target(found, slots)
