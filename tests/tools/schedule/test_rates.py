import copy
import json
from dataclasses import replace
from typing import Any

import pytest

from pliant.schemas.cluster import Cluster, Sharing
from pliant.schemas.errors import BadInputError
from pliant.schemas.job import EpochWork, GpuTimeWork, IterationWork, Job, SampleWork
from pliant.schemas.profile import Profile
from pliant.schemas.runinfo import SubmitDetail
from pliant.tools.profile.throughput import CurveThroughput, Placement
from pliant.tools.profile.throughput_model import ThroughputByPlacement, ThroughputBySize
from pliant.tools.schedule.demand import (
    JobCheck,
    demand_gpu_s,
    demand_rate,
    job_state,
    sizes_below,
    submit_detail,
)
from pliant.tools.schedule.jobs import JobKind, JobState, node_states
from pliant.tools.schedule.placement import FreeGpus
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.rates import GpuSharing, Speeds
from pliant.tools.schedule.registry import make_policy, policy_class
from pliant.tools.schedule.session.session import Session
from tests.builders import TimedSteps, cluster, curves, job, mixed_cluster
from tests.tools.profile.rows_builder import step


class ByType(CurveThroughput):
    """Samples per GPU-second by GPU type (0: infeasible); one GPU holds ``local`` samples, if stated."""

    def __init__(self, local: int | None = None, **per_gpu: float) -> None:
        super().__init__()
        self.local = local
        self.per_gpu = per_gpu
        self.asked: list[tuple[str, Placement, int]] = []

    def max_local_batch(self, model: str, gpu_type: str) -> int | None:
        return self.local

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        self.asked.append((gpu_type, placement, global_batch))
        rate = self.per_gpu[gpu_type] * sum(placement)
        return global_batch / rate if rate else None


def speeds(throughput: ByType, **gpus: tuple[int, ...]) -> Speeds:
    return Speeds(throughput, node_states(mixed_cluster(**gpus)))


def state(spec: Job | None = None) -> JobState:
    return JobState(spec or job(batch=64), 64, None)


def test_no_placement_means_the_most_consolidated_known_one() -> None:
    throughput = ByType(t4=1)
    asked = speeds(throughput, t4=(4, 4, 4))
    assert asked.consolidated(10, "t4") == (4, 4, 2)
    assert asked.rate(state(), 10, "t4") == pytest.approx(10)
    assert throughput.asked == [("t4", (4, 4, 2), 64)]
    # One node and many whole ones are consolidated.
    asked = Speeds(ByType(t4=1), node_states(cluster(*[4] * 9, gpu_type="t4")))
    free = FreeGpus(node_states(cluster(*[4] * 9, gpu_type="t4")))
    whole = free.choose(36, ["t4"])
    assert whole is not None
    assert asked.is_consolidated(whole)
    assert not asked.is_consolidated(whole, 3), "replicas of three GPUs leave one of each node"
    assert asked.is_consolidated((("n0", 3),))
    assert not asked.is_consolidated((("n0", 2), ("n1", 2)))
    free.take((("n0", 2),))
    assert not asked.is_consolidated(free.choose(34, ["t4"]) or ())
    with pytest.raises(ValueError, match='no GPU type "h100"; there are: "t4", "a100"'):
        speeds(ByType(t4=1), t4=(4,), a100=(2,)).rate(state(), 1, "h100")


def test_questions_are_asked_once_and_batches_divide_by_replicas() -> None:
    throughput = ByType(t4=1)
    asked = speeds(throughput, t4=(4, 4))
    for _ in range(3):
        asked.rate(state(), 4, "t4")
        asked.rate(state(), 4, "t4", placement=(2, 2))
        asked.rate(state(), 4, "t4", global_batch=32)
        asked.rate(state(job(batch={"size": 64, "per_gpu_max": 8})), 3, "t4")
        asked.rate(state(), 3, "t4")
    assert throughput.asked == [
        *(("t4", (4,), 64), ("t4", (2, 2), 64), ("t4", (4,), 32)),
        *(("t4", (3,), 64), ("t4", (3,), 64)),  # two jobs of one model that differ in memory
    ]

    # Rows count by GPU: on 4 GPUs two replicas have 16 samples each, on 8 four have 8.
    measured = ThroughputBySize(Profile((step(4, 16, 0.5), step(8, 8, 0.4))))
    asked = Speeds(measured, node_states(cluster(4, 4)))
    known = state(job(batch=32, model="net", gpus=4, low=2, high=8, each=2))
    assert [asked.rate(known, gpus, "gpu") for gpus in (4, 5, 8)] == pytest.approx([64.0, 0.0, 80.0])
    assert asked.useful(known, 5, "gpu") == 4
    known.gpus, known.gpu_type, known.global_batch = 8, "gpu", 32
    plan = asked.batch_plan(known)
    assert plan is not None
    assert (plan.local, plan.accum) == (8, 1)


