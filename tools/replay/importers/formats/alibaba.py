"""Alibaba's traces: PAI of 2020, GPU pods of 2023 (``openb``), spot GPUs of 2026.

PAI is ``pai_job_table`` and ``pai_task_table``, each beside its header file. A job is one row of the job
table (its start_time is the submission) joined with the rows of the task table that hold GPUs; plan_gpu is
per instance, in percent of a GPU. The GPU tasks wait in memory for their jobs.

The pods of 2023 are ``openb_pod_list_*.csv``; their list of nodes (``openb_node_list_*.csv``) is known by its
columns: sn, cpu_milli, memory_mib, gpu, model.

Jobs of 2026 are ``job_info_df.csv``: a job is a gang of worker_num workers with gpu_request GPUs each, and
its job_type is HP (high priority) or Spot. The list of nodes (``node_info_df.csv``) is known by its columns:
node_name, gpu_model, gpu_capacity_num, cpu_num.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from pydantic_core import ValidationError

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.text import counted
from pliant.tools.replay.importers.blocks import RowBlock, RowIds, WordColumn, convert_blocks, words_of
from pliant.tools.replay.importers.conversion import (
    UNKNOWN_MODEL,
    Conversion,
    DroppedRowError,
    InputRow,
    Reason,
    TraceFormat,
    assume_no_models,
)
from pliant.tools.replay.importers.formats.table import Table
from pliant.tools.replay.importers.job_lines import JobBlock, executed_jobs
from pliant.tools.replay.importers.reading import csv_blocks, csv_rows, first_line, open_text

if TYPE_CHECKING:
    from pliant.tools.replay.importers.blocks import Numbers

JOBS: Final = "pai_job_table"
TASKS: Final = "pai_task_table"
TAGS: Final = "pai_group_tag_table"
"""Optional: names of workloads, as bert or ctr."""
JOB_COLUMNS: Final = ("job_name", "start_time")
TASK_COLUMNS: Final = ("job_name", "inst_num", "start_time", "end_time", "plan_gpu")
_PACKED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")
_ON_CPUS: Final = "\0"
_GIBIBYTE: Final = 1 << 30
_SHARED: Final = "a job with shares of GPUs holds whole ones (label gpu_share)"


@dataclass(frozen=True, slots=True)
class TaskDemands:
    """What GPU tasks of each job held; NaN: no task states its start, or one no end.

    Tasks without GPUs are there for jobs that are kept without any, each under its job's name and
    :data:`_ON_CPUS`.
    """

    rows: dict[str, int]
    """Place in the columns, by job; a job that was asked for is taken out. The last place is of no job."""
    gpus: Numbers
    cpus: Numbers
    memory_bytes: Numbers
    instances: Numbers
    start_s: Numbers
    end_s: Numbers
    gpu_type: WordColumn


def _read_pai(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    workloads = _workloads(paths, conversion)
    if workloads:
        conversion.summary.assume("models are the workloads of the group tags, where a job has one")
    else:
        assume_no_models(conversion)
    conversion.summary.assume("a job runs from the start of its first GPU task to the end of its last")
    jobs, tasks = _table(paths, JOBS), _table(paths, TASKS)
    if conversion.cpu_jobs:
        conversion.summary.assume(
            "a job without GPU tasks runs as one process, from its first task to its last"
        )
    demands = _joined(convert_blocks(_blocks(tasks, conversion, TASK_COLUMNS), _tasks))
    blocks = _blocks(jobs, conversion, JOB_COLUMNS)
    yield from convert_blocks(blocks, partial(_pai_jobs, demands, workloads))
    left = sum(not name.endswith(_ON_CPUS) for name in demands.rows)
    if left:
        conversion.summary.assume(
            f"GPU tasks of {counted(left, 'job')} that {JOBS} does not have were left out"
        )


def _workloads(paths: Sequence[str], conversion: Conversion) -> dict[str, str]:
    """Names of workloads by inst_id, of the group tags that may be beside the other tables."""
    workloads: dict[str, str] = {}
    for path in _tables(paths, TAGS):
        for block in _blocks(path, conversion, ("inst_id", "workload")):
            for line, fault in block.others:
                conversion.refuse_row(block.source, line, fault)
            if len(block):
                columns = (block.optional_text(name).listed() for name in ("inst_id", "workload"))
                workloads |= {
                    instance: workload for instance, workload in zip(*columns, strict=True) if workload
                }
    return workloads


def _table(paths: Sequence[str], name: str) -> Path:
    tables = _tables(paths, name)
    if len(tables) != 1:
        raise UsageError(
            f"{len(tables)} files {name}.csv are given, expected one: name the trace's folder or both tables"
        )
    return tables[0]


def _tables(paths: Sequence[str], name: str) -> list[Path]:
    files = (f"{name}.csv", *(f"{name}.csv{ending}" for ending in _PACKED))
    given = [Path(path) for path in paths]
    tables = [path for path in given if path.name in files and path.is_file()]
    return tables + [path / file for path in given for file in files if (path / file).is_file()]


def _blocks(path: Path, conversion: Conversion, needed: Sequence[str]) -> Iterator[RowBlock]:
    header = path.with_name(f"{path.name.partition('.')[0]}.header")
    with open_text(header, conversion.refuse_byte) as stream:
        names = [name.strip() for name in stream.readline().split(",")]
    missing = [name for name in needed if name not in names]
    if missing:
        raise BadInputError.one(str(header), f"names no column {', '.join(missing)}", line=1)
    return csv_blocks(path, conversion, needed, names=names)


def _tasks(block: RowBlock) -> tuple[list[str], list[str], list[Numbers]]:
    """Of tasks: jobs and GPU types, then GPUs, starts, ends, cores, memory and instances."""
    instances, keeps_all = block.number("inst_num"), block.conversion.cpu_jobs
    gpus = np.nan_to_num(block.optional_number("plan_gpu")) / 100 * instances
    if not keeps_all:
        block.drop(gpus == 0, "are tasks without GPUs")
    start_s, end_s = block.optional_timestamp("start_time"), block.optional_timestamp("end_time")
    each = [block.optional_number(name) if keeps_all else start_s for name in ("plan_cpu", "plan_mem")]
    cpus, memory_bytes = np.nan_to_num(each[0]) / 100, np.nan_to_num(each[1]) * _GIBIBYTE
    rows = np.flatnonzero(block.live)
    jobs, types = (block.optional_text(name).take(rows).listed() for name in ("job_name", "gpu_type"))
    if keeps_all:
        jobs = [job if held else job + _ON_CPUS for job, held in zip(jobs, gpus[rows], strict=True)]
    columns = (gpus, start_s, end_s, cpus, memory_bytes, instances)
    return jobs, types, [column[rows] for column in columns]


def _joined(tasks: Iterable[tuple[list[str], list[str], list[Numbers]]]) -> TaskDemands:
    """The tasks of each job taken together."""
    rows: dict[str, int] = {}
    gpu_types: list[str] = []
    places, numbers = array("q"), [array("d") for _ in range(6)]
    for jobs, types, columns in tasks:
        row_of_task = [rows.setdefault(job, len(rows)) for job in jobs]
        firsts = dict(zip(reversed(row_of_task), reversed(types), strict=True))
        gpu_types += [firsts[place] for place in range(len(gpu_types), len(rows))]
        places.extend(row_of_task)
        for known, column in zip(numbers, columns, strict=True):
            known.frombytes(column.tobytes())
    at = np.array(places, dtype=np.int64)
    gpus, starts_s, ends_s, *amounts = map(np.array, numbers)
    start_s, end_s = np.full(len(rows) + 1, np.nan), np.full(len(rows) + 1, -np.inf)
    np.fmin.at(start_s, at, starts_s)
    with np.errstate(invalid="ignore"):
        np.maximum.at(end_s, at, ends_s)
    held = np.bincount(at, gpus, len(rows) + 1)
    whole = np.array([round(each, 6) for each in held.tolist()])  # tenths add up to a little less
    cpus, memory_bytes, instances = (np.bincount(at, each, len(rows) + 1).astype(float) for each in amounts)
    kinds = WordColumn.of([*gpu_types, ""])
    return TaskDemands(rows, whole, cpus, memory_bytes, instances, start_s, end_s, kinds)


def _pai_jobs(demands: TaskDemands, workloads: Mapping[str, str], block: RowBlock) -> JobBlock:
    names = block.optional_text("job_name").listed()
    on_cpus = [demands.rows.pop(name + _ON_CPUS, -1) for name in names]
    rows = np.array([demands.rows.pop(name, other) for name, other in zip(names, on_cpus, strict=True)])
    submit_time_s = block.optional_timestamp("start_time")
    block.drop(np.isnan(submit_time_s), Reason.NO_SUBMISSION)
    block.drop(rows < 0, Reason.NO_GPU)
    start_s = demands.start_s[rows]
    seconds = block.executed_seconds(start_s, demands.end_s[rows])
    held = demands.gpus[rows]
    gpus = np.ceil(held)
    block.drop_without_gpus(gpus, demands.instances[rows])
    block.assume(held < gpus, _SHARED)
    labels: dict[str, str | WordColumn] = {
        "trace": "pai",
        "status": block.optional_text("status"),
        "gpu_type": demands.gpu_type.take(rows),
        "gpu_share": words_of(held, lambda share: "" if share == math.ceil(share) else f"{share:g}"),
    }
    return executed_jobs(
        block,
        RowIds(block).of("job_name"),
        submit_time_s,
        gpus,
        seconds,
        user=block.optional_text("user"),
        model=block.optional_text("inst_id").map(lambda instance: workloads.get(instance, UNKNOWN_MODEL)),
        labels=labels,
        start_s=start_s,
        cpus=demands.cpus[rows],
        memory_bytes=demands.memory_bytes[rows],
    )


PAI: Final = TraceFormat("pai", _read_pai, has_cpu_jobs=True)


_POD_COLUMNS: Final = ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time")
_POD_NODES: Final = ("sn", "gpu", "model")
_MEBIBYTE: Final = 1 << 20
_SHARED_BY_PODS: Final = "a pod with a share of a GPU holds a whole one (label gpu_milli)"


def _read_pods(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    assume_no_models(conversion)
    conversion.summary.assume("a pod runs from scheduled_time to deletion_time, whatever its phase says")
    conversion.summary.assume("a pod may use the GPU types of gpu_spec only, where the cluster has them")
    for path in [path for path in paths if not _lists_pod_nodes(path)]:
        yield from convert_blocks(csv_blocks(path, conversion, _POD_COLUMNS), _pods)


def _pods(block: RowBlock) -> JobBlock:
    gpus, keeps_all = block.count("num_gpu"), block.conversion.cpu_jobs
    milli = block.count("gpu_milli") if "gpu_milli" in block else np.full(len(block), 1000.0)
    block.drop_without_gpus(gpus)
    submit_time_s = block.number("creation_time")
    start_s, end_s = block.optional_number("scheduled_time"), block.optional_number("deletion_time")
    seconds = block.executed_seconds(start_s, end_s)
    block.assume((milli < 1000) & (gpus > 0), _SHARED_BY_PODS)
    labels: dict[str, str | WordColumn] = {
        "trace": "alibaba-v2023",
        "status": block.optional_text("pod_phase"),
        "qos": block.optional_text("qos"),
        "gpu_spec": block.optional_text("gpu_spec"),
        "gpu_milli": words_of(milli, lambda part: str(int(part)) if 0 < part < 1000 else ""),
    }
    ids = RowIds(block).of("name", block.keys())
    return executed_jobs(
        block,
        ids,
        submit_time_s,
        gpus,
        seconds,
        labels=labels,
        start_s=start_s,
        cpus=block.optional_number("cpu_milli") / 1000 if keeps_all else None,
        memory_bytes=block.optional_number("memory_mib") * _MEBIBYTE if keeps_all else None,
    )


def _pods_cluster(paths: Sequence[str], conversion: Conversion) -> Cluster | None:
    return _cluster_of([path for path in paths if _lists_pod_nodes(path)], conversion, _POD_NODES, _pod_node)


def _cluster_of(
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


def _lists_pod_nodes(path: str) -> bool:
    return first_line(path).strip().split(",")[0] == _POD_NODES[0]


def _gpus_of_node(row: InputRow, column: str) -> int:
    """:raises DroppedRowError: it has none."""
    if not (gpus := row.count(column)):
        raise DroppedRowError("are nodes without GPUs")
    return gpus


def _pod_node(row: InputRow) -> Node:
    return Node(
        gpus=_gpus_of_node(row, "gpu"),
        name=row.text("sn"),
        gpu_type=row.text("model"),
        cpus=row.number("cpu_milli") / 1000 or None if "cpu_milli" in row.values else None,
        memory=row.count("memory_mib") * _MEBIBYTE if "memory_mib" in row.values else None,
    )


V2023: Final = TraceFormat("alibaba-v2023", _read_pods, cluster=_pods_cluster, has_cpu_jobs=True)


_SPOT_NODES: Final = ("node_name", "gpu_model", "gpu_capacity_num")


_SPOT_JOBS: Final = Table(
    {
        "id": "job_name",
        "team": "organization",
        "gpus": "gpu_request",
        "workers": "worker_num",
        "submit": "submit_time",
        "duration": "duration",
        "priority": "job_type",
        "class": "job_type",
        "gpu_type": "gpu_model",
    },
    priorities={"HP": 1.0, "Spot": 0.0},
    name="alibaba-spot",
)
"""Rows of ``job_info_df.csv``; a gang is gpu_request GPUs for each of its workers."""


def _read_spot(paths: Sequence[str], conversion: Conversion) -> Iterator[JobBlock]:
    conversion.summary.assume("a job of the type HP has the priority 1, one of the type Spot 0")
    return _SPOT_JOBS.read([path for path in paths if not _lists_spot_nodes(path)], conversion)


def _spot_cluster(paths: Sequence[str], conversion: Conversion) -> Cluster | None:
    return _cluster_of(
        [path for path in paths if _lists_spot_nodes(path)], conversion, _SPOT_NODES, _spot_node
    )


def _lists_spot_nodes(path: str) -> bool:
    return "gpu_capacity_num" in first_line(path)


def _spot_node(row: InputRow) -> Node:
    return Node(
        gpus=_gpus_of_node(row, "gpu_capacity_num"),
        name=row.text("node_name"),
        gpu_type=row.text("gpu_model"),
        cpus=row.optional_number("cpu_num") or None,
    )


SPOT: Final = TraceFormat("alibaba-spot", _read_spot, absolute=False, cluster=_spot_cluster)
