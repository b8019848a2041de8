"""Sweeps: many replays, side by side, each in files of its own; what is finished is not done again.

A sweep may also run as Slurm job arrays: the scripts are text, and submitting each is one command.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import groupby, product
from pathlib import Path
from typing import Final

from pydantic import Field

from pliant.schemas.errors import BadInputError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import read_bytes, write_bytes
from pliant.schemas.file_io.json_lines import encode, header, read_lines
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.record import Identifier, Record
from pliant.schemas.io import write_jobs
from pliant.schemas.job_table import JobTable
from pliant.schemas.text import counted
from pliant.tools.replay import batch
from pliant.tools.replay.batch import can_fork, inputs_of, shared, worker_pool
from pliant.tools.replay.engine.engine import Advance
from pliant.tools.replay.engine.simulated_cluster import simulated_cluster
from pliant.tools.replay.inputs import Inputs, Sources
from pliant.tools.replay.options import Conditions, ReplayOptions
from pliant.tools.replay.output import read_summary, summary_path
from pliant.tools.replay.run import Run
from pliant.tools.replay.sweep_recipe import (
    Digests,
    SweepRecipe,
    Trace,
    Value,
    differences,
    file_digest,
    made_from,
    parameter_grid,
    read_origin,
    write_origin,
)
from pliant.tools.replay.synthetic import synthesize
from pliant.tools.replay.synthetic_recipe import read_recipe
from pliant.tools.schedule.registry import files_among, policy_class

KEYS: Final = ".sweep"
"""Folder of the keys of what is finished, beside the event files."""
TABLE: Final = "tasks.jsonl"
_TASK_KIND: Final = "task"
_LONGEST_NAME: Final = 100
_SHARED_FILE_BYTES: Final = 1 << 30
"""Most bytes of a job file that is read before the workers start."""
_SHARED_BYTES: Final = 640 << 20
"""Most bytes of memory for such jobs. Long traces take none, unless each job is of a kind of its own."""
_MOST_SHARED: Final = 50
"""Each long trace keeps a file open."""


def sweep(
    tasks: Sequence[SweepTask], folder: Path, *, workers: int = 1, advance: Advance | None = None
) -> list[Failure]:
    """Carry out the tasks that are not finished; those that fail do not stop the others.

    ``advance`` counts tasks, those that were finished before included.
    """
    waiting = [task for task in tasks if not is_finished(task, folder)]
    failures = []
    for number, failure in enumerate(_outcomes(waiting, folder, workers), len(tasks) - len(waiting) + 1):
        failures += [failure] if failure else []
        if advance:
            advance(number, len(tasks))
    return sorted(failures, key=lambda failure: failure.name)


def _outcomes(tasks: Sequence[SweepTask], folder: Path, workers: int) -> Iterator[Failure | None]:
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from (_attempt(task, folder) for task in tasks)
        return
    with shared(_worth_sharing(tasks, workers)), worker_pool(workers) as pool:
        futures: dict[Future[Failure | None], SweepTask] = {
            pool.submit(_attempt, task, folder): task for task in tasks
        }
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                text = "a worker process was killed: fewer --workers need less memory"
                yield Failure(futures[future].name, text)


def _worth_sharing(tasks: Sequence[SweepTask], workers: int) -> dict[Sources, Inputs]:
    """Inputs that each worker would read, up to some size; their faults are for the tasks to tell."""
    inputs_by_source: dict[Sources, Inputs] = {}
    room = _SHARED_BYTES
    for sources, count in Counter(task.sources() for task in tasks).items() if can_fork() else ():
        if count < workers or len(inputs_by_source) >= _MOST_SHARED:
            continue
        with suppress(PliantError, OSError, MemoryError):
            if Path(sources.jobs).stat().st_size <= _SHARED_FILE_BYTES:
                inputs = sources.read()
                taken = inputs.jobs.memory_bytes if isinstance(inputs.jobs, JobTable) else 0
                if taken <= room:
                    inputs_by_source[sources] = inputs
                    room -= taken
    return inputs_by_source


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


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that failed, and why."""

    name: str
    message: str


def carry_out(task: SweepTask, folder: Path) -> None:
    """Replay one task and write its files; the key comes last, so that a torn task counts as none."""
    batch.carry_out(inputs_of(task.sources()), batch.Task(task.run(), str(event_file(task, folder))))
    write_origin(_key_file(task, folder), task.made_from)


def event_file(task: SweepTask, folder: Path) -> Path:
    return folder / f"{task.name}.parquet"


def _key_file(task: SweepTask, folder: Path) -> Path:
    return folder / KEYS / f"{task.name}.key"


def is_finished(task: SweepTask, folder: Path) -> bool:
    """Whether the task's event file is there and was made from the same inputs by the same code."""
    return event_file(task, folder).exists() and read_origin(_key_file(task, folder)) == task.made_from