@pytest.mark.parametrize("gpus", [1, 3, 4, 6, 10])
def test_at_several_batches_speeds_are_those_at_each(gpus: int) -> None:
    asked, batches = speeds(ByType(t4=1), t4=(4, 4, 4)), [2, 4, 8, 64]
    gang = {"requested": 4, "per_replica": 2}
    replicas = Job.model_validate({"id": "r", "submit_time": 0.0, "model": "net", "gpus": gang})
    for each in (state(), state(job("few", gpus=4, low=2, high=6, batch=64)), JobState(replicas, 64, None)):
        found = asked.rates(each, gpus, "t4", batches)
        assert found == [asked.rate(each, gpus, "t4", global_batch=batch) for batch in batches]
    few = asked.rates(state(), 10, "t4", batches)
    assert few == [0.0, 0.0, 0.0, pytest.approx(10)]


def test_on_mixed_types_average_counts_of_types_that_can_run_it() -> None:
    asked = speeds(ByType(slow=1, fast=4), slow=(4, 2), fast=(3,))
    assert asked.rate(state(), 2) == pytest.approx((6 * 2 + 3 * 8) / 9)
    assert asked.rate(state(), 4) == pytest.approx(4), "the fast type has three"
    assert asked.rate(state(), 8) == pytest.approx((6 * 8 + 3 * 32) / 9), "no type has eight"
    # Types that cannot run the job do not lower the average.
    asked = speeds(ByType(small=0, big=4), small=(8,), big=(2,))
    assert asked.rate(state(), 2) == pytest.approx(8)
    assert speeds(ByType(small=0), small=(8,)).rate(state(), 2) == 0
    # More GPUs than samples are infeasible where the batch is stated.
    asked = speeds(ByType(t4=1), t4=(8,))
    assert asked.rate(JobState(job(batch=6), 6, None), 6, "t4") == pytest.approx(6)
    assert asked.rate(JobState(job(batch=6), 6, None), 7, "t4") == 0
    assert asked.rate(JobState(job(batch={"per_gpu_max": 4}), 1, None), 4, "t4") == pytest.approx(4)


@pytest.mark.parametrize(
    ("work", "samples"),
    [
        ({"samples": 500}, 500),
        ({"epochs": 3, "dataset_size": 100}, 300),
        ({"iterations": 10}, 640),
        ({"gpu_seconds": 100}, 200),
        (None, None),
    ],
)
def test_work_is_turned_into_samples(work: dict[str, Any] | None, samples: float | None) -> None:
    arrived = job_state(job(gpus=4, batch=64, work=work), speeds(ByType(t4=2), t4=(8,)))
    assert arrived.total_samples == (samples if samples is None else pytest.approx(samples))


def test_default_batches_and_the_largest_useful_size() -> None:
    spec = job(gpus=4, batch={"per_gpu_max": None})
    assert job_state(spec, speeds(ByType(t4=1, local=16), t4=(8,))).reference_batch == 64
    assert job_state(spec, speeds(ByType(t4=1), t4=(8,))).reference_batch == 4
    # GPU time at a size that cannot run is refused and unknown work without nodes.
    with pytest.raises(BadInputError, match='job "a": work is stated in GPU-seconds at 4 GPUs, but'):
        job_state(job(gpus=4, batch=2, gpu_seconds=60), speeds(ByType(t4=1), t4=(8,)))
    assert job_state(job(gpus=4, gpu_seconds=60), speeds(ByType())).total_samples is None
    # The useful size is the largest that is no slower.
    known, spec = by_size(r1=10, r2=18, r3=16, r4=20, r5=20, r8=15), job(gpus=8, low=1, batch=64)
    found = [known.useful(state(spec), gpus, "gpu") for gpus in range(9)]
    assert found == [0, 1, 2, 2, 4, 5, 5, 5, 5]
    # Sizes below the smallest of a job do not count.
    known = by_size(r1=20, r2=10, r4=12)
    assert known.useful(state(job(gpus=4, low=2, batch=64)), 4, "gpu") == 4
    assert known.useful(state(job(gpus=4, low=1, batch=64)), 4, "gpu") == 1
    assert known.useful(state(job(gpus=4, low=2, batch=64)), 1, "gpu") == 0
    # Of a place that is too large the fullest nodes and those held stay.
    known, spec = by_size(r1=10, r4=30, r6=20), job(gpus=6, low=1, batch=64)
    asked = state(spec)
    assert known.useful_part(asked, (("n0", 1), ("n1", 4), ("n2", 1)), 64) == (("n1", 4),)
    asked.placement = (("n2", 3),)
    assert known.useful_part(asked, (("n0", 3), ("n2", 3)), 64) == (("n0", 1), ("n2", 3))
    assert known.useful_part(asked, (("n0", 2), ("n2", 2)), 64) == (("n0", 2), ("n2", 2))
    # An elastic job is as fast as on its best size.
    known = by_size(r1=10, r2=18, r4=12)
    assert known.best_rate(state(job(gpus=4, low=1, batch=64)), 4) == 18
    assert known.best_rate(state(job(gpus=4, batch=64)), 4) == 12
    # Up to fewer GPUs than its smallest size a job has no speed.
    known = Speeds(CurveThroughput(), node_states(cluster(4)))
    assert known.best_rate(state(job(gpus=4, low=3, high=4, batch=64)), 2) == 0


