"""What a job file states as samples and demand, and what a submit event keeps of it."""

from __future__ import annotations

import json

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import EpochWork, GpuTimeWork, IterationWork, SampleWork
from pliant.schemas.runinfo import SubmitDetail
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.demand import (
    JobCheck,
    demand_gpu_s,
    demand_rate,
    job_state,
    sizes_below,
    submit_detail,
)
from pliant.tools.schedule.jobs import NodeState
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.registry import make_policy
from tests.builders import cluster, curves, job, session

FOUR = Speeds(CurveThroughput(), [NodeState(0, "n0", 4, "gpu", None)])


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
    speeds = session(make_policy("fifo"), cluster(*nodes), throughput).speeds
    return submit_detail(job_state(spec, speeds), speeds, **more)


def test_an_elastic_job_is_described_up_to_the_whole_cluster():
    detail = detail_of(job("a", gpus=3, low=1, gpu_seconds=90, model="net"), curves(net=SATURATING))
    assert [size for size, _ in detail["curve"]] == [1, 2, 3, 4, 8]
    assert [rate for _, rate in detail["curve"]] == pytest.approx([10.0, 18.0, 24.0, 26.0, 30.0])
    assert detail["samples"] == pytest.approx(90 / 3 * 24)


class NeedsTwo(type(curves())):
    def step_seconds(self, model, gpu_type, placement, global_batch, per_gpu_max):
        return None if sum(placement) < 2 else 1.0


@pytest.mark.parametrize(
    ("spec", "more", "sizes"),
    [
        pytest.param(job("a", gpus=3), {}, [1, 2, 3], id="rigid: up to its own size"),
        pytest.param(job("a", gpus=2, low=1, high=6), {"measured_sizes": (5, 7)}, [1, 2, 4, 5, 6], id="own"),
        pytest.param(job("a", gpus=16), {"nodes": (2, 1)}, [1, 2, 3], id="up to the cluster"),
        pytest.param(job("a", gpus=4, low=2), {"throughput": NeedsTwo()}, [2, 4, 8], id="not on one"),
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
    spec = job(
        "a", gpus=2, low=1, work={"samples": 7.0}, command=("train.py", "--fast"), labels={"team": "x"}
    )
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


class UpToEight(type(curves())):
    def step_seconds(self, model, gpu_type, placement, global_batch, per_gpu_max):
        return 1.0 if global_batch <= 8 else None


def test_a_change_to_a_batch_that_does_not_fit_is_refused():
    speeds = Speeds(UpToEight(), [NodeState(0, "n0", 4, "gpu", None)])
    fits, misfit = (
        job(
            "a",
            gpus=2,
            work={"samples": 100.0},
            batch={"size": 4, "regimes": ({"after": 0.5, "size": size},)},
        )
        for size in (8, 16)
    )
    assert job_state(fits, speeds).total_samples == 100.0
    with pytest.raises(BadInputError, match='job "a": it changes its batch to 16, which is infeasible'):
        job_state(misfit, speeds)


def test_a_job_counts_at_the_nearest_size_that_runs() -> None:
    """Half a sample a second on two GPUs; not known on four."""
    spec = job("a", gpus=4, low=1, model="net", work={"samples": 10.0})
    speeds = Speeds(curves(net={1: 0.3, 2: 0.5}), [NodeState(0, "n0", 2, "gpu", None)])
    state = job_state(spec, speeds)
    assert demand_rate(state, speeds) == (2, 0.5)
    assert demand_gpu_s(state, speeds) == 2 * 10 / 0.5
    assert job_state(job("a", gpus=4, each=2, batch={"size": None}), FOUR).reference_batch == 2


class NeedsWork(Fifo):
    needs = frozenset({"demand"})


class OnlyNet(type(curves())):
    def models(self):
        return ("net",)


def test_a_check_names_what_is_wrong_with_a_job_and_passes_others():
    speeds = Speeds(OnlyNet(), [NodeState(0, "n0", 4, "gpu", None)])
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
