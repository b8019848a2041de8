"""Alibaba's GPU trace of 2023: the list of pods (``openb_pod_list_*.csv``), and that of nodes.

The list of nodes (``openb_node_list_*.csv``) is known by its columns: sn, cpu_milli, memory_mib, gpu, model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pydantic_core import ValidationError

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError
from pliant.schemas.formats.files import PIPE
from pliant.schemas.formats.problems import problems_of
from pliant.schemas.job import Job
from pliant.tools.replay.importers.csv_records import open_text, sheet
from pliant.tools.replay.importers.fields import count, number, optional_number, text, word
from pliant.tools.replay.importers.format import (
    NO_GPU,
    TraceFormat,
    assume_no_models,
    executed_job,
    executed_seconds,
)
from pliant.tools.replay.importers.rows import DroppedRowError, Intake, MalformedRowError, Record

COLUMNS: Final = (
    "name", "num_gpu", "gpu_milli", "gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time",
    "scheduled_time",
)  # fmt: skip
NODES: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_MEBIBYTE: Final = 1 << 20
_SHARED: Final = "a pod with a share of a GPU holds a whole one (label gpu_milli)"


def read(paths: Sequence[str], intake: Intake) -> Iterator[Job]:
    """Jobs of each file, one a pod."""
    assume_no_models(intake)
    intake.report.assume("a pod runs from scheduled_time to deletion_time, whatever its phase says")
    intake.report.assume("gpu_spec, the GPU types a pod may use, is kept as a label and binds no policy")
    for path in _pod_lists(paths):
        yield from intake.convert(sheet(path, intake, COLUMNS), lambda row: _job(row, intake))


def _job(row: Record, intake: Intake) -> Job:
    gpus, milli = count(row, "num_gpu"), count(row, "gpu_milli")
    if not gpus:
        raise DroppedRowError(NO_GPU)
    submit_time_s = number(row, "creation_time")
    start_s, end_s = optional_number(row, "scheduled_time"), optional_number(row, "deletion_time")
    if start_s is not None and start_s < submit_time_s:
        raise MalformedRowError("scheduled_time", "is before creation_time")
    seconds = executed_seconds(start_s, end_s)
    if milli < 1000:
        intake.report.assume_here(_SHARED)
    labels = {
        "trace": "alibaba-v2023",
        "status": text(row, "pod_phase"),
        "qos": text(row, "qos"),
        "gpu_spec": text(row, "gpu_spec"),
        "gpu_milli": milli if milli < 1000 else None,
    }
    return executed_job(intake.new_id(word(row, "name")), submit_time_s, gpus, gpus * seconds, labels=labels)


def read_cluster(paths: Sequence[str], intake: Intake) -> Cluster | None:
    """The nodes of the list of nodes among the paths.

    :raises BadInputError: a name is there twice.
    """
    lists = [path for path in paths if path not in _pod_lists(paths)]
    if not lists:
        return None
    nodes = [node for path in lists for node in intake.convert(sheet(path, intake, NODES), _node)]
    try:
        return Cluster(nodes=tuple(nodes))
    except ValidationError as error:
        raise BadInputError(problems_of(error, lists[0])) from None


def _pod_lists(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not _lists_nodes(path)]


def _lists_nodes(path: str) -> bool:
    if path == PIPE:
        return False
    with open_text(path) as stream:
        return stream.readline().strip().split(",")[0] == NODES[0]


def _node(row: Record) -> Node:
    gpus = count(row, "gpu")
    if not gpus:
        raise DroppedRowError("are nodes without GPUs")
    return Node(
        name=word(row, "sn"),
        gpus=gpus,
        gpu_type=word(row, "model"),
        cpus=number(row, "cpu_milli") / 1000 or None,
        memory=count(row, "memory_mib") * _MEBIBYTE,
    )


FORMAT: Final = TraceFormat(
    "alibaba-v2023",
    "Alibaba GPU trace 2023: openb_pod_list CSV, and openb_node_list CSV with --cluster-out",
    read,
    cluster=read_cluster,
)
