"""Alibaba's GPU trace of 2023: the list of pods (``openb_pod_list_*.csv``), and that of nodes.

The list of nodes (``openb_node_list_*.csv``) is known by its columns: sn, cpu_milli, memory_mib, gpu, model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from pydantic_core import ValidationError

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.record import problems_of
from pliant.tools.replay.importers.blocks import RowBlock, WordColumn, convert_blocks, words_of
from pliant.tools.replay.importers.conversion import (
    Conversion,
    DroppedRowError,
    InputRow,
    Reason,
    TraceFormat,
    assume_no_models,
)
from pliant.tools.replay.importers.job_lines import JobBlock, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, csv_rows, first_line

COLUMNS: Final = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")
NODES: Final = ("sn", "gpu", "model")
_MEBIBYTE: Final = 1 << 20
_SHARED: Final = "a pod with a share of a GPU holds a whole one (label gpu_milli)"


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    assume_no_models(conversion)
    conversion.summary.assume("a pod runs from scheduled_time to deletion_time, whatever its phase says")
    conversion.summary.assume("gpu_spec, the GPU types a pod may use, is kept as a label and binds no policy")
    for path in [path for path in paths if not _lists_nodes(path)]:
        yield from convert_blocks(csv_blocks(path, conversion, COLUMNS), _jobs)


def _jobs(block: RowBlock) -> JobBlock:
    gpus = block.count("num_gpu")
    milli = block.count("gpu_milli") if "gpu_milli" in block else np.full(len(block), 1000.0)
    block.drop(gpus == 0, Reason.NO_GPU)
    submit_time_s = block.number("creation_time")
    start_s, end_s = block.optional_number("scheduled_time"), block.optional_number("deletion_time")
    block.refuse(start_s < submit_time_s, "scheduled_time", "is before creation_time")
    seconds = block.executed_seconds(start_s, end_s)
    block.assume(milli < 1000, _SHARED)
    labels: dict[str, str | WordColumn] = {
        "trace": "alibaba-v2023",
        "status": block.optional_text("pod_phase"),
        "qos": block.optional_text("qos"),
        "gpu_spec": block.optional_text("gpu_spec"),
        "gpu_milli": words_of(milli, lambda part: str(int(part)) if part < 1000 else ""),
    }
    ids = block.ids("name")
    return executed_jobs(block, ids, submit_time_s, gpus, seconds, labels=labels, start_s=start_s)


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
