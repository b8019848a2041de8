"""A run as a report sees it: what happened to each job, how many GPUs were held, and what to call it.

All times are seconds since the first submission, simulated and live runs alike.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pliant.schemas.runinfo import RunInfo
from pliant.schemas.schedule import TeamStanding
from pliant.schemas.text import counted
from pliant.tools.report.allocations import STOPS
from pliant.tools.report.job_arrays import BLOCK, Jobs, ascending, smallest_index, smallest_type
from pliant.tools.report.job_record import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NODES_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One event file, folded."""

    source: str
    info: RunInfo
    jobs: Jobs
    """In order of (submission, id)."""
    capacity: tuple[tuple[float, int], ...]
    """(time, GPUs that are up from then on); the first entry holds from the start."""
    origin_s: float
    """Time of the first submission on the log's own clock."""
    last_event_s: float
    decisions: int = 0
    """Timed decisions in the log."""
    decision_seconds: float = 0.0
    policies: tuple[str, ...] = ()
    """In order of appearance."""
    work_hash: str | None = None
    """Hash of the jobs that a live run served, without the times at which they came; None of a simulation."""
    sha256: str = field(default="", compare=False)
    """Hash of the event file; empty where there was none."""
    teams: tuple[tuple[float, tuple[TeamStanding, ...]], ...] = ()
    """How teams stood after decisions, where they share the cluster."""

    @property
    def total_gpus(self) -> int:
        return self.info.cluster.total_gpus

    @property
    def largest_gang(self) -> int:
        """The most GPUs of one type: a job never mixes types."""
        by_type: dict[str, int] = {}
        for node in self.info.cluster.nodes:
            by_type[node.gpu_type] = by_type.get(node.gpu_type, 0) + node.gpus * (node.count or 1)
        return max(by_type.values(), default=0)

    @property
    def paused_unsaved(self) -> int:
        """Jobs that were preempted or moved and do not state or show that they can save."""
        jobs = self.jobs
        unsaved = jobs.counts(lambda job: not job.can_save) > 0
        return int(np.count_nonzero(unsaved & (jobs.preemptions + jobs.moves > 0)))

    @property
    def unsaved_gpu_s(self) -> float:
        """GPU seconds of such jobs that preemptions and changes have lost; a simulation loses nothing."""
        if self.info.simulated or not self.jobs.any_form(lambda job: not job.can_save):
            return 0.0
        steps, held = self.jobs.steps, self.jobs.held(self.last_event_s)
        following = np.minimum(held.step + 1, len(steps.job) - 1)
        lost = (following > held.step) & (steps.job[following] == held.job) & STOPS[steps.event[following]]
        lost &= (self.jobs.counts(lambda job: not job.can_save) > 0)[held.job]
        return float(((held.end_s - held.start_s) * held.counted_gpus)[lost].sum())

    def with_outcome(self, outcome: Outcome) -> Jobs:
        return self.jobs.of(np.flatnonzero(self.jobs.have_outcome(outcome)))

    def serves_jobs_of(self, other: RunRecord) -> bool:
        """Whether jobs of the same id are the same work in both runs.

        Two live runs of one trace may differ in jobs that were submitted later.
        """
        are_live = self.work_hash is not None and other.work_hash is not None
        same_work = not are_live or self.work_hash == other.work_hash
        return same_work and self.info.trace_hash == other.info.trace_hash

    @property
    def is_measured(self) -> bool:
        """Whether speeds were measured in this run, which had no profile."""
        return self.jobs.is_measured and len(self.jobs) > 0


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """From ``times_s[i]`` to ``times_s[i + 1]``, ``held[i]`` of ``available[i]`` GPUs are held."""

    times_s: NDArray[np.float64]
    held: NDArray[Any]
    """Whole numbers unless jobs share GPUs."""
    available: NDArray[np.int64]

    def share(self, start_s: float, end_s: float) -> float | None:
        """GPU-seconds held / available in a window. Returns None if none are available."""
        held = available = 0.0
        for first in range(0, len(self.times_s) - 1, BLOCK):
            times_s = self.times_s[first : first + BLOCK + 1]
            seconds = np.minimum(times_s[1:], end_s) - np.maximum(times_s[:-1], start_s)
            inside = np.flatnonzero(seconds > 0)
            held = in_turn(seconds[inside] * self.held[first + inside], held)
            available = in_turn(seconds[inside] * self.available[first + inside], available)
        return held / available if available else None

    def longest_full_s(self) -> float:
        """Longest time in which every GPU that is up is held."""
        full = (self.held[:-1] >= self.available[:-1]) & (self.available[:-1] > 0)
        longest = current = 0.0
        before = -1
        for at in np.flatnonzero(full).tolist():
            left, right = self.times_s.item(at), self.times_s.item(at + 1)
            current = (current if at == before + 1 else 0.0) + right - left
            longest, before = max(longest, current), at
        return longest


def in_turn(values: NDArray[np.float64], start: float = 0.0) -> float:
    """The sum of the values from the first to the last, onto ``start``."""
    return float(np.cumsum(np.append(start, values))[-1])


