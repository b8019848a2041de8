"""The runs of a verification, one after the other, and what they are compared by.

Two plain processes come first: what differs between them is the script's own. In float64, weights and losses
have to agree to :data:`DOUBLE`. A script that does not run in it is compared in float32, where rounding may
grow: its first weights are changed in their last digit, and ten times what that does to the last ones is
allowed.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pliant.schemas.errors import JobsFailedError, ServiceMissingError, UsageError, require
from pliant.schemas.job import Batch, Job
from pliant.tools.run.backends.host import visible_gpus
from pliant.tools.run.service.launching import at_home
from pliant.tools.run.service.submit import check_runnable
from pliant.tools.run.statedir.contract.recording import RecordedScript, RecordingOrder, RunFolder
from pliant.tools.run.verify.comparison import Comparison, Recording, compare
from pliant.tools.run.verify.trials import (
    EARLY,
    LATE,
    PAUSE_S,
    Places,
    Slots,
    Trial,
    TrialError,
    places_of,
    prepared,
    run_alone,
    trial,
)

DOUBLE: Final = 1e-6
SINGLE: Final = 1e-5
"""The least tolerance in float32."""
_ROUNDING: Final = 10.0
_UNLIKE: Final = 1e-3
"""Plain processes that differ by more than this are not one training."""
_ALONE_S: Final = 600.0
"""Longest time of a plain process."""
_LIMIT_S: Final = 60.0
_TIMES_ALONE: Final = 20.0
"""Time limit of a run as a multiple of the plain process, beside :data:`_LIMIT_S`."""
REPEATED: Final = "one process, again"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run with workers, and what happens in it."""

    name: str
    play: Callable[[Trial, Places], None] = lambda _trial, _places: None
    workers: int = 1
    accum: int = 0
    """Micro-steps more than the plain process has."""
    at: tuple[int, ...] = ()
    """Places where workers wait for a change; none: they stay the same."""
    meets: bool = True
    """Two workers train in it."""


def _back_and_forth(trial: Trial, places: Places) -> None:
    trial.change(places[EARLY], 2)
    trial.change(places[LATE], 1)


SCENARIOS: Final = (
    Scenario("two workers", workers=2),
    Scenario("more micro-steps", accum=2, meets=False),
    Scenario("1 → 2 → 1 workers", _back_and_forth, at=(EARLY, LATE)),
    Scenario("a worker joins in an epoch", lambda trial, at: trial.change(at[LATE], 2), at=(LATE,)),
    Scenario("a stop and a new start", lambda trial, at: trial.stop(at[LATE]), at=(LATE,), meets=False),
    Scenario("a worker is killed", lambda trial, at: trial.kill_second(at[LATE]), workers=2, at=(LATE,)),
)


@dataclass(frozen=True, slots=True)
class Part:
    """How much of a training is run, and where."""

    samples: int | None = None
    """Samples of an epoch; None for those of six steps."""
    limit_s: float | None = None
    """Longest time of a run. Default: by that of the plain process."""
    slots: Slots = "cpu"


@dataclass(frozen=True, slots=True)
class Verified:
    """What the runs of one script have shown."""

    job: Job
    script: RecordedScript
    steps: int
    double: bool
    tolerance: float
    runs: Sequence[Comparison]
    """Results of runs; the second plain process first, and alone if the two differ."""

    @property
    def kept(self) -> bool:
        return all(run.kept for run in self.runs)


def verify_all(jobs: Sequence[Job], source: str, part: Part, say: Callable[[str], None]) -> list[Verified]:
    """Verify each script once; jobs that the library does not resize are left out.

    :param source: what messages call the jobs.
    :raises UsageError: no job is left.
    :raises JobsFailedError: a script fails as one plain process.
    :raises ServiceMissingError: there is no PyTorch, or there are no two GPUs.
    """
    require("torch", "pliant verify trains")
    others = [job.id for job in jobs if not job.changes_in_place]
    elastic = [at_home(job, Path.cwd()) for job in jobs if job.changes_in_place]
    if contained := [job.id for job in elastic if job.container is not None]:
        raise UsageError(f'job "{contained[0]}" runs in a container: run pliant verify inside of the image')
    scripts = {(job.command, job.workdir): job for job in reversed(elastic)}
    check_runnable(scripts.values(), source)
    if part.slots == "gpu" and (count := len(visible_gpus(os.environ))) < 2:
        raise ServiceMissingError(f"two GPUs are needed, and {count} can be seen: verify on CPU slots")
    if others:
        say(f"not verified, as the library does not resize them: {', '.join(others)}")
    if not scripts:
        raise UsageError('nothing to verify: no job is resized in place ("elastic": "size")')
    return [verify(job, part, say) for job in reversed(scripts.values())]


