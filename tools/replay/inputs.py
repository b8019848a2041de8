"""What a replay needs, read and checked once for all its policies, and what it assumes beyond that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from pliant.schemas.checks import (
    RECORDED_TYPES,
    check_after,
    check_profiled,
    constraint_of,
    recorded_type,
    recorded_types,
)
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.files import PIPE, source_name
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.io import (
    profile_hash,
    profile_to_columns,
    read_cluster,
    read_convergence,
    read_job_table,
    read_profile,
    read_shares,
)
from pliant.schemas.job import (
    EpochWork,
    GpuTimeWork,
    IterationWork,
    Job,
    SampleWork,
    Work,
    hash_of_texts,
    trace_hash,
)
from pliant.schemas.job_table import JobTable, in_order, jobs_that, one_of_each
from pliant.schemas.profile import Profile
from pliant.schemas.runinfo import Assumption
from pliant.schemas.text import EPOCH_LIKE_S, counted, listed
from pliant.tools.profile.throughput import Throughput
from pliant.tools.replay.engine.costs import unstated_costs
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.options import DEFAULT_COST_S, Conditions
from pliant.tools.replay.progress import Validation, validations
from pliant.tools.replay.recorded import NODE_GPUS, inconsistencies, own_cluster
from pliant.tools.schedule.assumptions import (
    Kind,
    demands_unlimited,
    kinds_measured,
    levels_ignored,
    nothing_to_resize,
    sharing_assumed,
    speeds_assumed,
    speeds_doubted,
    trust_of,
    weights_ignored,
)
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.rates import Speeds, throughput_for

_LITTLE: Final = 1e-3
_MUCH: Final = 1e12
"""Amounts of work in this range can be counted in samples where any of them can."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the inputs are; ``-`` is stdin."""

    jobs: str
    cluster: str | None = None
    """None: as large as what the trace recorded."""
    profile: str | None = None
    """None: speed grows in proportion to the GPUs."""
    jobs_limit: int | None = None
    """Only this many jobs, the first to arrive."""
    convergence: str | None = None
    """None: no job has a table of epochs."""
    shares: str | None = None
    """Teams that share the cluster, as ``--shares`` names them. None: as the cluster file says."""

    @garbage_collection_paused()
    def read(self) -> Inputs:
        profile = None if self.profile is None else read_profile(self.profile)
        jobs = read_job_table(self.jobs).in_order()
        tables = {} if self.convergence is None else validations(read_convergence(self.convergence))
        cluster = own_cluster(jobs) if self.cluster is None else read_cluster(self.cluster)
        if self.shares is not None:
            cluster = cluster.model_copy(update={"shares": read_shares(self.shares)})
        inputs_read = inputs(jobs[: self.jobs_limit], cluster, profile, source_name(self.jobs), tables)
        return replace(inputs_read, name=trace_name(self.jobs), is_own_cluster=self.cluster is None)


@dataclass(frozen=True)
class Inputs:
    """A trace on a cluster with a profile, checked."""

    jobs: Sequence[Job]
    """In order of (submit_time, id)."""
    cluster: Cluster
    profile: Profile | None
    throughput: Throughput
    tables: Mapping[str, Validation] = field(default_factory=dict)
    """Validation runs by the key that jobs name in ``convergence``."""
    name: str | None = None
    is_own_cluster: bool = False
    """Whether the cluster is what the trace recorded, as none was named."""

    @cached_property
    def trace_hash(self) -> str:
        if isinstance(self.jobs, JobTable):
            return hash_of_texts(self.jobs.canonical())
        return trace_hash(self.jobs)

    @cached_property
    def models(self) -> frozenset[str]:
        return frozenset(job.model for job in one_of_each(self.jobs))

    @cached_property
    def kinds_measured(self) -> Counter[Kind] | None:
        """Training rows by model and GPU type; None: there is no profile."""
        return None if self.profile is None else Counter(kinds_measured(self.profile.rows))

    @cached_property
    def speeds_doubted(self) -> Sequence[Assumption]:
        """What cannot be trusted of the profile."""
        return () if self.profile is None else speeds_doubted(self.models, trust_of(self.profile.rows))

    @cached_property
    def types_assumed(self) -> Sequence[Assumption]:
        """What is assumed of the GPU types on which the trace says that its jobs ran."""
        types = list(dict.fromkeys(node.gpu_type for node in self.cluster.nodes if node.gpus))
        recording = jobs_that(lambda job: any(name in job.labels for name in RECORDED_TYPES), self.jobs)
        if self.is_own_cluster or next(recording, None) is None:
            return ()
        stay, lacking = 0, Counter[str]()
        for job in self.jobs:
            if recorded_types(job, types):
                stay += len(types) > 1 and job.gpus.types is None
            elif kind := recorded_type(job):
                lacking[kind] += 1
        texts = []
        if stay:
            jobs = "1 job stays" if stay == 1 else f"{stay:,} jobs stay"
            texts.append(f"{jobs} on the GPU type that the trace recorded, unless gpus.types says otherwise")
        if lacking:
            times = "as long as recorded" if len(types) == 1 else "as long as recorded on the mean of them"
            where = f"the cluster lacks the recorded GPU types {listed(sorted(lacking))}"
            texts.append(f"{where}: {counted(lacking.total(), 'job')} may run on any, and take {times}")
        return [Assumption(kind="recording", text=text) for text in texts]

    @cached_property
    def profile_hash(self) -> str | None:
        return None if self.profile is None else profile_hash(profile_to_columns(self.profile.rows))


