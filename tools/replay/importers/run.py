"""Import a trace: read, drop or refuse rows, sort the jobs by time, and write them.

Which jobs an import keeps, and how far apart they arrive, is chosen in the same way for all formats.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from pliant import __version__
from pliant.schemas import io
from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.documents import parse_job_table
from pliant.schemas.file_io.files import PIPE, check_folder, check_output, write_chunks
from pliant.schemas.file_io.json_lines import encode, header
from pliant.schemas.file_io.parquet import compute
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.schemas.quantities import read_duration
from pliant.schemas.text import counted, did_you_mean
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.importers import spool
from pliant.tools.replay.importers.blocks import arrow_array
from pliant.tools.replay.importers.conversion import (
    Conversion,
    FolderFormat,
    Format,
    Imported,
    ImportSummary,
    MalformedRowError,
    NodeFormat,
    NodeHistory,
    Progress,
    TraceFormat,
    parse_timestamp,
    time_zone,
)
from pliant.tools.replay.importers.formats import table
from pliant.tools.replay.importers.job_lines import JobBlock, blocks_of, ends_of, lines_of, taken, text_of
from pliant.tools.schedule.plugins import Plugins

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from pliant.tools.replay.importers.job_lines import JobBlock


_GROUPS: Final = ("vc", "partition", "queue", "organization", "cluster")
"""Labels that name the part of a cluster that a job was submitted to."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is kept. Times are those of the trace; the others count from the first job that is kept."""

    begin: str | None = None
    """Earliest submission: a length of time since the trace's start, or a date where it has dates."""
    end: str | None = None
    """Submissions before this."""
    users: Collection[str] = ()
    groups: Collection[str] = ()
    """Virtual clusters, partitions, queues, organisations or teams."""
    sample: float = 1.0
    """Part of the jobs to keep, drawn at random with :data:`SEED`."""
    scale_time: float = 1.0
    """Factor of the time between submissions; work stays as it is."""

    def __post_init__(self) -> None:
        if not 0 < self.sample <= 1:
            raise UsageError(f"--sample {self.sample:g}: expected a part of the jobs, above 0 and at most 1")
        if not 1e-6 <= self.scale_time <= 1e6:
            raise UsageError(f"--scale-time {self.scale_time:g}: expected a factor from 0.000001 to 1000000")

    @property
    def is_of_times(self) -> bool:
        """Whether it asks for nothing but times."""
        return not self.users and not self.groups and self.sample == 1

    def jobs(self, jobs: JobBlock, summary: ImportSummary) -> JobBlock:
        """The jobs of the users and groups; others are counted as dropped."""
        if not self.users and not self.groups:
            return jobs
        of_users = jobs.user.marks(lambda user: user in self.users) | (not self.users)
        in_groups = jobs.team.marks(lambda team: team in self.groups) | (not self.groups)
        for name in _GROUPS:
            if name in jobs.labels:
                in_groups |= jobs.labels[name].marks(lambda text: text in self.groups)
        _count(summary, "are of other users", int((~of_users).sum()))
        _count(summary, "are of other virtual clusters", int((of_users & ~in_groups).sum()))
        return jobs.take((of_users & in_groups).nonzero()[0])

    def bounds(self, origin_s: float, *, absolute: bool) -> tuple[float, float]:
        """The span of submissions, in seconds of the trace's own clock."""
        from_s = self._bound("--from", self.begin, origin_s, absolute=absolute)
        to_s = self._bound("--to", self.end, origin_s, absolute=absolute)
        low, high = (0.0 if from_s is None else from_s), (float("inf") if to_s is None else to_s)
        if high <= low and self.end is not None:
            raise UsageError(f"--to {self.end}: expected a time after --from")
        return low, high

    def chosen(
        self, times_s: NDArray[np.float64], summary: ImportSummary, *, absolute: bool
    ) -> NDArray[np.bool_]:
        """Which jobs to keep, by their submissions on the trace's own clock."""
        import numpy as np

        origin_s = float(times_s.min()) if absolute and len(times_s) else 0.0
        low, high = self.bounds(origin_s, absolute=absolute)
        kept = (times_s >= low) & (times_s < high)
        _count(summary, "were submitted outside of --from and --to", len(kept) - int(kept.sum()))
        if self.sample < 1:
            inside = np.flatnonzero(kept)
            rng = np.random.default_rng(SEED)
            drawn = rng.choice(inside, max(1, round(self.sample * len(inside))), replace=False)
            _count(summary, "are not in the sample", len(inside) - len(drawn))
            kept = np.zeros(len(times_s), dtype=bool)
            kept[drawn] = True
        return kept

    def events(self, events: Sequence[NodeEvent]) -> list[NodeEvent]:
        """Node events of the span, counted from its start; what is down then goes down there."""
        low, high = self.bounds(0.0, absolute=False)
        before = {event.node: event for event in events if event.time_s <= low}
        down = [replace(event, time_s=low) for event in before.values() if not event.up]
        inside = [event for event in events if low < event.time_s < high]
        return sorted(
            replace(event, time_s=round((event.time_s - low) * self.scale_time, 3))
            for event in (*down, *inside)
        )

    def _bound(self, option: str, text: str | None, origin_s: float, *, absolute: bool) -> float | None:
        if text is None:
            return None
        try:
            return origin_s + read_duration(text)
        except ValueError:
            pass
        try:
            moment_s = parse_timestamp(text, option)
        except MalformedRowError:
            moment_s = None
        if moment_s is None:
            raise UsageError(
                f"{option} {text}: expected a length of time like 36h, or a date like 2020-04-01"
            )
        if not absolute:
            raise UsageError(f"{option} {text}: this trace has no dates, expected a length of time like 36h")
        return moment_s


