"""What an attempt is started with, as data: its plan, its argument lists, its environments; never a shell.

An elastic job gets one process per slot, so that a worker that dies does not take its siblings along, and
each has its own logs; its workers meet through files. A job that cannot be resized, or only by a relaunch,
gets one ``torchrun`` per node with a worker per slot, as any PyTorch script expects. On a single slot a job
that cannot be resized is started as by ``python``: scripts take torchrun's variables as a sign of other
workers. So is a script that is not distributed, and any other program: once, by the job's own PATH.

The second half writes and reads plan files: who trains from now on, and how the batch is cut.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import Job
from pliant.schemas.schedule import Cut
from pliant.schemas.text import whole_number
from pliant.tools.profile.torchrun.start import (
    ALONE,
    NO_STORE,
    ONE_THREAD,
    in_python,
    one_program,
    standalone,
    torchrun,
)
from pliant.tools.run.backends.protocol import Credentials, NodeInfo, Unit
from pliant.tools.run.backends.supervisor import ENV_CODE, ENV_OUTPUT, give_secrets
from pliant.tools.run.service.allocation import Assignment, Slot, by_node
from pliant.tools.run.service.containers import step_variables, words
from pliant.tools.run.statedir.contract.as_user import files_of, own_files
from pliant.tools.run.statedir.contract.folders import (
    AttemptDir,
    DamagedError,
    JobDir,
    UnreadableError,
    read_file,
    read_record,
    write_record,
)
from pliant.tools.run.statedir.contract.plan import (
    ENV_ARRAY_INDEX,
    ENV_ATTEMPT,
    ENV_BATCH,
    ENV_JOB_DIR,
    ENV_JOB_ID,
    ENV_LOG_BYTES,
    ENV_NOISE,
    ENV_PER_REPLICA,
    ENV_PROGRESS,
    ENV_RUN,
    ENV_SLOT,
    ENV_STOP,
    ENV_TASK,
    ENV_TASKS,
    ENV_WORKER,
    PROTOCOL,
    SLOT_FROM_RANK,
    Member,
    Plan,
)
from pliant.tools.run.statedir.directory import account_name
from pliant.tools.run.statedir.output_paths import output_file
from pliant.tools.run.statedir.slot_faults import CHECKPOINT_S

_WORDS: Final = 32
"""Words of a command that may name files of code: a variable has room for 131,072 bytes."""
_WORD: Final = 512
"""Characters of such a word."""
_log = logging.getLogger("pliant")


def units(
    target: Assignment,
    job_dir: Path,
    attempt: AttemptDir,
    nodes: Mapping[str, NodeInfo],
    port: int = 0,
    *,
    first: int = 0,
    log_bytes: int | None = None,
    account: Credentials | None = None,
    run_id: str = "",
) -> list[Unit]:
    """What to start for one attempt, in order of rank.

    :param job_dir: the job's folder, absolute.
    :param port: free on the first node; used only by a job that is not elastic and spans several nodes.
    :param first: number of the first unit, if the attempt has some already.
    :param log_bytes: most bytes of each output file that stay on disk; None for the supervisor's default.
    :param account: whose processes they are; None for the launcher's.
    :param run_id: what experiment trackers call the run; empty where none starts.
    """
    job = target.job
    groups = groups_of(target)
    made = []
    user = account_name(os.geteuid() if account is None else account.uid)
    stated = (*job.env, *(() if account is not None else _secrets(job_dir)))
    for_supervisors = _for_supervisors(target, int(attempt.path.name), first, user)
    for index, slots in enumerate(groups):
        number = first + index
        inside: tuple[str, ...] = ()
        if job.container is not None:
            inside = words(job.container, attempt.container(number), (job_dir,), stated)
        meets = _rendezvous(target, index, nodes, port) if by_torchrun(target) else ()
        argv, own = _command(target, slots, inside, attempt.logs / str(number), meets)
        if job.changes_in_place:
            own[ENV_WORKER] = str(number)
        if not job.changes_in_place:
            own |= {ENV_PROGRESS: str(JobDir(job_dir).progress), ENV_STOP: str(attempt.stop)}
            if job.batch.size is not None:
                own[ENV_BATCH] = str(job.batch.size)
        if job.elastic == "size+batch":
            own[ENV_NOISE] = "1"
        if job.gpus.per_replica > 1:
            own[ENV_PER_REPLICA] = str(job.gpus.per_replica)
        if log_bytes is not None:
            own[ENV_LOG_BYTES] = str(log_bytes)
        task = _task(job, index, len(groups))
        env = for_trackers(job_dir, f"{run_id}-{index}" if task else run_id) if run_id else {}
        env |= {**environment(job, slots, nodes), ENV_JOB_DIR: str(job_dir), **own}
        env |= {ENV_JOB_ID: job.id, ENV_ATTEMPT: attempt.path.name, **task}
        env |= for_supervisors[index]
        env |= step_variables(job.container)
        made.append(_unit(job, slots, argv, env, account))
    return made


def for_trackers(job_dir: Path, run_id: str) -> dict[str, str]:
    """Variables by which trackers show all attempts as one run; the job may state others."""
    folder = str(JobDir(job_dir).tensorboard / run_id)
    own = {ENV_RUN: run_id, "TENSORBOARD_LOGGING_DIR": folder}
    return own | {"WANDB_RUN_ID": run_id, "WANDB_RESUME": "allow"}


def _secrets(job_dir: Path) -> list[str]:
    """The names of the job's secrets. The supervisor says what keeps it from reading them."""
    secrets = {ENV_JOB_DIR: str(job_dir)}
    with contextlib.suppress(OSError, ValueError):
        give_secrets(secrets)
    return [name for name in secrets if name != ENV_JOB_DIR]


