"""Several replays of one trace, in turn or side by side in processes; the files are the same.

Each says if its workload is more than the cluster can do: then queues grow as long as jobs arrive.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from pliant.schemas.checks import constraint_of
from pliant.schemas.errors import OutOfMemoryError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import PIPE
from pliant.schemas.file_io.limits import garbage_collection_paused, spared_by_garbage_collection
from pliant.schemas.job import EpochWork, GpuTimeWork, IterationWork, Job, SampleWork
from pliant.schemas.runinfo import Assumption
from pliant.schemas.text import did_you_mean, in_gpus, span_text
from pliant.tools.replay.engine.engine import Advance
from pliant.tools.replay.engine.simulated_cluster import simulated_cluster
from pliant.tools.replay.inputs import Inputs, Sources, assumed
from pliant.tools.replay.options import ReplayOptions
from pliant.tools.replay.output import PARQUET, StoredEvents, Summary, check_paths, output_paths, write
from pliant.tools.replay.recorded import check_recorded
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.assumptions import refuse
from pliant.tools.schedule.demand import demand_gpu_s, job_state
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.registry import canonical, label_of, make_policy, parse_pairs, policy_class

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

OVERLOAD: Final = 1.2
"""Work that arrives / work that the cluster can do meanwhile, from which on it is said."""
_FEWEST: Final = 20
"""Jobs from which on arrivals are a stream."""


def offered_load(inputs: Inputs) -> float | None:
    """GPU-time of the jobs at their requested sizes / GPU-time of the cluster from first to last submission.

    Jobs that are larger than the cluster, and those whose work only a validation run knows, do not count.
    Returns None if the jobs are no stream: there are few, or half of them take longer than they arrive.
    """
    speeds = Speeds(inputs.throughput, node_states(inputs.cluster))
    largest = max(speeds.gpu_types.values(), default=0)
    gpu_seconds, alone_s = array("d"), array("d")
    for job, each in _gpu_seconds((job for job in inputs.jobs if job.min_gpus <= largest), speeds):
        gpu_seconds.append(each)
        alone_s.append(each / job.gpus.requested)
    if len(alone_s) < _FEWEST:
        return None
    arriving_s = inputs.jobs[-1].submit_time - inputs.jobs[0].submit_time
    if arriving_s <= _median(alone_s):
        return None
    return sum(gpu_seconds) / (inputs.cluster.total_gpus * arriving_s)


def _median(values: array[float]) -> float:
    """As ``numpy.median``, which imports ``numpy.ma`` for masked arrays."""
    half, odd = divmod(len(values), 2)
    return float(np.sort(values)[half - 1 + odd : half + 1].mean())


def overload(inputs: Inputs) -> str | None:
    """One line about a workload that is too much for the cluster. Returns None if it is not."""
    load = offered_load(inputs)
    if load is None or load < OVERLOAD:
        return None
    span = span_text(inputs.jobs[-1].submit_time - inputs.jobs[0].submit_time)
    gpus = in_gpus(inputs.cluster.total_gpus)
    work = f"{load:.3g} times the work that {gpus} can do in that time"
    return f"overload: jobs arrive for {span} and bring {work}: the queue grows to the last arrival"


def _gpu_seconds(jobs: Iterable[Job], speeds: Speeds) -> Iterator[tuple[Job, float]]:
    """Each job of known work; for jobs of one kind it is in proportion to their work."""
    per_unit: dict[object, float] = {}
    for job in jobs:
        if job.on_cpus or not (amount := _amount(job)):
            continue
        limits = (job.gpus.requested, job.gpus.min, job.gpus.max, job.gpus.per_replica, job.elastic)
        where = constraint_of(job, speeds.gpu_types)
        kind = (type(job.work), job.model, job.batch.size, job.batch.per_gpu_max, limits, where)
        if kind not in per_unit:
            per_unit[kind] = demand_gpu_s(job_state(job, speeds), speeds) / amount
        yield job, amount * per_unit[kind]


def _amount(job: Job) -> float:
    match job.work:
        case EpochWork(epochs=epochs, dataset_size=size):
            return epochs * (size or 0)
        case SampleWork(samples=amount) | IterationWork(iterations=amount) | GpuTimeWork(gpu_seconds=amount):
            return amount
    return 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """One replay and the file that it is written to."""

    run: Run
    path: str
    timing: bool | None = None
    """Times of this machine: in both files (True), in the summary (None), nowhere (False)."""


class WorkerError(PliantError):
    """What went wrong in a worker process, with the exit code it would have had in this one."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code)  # both go from process to process
        self.exit_code = exit_code  # type: ignore[misc]

    def __str__(self) -> str:
        return str(self.args[0])