def gpu_usage(run: RunRecord) -> Usage:
    """From the first submission (or an earlier first event) to the last event. Shared GPUs count once."""
    held = run.jobs.held(run.last_event_s)
    stated_s = np.array([0.0, run.last_event_s, *(time_s for time_s, _ in run.capacity[1:])])
    times_s = ascending(np.concatenate([held.start_s, held.end_s, stated_s]))
    is_shared = held.counted_gpus.dtype.kind == "f"
    kind = np.float64 if is_shared else smallest_index(int(held.counted_gpus.sum(dtype=np.int64)))
    used = np.zeros(len(times_s), kind)
    for first in range(0, len(held.job), BLOCK):
        among = slice(first, first + BLOCK)
        counted = held.counted_gpus[among].astype(used.dtype)
        np.add.at(used, np.searchsorted(times_s, held.start_s[among]), counted)
        np.subtract.at(used, np.searchsorted(times_s, held.end_s[among]), counted)
    del held
    np.cumsum(used, out=used)
    stated = smallest_type(np.array([gpus for _, gpus in run.capacity]))
    available = np.full(len(times_s), stated[0], stated.dtype)
    for time_s, gpus in sorted(dict(run.capacity).items()):
        at = np.searchsorted(times_s, time_s)
        if at < len(times_s) and times_s[at] == time_s:
            available[at:] = gpus
    return Usage(times_s, smallest_type(used), smallest_type(available))


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """Policy and, of several traces, trace; then what else sets equal runs apart: cluster, parameters, seed,
    else the name of the file or its folder.
    """
    traces = _traces(runs)
    kinds = [(run.info.policy, *traces[run.info.trace_hash]) for run in runs]
    names = []
    for run, named in zip(runs, kinds, strict=True):
        alike = [other for other, name in zip(runs, kinds, strict=True) if name == named]
        parts = _differences(run, alike) if len(alike) > 1 else []
        names.append(" ".join([*named, *parts]))
    return _numbered(names)


def _traces(runs: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    """Names of traces in labels, by hash: none if there is only one trace."""
    names = {run.info.trace_hash: run.info.trace or "" for run in runs}
    if len(names) == 1:
        return dict.fromkeys(names, ())
    total = Counter(names.values())
    return {
        digest: (name,) if name and total[name] == 1 else (f"{name}@{digest[:6]}".removeprefix("@"),)
        for digest, name in names.items()
    }


def _differences(run: RunRecord, alike: Sequence[RunRecord]) -> list[str]:
    parts = []
    if len({other.info.simulated for other in alike}) > 1:
        parts.append(kind(run))
    if len({other.info.demand for other in alike}) > 1:
        parts.append(f"{run.info.demand} demand")
    if len({other.info.preemptible for other in alike}) > 1:
        parts.append(f"preemptible={run.info.preemptible}")
    if any(other.info.cluster != run.info.cluster for other in alike):
        parts.append(_cluster_text(run, alike))
    names = sorted({name for other in alike for name in other.info.parameters})
    for name in names:
        values = {_value(other.info.parameters.get(name)) for other in alike}
        if len(values) > 1:
            parts.append(f"{name}={_value(run.info.parameters.get(name))}")
    if len({other.info.seed for other in alike}) > 1:
        parts.append(f"seed={run.info.seed}")
    return list(filter(None, parts)) or [_file_text(run, alike)]


def _cluster_text(run: RunRecord, alike: Sequence[RunRecord]) -> str:
    """What tells its cluster from those of the others: its GPUs, else its nodes; empty: neither does."""
    clusters = {other.info.cluster.model_dump_json() for other in alike}
    if len({other.total_gpus for other in alike}) == len(clusters):
        slots = "GPU" if run.info.cluster.slots == "gpu" else "CPU slot"
        return f"on {counted(run.total_gpus, slots)}"
    words = {_nodes_text(other) for other in alike}
    return f"on {_nodes_text(run)}" if len(words) == len(clusters) else ""


def _nodes_text(run: RunRecord) -> str:
    nodes = [f"{node.count or 1} × {node.gpus} {node.gpu_type}" for node in run.info.cluster.nodes]
    return ", ".join([*nodes[:_NODES_NAMED], *(["…"] if len(nodes) > _NODES_NAMED else [])])


def _file_text(run: RunRecord, alike: Sequence[RunRecord]) -> str:
    """The name of its file, or of its folder where files of one name are compared."""
    path = PurePath(run.source)
    names = {PurePath(other.source).stem for other in alike}
    return f"[{path.parent.name if len(names) == 1 and path.parent.name else path.stem}]"


def _numbered(names: list[str]) -> list[str]:
    """Equal names get a number."""
    total, seen = Counter(names), Counter[str]()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if total[name] == 1 else f"{name} #{seen[name]}")
    return numbered


def parameters_text(run: RunRecord) -> list[str]:
    parameters = sorted(run.info.parameters.items())
    return [f"{name}={_value(value)}" for name, value in parameters if value is not None]


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def kind(run: RunRecord) -> str:
    return "simulated" if run.info.simulated else "measured"