def by_size(**curve: float) -> Speeds:
    """One type with three nodes of four GPUs; ``r1=10`` is the speed on one GPU."""
    sizes = {int(name[1:]): rate for name, rate in curve.items()}
    return Speeds(CurveThroughput({"linear": sizes}), node_states(cluster(4, 4, 4)))


def test_speeds_are_worked_out_once_for_each_kind_of_job() -> None:
    known, made = by_size(r1=1, r4=4), []
    like_it, with_demands, with_more = state(job("b", batch=64)), state(job("c")), state(job("d"))
    with_demands.room, with_more.room = {"gpu": 2}, {"gpu": 1}

    def rates(of: JobState) -> list[float]:
        made.append(of.id)
        return [known.rate(of, gpus, "gpu") for gpus in (1, 2, 3)]

    for each in (state(), like_it, with_demands, with_more, with_demands):
        assert known.of_kind(each, "rates", lambda each=each: rates(each)) == [  # type: ignore[misc]
            known.rate(each, gpus, "gpu") for gpus in (1, 2, 3)
        ]
    assert made == ["a", "c", "d"]
    # Of each kind of job there is one object copies included.
    one, like_it, other = state(job("a", batch=64)), state(job("b", batch=64)), state(job("c", batch=64))
    other.room = {"gpu": 2}
    assert JobKind.of(one) is JobKind.of(like_it) is copy.deepcopy(one).kind
    assert JobKind.of(other) is not JobKind.of(one)


@pytest.mark.parametrize(
    ("gpus", "place"), [(1, (1,)), (3, (3,)), (4, (3, 1)), (5, (3, 2)), (6, (3, 2, 1)), (7, (3, 2, 2))]
)
def test_workers_are_where_nodes_have_room_for_them(gpus: int, place: Placement) -> None:
    throughput = ByType(t4=1)
    asked, demanding = speeds(throughput, t4=(4, 4, 4, 4)), state()
    demanding.room, demanding.room_by_node = {"t4": 7}, {"t4": ((3, 1), (2, 2), (0, 1))}
    assert asked.rate(demanding, gpus, "t4") == pytest.approx(gpus)
    assert throughput.asked == [("t4", place, 64)]
    assert asked.rate(state(), gpus, "t4") == pytest.approx(gpus)
    assert throughput.asked[-1][1] == asked.consolidated(gpus, "t4"), "of another kind"