SEED: Final = 0
ALL: Final = Selection()


def _count(summary: ImportSummary, reason: str, rows: int) -> None:
    if rows:
        summary.dropped[reason] += rows


JOBS, PROFILE, CONVERGENCE, HISTORY = io.JOBS, io.PROFILE, io.CONVERGENCE, io.HISTORY
_FORMATS: Final = "pliant.tools.replay.importers.formats"
IMPORTERS: Final = Plugins(
    "importer",
    "pliant.importers",
    {
        "philly": f"{_FORMATS}.philly:FORMAT",
        "helios": f"{_FORMATS}.table:HELIOS",
        "pai": f"{_FORMATS}.alibaba:PAI",
        "alibaba-v2023": f"{_FORMATS}.alibaba:V2023",
        "alibaba-spot": f"{_FORMATS}.alibaba:SPOT",
        "acme": f"{_FORMATS}.table:ACME",
        "pollux": f"{_FORMATS}.pollux:FORMAT",
        "sia": f"{_FORMATS}.pollux:SIA",
        "ones": f"{_FORMATS}.ones:FORMAT",
        "tiresias": f"{_FORMATS}.table:TIRESIAS",
        "gavel": f"{_FORMATS}.gavel:GAVEL",
        "shockwave": f"{_FORMATS}.gavel:SHOCKWAVE",
        "elasticflow": f"{_FORMATS}.elasticflow:FORMAT",
        "slurm": f"{_FORMATS}.slurm:FORMAT",
        "swf": f"{_FORMATS}.swf:FORMAT",
        "csv": f"{_FORMATS}.table:CSV",
        "faults": f"{_FORMATS}.faults:FORMAT",
    },
)
"""Formats by name; each is a :data:`~pliant.tools.replay.importers.conversion.Format`."""
_CHUNK: Final = 1 << 20