def outdated(tasks: Sequence[SweepTask], folder: Path) -> Counter[str]:
    """Counts the tasks whose result no longer counts, by what has changed since, in words."""
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


class SweepTask(Record, ReplayOptions):  # type: ignore[misc]  # pydantic freezes it
    """One replay of a sweep: one line of the task table. Paths are absolute."""

    name: Identifier
    made_from: dict[str, str] = Field(default_factory=dict)
    """Digest of each thing that its outcome depends on: the bytes of its inputs, its settings, the code."""
    jobs: str = Field(...)
    cluster: str = Field(...)
    policy: str
    parameters: dict[str, Value] = Field(default_factory=dict)

    def origin(self, digests: Digests | None = None) -> dict[str, str]:
        return made_from(self.model_dump(mode="json", exclude={"name", "made_from"}), digests)

    def sources(self) -> Sources:
        files = (self.jobs, self.cluster, self.profile, self.jobs_limit, self.convergence)
        return Sources(*files, shares=self.shares)

    def run(self) -> Run:
        simulated = simulated_cluster(self, self.profile)
        return Run(self.policy, self.parameters, self.seed, self, simulated)


def sweep_tasks(recipe: SweepRecipe, folder: Path) -> list[SweepTask]:
    """All tasks in the order of the recipe; traces that are made by recipes are written into ``folder``."""
    conditions = {each.name: getattr(recipe, each.name) for each in fields(Conditions)}
    tasks: dict[str, SweepTask] = {}
    for trace, machines in product(recipe.traces, recipe.clusters):
        for stem, jobs in _job_files(trace, folder):
            parts = [stem, machines.name] if len(recipe.clusters) > 1 else [stem]
            for policy, parameters, seed in _runs(recipe):
                task = SweepTask.model_validate(
                    {
                        "name": _name(parts, policy, parameters, seed if len(recipe.seeds) > 1 else None),
                        "jobs": jobs,
                        "jobs_limit": trace.jobs_limit,
                        "cluster": machines.path,
                        "profile": trace.profile,
                        "convergence": trace.convergence,
                        "policy": policy,
                        "parameters": parameters,
                        "seed": seed,
                        **conditions,
                    }
                )
                if task.name in tasks:
                    raise BadInputError(f'two replays of this sweep would be called "{task.name}"')
                tasks[task.name] = task
    digests = Digests()
    return [task.model_copy(update={"made_from": task.origin(digests)}) for task in tasks.values()]


def _job_files(trace: Trace, folder: Path) -> Iterator[tuple[str, str]]:
    """(part of the name, job file) of each trace; those of a recipe are made now."""
    if trace.jobs is not None:
        yield trace.name, trace.jobs
        return
    for seed in trace.seeds:
        stem = f"{trace.name}-t{seed}" if len(trace.seeds) > 1 else trace.name
        path = folder / "traces" / f"{stem}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        stated = {"seed": seed} if "seeds" in trace.model_fields_set else {}
        recipe = str(trace.synth)
        write_jobs(synthesize(read_recipe(recipe, stated), recipe), path)
        yield stem, str(path.resolve())


def _runs(recipe: SweepRecipe) -> Iterator[tuple[str, dict[str, Value], int]]:
    for policy in recipe.policies:
        for parameters in parameter_grid(recipe, policy):
            for seed in recipe.seeds:
                yield policy, parameters, seed


def _name(parts: list[str], policy: str, parameters: Mapping[str, Value], seed: int | None) -> str:
    """File name stem: what a task varies, in characters that every file system takes; a long one is cut."""
    files = files_among(policy_class(policy), parameters)
    shown = {key: Path(str(value)).stem if key in files else value for key, value in parameters.items()}
    varied = [f"{key}{value}" for key, value in shown.items()]
    name = "-".join([*parts, policy_class(policy).name, *varied, *([] if seed is None else [f"s{seed}"])])
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    if len(plain) <= _LONGEST_NAME:
        return plain
    return f"{plain[: _LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def write_table(tasks: list[SweepTask], folder: Path) -> Path:
    """Write the task table: line n + 2 is task n, the first line names the kind."""
    path = folder / TABLE
    lines = (encode(task.model_dump(mode="json", exclude_defaults=True)) for task in tasks)
    write_bytes(path, header(_TASK_KIND) + b"".join(lines))
    return path


def read_table(folder: Path) -> list[SweepTask]:
    path = folder / TABLE
    lines, problems = read_lines(
        read_bytes(path, most=ROWS_BYTES), str(path), _TASK_KIND, SweepTask.model_validate_json
    )
    if problems:
        raise BadInputError(problems)
    return [task for _, task in lines]


def table_digest(folder: Path) -> str:
    return file_digest(str(folder / TABLE))[:16]


