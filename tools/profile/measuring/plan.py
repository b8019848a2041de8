"""What to measure for a file of jobs, one plan a model, and on which node. Nothing is started here."""

from __future__ import annotations

import os
import platform
import re
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.job import Job
from pliant.tools.profile.measuring.launch import Script

UNKNOWN_CEILING = 1024
"""Largest local batch tried if a job states neither a batch nor a limit."""
LOOPBACK: Final = (None, "localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """What the user wants measured; None: what the jobs need."""

    models: Collection[str] = ()
    """Only these models; all if empty."""
    gpus: tuple[int, ...] | None = None
    batches: tuple[int, ...] | None = None
    iterations: int = 10
    warmup: int = 3
    allreduce: bool = False
    costs: bool = False
    """Also measure how long a start, a relaunch and a change of the workers in place take."""
    patience_s: float = 0.0
    """Seconds to spend at most on measuring disturbed points again."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The script of one model, the local batches of one worker, and the gangs to measure."""

    script: Script
    local_batches: tuple[int, ...]
    global_batches: tuple[int, ...]
    gpus: tuple[int, ...]
    """Sizes of two or more workers."""
    per_gpu_max: int | None = None
    gangs_of_largest: tuple[int, ...] = ()
    """Requested sizes of jobs without a batch: their batch is the size times the largest that fits."""
    notes: tuple[str, ...] = ()


def model_plans(jobs: Iterable[Job], node: MeasuredNode, options: MeasuringOptions) -> tuple[ModelPlan, ...]:
    """One plan for each model, in order of first appearance.

    A model is measured with the command of its first job that has one.

    :raises BadInputError: a wanted model is unknown, no job of a model has a command, or all have replicas
        of several GPUs.
    """
    by_model: dict[str, list[Job]] = {}
    for job in jobs:
        if not options.models or job.model in options.models:
            by_model.setdefault(job.model, []).append(job)
    missing = sorted(set(options.models) - set(by_model))
    if missing:
        raise BadInputError(f'no job has the model "{missing[0]}"')
    if not by_model:
        raise BadInputError("there is no job to measure")
    return tuple(_model_plan(model, group, node, options) for model, group in by_model.items())


def _model_plan(model: str, jobs: Sequence[Job], node: MeasuredNode, options: MeasuringOptions) -> ModelPlan:
    started = [job for job in jobs if job.command]
    if contained := [job for job in started if job.container is not None]:
        raise BadInputError(
            f'job "{contained[0].id}" runs in a container, which profile does not start: run it inside of '
            "the image, import rows, or name other models with --model"
        )
    able = [job for job in started if job.gpus.per_replica == 1]
    if started and not able:
        raise BadInputError(
            f'model "{model}" has replicas of {started[0].gpus.per_replica} GPUs, which cannot be measured: '
            "import its rows, or name other models with --model"
        )
    if not able:
        raise BadInputError(f'no job of model "{model}" has a command: nothing can be started to measure it')
    first = able[0]
    command, by_torchrun = first.script, not first.changes_in_place
    script = Script(model, command, first.workdir, dict(first.env), node.slots, by_torchrun, first.own_python)
    gpus = options.gpus or _sizes(jobs, node)
    limits = [job.batch.per_gpu_max for job in jobs if job.batch.per_gpu_max]
    per_gpu_max = max(limits) if len(limits) == len(jobs) else None
    return ModelPlan(
        script,
        options.batches or _local_batches(jobs, max(gpus, default=1), per_gpu_max),
        tuple(sorted({size for job in jobs for size in _global_batches(job)})),
        tuple(size for size in gpus if 1 < size <= node.workers),
        per_gpu_max,
        tuple(sorted({job.gpus.requested for job in jobs if job.batch.size is None})),
        _notes(model, able, options, node),
    )


def _sizes(jobs: Sequence[Job], node: MeasuredNode) -> tuple[int, ...]:
    """Powers of two between the smallest and the largest size of any job, and what jobs ask for."""
    low = min(job.min_gpus for job in jobs)
    high = max(job.max_gpus(node.cluster_gpus) for job in jobs)
    asked = {job.gpus.requested for job in jobs} | {job.min_gpus for job in jobs}
    reach = min(high, node.workers)
    between = powers(low, reach) if low <= reach else ()
    return tuple(sorted(size for size in {*between, *asked} if size <= node.workers))


def _local_batches(jobs: Sequence[Job], gpus: int, per_gpu_max: int | None) -> tuple[int, ...]:
    """From half the smallest share on ``gpus`` workers to the largest batch that one worker may get."""
    if any(job.batch.size is None for job in jobs):
        return powers(1, per_gpu_max or UNKNOWN_CEILING)
    smallest = min(job.batch.min or job.batch.size or 1 for job in jobs)
    largest = max(job.batch.max or job.batch.size or 1 for job in jobs)
    high = min(largest, per_gpu_max or largest)
    return powers(min(high, max(1, smallest // gpus // 2)), high)


def _global_batches(job: Job) -> set[int]:
    """The batches with which the job trains, and half of its own, to check the model."""
    if job.batch.size is None:
        return set()
    limits = {job.batch.min, job.batch.max} if job.elastic == "size+batch" else set()
    return {size for size in (job.batch.size, job.batch.size // 2, *limits) if size}


def _notes(model: str, able: Sequence[Job], options: MeasuringOptions, node: MeasuredNode) -> tuple[str, ...]:
    notes = []
    first = able[0]
    started = (first.command, first.workdir, first.env)
    differ = [job.id for job in able if (job.command, job.workdir, job.env) != started]
    if differ:
        others = ", ".join(differ[:3]) + (" …" if len(differ) > 3 else "")
        notes.append(
            f'model "{model}" is measured with the command of job {first.id}; that of {others} differs'
        )
    too_many = [size for size in options.gpus or () if size > node.workers]
    if too_many:
        notes.append(f'model "{model}": {too_many[0]} workers are more than the {node.workers} of this node')
    return tuple(notes)


def powers(low: int, high: int) -> tuple[int, ...]:
    """``low``, the powers of two between, and ``high``: ``powers(3, 20) == (3, 4, 8, 16, 20)``."""
    between = (1 << exponent for exponent in range(high.bit_length()) if low < 1 << exponent < high)
    return tuple(sorted({low, *between, high}))


@dataclass(frozen=True, slots=True)
class MeasuredNode:
    """The node on which to measure; it stands for its GPU type."""

    gpu_type: str
    slots: Literal["cpu", "gpu"]
    workers: int
    """Most workers that can be measured here."""
    cluster_gpus: int
    """GPUs (or CPU slots) of the whole cluster."""
    memory_limit: int | None = None
    """Bytes that one worker may use; None: no limit."""
    notes: tuple[str, ...] = ()


def node_to_measure(cluster: Cluster | None, devices: int | None = None) -> MeasuredNode:
    """The node to measure on: this host by name if it is in the cluster, else the node with the most GPUs.

    :param devices: GPUs of this machine; looked up if None.
    :raises BadInputError: the cluster is empty.
    :raises ServiceMissingError: the cluster has GPUs and this machine has none.
    """
    gpus = visible_gpus() if devices is None else devices
    if cluster is None:
        return _this_machine(gpus)
    node = _node(cluster)
    workers = _workers(cluster, node, gpus)
    if not workers:
        what = 'the cluster has slots of kind "gpu" but this machine has none to measure on'
        raise ServiceMissingError(f'{what}; run profile on one of its nodes, or state "slots": "cpu"')
    total = cluster.total_gpus
    return MeasuredNode(
        node.gpu_type,
        cluster.slots,
        workers,
        total,
        _memory(cluster, node),
        _node_notes(cluster, node, workers),
    )


def visible_gpus() -> int:
    """GPUs that this process may use, counted without a driver."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return len([part for part in chosen.split(",") if part.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)])


def _this_machine(devices: int) -> MeasuredNode:
    if devices:
        return MeasuredNode("gpu", "gpu", devices, devices)
    cores = len(os.sched_getaffinity(0))
    return MeasuredNode("cpu", "cpu", cores, cores)


def _node(cluster: Cluster) -> Node:
    nodes = [node for node in cluster.expanded() if node.gpus]
    if not nodes:
        raise BadInputError("the cluster has no GPUs or CPU slots: there is nothing to measure on")
    names = {socket.gethostname(), platform.node(), socket.gethostname().partition(".")[0]}
    here = [node for node in nodes if {node.name, node.address} & names]
    return max(here or nodes, key=lambda node: node.gpus)


def _workers(cluster: Cluster, node: Node, devices: int) -> int:
    """Most workers that this machine can run: nodes of a local cluster without an address are here."""
    alike = [other for other in cluster.expanded() if other.gpu_type == node.gpu_type]
    here = cluster.backend == "local" and all(other.address in LOOPBACK for other in alike)
    slots = sum(other.gpus for other in alike) if here else node.gpus
    if cluster.slots == "gpu":
        return min(slots, devices)
    return max(node.gpus, min(slots, len(os.sched_getaffinity(0))))


def _memory(cluster: Cluster, node: Node) -> int | None:
    if node.gpu_memory or cluster.slots == "gpu":
        return node.gpu_memory or None
    return node.memory // node.gpus if node.memory else None


def _node_notes(cluster: Cluster, node: Node, workers: int) -> tuple[str, ...]:
    notes = []
    others = sorted({other.gpu_type for other in cluster.nodes} - {node.gpu_type})
    if others:
        notes.append(f'measuring "{node.gpu_type}"; run profile on the others too: {", ".join(others)}')
    if cluster.total_gpus > workers:
        notes.append(
            f"measuring up to {workers} of the cluster's {cluster.total_gpus} slots: those of this machine; "
            "larger sizes are offered only where all-reduce rows reach that far"
        )
    return tuple(notes)
