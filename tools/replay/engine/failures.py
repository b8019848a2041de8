"""Nodes that go down and come back: from a file, or drawn from mean times between failures and to repair."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.files import read_bytes, source_name
from pliant.schemas.file_io.json_lines import read_lines
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.record import Identifier, NonNegativeFloat, Record
from pliant.schemas.job import Job
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import SAMPLES_WITHOUT_GPU
from pliant.tools.schedule.rates import Speeds

if TYPE_CHECKING:
    import numpy as np

    from pliant.tools.replay.progress import ProgressModel

CHECKPOINT_S: Final = 60.0
"""Seconds between checkpoints of a job that states none."""
_HOUR_S: Final = 3600.0
_MOST: Final = 2_000_000
"""Most failures that are drawn: more would fill the memory, and leave no time between them."""
_STREAM: Final = 1
"""Sets the random numbers of failures apart from those of policies, which have the same seed."""


@dataclass(frozen=True, slots=True, order=True)
class NodeEvent:
    """A node goes down, or comes back empty; in order of time, then of name."""

    time_s: float
    node: str
    up: bool
    origin: str = field(default="node events", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mtbf:
    """Every node fails independently, after exponentially distributed times."""

    between_h: float
    """Mean hours from a repair to the next failure."""
    repair_h: float
    """Mean hours that a failed node is down."""


class _Line(Record):
    """One line of a file of failures."""

    time: NonNegativeFloat
    node: Identifier
    event: Literal["down", "up"]


def read_failures(path: str) -> tuple[NodeEvent, ...]:
    """Node events of a JSON Lines file, ``{"time": 60, "node": "n0", "event": "down"}``, in order of time."""
    source = source_name(path)
    lines, problems = read_lines(
        read_bytes(path, most=ROWS_BYTES), source, "failure", _Line.model_validate_json
    )
    if problems:
        raise BadInputError(problems)
    events = [
        NodeEvent(line.time, line.node, line.event == "up", f"{source}:{number}") for number, line in lines
    ]
    return tuple(sorted(events))


def drawn_failures(
    nodes: Sequence[str], mtbf: Mtbf, seed: int, from_s: float, until_s: float
) -> tuple[NodeEvent, ...]:
    """Failures of all nodes between two times, each with its repair; equal arguments give equal events.

    A node has its own random numbers: more nodes, or more time, leave the failures of the others as they are.
    """
    import numpy as np

    expected = len(nodes) * (until_s - from_s) / _HOUR_S / (mtbf.between_h + mtbf.repair_h)
    if expected > _MOST:
        raise UsageError(
            f"--mtbf {mtbf.between_h:g}: this trace would meet about {expected:.2g} failures, "
            f"expected at most {_MOST}"
        )
    events: list[NodeEvent] = []
    for index, node in enumerate(nodes):
        rng = np.random.default_rng([seed, _STREAM, index])
        events.extend(_life(node, mtbf, rng, from_s, until_s))
    return tuple(sorted(events))


def _life(
    node: str, mtbf: Mtbf, rng: np.random.Generator, from_s: float, until_s: float
) -> Iterator[NodeEvent]:
    now_s = from_s
    while (now_s := now_s + _HOUR_S * rng.exponential(mtbf.between_h)) < until_s:
        yield NodeEvent(round(now_s, 3), node, up=False)
        now_s += _HOUR_S * rng.exponential(mtbf.repair_h)
        yield NodeEvent(round(now_s, 3), node, up=True)


def together(*sources: Sequence[NodeEvent]) -> tuple[NodeEvent, ...]:
    """Node events of several sources in order: a node is down while any of them has it down."""
    listed = [(event, number) for number, events in enumerate(sources) for event in _without_gaps(events)]
    down_by: dict[str, set[int]] = {}
    paired = []
    for event, number in sorted(listed):
        held_by = down_by.setdefault(event.node, set())
        was_down = bool(held_by)
        (held_by.discard if event.up else held_by.add)(number)
        if bool(held_by) != was_down:
            paired.append(event)
    return tuple(paired)


def _without_gaps(events: Sequence[NodeEvent]) -> Iterator[NodeEvent]:
    """The events of one source; outages of a node without a gap between them are one outage."""
    down: set[str] = set()
    for (_, node), at_once in groupby(sorted(events), key=lambda event: (event.time_s, event.node)):
        turns = list(at_once)
        if node in down and not turns[0].up and turns[-1].up:
            continue
        yield from turns
        (down.discard if turns[-1].up else down.add)(node)


def last_checkpoint_s(job: Job, since_s: float, now_s: float) -> float:
    """When a job that trains since ``since_s`` was saved last; ``since_s`` before its first checkpoint."""
    trained_s = max(0.0, now_s - since_s)
    return since_s + trained_s - trained_s % (job.checkpoint_seconds or CHECKPOINT_S)


def failures_end_s(jobs: Sequence[Job], speeds: Speeds, progress: ProgressModel, nodes: int = 1) -> float:
    """Until when failures are drawn: the last submission, and time for twice the work.

    That is twice the time of the whole cluster for all work at the requested sizes, and twice the longest
    job; jobs that need no GPU count as if each node ran one at a time. Without an end the replay would wait
    indefinitely for a job that can never run.
    """
    seconds = [_alone(job, speeds, progress) for job in jobs]
    gpus = max(1, sum(speeds.gpu_types.values()))
    gpu_seconds = math.fsum(
        time_s * (job.gpus.requested or gpus / nodes) for job, (time_s, _) in zip(jobs, seconds, strict=True)
    )
    last_s = max((job.submit_time for job in jobs), default=0.0)
    return last_s + 2 * gpu_seconds / gpus + 2 * max((longest_s for _, longest_s in seconds), default=0.0)


def _alone(job: Job, speeds: Speeds, progress: ProgressModel) -> tuple[float, float]:
    """Seconds at the requested size, and at the smallest or requested one, whichever takes longer."""
    state = job_state(job, speeds)
    if job.on_cpus:
        seconds = (progress.all_samples(state) or 0.0) / SAMPLES_WITHOUT_GPU
        return seconds, seconds
    rates = [speeds.rate(state, gpus) for gpus in (job.gpus.requested, job.min_gpus)]
    requested_s, least_s = ((progress.all_samples(state) or 0.0) / rate if rate else 0.0 for rate in rates)
    return requested_s, max(requested_s, least_s)