def import_trace(
    name: str,
    paths: Sequence[str],
    out: str = PIPE,
    *,
    lenient: bool = False,
    workload: str | None = None,
    cluster_out: str | None = None,
    cluster: str | None = None,
    mapping: str | None = None,
    zone: str | None = None,
    cpu_jobs: bool = False,
    selection: Selection = ALL,
    progress: Progress | None = None,
) -> ImportSummary:
    """Import the inputs at ``paths`` and write jobs to ``out``, or a folder where there are measurements.

    :param lenient: drop malformed rows and count them, instead of failing with all of them.
    :param workload: the trace to import beside the measurements of a data folder.
    :param cluster_out: where to write the cluster of a list of nodes among the paths.
    :param cluster: a cluster whose nodes take the place of those that faults are about.
    :param mapping: what the columns of a csv mean, or the TOML file that says it.
    :param zone: of clock times that state none, as ``Europe/Berlin``. Default: UTC, or what the mapping says.
    :param cpu_jobs: keep jobs that used no GPU.
    :param selection: which of the jobs are kept.
    :raises BadInputError: malformed rows, a missing file, or nothing to import.
    :raises UsageError: the format is unknown, or the paths are not what it takes. Nothing is written then.
    """
    stated = None if zone is None else _zone(zone)
    trace_format = _format(name, mapping, stated)
    if stated is not None and not (isinstance(trace_format, TraceFormat) and trace_format.zoned):
        raise UsageError(f"--time-zone: the times of {name} are seconds or state their zone")
    if cpu_jobs and not (isinstance(trace_format, TraceFormat) and trace_format.has_cpu_jobs):
        raise UsageError(f"--cpu-jobs: of {name} only jobs with GPUs are read")
    summary = ImportSummary(name)
    conversion = Conversion(
        summary, lenient=lenient, progress=progress, zone=stated or UTC, cpu_jobs=cpu_jobs
    )
    if isinstance(trace_format, NodeFormat):
        _refuse_workload(trace_format.name, workload)
        _import_nodes(
            trace_format,
            paths,
            conversion,
            out=out,
            cluster_out=cluster_out,
            cluster=cluster,
            selection=selection,
        )
        return summary
    if cluster is not None:
        raise UsageError(f"--cluster: {name} brings no faults of nodes")
    if isinstance(trace_format, TraceFormat):
        _refuse_workload(trace_format.name, workload)
        if cluster_out is not None:
            check_output(cluster_out)
        listed = _cluster(trace_format, paths, cluster_out, conversion)
        _import_jobs(trace_format.jobs(paths, conversion), trace_format.absolute, out, selection, conversion)
        if listed is not None and cluster_out is not None:
            io.write_cluster(listed, cluster_out)
            summary.nodes = len(listed.nodes)
            summary.files.append(cluster_out)
        return summary
    if cluster_out is not None:
        raise UsageError(f"--cluster-out: {name} lists no nodes")
    if len(paths) != 1:
        raise UsageError(f"{name}: {len(paths)} paths, expected the data folder alone")
    path = Path(paths[0])
    if path.is_dir():
        where = _workload_path(path, workload)
        _import_folder(trace_format, path, where, conversion, out=out, selection=selection)
    elif trace_format.workload is not None and workload is None:
        _import_jobs(trace_format.workload(path, conversion), False, out, selection, conversion)
    else:
        raise UsageError(f"{path}: is not a folder; {name} takes its data folder and --workload FILE")
    return summary


def _zone(text: str) -> tzinfo:
    try:
        return time_zone(text)
    except ValueError as error:
        raise UsageError(f"--time-zone {error}") from None


def _format(name: str, mapping: str | None, zone: tzinfo | None) -> Format:
    importer = IMPORTERS.load(name)
    if importer is None:
        known = IMPORTERS.names()
        meant = f"what {name} prints is read as slurm" if name == "sacct" else did_you_mean(name, known)
        hint = meant or f"expected one of {', '.join(known)}"
        raise UsageError(f'there is no format "{name}"; {hint}')
    if not isinstance(importer, TraceFormat | FolderFormat | NodeFormat):
        raise UsageError(f"{IMPORTERS.title(name)} is no TraceFormat, FolderFormat or NodeFormat")
    if importer.name != name:
        raise UsageError(f"{IMPORTERS.title(name)} calls itself {importer.name!r}")
    if mapping is None:
        return importer
    if name != table.CSV.name:
        raise UsageError(f"--map: {name} has columns of its own, only those of csv are mapped")
    return table.mapped(mapping, zone)


def _refuse_workload(name: str, workload: str | None) -> None:
    if workload is not None:
        raise UsageError(f"--workload: {name} brings no measurements, its traces are named as paths")


def _cluster(
    trace_format: TraceFormat, paths: Sequence[str], cluster_out: str | None, conversion: Conversion
) -> Cluster | None:
    cluster = None if trace_format.cluster is None else trace_format.cluster(paths, conversion)
    if cluster is None and cluster_out is not None:
        what = (
            "no list of nodes is among the paths"
            if trace_format.cluster
            else f"{trace_format.name} lists no nodes"
        )
        raise UsageError(f"--cluster-out: {what}")
    if cluster is not None and cluster_out is None:
        raise UsageError("a list of nodes is among the paths: say with --cluster-out FILE where it goes")
    return cluster


def _workload_path(folder: Path, workload: str | None) -> Path | None:
    if workload is None:
        return None
    places = [Path(workload), *(folder / inner / workload for inner in ("", "workloads", "traces"))]
    return next((place for place in places if place.is_file()), Path(workload))


