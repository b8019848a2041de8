"""Measure the models of a file of jobs, launch by launch, and collect the profile.

All-reduce times depend on the cluster and not on the job, so :class:`AllReduceCache` keeps them in their own
file: measured once for all jobs, and again only when the cluster has changed (the generic scaling
characteristics of "Effective Elastic Scaling of Deep Learning Workloads", Saxena et al., 2020, section
III-B.2).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final, Self

import psutil

from pliant import __version__
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, JobsFailedError
from pliant.schemas.io import read_profile, write_profile
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.schemas.text import counted
from pliant.tools.profile.measuring.launch import (
    Advance,
    LaunchEnd,
    LaunchLog,
    PointsFile,
    Script,
    launch,
    launch_key,
)
from pliant.tools.profile.measuring.plan import (
    MeasuredNode,
    MeasuringOptions,
    ModelPlan,
    model_plans,
    node_to_measure,
    powers,
)
from pliant.tools.profile.measuring.request import LEAST_VISITS, VISITS, LaunchOutcome, MeasurementRequest
from pliant.tools.profile.throughput import merged

Launch = Callable[[Script, int, MeasurementRequest, Advance], LaunchEnd]
ALLREDUCE: Final = ("-m", "pliant.tools.profile.measuring.allreduce")
WEIGHTS: Final = {
    "cpu": (100_000, 1_000_000, 5_000_000, 10_000_000),
    "gpu": (100_000, 1_000_000, *range(10_000_000, 100_000_001, 10_000_000)),
}
"""The grid of the all-reduce sweep, the same for all jobs; in between, times are linear."""
AGAIN: Final = 3
"""How often a launch is started again at most because its times are not settled."""
_LOOK_S: Final = 1.0
_BUSY_CORES: Final = 0.5
"""Cores that may be busy while the machine counts as quiet enough for the workers."""
USUAL_NAME: Final = "allreduce.parquet"
_CLUSTER: Final = "cluster"
"""Metadata key of the cluster's name."""


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """What was measured, and one line for each script that failed."""

    profile: Profile
    failures: tuple[str, ...] = ()


def measure(
    jobs: Iterable[Job],
    cluster: Cluster | None,
    options: MeasuringOptions,
    *,
    clock: Callable[[], float],
    command_line: str = "",
    progress: Callable[[int, int | None], None] | None = None,
    note: Callable[[str], None] = lambda _text: None,
    allreduce: Collection[ProfileRow] = (),
    kept: PointsFile | None = None,
    start: Launch = launch,
    wait: WaitForQuiet | None = None,
) -> MeasuredProfile:
    """Measure the models of the jobs on this machine. A script that fails costs only its own model.

    :param clock: UTC seconds, for the rows' ``measured_at``.
    :param progress: called with (points done, points expected).
    :param note: called with lines for the person at the terminal.
    :param allreduce: known all-reduce rows of this cluster; if they include this machine's GPU type, none are
    measured.
    :param kept: points of an interrupted command; new points are added to it.
    :param wait: waits until the machine is quiet before unsettled points are measured again.
    :raises JobsFailedError: not one script could be measured.
    """
    node = node_to_measure(cluster)
    plans = model_plans(jobs, node, options)
    for text in (*node.notes, *(line for plan in plans for line in plan.notes)):
        note(text)
    reduces = options.allreduce and all(row.gpu_type != node.gpu_type for row in allreduce)
    expected = sum(_points(plan) for plan in plans)
    if reduces:
        expected += len(_sizes(node)) * len(WEIGHTS[node.slots])
    expected *= LEAST_VISITS
    bench = Bench(node, options, clock, start, PointCounter(progress, expected), kept or PointsFile())
    if before := bench.measured_before(plans, reduces=reduces):
        note(f"{before} of {max(before, expected)} measurements were already made")
    rows: list[ProfileRow] = []
    failures: list[str] = []
    for plan in plans:
        try:
            rows += bench.train_rows(plan, note)
        except JobsFailedError as error:
            failures.append(str(error))
    if not rows:
        raise JobsFailedError("\n".join(failures))
    if options.allreduce:
        rows += [*allreduce, *(bench.allreduce() if reduces else ())]
    rows += bench.measured_again(wait or wait_for_quiet, note)
    return MeasuredProfile(Profile(merged((), rows), bench.metadata(command_line)), tuple(failures))


WaitForQuiet = Callable[[int, float], bool]
"""Waits for so many cores to be free, for some seconds at most; whether they are."""


