"""The commands that a job is started with, as data: argument lists and environments, never a shell.

An elastic job gets one process per slot, so that a worker that dies does not take its siblings along
and each has logs of its own; its workers meet through files. A job that cannot be resized gets one
``torchrun`` per node with a worker per slot, which is what any PyTorch script expects. On a single slot it is
started as by ``python``: scripts take torchrun's variables for a sign of other workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pliant.schemas.job import Job
from pliant.tools.profile.torchrun.command import (
    ALONE,
    NO_STORE,
    ONE_THREAD,
    one_worker,
    standalone,
    torchrun,
)
from pliant.tools.run.backends.protocol import NodeInfo, Unit
from pliant.tools.run.service.allocation.change_steps import Target
from pliant.tools.run.service.allocation.slots import Slot, by_node
from pliant.tools.run.statedir.contract.folders import AttemptDir
from pliant.tools.run.statedir.contract.plan import (
    ENV_JOB_DIR,
    ENV_LOG_BYTES,
    ENV_NOISE,
    ENV_SLOT,
    ENV_WORKER,
    SLOT_FROM_RANK,
)


def units(
    target: Target,
    job_dir: Path,
    attempt: AttemptDir,
    nodes: Mapping[str, NodeInfo],
    port: int = 0,
    *,
    first: int = 0,
    log_bytes: int | None = None,
) -> list[Unit]:
    """What to start for one attempt, in order of rank.

    :param job_dir: the job's folder, absolute.
    :param first: number of the first unit, where the attempt has some already.
    :param log_bytes: most bytes of each output file that stay on disk; None: what keepers think best.
    :param port: free on the first node; used only by a job that is not elastic and spans several nodes.
    """
    job = target.job
    groups = groups_of(target)
    made = []
    for index, slots in enumerate(groups):
        number = first + index
        logs = attempt.logs / str(number)
        if by_torchrun(target):
            argv = torchrun(job.script, len(slots), _rendezvous(target, index, nodes, port), logs)
            own = {**NO_STORE, ENV_SLOT: SLOT_FROM_RANK}
        elif job.elastic == "none":
            argv, own = one_worker(job.script, logs), {ENV_SLOT: SLOT_FROM_RANK}
        else:
            argv = one_worker(job.script, logs)
            own = {**ALONE, ENV_SLOT: str(slots[0]), ENV_WORKER: str(number)}
        if job.elastic == "size+batch":
            own[ENV_NOISE] = "1"
        if log_bytes is not None:
            own[ENV_LOG_BYTES] = str(log_bytes)
        env = {**environment(job, slots, nodes), ENV_JOB_DIR: str(job_dir), **own}
        made.append(Unit(slots[0].node, argv, job.workdir or str(Path.cwd()), env))
    return made


def by_torchrun(target: Target) -> bool:
    """Whether torchrun starts its workers: it has several that do not change, or its command says so."""
    return target.job.elastic == "none" and (len(target.slots) > 1 or target.job.names_torchrun)


def groups_of(target: Target) -> list[list[Slot]]:
    """The slots that one unit serves: each alone, or all of a node where the job is not elastic."""
    if target.job.elastic != "none":
        return [[slot] for slot in target.slots]
    return [[Slot(node, index) for index in indices] for node, indices in by_node(target.slots).items()]


def meets_at_port(target: Target) -> bool:
    """Whether its torchruns meet at a port of the first node, so that one has to be found."""
    return target.job.elastic == "none" and len(groups_of(target)) > 1


def ranked(target: Target) -> tuple[Slot, ...]:
    """The slots in order of rank."""
    return tuple(slot for group in groups_of(target) for slot in group)


def environment(job: Job, slots: Sequence[Slot], nodes: Mapping[str, NodeInfo]) -> dict[str, str]:
    """What the slots mean to the libraries in use, and what the job adds."""
    devices = nodes[slots[0].node].devices
    if devices is None:
        return {**ONE_THREAD, "PYTHONUNBUFFERED": "1", **job.env, "CUDA_VISIBLE_DEVICES": ""}
    visible = ",".join(devices[slot.index] for slot in slots)
    return {"PYTHONUNBUFFERED": "1", **job.env, "CUDA_VISIBLE_DEVICES": visible}


def _rendezvous(target: Target, index: int, nodes: Mapping[str, NodeInfo], port: int) -> tuple[str, ...]:
    groups = groups_of(target)
    address = nodes[groups[index][0].node].address
    if not meets_at_port(target):
        return standalone(address)
    master = nodes[groups[0][0].node].address
    return (
        *(f"--nnodes={len(groups)}", f"--node-rank={index}", "--rdzv-backend=static"),
        *(f"--master-addr={master}", f"--master-port={port}", f"--local-addr={address}"),
    )