def _import_nodes(
    node_format: NodeFormat,
    paths: Sequence[str],
    conversion: Conversion,
    *,
    out: str,
    cluster_out: str | None,
    cluster: str | None,
    selection: Selection,
) -> None:
    """Write node events as ``--failures`` reads them, and the cluster that they are about."""
    if len(paths) != 1:
        raise UsageError(f"{node_format.name}: {len(paths)} paths, expected one file")
    if not selection.is_of_times:
        raise UsageError(
            f"{node_format.name} brings no jobs: only --from, --to and --scale-time choose among events"
        )
    for path in (out, cluster_out):
        if path is not None:
            check_output(path)
    history = node_format.read(paths, conversion)
    conversion.finish()
    nodes = io.read_cluster(cluster) if cluster is not None else _numbered(history)
    names = [node.name for node in nodes.expanded()]
    summary = conversion.summary
    events = [event for event in selection.events(history.events) if int(event.node) < len(names)]
    if history.nodes > len(names):
        left_out = counted(history.nodes - len(names), "node")
        summary.assume(f"the cluster has {len(names)} nodes: the events of {left_out} more are left out")
    lines = (
        {"time": each.time_s, "node": names[int(each.node)], "event": "up" if each.up else "down"}
        for each in events
    )
    write_chunks(out, [header("failure"), *map(encode, lines)])
    summary.node_events, summary.nodes = len(events), len(names)
    summary.files.append(out)
    if cluster_out is not None:
        io.write_cluster(nodes, cluster_out)
        summary.files.append(cluster_out)


def _numbered(history: NodeHistory) -> Cluster:
    return Cluster(nodes=(Node(name="n{}", gpus=history.gpus, count=max(1, history.nodes)),))


def _import_jobs(
    jobs: Iterable[Job | JobBlock], absolute: bool, out: str, selection: Selection, conversion: Conversion
) -> None:
    check_output(out)
    with SortedJobs() as spool:
        _collect(jobs, spool, selection, conversion)
        _write_jobs(spool, absolute, out, selection, conversion.summary)


def _collect(
    jobs: Iterable[Job | JobBlock], spool: SortedJobs, selection: Selection, conversion: Conversion
) -> None:
    for block in blocks_of(jobs):
        spool.add(selection.jobs(block, conversion.summary))
    conversion.finish()
    if not len(spool):
        raise _no_jobs(conversion.summary)


def _no_jobs(summary: ImportSummary) -> BadInputError:
    dropped = "; ".join(f"{count} {reason}" for reason, count in sorted(summary.dropped.items()))
    why = f" ({dropped})" if dropped else ""
    return BadInputError(f"{summary.format}: no job in {summary.rows} rows{why}")


def _write_jobs(
    spool: SortedJobs, absolute: bool, out: str, selection: Selection, summary: ImportSummary
) -> None:
    spool.select(selection, summary, absolute=absolute)
    if not len(spool):
        raise _no_jobs(summary)
    from_zero = absolute or selection.begin is not None
    origin = "the submission of its first job that was kept" if from_zero else "the start that the trace has"
    summary.assume(f"times are seconds since {origin}")
    chunks = spool.chunks(from_zero=from_zero, scale_time=selection.scale_time)
    if out.endswith(".parquet"):
        io.write_jobs(parse_job_table(b"".join(chunks), out), out)
    else:
        write_chunks(out, chunks)
    summary.jobs = len(spool)
    summary.files.append(out)


def _import_folder(
    folder_format: FolderFormat,
    folder: Path,
    workload: Path | None,
    conversion: Conversion,
    *,
    out: str,
    selection: Selection,
) -> None:
    if out == PIPE:
        raise UsageError(f"{folder_format.name} gives several files: name a folder with -o FOLDER")
    check_folder(out)
    imported = folder_format.read(folder, workload, conversion)
    with SortedJobs() as spool:
        if workload is not None:
            _collect(imported.jobs, spool, selection, conversion)
        conversion.finish()
        _write_folder(imported, Path(out), conversion.summary)
        if workload is None:
            conversion.summary.assume("no --workload was given: there are no jobs")
        else:
            _write_jobs(spool, False, str(Path(out) / JOBS), selection, conversion.summary)


def _write_folder(imported: Imported, out: Path, summary: ImportSummary) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"{out}: cannot be made a folder: {reason}") from error
    if imported.profile:
        metadata = (("tool", f"pliant {__version__}"), ("imported_from", summary.format))
        io.write_profile(Profile(tuple(imported.profile), metadata), out / PROFILE)
        summary.profile_rows = len(imported.profile)
        summary.files.append(str(out / PROFILE))
    if imported.convergence:
        io.write_convergence(imported.convergence, out / CONVERGENCE)
        summary.convergence_rows = len(imported.convergence)
        summary.files.append(str(out / CONVERGENCE))
    if imported.history:
        io.write_events(imported.history, out / HISTORY)
        summary.history_jobs = len({event.job for event in imported.history})
        summary.files.append(str(out / HISTORY))