def tasks_of(
    options: ReplayOptions, policies: Sequence[str], pairs: Sequence[str], output: str, timing: bool | None
) -> list[Task]:
    """One task for each policy; the files that the options name are read and checked.

    :param pairs: parameters, ``[POLICY.]KEY=VALUE``.
    :param output: an event file or a folder.
    """
    read = (options.jobs, options.cluster, options.profile, options.convergence, options.failures)
    if read.count(PIPE) > 1:
        raise UsageError("only one input can come from stdin")
    places = [canonical(name) for name in policies]
    names = [label_of(place) for place in places]
    parameters = parameters_by_policy(names, pairs)
    simulated = simulated_cluster(options, options.profile)
    paths = output_paths(output, names)
    check_paths(paths)
    runs = [
        Run(place, parameters[name], options.seed, options, simulated)
        for place, name in zip(places, names, strict=True)
    ]
    return [Task(run, path, timing) for run, path in zip(runs, paths, strict=True)]


def parameters_by_policy(policies: Sequence[str], pairs: Sequence[str]) -> dict[str, dict[str, str]]:
    """``--param`` options (``POLICY.KEY=VALUE``, or ``KEY=VALUE`` with one policy) by policy."""
    parameters: dict[str, dict[str, str]] = {name: {} for name in policies}
    for key, value in parse_pairs(pairs).items():
        name, dot, rest = key.rpartition(".")
        if not dot and len(policies) > 1:
            raise UsageError(f'--param "{key}={value}": say whose it is, as in {policies[0]}.{key}={value}')
        if dot and name not in parameters:
            hint = did_you_mean(name, parameters)
            text = f'"{name}" is not among the policies of this replay{hint and "; "}{hint}'
            raise UsageError(f'--param "{key}={value}": {text}')
        parameters[name if dot else policies[0]][rest] = value
    return parameters


