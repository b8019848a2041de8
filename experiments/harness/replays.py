"""Carry out the sweeps of an experiment and fold what they wrote."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from experiments.harness.spec import Experiment, Tell
from pliant.schemas.errors import BadInputError, JobsFailedError
from pliant.tools.replay.sweep.recipe import SweepRecipe, read_sweep
from pliant.tools.replay.sweep.run import event_file, sweep
from pliant.tools.replay.sweep.tasks import sweep_tasks
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import read_run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment keeps of one replay. Times are seconds since the first submission."""

    name: str
    seed: int
    """Of the policy."""
    trace_hash: str
    metrics: Mapping[str, float]
    """Every figure of the report that is a number and applies."""
    arrivals_s: tuple[float, ...]
    completions_s: tuple[float, ...]


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
    """Replay every sweep into ``folder``, which is emptied first; outcomes by the names of the replays.

    :param sweeps: these of its sweeps; None: all.
    :param smoke: small inputs and the first seed alone.
    :raises JobsFailedError: a replay failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    inputs = folder / "inputs"
    inputs.mkdir(parents=True)
    for path in experiment.folder.glob("*.toml"):
        shutil.copy(path, inputs)
    experiment.prepare(inputs, smoke)
    outcomes: dict[str, Outcome] = {}
    for name in experiment.sweeps if sweeps is None else sweeps:
        recipe = read_sweep(str(inputs / name))
        outcomes |= _replayed(_first_seeds(recipe) if smoke else recipe, folder / Path(name).stem, workers)
        tell(f"{name}: {len(outcomes)} replays so far")
    return outcomes


def _first_seeds(recipe: SweepRecipe) -> SweepRecipe:
    traces = tuple(trace.model_copy(update={"seeds": trace.seeds[:1]}) for trace in recipe.traces)
    return recipe.model_copy(update={"traces": traces, "seeds": recipe.seeds[:1]})


def _replayed(recipe: SweepRecipe, folder: Path, workers: int) -> Iterable[tuple[str, Outcome]]:
    folder.mkdir()
    tasks = sweep_tasks(recipe, folder)
    failures = sweep(tasks, folder, workers=workers)
    if failures:
        raise JobsFailedError("\n".join(f"{failure.name}: {failure.message}" for failure in failures))
    return [(task.name, outcome_of(task.name, event_file(task, folder))) for task in tasks]


def outcome_of(name: str, events: Path) -> Outcome:
    """Fold one event file."""
    run = read_run(events)
    figures = run_metrics(run).model_dump()
    numbers = {key: value for key, value in figures.items() if isinstance(value, int | float)}
    ends = sorted(job.end_s for job in run.with_outcome("finished") if job.end_s is not None)
    arrivals = tuple(job.submit_s for job in run.jobs)
    return Outcome(name, run.info.seed, run.info.trace_hash, numbers, arrivals, tuple(ends))