class SortedJobs:
    """Jobs in columns; 8 bytes a job stay in memory, the rest goes to a file once it is much. A context
    manager: leaving it frees the rest.
    """

    def __init__(self) -> None:
        self._columns, self._lines = spool.Columns(), _Lines()
        self._submitted = array("d")
        self._kept: NDArray[np.intp] | None = None

    def __len__(self) -> int:
        return len(self._submitted) if self._kept is None else len(self._kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # of what could not be written, which was said already
            self._columns.close()
        with suppress(OSError):
            self._lines.file.close()

    def add(self, block: JobBlock) -> None:
        if len(block):
            self._columns.add(block.pieces)
            self._submitted.frombytes(block.submit_time_s.tobytes())

    def select(self, selection: Selection, summary: ImportSummary, *, absolute: bool) -> None:
        """Keep only what was chosen by time and at random."""
        if selection.begin is None and selection.end is None and selection.sample == 1:
            return
        times_s = np.array(self._submitted)
        self._kept = np.flatnonzero(selection.chosen(times_s, summary, absolute=absolute))

    def chunks(self, *, from_zero: bool, scale_time: float = 1.0) -> Iterator[bytes | memoryview]:
        """The job file in pieces, by submission time; ``from_zero``: seconds since the first submission."""
        times_s = np.array(self._submitted)
        if self._kept is not None:
            times_s = times_s[self._kept]
        in_order = bool((times_s[1:] >= times_s[:-1]).all())
        order = None if in_order else np.argsort(times_s, kind="stable")
        origin_s = float(times_s.min()) if from_zero and len(times_s) else 0.0
        yield header("job")
        for lines in self._in_blocks((times_s - origin_s) * scale_time + 0.0):  # no -0.0
            if in_order:
                yield text_of(lines)
            else:
                self._lines.add(lines)
        if order is not None:
            yield from self._lines.chunks(order)

    def _in_blocks(self, times_s: NDArray[np.float64]) -> Iterator[pa.Array]:
        """The lines of the jobs that are kept, in the order of the input."""
        first, begun = 0, 0
        for pieces, rows in self._columns.read():
            if self._kept is None:
                yield lines_of(pieces, times_s[first : first + rows])
                first += rows
                continue
            end = int(np.searchsorted(self._kept, first + rows))
            if end > begun:
                yield lines_of(taken(pieces, self._kept[begun:end] - first), times_s[begun:end])
            first, begun = first + rows, end


class _Lines:
    """Lines in a file, which is in memory while it is small, and where each of them ends."""

    def __init__(self) -> None:
        self.file = tempfile.SpooledTemporaryFile(max_size=spool.IN_MEMORY)  # noqa: SIM115 (closed by SortedJobs)
        self.ends = array("q", [0])

    def __len__(self) -> int:
        return self.ends[-1]

    def add(self, texts: pa.Array) -> None:
        """:param texts: large ones."""
        with spool.on_disk():
            self.file.write(text_of(texts))
        self.ends.frombytes((ends_of(texts) + self.ends[-1]).tobytes())

    def chunks(self, order: NDArray[np.intp]) -> Iterator[memoryview]:
        """The lines in an order. Those of a file on disk are read as they are needed."""
        import pyarrow as pa

        with spool.on_disk():
            self.file.flush()
        self.file.seek(0)
        on_disk = len(self) > spool.IN_MEMORY
        data = mmap(self.file.fileno(), len(self), access=ACCESS_READ) if on_disk else self.file.read()
        texts = pa.LargeStringArray.from_buffers(
            len(self.ends) - 1, pa.py_buffer(self.ends), pa.py_buffer(data)
        )
        step = max(1, _CHUNK * len(order) // max(1, len(self)))
        for number, start in enumerate(range(0, len(order), step), 1):
            rows = arrow_array(order[start : start + step].astype(np.int64, copy=False), pa.int64())
            yield text_of(compute("take", texts, rows))
            if isinstance(data, mmap) and number % (spool.IN_MEMORY // _CHUNK + 1) == 0:
                data.madvise(MADV_DONTNEED)  # what was read would count as memory
