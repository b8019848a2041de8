"""Carry out studies, launch by launch, and collect the profile."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import JobsFailedError
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile, ProfileRow
from pliant.tools.profile.launch import Ended, Script, launch
from pliant.tools.profile.order import Order, Point
from pliant.tools.profile.rows import Origin, allreduce_row, merged, train_row
from pliant.tools.profile.site import Site, site_of
from pliant.tools.profile.studies import Options, Study, powers, studies

Launch = Callable[[Script, int, Order, Callable[[int], None]], Ended]
ALLREDUCE: Final = ("-m", "pliant.tools.profile.allreduce")
WEIGHTS: Final = {
    "cpu": (100_000, 1_000_000, 5_000_000, 10_000_000),
    "gpu": (100_000, 1_000_000, *range(10_000_000, 100_000_001, 10_000_000)),
}
"""Of the all-reduce sweep: a grid that does not depend on the jobs; between its points times are linear."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What could be measured, and one line for each script that failed."""

    profile: Profile
    failures: tuple[str, ...] = ()


def measure(
    jobs: Iterable[Job],
    cluster: Cluster | None,
    options: Options,
    *,
    clock: Callable[[], float],
    command_line: str = "",
    progress: Callable[[int, int | None], None] | None = None,
    note: Callable[[str], None] = lambda _text: None,
    allreduce: Collection[ProfileRow] = (),
    start: Launch = launch,
) -> Measured:
    """Measure the models of the jobs on this machine. A script that fails costs its own model only.

    :param clock: UTC seconds, for the rows' ``measured_at``.
    :param progress: called with (points done, points expected).
    :param note: called with lines for the person at the terminal.
    :param allreduce: all-reduce rows of this cluster that are known already: none are measured where those
        of this machine's GPU type are among them.
    :raises JobsFailedError: no script at all could be measured.
    """
    site = site_of(cluster)
    plans = studies(jobs, site, options)
    for text in (*site.notes, *(line for plan in plans for line in plan.notes)):
        note(text)
    bench = Bench(site, options, clock, start, Meter(progress, sum(_points(plan) for plan in plans)))
    rows: list[ProfileRow] = []
    failures: list[str] = []
    for plan in plans:
        try:
            rows += bench.study(plan, note)
        except JobsFailedError as error:
            failures.append(str(error))
    if not rows:
        raise JobsFailedError("\n".join(failures))
    if options.allreduce:
        known = any(row.gpu_type == site.gpu_type for row in allreduce)
        rows += [*allreduce, *(() if known else bench.allreduce())]
    return Measured(Profile(merged((), rows), bench.metadata(command_line)), tuple(failures))


class Meter:
    """Counts measured points over all launches."""

    def __init__(self, progress: Callable[[int, int | None], None] | None, expected: int) -> None:
        self._progress = progress
        self._expected = expected
        self._before = 0

    def within(self, done: int) -> None:
        """So many points of the launch under way are measured."""
        if self._progress:
            total = self._before + done
            self._progress(total, max(total, self._expected))

    def finished(self, points: int) -> None:
        """A launch is over."""
        self._before += points
        self.within(0)


@dataclass(slots=True)
class Bench:
    """Starts the launches of a site and turns their outcomes into rows."""

    site: Site
    options: Options
    clock: Callable[[], float]
    start: Launch
    meter: Meter
    facts: dict[str, str] = field(default_factory=dict)
    """What the workers report of their machine."""

    def study(self, study: Study, note: Callable[[str], None]) -> list[ProfileRow]:
        """All training rows of one model: one worker first, because its limit holds for the gangs."""
        order = self._order(
            local_batches=study.local_batches,
            global_batches=study.global_batches,
            per_gpu_max=study.per_gpu_max,
        )
        rows = self._rows(study.script, 1, order)
        fits = largest_that_fits(rows)
        if fits == 0:
            note(f'model "{study.script.name}": no batch fits one worker; no gang was measured')
            return rows
        batches = {*study.global_batches, *(gang * fits for gang in study.gangs_of_largest)}
        for gpus in study.gpus:
            wanted = tuple(sorted(size for size in batches if size >= gpus))
            order = self._order(global_batches=wanted, per_gpu_max=study.per_gpu_max, fits=fits)
            rows += self._rows(study.script, gpus, order) if wanted else []
        return rows

    def allreduce(self) -> list[ProfileRow]:
        """All-reduce rows of the site: doubling numbers of workers, a grid of weights."""
        script = Script("all-reduce", ALLREDUCE, slots=self.site.slots)
        order = self._order(weights=WEIGHTS[self.site.slots])
        rows: list[ProfileRow] = []
        for gpus in powers(2, self.site.workers) if self.site.workers > 1 else ():
            points, origin = self._points(script, gpus, order)
            rows += [allreduce_row(point, origin) for point in points]
        return rows

    def metadata(self, command_line: str) -> tuple[tuple[str, str], ...]:
        """What the file says about itself."""
        facts = {
            "tool": f"pliant {_version()}",
            "host": platform.node(),
            **self.facts,
            "command": command_line,
            "seed": str(self._order().seed),
        }
        return tuple(facts.items())

    def _order(self, **fields: object) -> Order:
        common = {
            "iterations": self.options.iterations,
            "warmup": self.options.warmup,
            "memory_limit": self.site.memory_limit,
            "costs": self.options.costs,
        }
        return Order.model_validate({"result": "", **common, **fields})

    def _rows(self, script: Script, workers: int, order: Order) -> list[ProfileRow]:
        points, origin = self._points(script, workers, order)
        return [train_row(point, origin) for point in points]

    def _points(self, script: Script, workers: int, order: Order) -> tuple[list[Point], Origin]:
        """The points of an order, started again below every batch that ran out of memory."""
        points: list[Point] = []
        while True:
            ended = self.start(script, workers, order, self.meter.within)
            outcome = ended.outcome
            points += outcome.points
            self.meter.finished(len(outcome.points))
            self.facts = {"torch": outcome.torch, "device": outcome.device, "driver": outcome.driver}
            if not ended.out_of_memory or outcome.current is None:
                model = "" if order.weights else script.name
                origin = Origin(
                    model,
                    self.site.gpu_type,
                    workers,
                    outcome.parameters,
                    self.clock(),
                    ended.start_s,
                    ended.relaunch_s,
                    outcome.rescale_s,
                )
                return points, origin
            points.append(outcome.current.model_copy(update={"feasible": False}))
            order = below(order, points)


def below(order: Order, points: Iterable[Point]) -> Order:
    """The rest of an order, given what has been measured and what did not fit."""
    seen = tuple(points)
    fits = max((p.local_batch for p in seen if p.feasible), default=0)
    misfit = min(p.local_batch for p in seen if not p.feasible)
    return order.model_copy(update={"fits": min(max(fits, order.fits), misfit - 1), "misfit": misfit})


def largest_that_fits(rows: Iterable[ProfileRow]) -> int:
    """Largest local batch among feasible rows; 0: none."""
    return max((row.local_batch for row in rows if row.feasible), default=0)


def _points(study: Study) -> int:
    gangs = len(study.global_batches) + len(study.gangs_of_largest)
    return len(study.local_batches) + gangs * len(study.gpus)


def _version() -> str:
    try:
        return version("pliant")
    except PackageNotFoundError:
        return "unknown"