def trace_name(path: str) -> str | None:
    """The stem of a job file, or its folder where the file is but ``jobs`` as importers write it."""
    if path == PIPE:
        return None
    file = Path(path)
    return (file.parent.name if file.stem == "jobs" else "") or file.stem


def inputs(
    jobs: Sequence[Job],
    cluster: Cluster,
    profile: Profile | None = None,
    source: str = "jobs",
    tables: Mapping[str, Validation] | None = None,
) -> Inputs:
    """Check a trace against cluster and profile; ``source`` is what messages call it.

    A job without stated work does that of its validation run in ``tables``. A job that is too large for the
    cluster is not an error: the replay says what becomes of it.

    :raises BadInputError: a job waits for one that is not there, its work is unknown or has no number of
        samples, or its model is not profiled.
    """
    if any(job.after for job in one_of_each(jobs)):
        check_after(jobs, (), source)
    throughput = throughput_for(profile, cluster, simulated=True)
    models = set(throughput.models())
    if models and not models.issuperset(job.model for job in one_of_each(jobs)):
        check_profiled(jobs, throughput.models(), source)
    tables = tables or {}
    if any(True for _ in _unknown_work(_of_each_magnitude(jobs), tables, cluster, throughput)):
        unknown = _unknown_work(jobs, tables, cluster, throughput)
        raise BadInputError([Problem(source, None, "", text) for text in unknown])
    return Inputs(in_order(jobs), cluster, profile, throughput, tables)


def _of_each_magnitude(jobs: Sequence[Job]) -> Iterable[Job]:
    """Jobs among which is one of each form and magnitude of work."""
    if not isinstance(jobs, JobTable):
        yield from jobs
        return
    works = [form.template.work for form in jobs.forms]
    units = [(work.dataset_size or 0) if isinstance(work, EpochWork) else 1 for work in works]
    seen: set[int] = set()
    for row, (kind, amount) in enumerate(zip(jobs.kind, jobs.amount, strict=True)):
        if kind not in seen or not _LITTLE < amount * units[kind] < _MUCH:
            seen.add(kind)
            yield jobs[row]


def _unknown_work(
    jobs: Iterable[Job], tables: Mapping[str, Validation], cluster: Cluster, throughput: Throughput
) -> Iterator[str]:
    speeds = Speeds(throughput, node_states(cluster))
    good: set[tuple[object, ...]] = set()
    for job in jobs:
        if job.work is None and job.convergence in tables:
            continue
        if job.work is None or job.work_gap is not None:
            needed = "samples, epochs with dataset_size, iterations or gpu_seconds"
            yield f'job "{job.id}" {job.work_gap}, a replay needs {needed}'
            continue
        if job.on_cpus and not isinstance(job.work, GpuTimeWork):
            yield f'job "{job.id}" needs no GPU, a replay needs its seconds as work.gpu_seconds'
            continue
        sizes = (job.gpus.requested, job.gpus.per_replica, constraint_of(job, speeds.gpu_types))
        kind = (job.model, job.batch.size, job.batch.per_gpu_max, sizes, _magnitude(job.work))
        if kind in good:
            continue
        try:
            job_state(job, speeds)
        except BadInputError as error:
            yield str(error)
        else:
            good.add(kind)