@spared_by_garbage_collection()  # what is read for the replays stays as long as they take
def replay_all(
    sources: Sources,
    tasks: Sequence[Task],
    *,
    workers: int = 1,
    advance: Advance | None = None,
    on_assumptions: Callable[[Sequence[Assumption]], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Summary]:
    """Carry out all tasks and write their files; the summaries come in the order of the tasks.

    :param workers: processes.
    :param advance: called with the jobs done and the jobs there are, over all tasks.
    :param on_assumptions: called once with all assumptions, before the first replay begins.
    :param warn: called then if the workload is more than the cluster can do.
    :raises ServiceMissingError: a worker was killed, or memory ran out.
    """
    workers, runs = min(workers, len(tasks)), [task.run for task in tasks]
    with garbage_collection_paused():
        for run in runs:
            make_policy(run.policy, run.parameters)
        if workers > 1 and PIPE in (sources.jobs, sources.cluster, sources.profile, sources.convergence):
            raise UsageError("several workers cannot share stdin: name files, or leave out --workers")
        inputs = sources.read()
        if any(policy_class(run.policy).traits.follows_recording for run in runs):
            check_recorded(inputs.jobs)
        of_replays = [
            assumed(inputs, run.conditions, run.simulated, policy_class(run.policy), run.parameters)
            for run in runs
        ]
    assumptions = tuple(dict.fromkeys(each for one in of_replays for each in one))
    if any(run.conditions.strict for run in runs):
        refuse(assumptions)
    if on_assumptions is not None:
        on_assumptions(assumptions)
    if warn is not None and (text := overload(inputs)):
        warn(text)
    if workers > 1:
        return _side_by_side(sources, inputs, tasks, workers, advance)
    parts = enumerate(tasks)
    try:
        return [carry_out(inputs, task, _part(advance, number, len(tasks))) for number, task in parts]
    except MemoryError:
        raise _out_of_memory(inputs) from None


def carry_out(inputs: Inputs, task: Task, advance: Advance | None = None) -> Summary:
    """Replay one task on inputs that are already read, and write its files."""
    with spared_by_garbage_collection(), StoredEvents(task.path) as stored:
        in_parquet = task.path.endswith(PARQUET)
        done = replay(
            inputs,
            task.run,
            timing=task.timing is True,
            advance=advance,
            stored=stored if in_parquet else None,
        )
        summary = done.summary if task.timing is not False else done.summary.without_timing()
        if in_parquet:
            stored.write(summary)
        else:
            write(done.log, summary, task.path)
    return done.summary


def _part(advance: Advance | None, number: int, parts: int) -> Advance | None:
    if advance is None:
        return None
    return lambda done, total: advance(number * (total or 0) + done, parts * (total or 0))


def _side_by_side(
    sources: Sources, inputs: Inputs, tasks: Sequence[Task], workers: int, advance: Advance | None
) -> list[Summary]:
    summaries: dict[int, Summary] = {}
    from concurrent.futures import as_completed

    jobs = len(inputs.jobs)
    with shared({sources: inputs}), worker_pool(workers) as pool:
        futures = {pool.submit(_in_worker, sources, task): number for number, task in enumerate(tasks)}
        for future in as_completed(futures):
            summaries[futures[future]] = future.result()
            if advance:
                advance(len(summaries) * jobs, len(tasks) * jobs)
    return [summaries[number] for number in range(len(tasks))]


def _in_worker(sources: Sources, task: Task) -> Summary:
    """:raises WorkerError: the task fails. Other errors may not survive pickling."""
    try:
        inputs = inputs_of(sources)
        try:
            return carry_out(inputs, task)
        except MemoryError:
            raise _out_of_memory(inputs) from None
    except PliantError as error:
        raise WorkerError(str(error), error.exit_code) from None


def _out_of_memory(inputs: Inputs) -> OutOfMemoryError:
    return OutOfMemoryError(f"{len(inputs.jobs)} jobs were read")


_shared: dict[Sources, Inputs] = {}
"""What forked workers have from the process that started them."""


@contextmanager
def shared(inputs: Mapping[Sources, Inputs]) -> Iterator[None]:
    """Workers that are started meanwhile need not read these inputs, if they can be forked."""
    _shared.update(inputs)
    try:
        with spared_by_garbage_collection():
            yield
    finally:
        _shared.clear()


def inputs_of(sources: Sources) -> Inputs:
    """The inputs, shared or read; those that were read last are kept."""
    return _shared[sources] if sources in _shared else _read(sources)


@lru_cache(maxsize=1)
def _read(sources: Sources) -> Inputs:
    return sources.read()


def usable_cores() -> int:
    """Cores that this process may use; all of the machine's where the system does not say."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def can_fork() -> bool:
    """Whether workers can be copies of this process: a lock that another thread holds would stay locked.

    Arrow and its allocator put their own threads right in a copy.
    """
    return sys.platform == "linux" and threading.active_count() == 1


@contextmanager
def worker_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that are gone after the block, however it or this process ends; copies of this one where it
    can be copied, which share what it has loaded, and Arrow.

    Ctrl-C is the parent's alone.

    :raises ServiceMissingError: a worker was killed and the block let that through.
    """
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import active_children, get_context

    before = set(active_children())
    method = "fork" if can_fork() else "spawn"
    pool = ProcessPoolExecutor(workers, mp_context=get_context(method), initializer=_begin_worker)
    try:
        if method == "fork":
            import pyarrow.parquet  # noqa: F401 - which each would load to write its first file

            with warnings.catch_warnings():  # of Arrow's threads
                warnings.simplefilter("ignore", DeprecationWarning)
                pool.submit(int)  # forks all workers, before the pool has a thread
        yield pool
    except BaseException as error:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(active_children()) - before:
            child.terminate()
        if isinstance(error, BrokenProcessPool):
            raise ServiceMissingError(
                "a worker process was killed: fewer --workers need less memory"
            ) from error
        raise
    pool.shutdown()


def _begin_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker of a process that was killed would wait for the next task without end."""
    from multiprocessing import parent_process

    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)