def verify(job: Job, part: Part, say: Callable[[str], None]) -> Verified:
    """Run a part of a script in all ways, and compare.

    :param job: its command, folder, environment, batch and seed count.
    :param say: hears of each run.
    :raises JobsFailedError: the script fails as one plain process, or does not train by the library.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-verify-") as folder, _quietly():
        order = RecordingOrder(batch=job.batch.size, seed=job.seed, samples=part.samples)
        return _Verification(job, part, Path(folder), order).verified(say)


@contextmanager
def _quietly() -> Iterator[None]:
    """Losses that are meant are not warned of."""
    log = logging.getLogger("pliant")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@dataclass
class _Verification:
    job: Job
    part: Part
    folder: Path
    order: RecordingOrder

    def verified(self, say: Callable[[str], None]) -> Verified:
        files, took_s = self._plain()
        plain = Recording.read(files)
        script = RecordedScript(**json.loads(files.script.read_text()))
        tolerance = DOUBLE if self.order.double else self._single_tolerance(plain)
        again = Recording.read(self._alone("again", self.order))
        noise = compare(REPEATED, plain, again, tolerance).noise
        if noise < _UNLIKE:
            tolerance = max(tolerance, _ROUNDING * noise)
        runs = [compare(REPEATED, plain, again, tolerance)]
        limit_s = self.part.limit_s or _LIMIT_S + _TIMES_ALONE * took_s
        for scenario in SCENARIOS if runs[0].kept else ():
            say(f"{scenario.name} …")
            runs.append(self._played(scenario, plain, script, tolerance, limit_s))
        return Verified(self.job, script, len(plain.by_step), self.order.double, tolerance, runs)

    def _plain(self) -> tuple[RunFolder, float]:
        """One plain process, in float64 if it can, and its seconds.

        :raises JobsFailedError: it fails, or has not trained by the library.
        """
        for double in (True, False):
            self.order, began_s = self.order.model_copy(update={"double": double}), time.monotonic()
            try:
                files = self._alone(f"plain-{double}", self.order)
            except TrialError as error:
                if not double:
                    raise JobsFailedError(
                        f"the script fails as one plain process: {error}; if it lacks data, let it train on "
                        "little: its own arguments follow --"
                    ) from error
            else:
                break
        if not files.script.exists() or not Recording.read(files).by_step:
            raise JobsFailedError(
                "the script has trained no step by the elastic library: it needs elastic.init, job.prepare "
                "and a loop over job.epochs or job.steps (docs/elastic-training.md)"
            )
        return files, time.monotonic() - began_s

    def _single_tolerance(self, plain: Recording) -> float:
        moved = self._alone("moved", self.order.model_copy(update={"moved": True}))
        noise = compare("", plain, Recording.read(moved), SINGLE).noise
        return max(SINGLE, _ROUNDING * min(_UNLIKE, noise))

    def _alone(self, name: str, order: RecordingOrder) -> RunFolder:
        """:raises TrialError: the plain process fails."""
        files = prepared(self.folder / name, order)
        run_alone(self.job, files, self.part.slots, self.part.limit_s or _ALONE_S)
        return files

    def _played(
        self, scenario: Scenario, plain: Recording, script: RecordedScript, tolerance: float, limit_s: float
    ) -> Comparison:
        places = places_of(len(plain.by_step))
        holds = tuple(places[at] for at in scenario.at)
        order = self.order.model_copy(update={"holds": holds, "pause_s": PAUSE_S if holds else 0.0})
        files = prepared(self.folder / f"run-{SCENARIOS.index(scenario)}", order)
        job = self.job.model_copy(update={"batch": Batch(size=script.batch)})
        accum = min(script.batch, script.accum + scenario.accum)
        try:
            with trial(job, files, self.part.slots, accum=accum, limit_s=limit_s) as made:
                made.give(scenario.workers)
                scenario.play(made, places)
                made.end()
        except TrialError as error:
            return Comparison(scenario.name, str(error))
        other = Recording.read(files)
        if scenario.meets and len(other.workers) < 2:
            return Comparison(scenario.name, "the second worker has trained no step: give it more samples")
        return compare(scenario.name, plain, other, tolerance, made.warnings)