def _magnitude(work: Work) -> object:
    """What decides whether work can be counted in samples: its form, and its amount where extreme."""
    match work:
        case SampleWork(samples=amount) | IterationWork(iterations=amount) | GpuTimeWork(gpu_seconds=amount):
            pass
        case EpochWork(epochs=epochs, dataset_size=size):
            amount = epochs * (size or 0)
    return type(work), amount if not _LITTLE < amount < _MUCH else None


def assumed(
    inputs: Inputs,
    conditions: Conditions,
    simulated: SimulatedCluster,
    policy: type[Policy],
    parameters: Mapping[str, Any],
) -> tuple[Assumption, ...]:
    return (
        *speeds_assumed(inputs.models, inputs.cluster, inputs.kinds_measured),
        *inputs.speeds_doubted,
        *sharing_assumed(inputs.cluster, policy),
        *levels_ignored(inputs.cluster, policy.name, parameters),
        *weights_ignored(jobs_that(lambda job: job.weight != 1.0, inputs.jobs), policy),
        *demands_unlimited(jobs_that(lambda job: job.resources.worker, inputs.jobs), inputs.cluster),
        *_own_cluster(inputs),
        *_dated_reservations(inputs),
        *inputs.types_assumed,
        *nothing_to_resize(one_of_each(inputs.jobs), policy),
        *(
            inconsistencies(inputs.jobs, inputs.cluster)
            if policy.traits.follows_recording
            else _costs(inputs, conditions, simulated)
        ),
        *_progress(inputs, conditions),
        *_unused(inputs, conditions, simulated),
    )


def _own_cluster(inputs: Inputs) -> Iterator[Assumption]:
    if inputs.is_own_cluster:
        nodes = counted(len(inputs.cluster.expanded()), "node")
        text = f"no --cluster: it has {nodes} of {NODE_GPUS} GPUs, for what the trace holds at a time"
        yield Assumption(kind="recording", text=text)


def _dated_reservations(inputs: Inputs) -> Iterator[Assumption]:
    dated = [each.name for each in inputs.cluster.reservations if each.begin >= EPOCH_LIKE_S]
    if dated and all(job.submit_time < EPOCH_LIKE_S for job in inputs.jobs[-1:]):
        text = f"the trace counts seconds from 0, so reservations with dates never begin: {listed(dated)}"
        yield Assumption(kind="unused_option", text=text)


def _costs(inputs: Inputs, conditions: Conditions, simulated: SimulatedCluster) -> Iterator[Assumption]:
    """Costs that no option states, no profile has measured and no simulator to be compatible with has."""
    stated = {"start": simulated.start_cost, "rescale": simulated.rescale_cost}
    missing = [name for name, cost in stated.items() if cost is None]
    if missing and conditions.compat is None and unstated_costs(inputs.profile) is None:
        each = "each is" if len(missing) > 1 else "it is"
        text = (
            f"no {' or '.join(missing)} cost is stated or measured: {each} taken to be {DEFAULT_COST_S:g} s"
        )
        yield Assumption(kind="cost", text=text)


def _progress(inputs: Inputs, conditions: Conditions) -> Iterator[Assumption]:
    """Jobs that name a validation run and train by samples, where no progress model was asked for."""
    if conditions.progress is not None or conditions.compat is not None:
        return
    naming = jobs_that(lambda job: job.convergence is not None, inputs.jobs)
    named = [job.convergence for job in naming if job.convergence is not None]
    missing = [name for name in named if name not in inputs.tables]
    if missing:
        lacks = "the --convergence table lacks" if inputs.tables else "there is no --convergence table for"
        runs = listed(sorted(set(missing)))
        text = f"{lacks} {runs}: {counted(len(missing), 'job')} train by samples instead"
        yield Assumption(kind="progress", text=text)


def _unused(inputs: Inputs, conditions: Conditions, simulated: SimulatedCluster) -> Iterator[Assumption]:
    """Options that name a model which no job has."""
    costs = (simulated.start_cost, simulated.rescale_cost, simulated.resume_cost)
    named = [(cost.option, tuple(cost.by_model)) for cost in costs if cost is not None and cost.option]
    named.append(("--noise-scale", tuple(name for name in conditions.noise_scale or () if name)))
    for option, models in named:
        missing = [model for model in models if model not in inputs.models]
        if missing:
            yield Assumption(kind="unused_option", text=f"{option}: no job has the model {listed(missing)}")