@pytest.mark.parametrize("policy", ["edf", "elasticflow", "fifo", "optimus", "shockwave", "sia", "tiresias"])
def test_no_job_holds_gpus_on_which_it_does_not_train(policy: str) -> None:
    """A node has CPUs for two workers, and the profile no step of several nodes: four GPUs train nothing.

    A policy that does not resize jobs turns it away, with that as its reason.
    """
    rows = [step(gpus, 64 // gpus, seconds, model="m") for gpus, seconds in ((1, 1.0), (2, 0.6), (4, 0.4))]
    nodes = Cluster.model_validate({"nodes": ({"name": "n{}", "gpus": 4, "cpus": 8.0, "count": 2},)})
    demanding = {"resources": {"worker": {"gpu": 1, "cpu": 4}}, "model": "m", "batch": 64}
    held = Session(make_policy(policy, {}), nodes, ThroughputByPlacement(Profile(tuple(rows))))
    held.submit(job("a", gpus=4, low=1, high=8, work={"samples": 10_000.0}, **demanding), 0.0)
    held.decide(0.0)
    if "a" in held.jobs:
        assert 0 < held.jobs["a"].gpus <= 2
        assert held.jobs["a"].samples_per_second > 0
    else:
        assert policy_class(policy).traits.elasticity == "none"


ALONE = [replace(step(2, 8, 0.1, model=model), peak_memory=60) for model in ("x", "y")]
PAIR = (
    replace(step(2, 8, 0.2, model="x"), kind="pair", beside_model="y", beside_batch=8),
    replace(step(2, 8, 0.4, model="y"), kind="pair", beside_model="x", beside_batch=8),
)


def parts(nodes: Cluster, *rows: Any, **more: Any) -> tuple[float, float] | None:
    """What a job of model x and one of model y keep, both with eight samples on each of two GPUs."""
    throughput = ThroughputBySize(Profile((*ALONE, *rows)))
    speeds = Speeds(throughput, node_states(nodes), GpuSharing(nodes, throughput))
    a, b = (job_state(job(name, gpus=2, batch=16, model=name, **more), speeds) for name in ("x", "y"))
    return speeds.parts(a, b, "gpu", (("n0", 2),))


def sized(*memory: int | None, **sharing: Any) -> Cluster:
    nodes = zip(cluster(4, 4).nodes, memory, strict=True)
    sizes = tuple(node.model_copy(update={"gpu_memory": size}) for node, size in nodes)
    return cluster(4, 4).model_copy(update={"nodes": sizes, "sharing": Sharing(**sharing)})


@pytest.mark.parametrize(
    ("nodes", "rows", "more", "kept"),
    [
        (sized(120, 120), (), {}, (0.65, 0.65)),
        (sized(119, 119), (), {}, None),
        (sized(119, 119, unmeasured="together"), (), {}, None),
        (sized(120, 100), (), {}, None),  # a type is as large as its smallest node
        (sized(120, None), (), {}, None),
        (sized(None, None), (), {}, None),
        (sized(None, None, unmeasured="together", speed=0.9), (), {}, (0.9, 0.9)),
        (sized(None, None), PAIR, {}, (0.5, 0.25)),
        (sized(120, 120), (), {"shares_gpus": False}, None),
    ],
)
def test_jobs_share_gpus_where_memory_fits_or_the_cluster_allows(nodes, rows, more, kept):
    assert parts(nodes, *rows, **more) == kept


# What a job file states as samples and demand.


FOUR = Speeds(CurveThroughput(), node_states(cluster(4)))
NEEDS_TWO = TimedSteps(lambda model, kind, place, batch: None if sum(place) < 2 else 1.0)
UP_TO_EIGHT = TimedSteps(lambda model, kind, place, batch: 1.0 if batch <= 8 else None)


@pytest.mark.parametrize(
    ("work", "samples"),
    [
        (EpochWork(epochs=1e18, dataset_size=1000), r"1e\+21"),
        (IterationWork(iterations=1e18), r"9.6e\+20"),
        (SampleWork.model_construct(samples=1e300), r"1e\+300"),
        (GpuTimeWork(gpu_seconds=5e-324), "0"),
    ],
)
def test_work_beyond_any_training_names_the_job(work, samples):
    spec = job("huge", gpus=2).model_copy(update={"work": work})
    with pytest.raises(BadInputError, match=f'job "huge": its work comes to {samples} samples'):
        job_state(spec, FOUR)


SATURATING = {1: 10.0, 2: 18.0, 3: 24.0, 6: 30.0}


def detail_of(spec, throughput=None, nodes=(4, 4), **more):
    speeds = Speeds(throughput or CurveThroughput(), node_states(cluster(*nodes)))
    return submit_detail(job_state(spec, speeds), speeds, **more)


def test_an_elastic_job_is_described_up_to_the_whole_cluster():
    detail = detail_of(job("a", gpus=3, low=1, gpu_seconds=90, model="net"), curves(net=SATURATING))
    assert [size for size, _ in detail["curve"]] == [1, 2, 3, 4, 8]
    assert [rate for _, rate in detail["curve"]] == pytest.approx([10.0, 18.0, 24.0, 26.0, 30.0])
    assert detail["samples"] == pytest.approx(90 / 3 * 24)


@pytest.mark.parametrize(
    ("spec", "more", "sizes"),
    [
        pytest.param(job("a", gpus=3), {}, [1, 2, 3], id="rigid: up to its own size"),
        pytest.param(job("a", gpus=2, low=1, high=6), {"measured_sizes": (5, 7)}, [1, 2, 4, 5, 6], id="own"),
        pytest.param(job("a", gpus=16), {"nodes": (2, 1)}, [1, 2, 3], id="up to the cluster"),
        pytest.param(job("a", gpus=4, low=2), {"throughput": NEEDS_TWO}, [2, 4, 8], id="not on one"),
    ],
)
def test_a_curve_has_the_sizes_that_a_job_can_use(spec, more, sizes):
    assert [size for size, _ in detail_of(spec, **more)["curve"]] == sizes


@pytest.mark.parametrize(
    ("spec", "demand"),
    [
        (job("a", gpus=3, low=1, gpu_seconds=90), 90.0),
        (job("a", gpus=9, low=2, gpu_seconds=90), 90.0),
        (job("a", gpus=9, gpu_seconds=90), None),
        (job("a", gpus=3), None),
    ],
)
def test_the_demand_is_stated_where_a_gpu_type_can_run_the_job(spec, demand):
    detail = detail_of(spec)
    assert detail.get("demand_gpu_s") == (None if demand is None else pytest.approx(demand))


def test_the_detail_survives_a_file():
    spec = job("a", gpus=2, low=1, work={"samples": 7.0}, command=("train.py", "--fast"), labels={"a": "x"})
    found = SubmitDetail.model_validate_json(json.dumps(detail_of(spec)))
    assert found.job == spec
    assert (found.curve[0], found.samples) == ((1, 1.0), 7.0)
    assert "samples" not in detail_of(job("a")), "unknown work stays unknown"


def listing(spec, *sizes):
    return spec.model_copy(update={"gpus": spec.gpus.model_copy(update={"sizes": sizes})})


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        (job("a", gpus=6), []),
        (job("a", gpus=6, low=1), [4, 2, 1]),
        (job("a", gpus=8, low=3), [4, 3]),
        (job("a", gpus=4, low=4, high=8), []),
        (job("a", gpus=2, low=1), [1]),
        (job("a", gpus=12, low=2, each=2), [8, 4, 2]),
        (listing(job("a", gpus=6, low=2), 1, 2, 3, 5, 6, 8), [5, 3, 2]),
    ],
)
def test_smaller_sizes_come_largest_first_and_the_minimum_last(spec, sizes):
    assert [*sizes_below(job_state(spec, FOUR))] == sizes


