"""Alibaba's GPU trace of 2023: the list of pods (``openb_pod_list_*.csv``), and that of nodes.

The list of nodes (``openb_node_list_*.csv``) is known by its columns: sn, cpu_milli, memory_mib, gpu, model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from pydantic_core import ValidationError

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.job import Job
from pliant.tools.replay.importers.conversion import (
    Conversion,
    DroppedRowError,
    InputRow,
    MalformedRowError,
    Reason,
    TraceFormat,
    assume_no_models,
    executed_job,
    executed_seconds,
)
from pliant.tools.replay.importers.reading import csv_rows, first_line

COLUMNS: Final = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")
NODES: Final = ("sn", "gpu", "model")
_MEBIBYTE: Final = 1 << 20
_SHARED: Final = "a pod with a share of a GPU holds a whole one (label gpu_milli)"


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[Job]:
    assume_no_models(conversion)
    conversion.summary.assume("a pod runs from scheduled_time to deletion_time, whatever its phase says")
    conversion.summary.assume("gpu_spec, the GPU types a pod may use, is kept as a label and binds no policy")
    for path in [path for path in paths if not _lists_nodes(path)]:
        yield from conversion.convert(csv_rows(path, conversion, COLUMNS), partial(_job, conversion))


def _job(conversion: Conversion, row: InputRow) -> Job:
    gpus, milli = row.count("num_gpu"), row.count("gpu_milli") if "gpu_milli" in row.values else 1000
    if not gpus:
        raise DroppedRowError(Reason.NO_GPU)
    submit_time_s = row.number("creation_time")
    start_s, end_s = row.optional_number("scheduled_time"), row.optional_number("deletion_time")
    if start_s is not None and start_s < submit_time_s:
        raise MalformedRowError("scheduled_time", "is before creation_time")
    seconds = executed_seconds(start_s, end_s)
    if milli < 1000:
        conversion.summary.assume_here(_SHARED)
    labels = {
        "trace": "alibaba-v2023",
        "status": row.optional_text("pod_phase"),
        "qos": row.optional_text("qos"),
        "gpu_spec": row.optional_text("gpu_spec"),
        "gpu_milli": milli if milli < 1000 else None,
    }
    job_id = conversion.new_id(row.text("name"))
    runs = [] if start_s is None else [(start_s, start_s + seconds, gpus)]
    return executed_job(job_id, submit_time_s, gpus, gpus * seconds, labels=labels, runs=runs)


def read_cluster(paths: Sequence[str], conversion: Conversion) -> Cluster | None:
    return cluster_of([path for path in paths if _lists_nodes(path)], conversion, NODES, _node)


def cluster_of(
    lists: Sequence[str], conversion: Conversion, needed: Sequence[str], make: Callable[[InputRow], Node]
) -> Cluster | None:
    """The nodes of all lists; None: there is no list."""
    if not lists:
        return None
    nodes = [node for path in lists for node in conversion.convert(csv_rows(path, conversion, needed), make)]
    try:
        return Cluster(nodes=tuple(nodes))
    except ValidationError as error:
        raise BadInputError(problems_of(error, lists[0])) from None


def _lists_nodes(path: str) -> bool:
    return first_line(path).strip().split(",")[0] == NODES[0]


def _node(row: InputRow) -> Node:
    gpus = row.count("gpu")
    if not gpus:
        raise DroppedRowError("are nodes without GPUs")
    return Node(
        name=row.text("sn"),
        gpus=gpus,
        gpu_type=row.text("model"),
        cpus=row.number("cpu_milli") / 1000 or None if "cpu_milli" in row.values else None,
        memory=row.count("memory_mib") * _MEBIBYTE if "memory_mib" in row.values else None,
    )


FORMAT: Final = TraceFormat("alibaba-v2023", read, cluster=read_cluster)