def task_of(folder: Path, number: int, table: str | None = None) -> SweepTask:
    """One task of a folder's table, counted from 0.

    :param table: the digest that the table must have; None: any.
    :raises BadInputError: it is another table, or what the task was made from has changed since.
    """
    path = folder / TABLE
    if table is not None and table_digest(folder) != table:
        text = "was written again after this job array was submitted (another recipe, input or code): "
        text += "submit the sweep again"
        raise BadInputError.one(str(path), text)
    tasks = read_table(folder)
    if number >= len(tasks):
        raise UsageError(f"--task {number}: {path} has {counted(len(tasks), 'task')}, counted from 0")
    task = tasks[number]
    changed = differences(task.made_from, task.origin())
    if changed:
        text = f"{task.name}: {', '.join(changed)} changed after this table was written: submit again"
        raise BadInputError.one(str(path), text, line=number + 2)
    return task


SCRIPT: Final = "sweep.sbatch"
USUAL_ARRAY_SIZE: Final = 1001
"""Slurm's own default of MaxArraySize; the indices of an array stay below it."""
_SIZE: Final = re.compile(r"^\s*MaxArraySize\s*=\s*(\d{1,18})\s*$", re.MULTILINE)
_ASKING_S: Final = 30.0


def array_size() -> int:
    """The MaxArraySize of the Slurm here; its usual value where no Slurm answers."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return USUAL_ARRAY_SIZE
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [scontrol, "show", "config"], capture_output=True, text=True, check=False, timeout=_ASKING_S
        )
        stated = _SIZE.search(done.stdout)
        if stated is not None:
            return int(stated[1])
    return USUAL_ARRAY_SIZE


def array_scripts(
    folder: str,
    numbers: Sequence[int],
    command: Sequence[str],
    at_once: int | None,
    *,
    table: str,
    size: int = USUAL_ARRAY_SIZE,
) -> list[str]:
    """The sbatch scripts that carry out the tasks ``numbers`` of the table in ``folder``: an array each.

    :param command: what starts ``pliant`` on a node.
    :param at_once: most tasks of an array at a time.
    :param table: digest of the task table that the numbers are of.
    :param size: the MaxArraySize of Slurm: indices of one array stay below it.
    """
    if any(sign in folder for sign in '"\n\\'):
        raise UsageError(f"{folder!r}: sbatch cannot name this folder, choose another with -o")
    if size < 1:
        raise ServiceMissingError("this Slurm takes no job arrays: its MaxArraySize is 0")
    task = [*command, "replay", "-o", folder, "--table", table, "--task"]
    arrays = groupby(sorted(numbers), lambda number: number // size)
    return [
        _array_script(folder, [number % size for number in array], shlex.join(task), at_once, part * size)
        for part, array in arrays
    ]


def _array_script(folder: str, indices: Sequence[int], task: str, at_once: int | None, first: int) -> str:
    limit = "" if at_once is None else f"%{at_once}"
    log, number = ("%a", "$SLURM_ARRAY_TASK_ID")
    if first:
        log, number = (f"{first}+%a", f"$(({first} + SLURM_ARRAY_TASK_ID))")
    return f"""\
#!/bin/bash
#SBATCH --job-name=pliant-sweep
#SBATCH --array={_ranges(indices)}{limit}
#SBATCH --output="{folder.replace("%", "%%")}/.sweep/{log}.log"
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
exec {task} "{number}"
"""


def write_scripts(texts: Sequence[str], folder: Path) -> list[Path]:
    """Write ``sweep.sbatch``, ``sweep-2.sbatch``, … beside the task table; those of a longer sweep go."""
    (folder / ".sweep").mkdir(parents=True, exist_ok=True)
    first = folder / SCRIPT
    for left in folder.glob(f"{first.stem}-*{first.suffix}"):
        left.unlink()
    paths = [first, *(folder / f"{first.stem}-{part}{first.suffix}" for part in range(2, len(texts) + 1))]
    for path, text in zip(paths, texts, strict=True):
        write_bytes(path, text.encode())
    return paths


def submit(scripts: Sequence[Path], *, in_turn: bool) -> list[str]:
    """Hand the scripts to Slurm; returns the ids of their jobs.

    :param in_turn: each array waits for the end of the one before it.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        each = ", ".join(map(str, scripts))
        turns = ", each after the end of the one before it," if in_turn and len(scripts) > 1 else ""
        raise ServiceMissingError(f"no sbatch here: submit {each}{turns} where there is one")
    ids: list[str] = []
    for script in scripts:
        turn = [f"--dependency=afterany:{ids[-1]}"] if in_turn and ids else []
        done = subprocess.run(
            [sbatch, "--parsable", *turn, str(script)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            before = f" (submitted before it: {', '.join(ids)})" if ids else ""
            raise ServiceMissingError(
                f"sbatch refuses {script}: {done.stderr.strip() or done.returncode}{before}"
            )
        ids.append(done.stdout.strip().partition(";")[0])
    return ids


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3 and 7."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
