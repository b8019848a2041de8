"""GPUs in use over time: how many are held, how many are up, and for how long the cluster is full."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from pliant.tools.report.records import RunRecord


@dataclass(frozen=True, slots=True)
class Usage:
    """From ``times_s[i]`` to ``times_s[i + 1]``, ``held[i]`` of ``available[i]`` GPUs are held."""

    times_s: tuple[float, ...]
    held: tuple[float, ...]
    available: tuple[int, ...]

    def share(self, start_s: float, end_s: float) -> float | None:
        """GPU-seconds held / GPU-seconds available in a window; None where there are none."""
        held = available = 0.0
        for (left, right), used, up in zip(pairwise(self.times_s), self.held, self.available, strict=False):
            seconds = min(right, end_s) - max(left, start_s)
            if seconds > 0:
                held += seconds * used
                available += seconds * up
        return held / available if available else None

    def longest_full_s(self) -> float:
        """Longest time without a break in which every GPU that is up is held."""
        longest = current = 0.0
        for (left, right), used, up in zip(pairwise(self.times_s), self.held, self.available, strict=False):
            current = current + right - left if used >= up > 0 else 0.0
            longest = max(longest, current)
        return longest


def gpu_usage(run: RunRecord) -> Usage:
    """Usage from the first submission (or the first event, if earlier) to the last event.

    GPUs that two jobs share count once.
    """
    changes: dict[float, float] = {0.0: 0, run.last_event_s: 0}
    for job in run.jobs:
        for start, end, step in job.held(run.last_event_s):
            changes[start] = changes.get(start, 0) + step.counted_gpus
            changes[end] = changes.get(end, 0) - step.counted_gpus
    capacity = dict(run.capacity)
    times = sorted(changes.keys() | {time for time, _ in run.capacity[1:]})
    held = accumulate(changes.get(time, 0) for time in times)
    up, up_from = run.capacity[0][1], []
    for time in times:
        up = capacity.get(time, up)
        up_from.append(up)
    return Usage(tuple(times), tuple(held), tuple(up_from))
