"""Sweeps: many replays, side by side, each in files of its own; what is finished is not done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from pliant.schemas.errors import PliantError
from pliant.tools.replay import batch
from pliant.tools.replay.engine.engine import Advance
from pliant.tools.replay.inputs import Inputs, Sources
from pliant.tools.replay.output import read_summary, summary_path
from pliant.tools.replay.pool import worker_pool
from pliant.tools.replay.sweep.origin import differences, read_origin, write_origin
from pliant.tools.replay.sweep.tasks import SweepTask

KEYS: Final = ".sweep"
"""Folder of the keys of what is finished, beside the event files."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that did not get done, and why."""

    name: str
    message: str


def event_file(task: SweepTask, folder: Path) -> Path:
    """Where a task's events go."""
    return folder / f"{task.name}.parquet"


def is_finished(task: SweepTask, folder: Path) -> bool:
    """Whether the task's event file is there and was made from the same inputs by the same code."""
    return event_file(task, folder).exists() and read_origin(_key_file(task, folder)) == task.made_from


def outdated(tasks: Sequence[SweepTask], folder: Path) -> Counter[str]:
    """How many tasks have a result that no longer counts, by what has changed since, in words."""
    reasons: Counter[str] = Counter()
    for task in tasks:
        origin = read_origin(_key_file(task, folder)) if event_file(task, folder).exists() else None
        changed = [] if origin is None else differences(origin, task.made_from)
        if changed:
            reasons[", ".join(changed)] += 1
    return reasons


def strangers(tasks: Sequence[SweepTask], folder: Path) -> list[str]:
    """Event files in the folder that no task of this sweep writes: a report would mix them in."""
    own = {event_file(task, folder).name for task in tasks}
    return sorted(path.name for path in folder.glob("*.parquet") if path.name not in own)


def assumptions(tasks: Sequence[SweepTask], folder: Path) -> Counter[str]:
    """What the finished replays took for granted, with the number of replays that did."""
    paths = [summary_path(str(event_file(task, folder))) for task in tasks if is_finished(task, folder)]
    return Counter(text for path in paths for text in read_summary(path).get("assumptions", ()))


def carry_out(task: SweepTask, folder: Path) -> None:
    """Replay one task and write its files; the key comes last, so that a torn task counts as none.

    :raises PliantError: an input is wrong, or the policy broke a rule.
    """
    batch.carry_out(_inputs(task.sources()), batch.Task(task.run(), str(event_file(task, folder))))
    write_origin(_key_file(task, folder), task.made_from)


def sweep(
    tasks: Sequence[SweepTask], folder: Path, *, workers: int = 1, advance: Advance | None = None
) -> list[Failure]:
    """Carry out the tasks that are not finished; those that fail do not stop the others.

    :param workers: processes.
    :param advance: notified of tasks that are done, those that were finished before included.
    """
    waiting = [task for task in tasks if not is_finished(task, folder)]
    failures = []
    for number, failure in enumerate(_outcomes(waiting, folder, workers), len(tasks) - len(waiting) + 1):
        failures += [failure] if failure else []
        if advance:
            advance(number, len(tasks))
    return sorted(failures, key=lambda failure: failure.name)


def _outcomes(tasks: Sequence[SweepTask], folder: Path, workers: int) -> Iterator[Failure | None]:
    """One for each task, as they end."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from (_attempt(task, folder) for task in tasks)
        return
    with worker_pool(workers) as pool:
        futures: dict[Future[Failure | None], SweepTask] = {
            pool.submit(_attempt, task, folder): task for task in tasks
        }
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                text = "a worker process was killed: fewer --workers need less memory"
                yield Failure(futures[future].name, text)


def _attempt(task: SweepTask, folder: Path) -> Failure | None:
    try:
        carry_out(task, folder)
    except PliantError as error:
        return Failure(task.name, str(error).partition("\n")[0])
    except MemoryError:
        return Failure(task.name, "memory ran out: fewer --workers need less")
    except Exception as error:  # noqa: BLE001 - one task's bug must not cost the others their results
        return Failure(task.name, f"this is a bug in pliant: {type(error).__name__}: {error}")
    return None


@lru_cache(maxsize=1)
def _inputs(sources: Sources) -> Inputs:
    """Inputs are read once for tasks that follow each other."""
    return sources.read()


def _key_file(task: SweepTask, folder: Path) -> Path:
    return folder / KEYS / f"{task.name}.key"
