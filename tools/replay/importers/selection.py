"""Which jobs of a trace an import keeps, and how far apart they arrive: the same for all formats."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pliant.schemas.errors import UsageError
from pliant.schemas.quantities import read_duration
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.importers.conversion import ImportSummary, MalformedRowError, parse_timestamp

if TYPE_CHECKING:
    import numpy as np
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
