"""The data of the HTML page as compact JSON: columns of jobs, and who held how many GPUs when.

Times are whole numbers of ticks, at most a second each. Columns that runs of one trace share are written
once. What a job held is a flat list: the number of its stretches, then for each the gap before it, its
length, GPUs, global batch (an index) and the time without training. Where there are too many stretches, those
closer together than a grain are one, with the mean of their GPUs; the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import Any, Final, NamedTuple

from pliant.schemas.job import Job
from pliant.tools.report.figures.style import area_colour
from pliant.tools.report.records import JobRecord, RunRecord
from pliant.tools.report.report import Report, RunReport

MOST_STRETCHES: Final = 100_000
"""Of all runs together: about 2 MB."""
TEAMS: Final = ("team", "account", "group", "project", "vc", "queue", "partition")
"""Labels of jobs that name a team; the first that any job states counts."""
_COLOURS: Final = 36
_FIRST_GRAIN: Final = 1 / 20_000
"""Of the length of the run."""


class Stretch(NamedTuple):
    """A time in which a job held the same GPUs with the same batch."""

    start_s: float
    end_s: float
    gpus: float
    batch: int | None
    stall_s: float
    """Without training: start-up, rescales and checkpoints."""


def page_data(report: Report, most: int = MOST_STRETCHES) -> str:
    """JSON that may stand in a ``<script>`` element: it holds no ``<``."""
    words = _Words()
    traces: dict[tuple[str, str | None, tuple[str, ...]], int] = {}
    columns: list[dict[str, Any]] = []
    runs = []
    team = team_label(job.job for each in report.runs for job in each.run.jobs)
    for each in report.runs:
        key = each.run.info.trace_hash, each.run.work_hash, tuple(job.id for job in each.run.jobs)
        tick_s = tick_of(each.run)
        if key not in traces:
            traces[key] = len(columns)
            columns.append(_trace(each.run, words, team))
        runs.append({"trace": traces[key], **_run(each, report, words, tick_s, most // len(report.runs))})
    document = {
        "words": words.known,
        "traces": columns,
        "runs": runs,
        "reference": report.reference,
        "colours": [area_colour(index) for index in range(_COLOURS)],
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e")


def team_label(jobs: Iterable[Job]) -> str | None:
    """The label that names teams. Returns None if no job has one."""
    stated = {name for job in jobs for name in job.labels}
    return next((name for name in TEAMS if name in stated), None)


def tick_of(run: RunRecord) -> float:
    """A millionth of the run, rounded to a power of ten; a second at most."""
    return min(1.0, 10.0 ** floor(log10(run.last_event_s) - 6)) if run.last_event_s > 0 else 1.0


class _Words:
    """Texts by number, in order of appearance."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.known)
            self.known.append(text)
        return found


def _trace(run: RunRecord, words: _Words, team: str | None) -> dict[str, Any]:
    """What the jobs of a trace are, whatever a policy did."""
    jobs = [job.job for job in run.jobs]
    found: dict[str, Any] = {
        "id": [job.id for job in jobs],
        "model": [words.number(job.model) for job in jobs],
        "asked": [job.gpus.requested for job in jobs],
    }
    if any(job.user for job in jobs):
        found["user"] = [words.number(job.user) for job in jobs]
    if team is not None and any(team in job.labels for job in jobs):
        found["team"] = [words.number(job.labels.get(team, "")) for job in jobs]
    return found


def _run(each: RunReport, report: Report, words: _Words, tick_s: float, most: int) -> dict[str, Any]:
    run, fair = each.run, each.fair[report.reference].ftf
    jobs, until_s = run.jobs, run.last_event_s
    held, grain_s = stretches(jobs, until_s, most)

    def ticks(values: Iterable[float | None]) -> list[int | None]:
        return [None if value is None else round(value / tick_s) for value in values]

    return {
        "label": each.label,
        "slots": "GPUs" if run.info.cluster.slots == "gpu" else "CPU slots",
        "gpus": max((gpus for _, gpus in run.capacity), default=0),
        "tick": tick_s,
        "end": round(until_s / tick_s),
        "grain": float(f"{grain_s:.3g}"),
        "outcome": [words.number(job.outcome) for job in jobs],
        "submit": ticks(job.submit_s for job in jobs),
        "wait": ticks(job.queueing_delay_s for job in jobs),
        "jct": ticks(job.jct_s for job in jobs),
        "ftf": [None if (ftf := fair.get(job.id)) is None else float(f"{ftf:.4g}") for job in jobs],
        "gpu_h": [float(f"{job.gpu_seconds(until_s) / 3600:.4g}") for job in jobs],
        "stall": ticks(sum(step.overhead_s + step.checkpoint_s for step in job.steps) for job in jobs),
        "preemptions": [job.preemptions for job in jobs],
        "rescales": [job.rescales for job in jobs],
        "moves": [job.moves for job in jobs],
        "restarts": [job.restarts for job in jobs],
        "held": _flat(jobs, held, tick_s, words),
    }


def _flat(
    jobs: Sequence[JobRecord], held: Sequence[Sequence[Stretch]], tick_s: float, words: _Words
) -> list[float]:
    found: list[float] = []
    for job, own in zip(jobs, held, strict=True):
        found.append(len(own))
        before = round(job.submit_s / tick_s)
        for start_s, end_s, gpus, batch, stall_s in own:
            start, end = round(start_s / tick_s), round(end_s / tick_s)
            named = words.number("" if batch is None else str(batch))
            whole = int(gpus) if gpus == int(gpus) else round(gpus, 2)
            found += (start - before, end - start, whole, named, round(stall_s / tick_s))
            before = end
    return found


def stretches(jobs: Sequence[JobRecord], until_s: float, most: int) -> tuple[list[list[Stretch]], float]:
    """What each job held, and the grain in seconds: 0 where every change is there.

    There are never fewer stretches than jobs that held anything, even if these are more than ``most``.
    """
    held = [_held(job, until_s) for job in jobs]
    grain_s, least = 0.0, sum(1 for own in held if own)
    while sum(map(len, held)) > max(most, least) and grain_s < until_s:
        grain_s = max(2 * grain_s, _FIRST_GRAIN * until_s)
        held = [_coarser(own, grain_s) for own in held]
    return held, grain_s


def _held(job: JobRecord, until_s: float) -> list[Stretch]:
    """Joins what follows upon each other without a change that shows."""
    found: list[Stretch] = []
    for start, end, step in job.held(until_s):
        new = Stretch(start, end, step.counted_gpus, step.batch, step.overhead_s + step.checkpoint_s)
        last = found[-1] if found else None
        if last is not None and (last.end_s, *last[2:4], new.stall_s) == (start, *new[2:4], 0.0):
            found[-1] = last._replace(end_s=end)
        else:
            found.append(new)
    return found


def _coarser(own: Sequence[Stretch], grain_s: float) -> list[Stretch]:
    found: list[Stretch] = []
    for new in own:
        last = found[-1] if found else None
        if last is not None and new.end_s - last.start_s <= grain_s:
            worked = last.gpus * (last.end_s - last.start_s) + new.gpus * (new.end_s - new.start_s)
            mean = worked / (new.end_s - last.start_s)
            batch = last.batch if last.batch == new.batch else None
            found[-1] = Stretch(last.start_s, new.end_s, mean, batch, last.stall_s + new.stall_s)
        else:
            found.append(new)
    return found
