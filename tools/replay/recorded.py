"""What a trace says really happened to its jobs: kept beside them, and replayed as it was.

The label ``runs`` of a job lists its runs, ``START-END`` in seconds after its submission; a run on
another number of GPUs than the job requests ends in ``*GPUS``: ``300-3900``, or ``0-60*4, 100-200``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.event import EventName
from pliant.schemas.events import Finished, Preempted, Resumed, Started, Submitted
from pliant.schemas.file_io.record import MOST, MOST_GPUS
from pliant.schemas.job import Job
from pliant.schemas.job_table import one_of_each
from pliant.schemas.runinfo import Assumption
from pliant.schemas.text import counted

if TYPE_CHECKING:
    from pliant.tools.replay.engine.engine import Describe, Engine

NODE_GPUS: Final = 8
"""GPUs of a node where only the trace of a cluster is known."""
LABEL: Final = "runs"
_RUN: Final = re.compile(r"(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)(?:\*(\d{1,7}))?", re.ASCII)


class PastRun(NamedTuple):
    """GPUs that a job held from one time to another, on the clock of its submission."""

    start_s: float
    end_s: float
    gpus: int


class SettledRuns(NamedTuple):
    """Runs as a trace states them: in order, none before the submission or before the last one has ended."""

    runs: tuple[PastRun, ...]
    early: bool
    """Whether one began before the submission: it counts from there, as long as it was."""
    cut: int
    """Runs that began before the one before them had ended: they count from that end, if they outlast it."""


def settled(runs: Iterable[PastRun], submit_time_s: float) -> SettledRuns:
    """What :func:`runs_of` accepts of any runs that end after they start."""
    stated = sorted(runs)
    if len(stated) == 1 and stated[0].start_s >= submit_time_s:  # as most are
        return SettledRuns(tuple(run for run in stated if run.end_s > run.start_s), False, 0)
    moved = sorted(_not_before(run, submit_time_s) for run in stated)
    kept: list[PastRun] = []
    cut = 0
    for run in moved:
        free_s = kept[-1].end_s if kept else submit_time_s
        cut += run.start_s < free_s
        if run.end_s > free_s:
            kept.append(run._replace(start_s=max(run.start_s, free_s)))
    return SettledRuns(tuple(kept), moved != stated, cut)


def _not_before(run: PastRun, time_s: float) -> PastRun:
    late_s = max(0.0, time_s - run.start_s)
    return run._replace(start_s=run.start_s + late_s, end_s=run.end_s + late_s) if late_s else run


def side_by_side(gangs: Sequence[Sequence[PastRun]]) -> list[PastRun]:
    """Runs of gangs that held their GPUs at the same time, as those of one gang."""
    if len(gangs) == 1:
        return list(gangs[0])
    changes: dict[float, int] = {}
    for run in (run for runs in gangs for run in runs):
        changes[run.start_s] = changes.get(run.start_s, 0) + run.gpus
        changes[run.end_s] = changes.get(run.end_s, 0) - run.gpus
    times = [time_s for time_s, change in sorted(changes.items()) if change]
    held = accumulate(changes[time_s] for time_s in times)
    spans = zip(pairwise(times), held, strict=False)
    return [PastRun(start_s, end_s, gpus) for (start_s, end_s), gpus in spans if gpus]


def label_of(runs: Sequence[PastRun], submit_time_s: float, gpus: int) -> str:
    """The label of a job, of runs that are :func:`settled`."""
    return ", ".join(
        f"{plain_seconds(run.start_s - submit_time_s)}-{plain_seconds(run.end_s - submit_time_s)}"
        + (f"*{run.gpus}" if run.gpus != gpus else "")
        for run in runs
    )


def plain_seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")


def runs_of(job: Job) -> tuple[PastRun, ...]:
    """The runs that are recorded of a job, in order; empty: none are.

    :raises BadInputError: the label is of another form, or its runs overlap.
    """
    text = job.labels.get(LABEL, "")
    runs = stated_runs(text, job.submit_time, job.gpus.requested)
    if runs is None:
        raise BadInputError(f'job "{job.id}": label {LABEL} {not_runs(text)}')
    return runs


def not_runs(text: str) -> str:
    return f"{text!r}, expected runs like 300-3900, one after the other"


def stated_runs(text: str, submit_time_s: float = 0.0, gpus: int = 1) -> tuple[PastRun, ...] | None:
    """The runs that a label states, which importers ask before they write one. Returns None if it is of
    another form, or if its runs overlap.
    """
    matches = [_RUN.fullmatch(part.strip()) for part in text.split(",")] if text else []
    runs = [
        PastRun(submit_time_s + float(m[1]), submit_time_s + float(m[2]), int(m[3] or gpus))
        for m in matches
        if m is not None
    ]
    whole = len(runs) == len(matches) and all(
        run.start_s <= run.end_s <= MOST and 0 < run.gpus <= MOST_GPUS for run in runs
    )
    apart = all(one.end_s <= two.start_s for one, two in pairwise(runs))
    return tuple(runs) if whole and apart else None


def held_gpus(jobs: Iterable[Job]) -> Iterator[tuple[float, int]]:
    """Times at which it changes how many GPUs all recorded runs hold together, and how many from then on."""
    changes: dict[float, int] = {}
    for job in jobs:
        for run in runs_of(job):
            changes[run.start_s] = changes.get(run.start_s, 0) + run.gpus
            changes[run.end_s] = changes.get(run.end_s, 0) - run.gpus
    times = sorted(changes)
    yield from zip(times, accumulate(changes[time_s] for time_s in times), strict=True)


def own_cluster(jobs: Sequence[Job]) -> Cluster:
    """Nodes of 8 GPUs, as many as the recorded runs hold at a time.

    :raises UsageError: nothing is recorded.
    """
    most = max((count for _, count in held_gpus(jobs)), default=0)
    if not most:
        raise UsageError("--cluster missing: only a trace with recorded runs says how large its cluster was")
    nodes = {"name": "n{}", "gpus": NODE_GPUS, "count": -(-most // NODE_GPUS)}
    return Cluster.model_validate({"nodes": (nodes,)})


def inconsistencies(jobs: Sequence[Job], cluster: Cluster) -> Iterator[Assumption]:
    """What a recording says that cannot have been on this cluster."""
    if not is_recorded(jobs):
        yield Assumption(
            kind="recording", text="no job states its runs: all are served first come, first served"
        )
    gpus = sum(node.gpus for node in cluster.expanded())
    held = list(held_gpus(jobs))
    most = max((count for _, count in held), default=0)
    if most <= gpus:
        return
    over_s = sum(until_s - from_s for (from_s, count), (until_s, _) in pairwise(held) if count > gpus)
    share = over_s / max(1e-9, held[-1][0] - held[0][0])
    text = f"the trace holds up to {most:,} GPUs at a time, and {share:.1%} of the time more than the "
    text += f"{gpus:,} of the cluster"
    yield Assumption(kind="recording", text=text)


def is_recorded(jobs: Sequence[Job]) -> bool:
    """Whether a trace states runs at all."""
    return any(job.labels.get(LABEL) for job in one_of_each(jobs))


def check_recorded(jobs: Sequence[Job]) -> None:
    """:raises BadInputError: there are jobs without a recording."""
    missing = [job.id for job in jobs if not job.labels.get(LABEL)]
    if missing:
        named = ", ".join(f'"{job_id}"' for job_id in missing[:5]) + (", …" if len(missing) > 5 else "")
        what = f"{counted(len(missing), 'job')} without recorded starts and ends (label {LABEL})"
        raise BadInputError(f"{what}: {named}")


def follow(engine: Engine, jobs: Sequence[Job], describe: Describe) -> None:
    """Log what is recorded of all jobs, in order of time; nothing is decided.

    Which nodes held a job is not said, so its events name none.
    """
    from pliant.tools.schedule.demand import job_state

    log = engine.log
    # Time, order at one moment, number of the job, event, GPUs from then on, part of the work done.
    entries: list[tuple[float, int, int, EventName, int, float]] = []
    for place, job in enumerate(jobs):
        entries.append((job.submit_time, 1, place, Submitted.name, 0, 0.0))
        runs = runs_of(job)
        gpu_seconds = [(run.end_s - run.start_s) * run.gpus for run in runs]
        parts = [done / (sum(gpu_seconds) or 1.0) for done in accumulate(gpu_seconds, initial=0.0)]
        for number, run in enumerate(runs):
            begin: EventName = Resumed.name if number else Started.name
            end: EventName = Preempted.name if number + 1 < len(runs) else Finished.name
            entries.append((run.start_s, 2, place, begin, run.gpus, parts[number]))
            entries.append((run.end_s, 0 if run.end_s > run.start_s else 3, place, end, 0, parts[number + 1]))
    states = [job_state(job, engine.session.cluster.training_speeds) for job in jobs]
    for time_s, _, place, event, gpus, part in sorted(entries, key=lambda each: each[:3]):
        state = states[place]
        if event == Submitted.name:
            log.add(time_s, event, state.id, detail=describe(state))
            continue
        log.add(time_s, event, state.id, gpus=gpus, samples_done=part * (state.total_samples or 0.0))
        engine.counters.finished += event == Finished.name