def test_batches_sizes_and_jobs_that_do_not_fit() -> None:
    speeds = Speeds(UP_TO_EIGHT, node_states(cluster(4)))
    batches = ({"size": 4, "regimes": ({"after": 0.5, "size": size},)} for size in (8, 16))
    fits, misfit = (job("a", gpus=2, work={"samples": 100.0}, batch=batch) for batch in batches)
    assert job_state(fits, speeds).total_samples == 100.0
    with pytest.raises(BadInputError, match='job "a": it changes its batch to 16, which is infeasible'):
        job_state(misfit, speeds)

    # Half a sample a second on two GPUs; not known on four.
    spec = job("a", gpus=4, low=1, model="net", work={"samples": 10.0})
    speeds = Speeds(curves(net={1: 0.3, 2: 0.5}), node_states(cluster(2)))
    state = job_state(spec, speeds)
    assert demand_rate(state, speeds) == (2, 0.5)
    assert demand_gpu_s(state, speeds) == 2 * 10 / 0.5
    # A job without a batch has one sample a replica.
    assert job_state(job("a", gpus=4, each=2, batch={"size": None}), FOUR).reference_batch == 2
    # Check names what is wrong with a job and passes others.
    speeds = Speeds(OnlyNet(), node_states(cluster(4)))
    check = JobCheck(cluster(4), speeds, NeedsWork())
    work = {"samples": 10.0}
    assert check.problems(job("a", model="net", work=work), "jobs") == ()
    for spec, text in (
        (job("a", model="net", gpus=5, work=work), "5 GPUs"),
        (job("a", model="other", work=work), '"other"'),
        (job("a", model="net"), 'which policy "fifo" needs'),
    ):
        (found,) = check.problems(spec, "jobs")
        assert text in str(found)


class NeedsWork(Fifo):
    needs = frozenset({"demand"})


class OnlyNet(type(curves())):
    def models(self):
        return ("net",)