def wait_for_quiet(workers: int, most_s: float) -> bool:
    """Wait while processes on this machine leave the workers fewer cores than they need."""
    until_s = time.monotonic() + most_s
    cores = psutil.cpu_count() or 1
    while True:
        busy = cores * psutil.cpu_percent(interval=_LOOK_S) / 100.0
        if busy <= max(_BUSY_CORES, cores - workers):
            return True
        if time.monotonic() >= until_s:
            return False


@dataclass(frozen=True, slots=True)
class _Launched:
    """One launch of the plan, which can be started again."""

    script: Script
    workers: int
    request: MeasurementRequest
    log: LaunchLog


class PointCounter:
    """Counts measurements over all launches."""

    def __init__(self, progress: Callable[[int, int | None], None] | None, expected: int) -> None:
        self._progress = progress
        self._expected = expected
        self._before = 0

    def within(self, done: int) -> None:
        """``done`` points of the current launch are measured."""
        if self._progress:
            total = self._before + done
            self._progress(total, max(total, self._expected))

    def finished(self, points: int) -> None:
        self._before += points
        self.within(0)


@dataclass(slots=True)
class Bench:
    """Starts the launches of a node and turns their outcomes into rows."""

    node: MeasuredNode
    options: MeasuringOptions
    clock: Callable[[], float]
    start: Launch
    meter: PointCounter
    kept: PointsFile
    facts: dict[str, str] = field(default_factory=dict)
    """What the workers report about their machine."""
    launched: list[_Launched] = field(default_factory=list)

    def measured_before(self, plans: Iterable[ModelPlan], *, reduces: bool) -> int:
        """How many points are kept from an interrupted command."""
        keys = {
            launch_key(plan.script, gpus, self._one_worker_request(plan))
            for plan in plans
            for gpus in (1, *plan.gpus)
        }
        if reduces:
            script, wanted = self._all_reduces()
            keys |= {launch_key(script, gpus, wanted) for gpus in _sizes(self.node)}
        return self.kept.count(keys)

    def train_rows(self, plan: ModelPlan, note: Callable[[str], None]) -> list[ProfileRow]:
        """All training rows of one model: one worker first, because its limit holds for the gangs."""
        wanted = self._one_worker_request(plan)
        rows = self._rows(plan.script, 1, wanted, wanted)
        fits = max((row.local_batch for row in rows if row.feasible), default=0)
        if fits == 0:
            note(f'model "{plan.script.name}": no batch fits one worker; no gang was measured')
            return rows
        batches = {*plan.global_batches, *(gang * fits for gang in plan.gangs_of_largest)}
        for gpus in plan.gpus:
            sizes = tuple(sorted(size for size in batches if size >= gpus))
            request = self._request(global_batches=sizes, per_gpu_max=plan.per_gpu_max, fits=fits)
            rows += self._rows(plan.script, gpus, request, wanted) if sizes else []
        return rows

    def allreduce(self) -> list[ProfileRow]:
        script, request = self._all_reduces()
        return [row for gpus in _sizes(self.node) for row in self._rows(script, gpus, request, request)]

    def _one_worker_request(self, plan: ModelPlan) -> MeasurementRequest:
        """The request for one worker, with which the plan begins."""
        return self._request(
            local_batches=plan.local_batches,
            global_batches=plan.global_batches,
            per_gpu_max=plan.per_gpu_max,
        )

    def _all_reduces(self) -> tuple[Script, MeasurementRequest]:
        request = self._request(weights=WEIGHTS[self.node.slots])
        return Script("all-reduce", ALLREDUCE, slots=self.node.slots), request

    def metadata(self, command_line: str) -> tuple[tuple[str, str], ...]:
        facts = {
            "tool": f"pliant {__version__}",
            "host": platform.node(),
            **self.facts,
            "command": command_line,
            "seed": str(self._request().seed),
        }
        return tuple(facts.items())

    def _request(self, **fields: object) -> MeasurementRequest:
        common = {
            "iterations": self.options.iterations,
            "warmup": self.options.warmup,
            "memory_limit": self.node.memory_limit,
            "costs": self.options.costs,
        }
        return MeasurementRequest.model_validate({"result": "", **common, **fields})

    def _rows(
        self, script: Script, workers: int, request: MeasurementRequest, wanted: MeasurementRequest
    ) -> list[ProfileRow]:
        """The rows of a request.

        :param wanted: the request with which the plan begins.
        """
        log = LaunchLog(self.kept, launch_key(script, workers, wanted), self.clock)
        self.meter.finished(len(log))
        one = _Launched(script, workers, request, log)
        self._carry_out(one, VISITS)
        self.launched.append(one)
        return log.rows(script.name, self.node.gpu_type, workers)

    def _carry_out(self, one: _Launched, visits: int) -> None:
        """Start a launch; again below every batch that ran out of memory."""
        log = one.log
        request = one.request.model_copy(update={"visits": visits})
        while (rest := log.rest(request, one.workers)) is not None:
            before = len(log)
            advance = partial(self._advance, log, before)
            ended = self.start(one.script, one.workers, rest, advance)
            advance(ended.outcome)
            self.meter.finished(len(ended.outcome.points))
            if ended.out_of_memory and ended.outcome.current is not None:
                log.misfit(ended.outcome)
                continue
            log.end(ended)
            if len(log) == before or log.is_searched(request, one.workers):
                break
        self.facts = {**self.facts, **log.facts}

    def measured_again(self, wait: WaitForQuiet, note: Callable[[str], None]) -> list[ProfileRow]:
        """The rows of launches that were started again, once the machine is quiet.

        That takes ``options.patience_s`` at most, beside a launch that has begun by then.
        """
        rows: list[ProfileRow] = []
        until_s = time.monotonic() + self.options.patience_s
        for number in range(1, AGAIN + 1):
            due = [one for one in self.launched if one.log.unsettled()]
            if not due or time.monotonic() >= until_s:
                break
            if number == 1:
                points = sum(len(one.log.unsettled()) for one in due)
                note(
                    f"{counted(points, 'point')} disturbed: measuring again when the machine is quiet, "
                    f"for up to {self.options.patience_s:g} s (--patience)"
                )
            for one in due:
                left_s = until_s - time.monotonic()
                if left_s <= 0 or not wait(one.workers, left_s):
                    return rows
                try:
                    self._carry_out(one, VISITS + number * LEAST_VISITS)
                except JobsFailedError as error:  # what was measured before holds
                    note(str(error))
                    return rows
                rows += one.log.rows(one.script.name, self.node.gpu_type, one.workers)
        return rows

    def _advance(self, log: LaunchLog, before: int, outcome: LaunchOutcome) -> None:
        log.take(outcome, before)
        self.meter.within(len(outcome.points))


