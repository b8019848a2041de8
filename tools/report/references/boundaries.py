"""The times at which a reference system changes from outside: arrivals, and GPUs lost or gained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import inf

from pliant.tools.report.references.jobs import ReferenceJob

Boundary = tuple[float, list[ReferenceJob], int, float]


def boundaries(jobs: Sequence[ReferenceJob], capacity: Sequence[tuple[float, int]]) -> Iterator[Boundary]:
    """(time, jobs that arrive then, GPUs from then on, next such time) in order; the last has no end.

    ``jobs`` come in order of arrival; the first entry of ``capacity`` holds from the beginning.
    """
    arrivals = {time: list(group) for time, group in groupby(jobs, key=lambda job: job.arrival_s)}
    changes = dict(capacity[1:])
    times = sorted(arrivals.keys() | changes.keys())
    gpus = capacity[0][1]
    for index, time in enumerate(times):
        gpus = changes.get(time, gpus)
        yield time, arrivals.get(time, []), gpus, times[index + 1] if index + 1 < len(times) else inf
