"""Hypothesis strategies for the records: any value that the schemas allow."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.container import Container
from pliant.schemas.event import EVENT_NAMES, Event
from pliant.schemas.job import (
    Batch,
    EpochWork,
    Gpus,
    GpuTimeWork,
    IterationWork,
    Job,
    ResourceDemand,
    SampleWork,
    Utility,
)
from pliant.schemas.metrics import Metrics, ReportedRun
from pliant.schemas.predictor import Predictor, ProgressFit
from pliant.schemas.profile import ConvergenceRow, Profile, ProfileRow
from pliant.schemas.schedule import Allocation, ForecastState, PolicyState, PolicyUse, Schedule, Verdict
from pliant.tools.profile.throughput import plan_batch

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
plain = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,7}", fullmatch=True)
finite = st.floats(allow_nan=False, allow_infinity=False)
amounts = st.floats(0.0, 1e12)
positive = st.floats(1e-9, 1e12)
counts = st.integers(1, 64)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(text, json_values, max_size=3)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


works = (
    st.builds(SampleWork, samples=positive)
    | st.builds(EpochWork, epochs=positive, dataset_size=counts)
    | st.builds(IterationWork, iterations=positive)
    | st.builds(GpuTimeWork, gpu_seconds=positive)
)


@st.composite
def _limits(draw: st.DrawFn) -> tuple[int, int, int]:
    low, middle, high = sorted(draw(st.tuples(counts, counts, counts)))
    return low, middle, high


containers = st.builds(
    Container,
    image=names.map("i".__add__),
    runtime=st.sampled_from(["podman", "pyxis"]),
    mounts=st.sampled_from([(), ("data", "/a:/b:ro")]),
)


@st.composite
def jobs(draw: st.DrawFn, ids: st.SearchStrategy[str] = names) -> Job:
    """A job: rigid without limits, or elastic with limits that agree."""
    each = draw(st.sampled_from([1, 1, 2, 3]))
    low, requested, high = (each * limit for limit in draw(_limits()))
    sizes = draw(maybe(st.just(tuple(sorted({low, requested, high})))))
    batch_low, batch, batch_high = draw(_limits())
    elastic = draw(st.sampled_from(["none", "size", "size+batch"]))
    return Job(
        id=draw(ids),
        submit_time=draw(amounts),
        model=draw(names),
        gpus=Gpus(requested=requested, per_replica=each, sizes=sizes)
        if elastic == "none"
        else Gpus(requested=requested, min=low, max=high, per_replica=each, sizes=sizes),
        user=draw(text),
        priority=draw(st.floats(-1e18, 1e18)),
        command=draw(maybe(st.lists(plain, max_size=3).map(tuple))),
        workdir=draw(maybe(plain)),
        env=draw(st.dictionaries(names, plain, max_size=2)),
        container=draw(maybe(containers)),
        batch=draw(st.sampled_from([Batch(), Batch(size=batch, min=batch_low, max=batch_high)])),
        lr=draw(maybe(positive)),
        elastic=elastic,
        work=draw(maybe(works)),
        convergence=draw(maybe(names)),
        utility=Utility(shape=draw(st.sampled_from(["constant", "sigmoid", "step"])), decay=draw(amounts)),
        resources=ResourceDemand(worker=draw(st.dictionaries(names, amounts, max_size=2))),
        checkpoint_seconds=draw(maybe(positive)),
        seed=draw(st.integers(0, 2**32)),
        labels=draw(st.dictionaries(text, text, max_size=2)),
    )


def traces(max_size: int = 4) -> st.SearchStrategy[tuple[Job, ...]]:
    """Jobs with different ids."""
    return st.lists(jobs(), max_size=max_size, unique_by=lambda job: job.id).map(tuple)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Nodes with different names, one of them perhaps in the shorthand."""
    listed = draw(st.lists(names.map("n-".__add__), min_size=1, max_size=3, unique=True))
    nodes = [
        Node(
            name=name,
            gpus=(gpus := draw(st.integers(0, 16))),
            devices=draw(st.sampled_from([(), tuple(f"GPU-{name}{at}" for at in range(gpus))])),
            gpu_type=draw(names),
            cpus=draw(maybe(positive)),
            memory=draw(maybe(st.integers(0, 2**50))),
            switch=draw(maybe(text)),
            labels=draw(st.dictionaries(text, text, max_size=2)),
        )
        for name in listed
    ]
    shorthand = draw(st.sampled_from([(), (Node(name="many{}", gpus=4, count=3),)]))
    return Cluster(
        nodes=(*nodes, *shorthand),
        slots=draw(st.sampled_from(["gpu", "cpu"])),
        speeds=draw(st.dictionaries(text, positive, max_size=2)),
    )


placements = st.lists(st.tuples(names, counts), min_size=1, max_size=3).map(tuple)


@st.composite
def allocations(draw: st.DrawFn, job: Job) -> Allocation:
    """A placement that adds up to the GPUs of the job: as many as it requests if it is rigid."""
    each = job.gpus.per_replica
    placement = tuple((name, each * count) for name, count in draw(placements))
    if job.elastic == "none" or job.gpus.sizes is not None:
        placement = ((draw(names), job.gpus.requested),)
    gpus = sum(count for _, count in placement)
    workers = gpus // each
    batches = st.builds(plan_batch, st.integers(workers, workers + 9999), st.just(workers), maybe(counts))
    return Allocation(
        job=job.id,
        gpus=gpus,
        placement=placement,
        batch=draw(maybe(batches)),
        lr_scale=draw(positive),
        action=draw(st.sampled_from(["start", "keep", "grow", "shrink", "move", "resume"])),
        reason=draw(text),
    )


