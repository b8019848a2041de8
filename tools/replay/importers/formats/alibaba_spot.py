"""Alibaba's trace of spot GPUs of 2026: jobs (``job_info_df.csv``), and the list of nodes.

A job is a gang of worker_num workers with gpu_request GPUs each; its job_type is HP (high priority) or Spot.
The list of nodes (``node_info_df.csv``) is known by its columns: node_name, gpu_model, gpu_capacity_num,
cpu_num.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from pliant.schemas.cluster import Cluster, Node
from pliant.tools.replay.importers.conversion import Conversion, DroppedRowError, InputRow, TraceFormat
from pliant.tools.replay.importers.formats.alibaba_v2023 import cluster_of
from pliant.tools.replay.importers.formats.table import SPOT
from pliant.tools.replay.importers.job_lines import JobBlock
from pliant.tools.replay.importers.reading import first_line

NODES: Final = ("node_name", "gpu_model", "gpu_capacity_num")


def read(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    conversion.summary.assume("a job of the type HP has the priority 1, one of the type Spot 0")
    return SPOT.read([path for path in paths if not _lists_nodes(path)], conversion)


def read_cluster(paths: Sequence[str], conversion: Conversion) -> Cluster | None:
    return cluster_of([path for path in paths if _lists_nodes(path)], conversion, NODES, _node)


def _lists_nodes(path: str) -> bool:
    return "gpu_capacity_num" in first_line(path)


def _node(row: InputRow) -> Node:
    gpus = row.count("gpu_capacity_num")
    if not gpus:
        raise DroppedRowError("are nodes without GPUs")
    return Node(
        name=row.text("node_name"),
        gpus=gpus,
        gpu_type=row.text("gpu_model"),
        cpus=row.optional_number("cpu_num") or None,
    )


FORMAT: Final = TraceFormat("alibaba-spot", read, absolute=False, cluster=read_cluster)
