"""Carry out the sweeps of an experiment and fold what they wrote."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from experiments.harness.spec import Experiment, Fold, Tell
from pliant.schemas.errors import BadInputError, JobsFailedError
from pliant.schemas.text import span_text
from pliant.tools.replay.sweep import SweepTask, event_file, sweep, sweep_tasks
from pliant.tools.replay.sweep_recipe import SweepRecipe, read_sweep
from pliant.tools.report.metrics import MetricOptions, mean, percentile, run_metrics
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord
from pliant.tools.report.report import steady

OF_JOBS: Final = ("mean_execution_s", "mean_waiting_s", "part_within_200_s", "max_jct_s")
"""Figures of the jobs of a replay that no report has: those of ONES, figure 15."""
_SHORT_S: Final = 200.0


class JobTimes(NamedTuple):
    """What the JCT of a finished job is made of, seconds."""

    jct_s: float
    execution_s: float
    """Holding GPUs."""

    @property
    def waiting_s(self) -> float:
        """Without GPUs: before the first start and while preempted."""
        return self.jct_s - self.execution_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment keeps of one replay. Times are seconds since the first submission."""

    name: str
    seed: int
    """Of the policy."""
    trace_hash: str
    metrics: Mapping[str, float]
    """Every figure of the report that is a number and applies, and :data:`OF_JOBS`."""
    arrivals_s: tuple[float, ...]
    completions_s: tuple[float, ...]
    jobs: Mapping[str, JobTimes] = field(default_factory=dict)
    """Of the finished jobs that the statistics count."""
    extra: frozenset[str] = frozenset()
    """Which of the figures are the experiment's own."""


def matching(pattern: str, outcomes: Mapping[str, Outcome]) -> list[Outcome]:
    """The outcomes whose names match, in order of their names.

    :raises BadInputError: there is none.
    """
    found = [outcomes[name] for name in sorted(outcomes) if fnmatchcase(name, pattern)]
    if not found:
        raise BadInputError(f'no replay of this experiment is called "{pattern}"')
    return found


def carry_out(
    experiment: Experiment,
    folder: Path,
    *,
    sweeps: Iterable[str] | None = None,
    smoke: bool = False,
    workers: int = 1,
    tell: Tell = lambda _text: None,
) -> dict[str, Outcome]:
    """Replay every sweep into ``folder``; outcomes by the names of the replays.

    What is there already, made from the same inputs by the same code, is not done again.

    :param sweeps: these of its sweeps; None: all.
    :param smoke: small inputs and the first seed alone.
    :raises JobsFailedError: a replay failed.
    """
    inputs = folder / "inputs"
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    for path in experiment.folder.glob("*.toml"):
        shutil.copy(path, inputs)
    experiment.prepare(inputs, smoke)
    outcomes: dict[str, Outcome] = {}
    names = list(experiment.sweeps if sweeps is None else sweeps)
    began_s = time.monotonic()
    for done, name in enumerate(names, 1):
        recipe = read_sweep(str(inputs / name))
        wanted = _first_seeds(recipe) if smoke else recipe
        outcomes |= _replayed(wanted, folder / Path(name).stem, workers, experiment)
        spent_s = time.monotonic() - began_s
        left = f", about {span_text(spent_s / done * (len(names) - done))} left" if done < len(names) else ""
        tell(f"{name}: {len(outcomes)} replays so far, in {span_text(spent_s)}{left}")
    return outcomes


def _first_seeds(recipe: SweepRecipe) -> SweepRecipe:
    traces = tuple(trace.model_copy(update={"seeds": trace.seeds[:1]}) for trace in recipe.traces)
    return recipe.model_copy(update={"traces": traces, "seeds": recipe.seeds[:1]})


def _replayed(
    recipe: SweepRecipe, folder: Path, workers: int, experiment: Experiment
) -> Iterator[tuple[str, Outcome]]:
    folder.mkdir(exist_ok=True)
    tasks = sweep_tasks(recipe, folder)
    _sweep(tasks, folder, workers)
    for task in tasks:
        yield task.name, _outcome(task, folder, experiment)


def _sweep(tasks: Sequence[SweepTask], folder: Path, workers: int) -> None:
    failures = sweep(tasks, folder, workers=workers)
    if failures:
        raise JobsFailedError("\n".join(f"{failure.name}: {failure.message}" for failure in failures))


def _outcome(task: SweepTask, folder: Path, experiment: Experiment) -> Outcome:
    """A finished task's; one whose file was damaged since is done again."""
    events = event_file(task, folder)
    try:
        return outcome_of(task.name, events, experiment.dropped, experiment.fold)
    except BadInputError:
        events.unlink(missing_ok=True)
        _sweep([task], folder, 1)
        return outcome_of(task.name, events, experiment.dropped, experiment.fold)


def _nothing(_run: RunRecord, _events: Path) -> Mapping[str, float]:
    return {}


def outcome_of(name: str, events: Path, dropped: float = 0.0, fold: Fold = _nothing) -> Outcome:
    """Fold one event file.

    :param dropped: part of the jobs that the figures leave out, the first to arrive.
    :param fold: makes the figures that the experiment has beyond these.
    """
    whole = read_run(events)
    run = replace(whole, jobs=steady(whole, dropped))
    jobs = _times(run)
    extra = fold(run, events)
    figures = {
        **run_metrics(run, wanted=MetricOptions(bound=True)).model_dump(),
        **_of_jobs([*jobs.values()]),
        **extra,
    }
    numbers = {key: value for key, value in figures.items() if isinstance(value, int | float)}
    ends = sorted(job.end_s for job in whole.with_outcome("finished") if job.end_s is not None)
    arrivals = tuple(job.submit_s for job in whole.jobs)
    return Outcome(
        name, run.info.seed, run.info.trace_hash, numbers, arrivals, tuple(ends), jobs, frozenset(extra)
    )


def _times(run: RunRecord) -> dict[str, JobTimes]:
    found = {}
    for job in run.jobs:
        if job.jct_s is not None and job.end_s is not None:
            held_s = sum(end_s - start_s for start_s, end_s, _ in job.held(job.end_s))
            found[job.id] = JobTimes(job.jct_s, held_s)
    return found


def _of_jobs(jobs: Sequence[JobTimes]) -> dict[str, float | None]:
    short = sum(each.jct_s <= _SHORT_S for each in jobs)
    values = (
        mean(each.execution_s for each in jobs),
        mean(each.waiting_s for each in jobs),
        short / len(jobs) if jobs else None,
        percentile([each.jct_s for each in jobs], 1.0),
    )
    return dict(zip(OF_JOBS, values, strict=True))