def _sizes(node: MeasuredNode) -> tuple[int, ...]:
    """Numbers of workers on which all-reduces are measured."""
    return powers(2, node.workers) if node.workers > 1 else ()


def _points(plan: ModelPlan) -> int:
    gangs = len(plan.global_batches) + len(plan.gangs_of_largest)
    return len(plan.local_batches) + gangs * len(plan.gpus)


@dataclass(frozen=True, slots=True)
class AllReduceCache:
    """All-reduce rows and the cluster on which they were measured."""

    rows: tuple[ProfileRow, ...]
    cluster: str
    """Its :func:`cluster_label`."""
    metadata: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, path: str | Path, cluster: str) -> Self | None:
        """What is kept for this cluster; None without a file.

        :raises BadInputError: it is another kind of file, or was measured on another cluster.
        """
        if not Path(path).exists():
            return None
        profile = read_profile(path)
        measured_on = dict(profile.metadata).get(_CLUSTER)
        rows = tuple(row for row in profile.rows if row.kind == "allreduce")
        if measured_on is None or len(rows) < len(profile.rows):
            what = "is not a file of all-reduce times, expected one that `profile --allreduce` has written"
            raise BadInputError.one(str(path), what)
        if measured_on != cluster:
            what = f"was measured on {measured_on}, not on {cluster}"
            raise BadInputError.one(
                str(path), f"{what}: measure again with --refresh, or name another --allreduce-file"
            )
        return cls(rows, measured_on, profile.metadata)

    @classmethod
    def of(cls, profile: Profile, cluster: str) -> Self:
        rows = tuple(row for row in profile.rows if row.kind == "allreduce")
        return cls(rows, cluster, (*profile.metadata, (_CLUSTER, cluster)))

    def write(self, path: str | Path) -> None:
        write_profile(Profile(self.rows, self.metadata), path)

    @property
    def measured_on(self) -> str:
        """Day and minute (UTC) of the newest row."""
        newest = max((row.measured_at or 0.0 for row in self.rows), default=0.0)
        return f"{datetime.fromtimestamp(newest, UTC):%Y-%m-%d %H:%M} UTC"


def cluster_label(cluster: Cluster | None) -> str:
    """How a file names its cluster: nodes, slots and types, or this machine by name."""
    if cluster is None:
        return f"the machine {platform.node()}"
    alike = groupby(cluster.expanded(), key=lambda node: (node.gpus, node.gpu_type))
    parts = [_nodes([node.name for node in group], *kind) for kind, group in alike]
    return f"the cluster of {', '.join(parts)} ({cluster.slots} slots)"


def _nodes(names: Sequence[str], gpus: int, gpu_type: str) -> str:
    shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}, each"
    return f"{shown} {gpus} × {gpu_type}"