def _unit(
    job: Job,
    slots: Sequence[Slot],
    argv: tuple[str, ...],
    env: dict[str, str],
    account: Credentials | None,
) -> Unit:
    node = slots[0].node
    here = sum(slot.node == node for slot in slots)
    demand = {name: each * here for name, each in job.resources.worker.items()}
    return Unit(node, argv, job.workdir or str(Path.cwd()), env, account, slots=here, demand=demand)


def _command(
    target: Assignment,
    slots: Sequence[Slot],
    inside: tuple[str, ...],
    logs: Path,
    meets: tuple[str, ...],
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command of a unit, and the variables that go with the way it is started.

    :param inside: what runs a command in the job's container.
    :param meets: options of torchrun about where its workers meet; empty if it does not start them.
    """
    job, python = target.job, target.job.own_python
    if meets:
        argv = torchrun(job.script, len(slots), meets, logs, python, by_module=bool(inside))
        return (*inside, *argv), {**NO_STORE, ENV_SLOT: SLOT_FROM_RANK}
    if job.changes_in_place:
        argv = one_program((*inside, *in_python(job.script, python)), logs)
        return tuple(argv), {**ALONE, ENV_SLOT: str(slots[0])}
    command = (job.command or ()) if job.launcher == "program" else in_python(job.script, python)
    return tuple(one_program((*inside, *command), logs)), {ENV_SLOT: SLOT_FROM_RANK}


def _code_order(job: Job) -> dict[str, Any]:
    """What ``record_code.py`` looks at, beside the folder. The Python of a container is not on the host."""
    command = [word for word in (job.command or ())[:_WORDS] if len(word) < _WORD]
    if job.container is not None:
        return {"python": None, "command": command, "image": job.container.image}
    default = "" if job.launcher == "program" else sys.executable
    return {"python": job.own_python or default, "command": command}


def _for_supervisors(target: Assignment, attempt: int, first: int, user: str) -> list[dict[str, str]]:
    """What the supervisor of each unit is told: which files it is to write, and which code to record."""
    job, rank, orders = target.job, first, list[dict[str, str]]()
    opened: set[str] = set()
    looked_at: set[str] = set()
    for slots in groups_of(target):
        node, own = slots[0].node, dict[str, str]()
        workers = len(slots) if by_torchrun(target) else 1
        if job.output is not None or job.error is not None:
            patterns = {"output": job.output or "", "error": job.error or job.output or ""}
            order: dict[str, Any] = {
                kind: [
                    output_file(pattern, job, attempt=attempt, node=node, rank=each, user=user)
                    for each in (range(rank, rank + workers) if pattern else ())
                ]
                for kind, pattern in patterns.items()
            }
            paths = {*order["output"], *order["error"]}
            order["owner"] = opened.isdisjoint(paths) and (not first or _names_rank(job))
            own[ENV_OUTPUT] = json.dumps(order | {"truncate": attempt == 1})
            opened |= paths
        if node not in looked_at:  # one look at the code of a node is enough
            own[ENV_CODE] = json.dumps(_code_order(job))
            looked_at.add(node)
        rank += workers
        orders.append(own)
    return orders


def _names_rank(job: Job) -> bool:
    """Whether each of its workers has output files of its own."""
    patterns = [pattern for pattern in (job.output, job.error) if pattern is not None]
    named = [
        {output_file(pattern, job, attempt=1, node="", rank=rank, user="") for rank in (0, 1)}
        for pattern in patterns
    ]
    return all(len(names) > 1 for names in named)


def _task(job: Job, number: int, count: int) -> dict[str, str]:
    """What tells a process which one of several it is."""
    is_one = job.tasks is None or not job.is_one_process
    return {} if is_one else {ENV_TASK: str(number), ENV_TASKS: str(count)}


def by_torchrun(target: Assignment) -> bool:
    """Whether torchrun starts its workers: there are several that do not change, or its command says so.

    A job that is resized by a relaunch finds the same variables in all its sizes.
    """
    job = target.job
    if job.launcher is not None:
        return job.launcher == "torchrun"
    several = len(target.slots) > 1 or job.resize == "relaunch"
    return not job.changes_in_place and (several or job.names_torchrun)


def groups_of(target: Assignment) -> list[list[Slot]]:
    """The slots that one unit serves: each alone, all of a node where workers do not change or a task is for
    a node, or all of a job that is one process, on the first of its nodes.
    """
    job = target.job
    if job.is_one_process and job.tasks is None:
        return [list(target.slots)]
    if job.changes_in_place or (job.is_one_process and job.tasks == "slot"):
        return [[slot] for slot in target.slots]
    return [[Slot(node, index) for index in indices] for node, indices in by_node(target.slots).items()]


def meets_at_port(target: Assignment) -> bool:
    """Whether its torchruns meet at a port of the first node."""
    return by_torchrun(target) and len(groups_of(target)) > 1


def ranked(target: Assignment) -> tuple[Slot, ...]:
    return tuple(slot for group in groups_of(target) for slot in group)


def environment(job: Job, slots: Sequence[Slot], nodes: Mapping[str, NodeInfo]) -> dict[str, str]:
    """What tells the libraries in use about the slots, and what the job adds."""
    devices = None if job.on_cpus else nodes[slots[0].node].devices
    own = {} if job.array is None else {ENV_ARRAY_INDEX: str(job.array.index)}
    own = {"PYTHONHASHSEED": str(zlib.crc32(job.id.encode()))} | own | job.env  # sets in the same order
    if job.on_cpus:
        return {"PYTHONUNBUFFERED": "1", **own, "CUDA_VISIBLE_DEVICES": ""}
    if devices is None:
        return {**ONE_THREAD, "PYTHONUNBUFFERED": "1", **own, "CUDA_VISIBLE_DEVICES": ""}
    visible = ",".join(devices[slot.index] for slot in slots if slot.node == slots[0].node)
    return {"PYTHONUNBUFFERED": "1", **own, "CUDA_VISIBLE_DEVICES": visible}


def _rendezvous(target: Assignment, index: int, nodes: Mapping[str, NodeInfo], port: int) -> tuple[str, ...]:
    groups = groups_of(target)
    address = nodes[groups[index][0].node].address
    if not meets_at_port(target):
        return standalone(address)
    master = nodes[groups[0][0].node].address
    return (
        *(f"--nnodes={len(groups)}", f"--node-rank={index}", "--rdzv-backend=static"),
        *(f"--master-addr={master}", f"--master-port={port}", f"--local-addr={address}"),
    )


def make_plan(
    target: Assignment, generation: int, attempt: int, nodes: Mapping[str, NodeInfo], reason: str = ""
) -> Plan:
    """The plan of a new attempt, members in order of rank; ``reason``: why the attempt before was left."""
    job, (global_batch, accum, lr_scale) = target.job, target.allocation.cut
    return Plan(
        job=job.id,
        generation=generation,
        attempt=attempt,
        members=tuple(make_member(slot, nodes[slot.node], rank) for rank, slot in enumerate(ranked(target))),
        global_batch=global_batch,
        accum=accum,
        lr_scale=lr_scale,
        seed=job.seed,
        checkpoint_s=job.checkpoint_seconds or CHECKPOINT_S,
        reason=reason,
        protocol=PROTOCOL,
    )


def make_member(slot: Slot, node: NodeInfo, worker: int) -> Member:
    device: Literal["cpu", "cuda"] = "cpu" if node.devices is None else "cuda"
    return Member(slot=str(slot), node=slot.node, address=node.address, device=device, worker=worker)


def next_plan(plan: Plan, members: Iterable[Member], cut: Cut) -> Plan:
    """The next generation of an attempt; members in order of rank, those that train already first."""
    batch, accum, lr_scale = cut
    changed = {"members": tuple(members), "global_batch": batch, "accum": accum, "lr_scale": lr_scale}
    return plan.model_copy(update={"generation": plan.generation + 1, **changed})


def aborted(plan: Plan, reason: str = "") -> Plan:
    """The next generation of a plan: stop at a step boundary."""
    return plan.model_copy(update={"generation": plan.generation + 1, "abort": True, "reason": reason})


def write_plan(job: JobDir, plan: Plan) -> None:
    """Replace the plan file, and keep a copy in the attempt's folder."""
    for path in (job.attempt(plan.attempt).kept_plan(plan.generation), job.plan):
        write_record(path, "plan", plan)
    hand_out(job, plan)


def hand_out(job: JobDir, plan: Plan) -> None:
    """Give workers of another account their copy of a plan. It is never read back."""
    if job.kept is not None:
        with files_of(job):
            write_plan(JobDir(job.path), plan)


def read_plan(job: JobDir) -> Plan | None:
    """The plan in force. Returns None if none was written yet.

    A plan that is damaged or lost is replaced by its copy in the attempt's folder.

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
    copies = sorted((job.kept or job.path).glob("attempts/*/plan-*.json"), key=generation_of)
    plan = read_plan_of(copies[-1]) if copies else None
    if plan is None:
        if damage is not None:
            raise damage
        return None
    _log.warning("%s; its copy %s takes its place", damage or f"{job.plan}: is lost", copies[-1])
    write_record(job.plan, "plan", plan)
    return plan


def copies(attempt: AttemptDir) -> list[Plan]:
    """The plans that an attempt ever had, oldest first, as far as they can be read."""
    plans = []
    with own_files():
        for path in (attempt.kept or attempt.path).glob("plan-*.json"):
            with contextlib.suppress(BadInputError, UnreadableError):
                if (plan := read_plan_of(path)) is not None:
                    plans.append(plan)
    return sorted(plans, key=lambda plan: plan.generation)


def last_generation(job: JobDir) -> int:
    """The newest generation that was ever written, 0 if none was."""
    return max(map(generation_of, (job.kept or job.path).glob("attempts/*/plan-*.json")), default=0)


def generation_of(path: Path) -> int:
    """The generation that a copy of a plan is named after, 0 for other files."""
    return whole_number(path.stem.removeprefix("plan-")) or 0


def read_reached(attempt: AttemptDir, known: Mapping[int, Plan]) -> Plan | None:
    """The plan that the workers of an attempt train under. Returns None if they do not train yet.

    :param known: plans of the attempt by generation, which never change.
    :raises UnreadableError: it cannot be read at the moment.
    """
    text = read_file(attempt.reached)
    generation = None if text is None else whole_number(text.decode("ascii", "replace").strip())
    if generation is None or generation in known:
        return None if generation is None else known[generation]
    try:
        with own_files():
            return read_plan_of(attempt.kept_plan(generation))
    except BadInputError:
        return None


def read_plan_of(path: Path) -> Plan | None:
    """The plan in a file, with the errors of :func:`read_record`. Returns None if there is no file."""
    return read_record(path, "plan", Plan)


def assignment_of(plan: Plan, job: Job) -> Assignment:
    return Assignment.of(job, tuple(Slot.parse(member.slot) for member in plan.members), plan.cut)
