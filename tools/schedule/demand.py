"""From what a job file states to what schedulers compute with: reference batch, total samples, demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, Final

from pliant.schemas.checks import Room, check_fits, check_profiled, recorded_types, why_nowhere
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.file_io.json_lines import encode
from pliant.schemas.job import EpochWork, GpuTimeWork, IterationWork, Job, SampleWork
from pliant.tools.schedule.forecast import Demand
from pliant.tools.schedule.jobs import SAMPLES_WITHOUT_GPU, JobState
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.rates import Speeds

MOST_SAMPLES: Final = 1e18
"""Most samples of one job: beyond any training, and small enough to keep sums of times finite."""


def job_state(job: Job, speeds: Speeds, alike: JobState | None = None) -> JobState:
    """The state of a job that has just arrived, its defaults resolved against cluster and profile.

    On a cluster without nodes, work stated in GPU-seconds is unknown. What a trace recorded was trained on
    the GPU type that it recorded, wherever the job may run.

    :param alike: a job of the same form (:mod:`pliant.schemas.job_table`) whose batch never changes, and
        whose room nothing limits: the defaults are taken from it.
    :raises BadInputError: it may run on no node, work is stated in GPU-seconds and the requested size has no
    speed, or all samples are none or more than :data:`MOST_SAMPLES`.
    """
    if alike is None:
        state = JobState(job, _reference_batch(job, speeds), None)
    else:
        state = JobState(job, alike.reference_batch, None, kind=alike.kind, _alike=alike)
    on_cpus = job.on_cpus
    types = None if on_cpus else speeds.types_of(job)
    if types == () and (why := why_nowhere(job, speeds.nodes)) is not None:
        raise BadInputError(f'job "{job.id}" {why}')
    several = len(speeds.gpu_types) > 1 and not on_cpus
    recorded = recorded_types(job, speeds.gpu_types) if several else ()
    state.types = recorded or types
    state.total_samples = total = _total_samples(state, speeds)
    if state.types != types:
        state.types, state.kind = types, None
    if speeds.is_guess(job.model) or on_cpus:
        state.is_speed_guessed = not isinstance(job.work, GpuTimeWork)
    if total is not None and not 0 < total <= MOST_SAMPLES:
        raise BadInputError(
            f'job "{job.id}": its work comes to {total:g} samples, '
            f"expected more than 0 and at most {MOST_SAMPLES:g}"
        )
    for regime in job.batch.regimes if alike is None and job.elastic == "none" else ():
        _refuse_infeasible(state, regime.size, speeds)
    return state


def demand_gpu_s(job: JobState, speeds: Speeds, *, of_simulation: bool = False) -> float:
    """L of Ares, section 3.2: GPU-seconds of all the work at the requested size (mean over mixed types).

    An elastic job that is faster on fewer GPUs counts as that fast, and one that changes its batch by itself
    as fast as it is at present. If no GPU type can run the requested
    size, the nearest of :func:`sizes_below` counts; a job without one, or of unknown work, has demand 0.

    :param of_simulation: use the work at which a replay ends the job, even if policies see a prediction, and
        the speeds of all batches that the job will change to by itself.
    """
    total = (job.work_samples if of_simulation else job.total_samples) or 0.0
    gpus, rate = demand_rate(job, speeds)
    if gpus and of_simulation and job.spec.batch.regimes:
        rate = rate_of_all_work(job, gpus, speeds) or rate
    return gpus * total / rate if gpus else 0.0


def demand_rate(job: JobState, speeds: Speeds) -> tuple[int, float]:
    """The size whose GPU-seconds count as the demand, and the samples per second there; (0, 0) if none runs.

    A job that changes its batch by itself is as fast as it is at present.
    """

    def made() -> tuple[int, float]:
        for gpus in chain((job.spec.gpus.requested,), sizes_below(job)):
            if _runs(job, gpus, speeds):
                return gpus, speeds.best_rate(job, gpus)
        return 0, 0.0

    asked = ("demand", job.requested, job.min_gpus, job.is_elastic)
    return speeds.of_kind(job, asked, made)


def gpu_s_per_sample(job: JobState, speeds: Speeds) -> float:
    """GPU-seconds of a sample at the size of :func:`demand_gpu_s`; 0 for a job without one."""
    gpus, rate = demand_rate(job, speeds)
    return gpus / rate if gpus else 0.0


def rate_of_all_work(job: JobState, gpus: int, speeds: Speeds) -> float:
    """Samples per second from beginning to end, over all batches that the job changes to by itself.

    Returns 0.0 if one of them is infeasible on that many GPUs.
    """
    begin, batch, seconds = 0.0, job.spec.batch.size, 0.0
    for regime in (*job.spec.batch.regimes, None):
        rate = speeds.rate(job, gpus, global_batch=batch)
        if not rate:
            return 0.0
        end, following = (1.0, None) if regime is None else (regime.after, regime.size)
        seconds += (end - begin) / rate
        begin, batch = end, following
    return 1 / seconds


def _refuse_infeasible(state: JobState, batch: int, speeds: Speeds) -> None:
    gpus = state.spec.gpus.requested
    if speeds.rate(state, gpus) and not speeds.rate(state, gpus, global_batch=batch):
        raise BadInputError(
            f'job "{state.id}": it changes its batch to {batch}, which is infeasible on {gpus} GPUs'
        )


def sizes_below(job: JobState) -> Iterator[int]:
    """Sizes below the requested one, descending: those that the job lists, else powers of two of replicas,
    and last the minimum.
    """
    requested, least, each = job.spec.gpus.requested, job.min_gpus, job.per_replica
    if job.spec.elastic == "none" or requested == least:
        return
    if isinstance(job.spec.gpus.sizes, tuple):
        yield from reversed(job.spec.gpus.between(least, requested - 1))
        return
    power = 1 << (requested // each - 1).bit_length() - 1 if requested > each else 0
    while power * each > least:
        yield power * each
        power //= 2
    yield least


def _runs(job: JobState, gpus: int, speeds: Speeds) -> bool:
    return any(total >= gpus and speeds.rate(job, gpus, kind) > 0 for kind, total in speeds.gpu_types.items())


def _reference_batch(job: Job, speeds: Speeds) -> int:
    if job.batch.size is not None:
        return job.batch.size
    if job.on_cpus:
        return 1
    limits = [speeds.throughput.max_local_batch(job.model, gpu_type) for gpu_type in speeds.gpu_types]
    known = [limit for limit in (*limits, job.batch.per_gpu_max) if limit]
    return job.gpus.replicas(job.gpus.requested) * (min(known) if known else 1)


def _total_samples(state: JobState, speeds: Speeds) -> float | None:
    match state.spec.work:
        case GpuTimeWork() as work:  # of most traces
            return _trained_in(work.gpu_seconds, state, speeds)
        case None:
            return None
        case SampleWork() as work:
            return work.samples
        case EpochWork() as work:
            return None if work.dataset_size is None else work.epochs * work.dataset_size
        case IterationWork() as work:
            return work.iterations * state.reference_batch


def _trained_in(gpu_seconds: float, state: JobState, speeds: Speeds) -> float | None:
    requested = state.requested
    if not requested:
        return gpu_seconds * SAMPLES_WITHOUT_GPU
    rate = speeds.rate(state, requested)
    if not rate and speeds.gpu_types:
        raise BadInputError(
            f'job "{state.id}": work is stated in GPU-seconds at {requested} GPUs, '
            f"but with a batch of {state.reference_batch} that size is infeasible"
        )
    return gpu_seconds / requested * rate if rate else None


class JobCheck:
    """What a policy on a cluster cannot take up, and why: one rule for ``submit``, ``run`` and ``replay``.

    :param policy: None: not known yet.
    """

    def __init__(
        self, cluster: Cluster, speeds: Speeds, policy: Policy | None, demand: Demand = "stated"
    ) -> None:
        self._room = Room.of(cluster)
        self._speeds = speeds
        self._policy = policy
        self._demand: Demand = demand

    def check(self, jobs: Iterable[Job], source: str) -> None:
        """:raises BadInputError: for every job that is larger than the cluster, is not profiled, lacks what
        the policy needs, or has work that cannot be computed with.
        """
        problems = [problem for job in jobs for problem in self.problems(job, source)]
        if problems:
            raise BadInputError(problems)

    def problems(self, job: Job, source: str) -> tuple[Problem, ...]:
        """What is wrong with one job; empty if it can be taken up."""
        try:
            check_fits([job], self._room, source)
            if models := self._speeds.throughput.models():
                check_profiled([job], models, source)
            if self._policy is not None:
                check_demand([job], self._policy, source, self._demand)
            encode(submit_detail(job_state(job, self._speeds), self._speeds))
        except BadInputError as error:
            return error.problems or (Problem(source, None, "", str(error)),)
        except (ArithmeticError, ValueError) as error:
            text = f'job "{job.id}": its numbers cannot be computed with: {error}'
            return (Problem(source, None, "", text),)
        return ()

    def refusal(self, job: Job) -> str | None:
        return next((problem.message for problem in self.problems(job, "")), None)


def check_demand(jobs: Iterable[Job], policy: Policy, source: str, demand: Demand = "stated") -> None:
    """:raises BadInputError: jobs state no work, the policy needs it and nothing predicts it."""
    needed = "demand" in policy.traits.needs and demand == "stated"
    silent = [(job.id, job.work_gap) for job in jobs if job.work_gap is not None] if needed else []
    if silent:
        need = f'which policy "{policy.name}" needs'
        raise BadInputError(
            [Problem(source, None, "", f'job "{job_id}" {gap}, {need}') for job_id, gap in silent]
        )


def submit_detail(state: JobState, speeds: Speeds, measured_sizes: Iterable[int] = ()) -> dict[str, Any]:
    """What :class:`~pliant.schemas.runinfo.SubmitDetail` describes, as JSON values.

    The demand is that of Ares. The curve is taken at the reference batch, or over all batches that the job
    changes to by itself, on consolidated placements: at
    powers of two of replicas, the requested and the largest size, and ``measured_sizes`` (GPUs). Sizes on
    which the job cannot run are left out. With it, a report needs no profile.
    """
    detail: dict[str, Any] = {"job": job_fields(state.spec)}
    curve = [[size, rate_of_all_work(state, size, speeds)] for size in _sizes(state, speeds, measured_sizes)]
    detail["curve"] = [point for point in curve if point[1] > 0]
    if state.total_samples:
        detail["samples"] = state.total_samples
    if demand := demand_gpu_s(state, speeds, of_simulation=bool(state.spec.batch.regimes)):
        detail["demand_gpu_s"] = demand
    return detail


def _sizes(state: JobState, speeds: Speeds, measured_sizes: Iterable[int]) -> list[int]:
    largest = state.spec.max_gpus(sum(speeds.gpu_types.values()))
    powers = (state.per_replica * 2**exponent for exponent in range(largest.bit_length()))
    listed = state.spec.gpus.sizes
    own = listed if isinstance(listed, tuple) else ()
    wanted = {*powers, *own, state.spec.gpus.requested, largest, *measured_sizes}
    return sorted(size for size in wanted if 1 <= size <= largest)