_five = st.tuples(*[st.floats(-1e18, 1e18)] * 5)
fits = st.builds(
    ProgressFit,
    mean=_five,
    scale=st.tuples(*[positive] * 5),
    weights=_five,
    bias=st.floats(-1e18, 1e18),
    trust=st.floats(0, 1),
)


@st.composite
def predictors(draw: st.DrawFn) -> Predictor:
    """Its rows are of its jobs, none of them at the end of its work."""
    jobs, known = draw(st.integers(1, 9)), maybe(st.floats(-1e18, 1e18))
    rows = st.tuples(
        positive,
        known,
        st.floats(0, 1e11),
        known,
        known,
        st.floats(1e12, 1e18),
        known,
        st.integers(0, jobs - 1),
    )
    return Predictor(
        seed=draw(st.integers(0, 2**64 - 1)),
        jobs=jobs,
        rows_seen=draw(st.integers(0, 9)),
        fitted_jobs=draw(st.integers(0, 9)),
        fit=draw(maybe(fits)),
        rows=tuple(draw(st.lists(rows, max_size=3))),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A decision about a few jobs, each allocated, waiting or rejected."""
    trace = draw(traces())
    cuts = sorted(draw(st.tuples(*[st.integers(0, len(trace))] * 2)))
    return Schedule(
        time=draw(amounts),
        policy=PolicyUse(name=draw(names), parameters=draw(json_objects), seed=draw(st.integers(0, 99))),
        allocations=tuple(draw(allocations(job)) for job in trace[: cuts[0]]),
        waiting=tuple(Verdict(job=job.id, reason=draw(text)) for job in trace[cuts[0] : cuts[1]]),
        rejected=tuple(Verdict(job=job.id, reason=draw(text)) for job in trace[cuts[1] :]),
        cluster=draw(clusters()),
        jobs=trace,
        policy_state=draw(maybe(st.builds(PolicyState, policy=names, state=json_values))),
        decision_seconds=draw(maybe(amounts)),
        demand=draw(st.sampled_from(["stated", "predicted"])),
        forecast=draw(
            maybe(st.builds(ForecastState, changes_seen=counts, predictor=st.builds(Predictor, seed=counts)))
        ),
    )


metrics = st.builds(
    Metrics,
    runs=st.lists(
        st.builds(
            ReportedRun,
            policy=names,
            trace_hash=names,
            parameters=json_objects,
            simulated=st.booleans(),
            jobs_submitted=counts,
            jobs_finished=counts,
            jobs_rejected=counts,
            mean_jct_s=maybe(amounts),
            worst_ftf=maybe(amounts),
        ),
        max_size=3,
    ).map(tuple),
)


@st.composite
def profile_rows(draw: st.DrawFn) -> ProfileRow:
    """A measured configuration, or one that did not fit."""
    shares = sorted(draw(st.lists(st.integers(1, 8), min_size=1, max_size=3)), reverse=True)
    kind = draw(st.sampled_from(["train", "allreduce"]))
    feasible = draw(st.booleans())
    step_s, accum = draw(positive), draw(counts)
    local = draw(counts) if kind == "train" else 0
    measured: dict[str, Any] = {
        "step_seconds": step_s,
        "compute_seconds": draw(maybe(amounts)),
        "samples_per_second": draw(maybe(st.just(sum(shares) * local * accum / step_s))),
        "peak_memory": draw(maybe(st.integers(0, 2**62))),
    }
    return ProfileRow(
        kind=kind,
        model=draw(text),
        gpu_type=draw(text),
        nodes=len(shares),
        gpus=sum(shares),
        placement=",".join(map(str, shares)),
        local_batch=local,
        accum_steps=accum,
        iterations=draw(counts),
        parameters=draw(maybe(counts)),
        feasible=feasible,
        source=draw(st.sampled_from(["measured", "imported", "modelled"])),
        node_order=draw(maybe(st.permutations(shares).map(lambda order: ",".join(map(str, order))))),
        measured_at=draw(maybe(amounts)),
        **(measured if feasible else {}),
    )


profiles = st.builds(
    Profile,
    rows=st.lists(profile_rows(), max_size=4).map(tuple),
    metadata=st.dictionaries(names.map("x-".__add__), text, max_size=3).map(
        lambda found: tuple(found.items())
    ),
)
convergence_rows = st.lists(
    st.builds(
        ConvergenceRow,
        model=text,
        batch=counts,
        epoch=st.integers(0, 99),
        iterations=amounts,
        progress=amounts,
        metric=maybe(finite),
        grad_sqr=maybe(amounts),
        grad_var=maybe(amounts),
    ),
    max_size=4,
).map(tuple)


event_keys = st.sampled_from(
    [
        "trace_hash",
        "reason",
        "attempt",
        "idle",
        "node",
        "slot",
        "seconds",
        "changes",
        "user",
        "observed",
        "now",
    ]
)


def _held(event: Event) -> Event:
    return replace(event, gpus=0) if event.event == "preempt" else event


events = st.lists(
    st.builds(
        Event,
        time=amounts,
        event=st.sampled_from(EVENT_NAMES),
        job=names,
        gpus=maybe(st.integers(0, 64)),
        placement=maybe(placements),
        global_batch=maybe(counts),
        samples_done=maybe(amounts),
        loss=maybe(finite),
        metric=maybe(finite),
        overhead_seconds=maybe(amounts),
        detail=maybe(st.dictionaries(text | event_keys, json_values, max_size=4)),
    ).map(_held),
    max_size=4,
).map(tuple)
