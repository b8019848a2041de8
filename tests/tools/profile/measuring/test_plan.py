import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, ServiceMissingError
from pliant.schemas.job import Job
from pliant.tools.profile.measuring.plan import (
    MeasuredNode,
    MeasuringOptions,
    ModelPlan,
    model_plans,
    node_to_measure,
    powers,
)
from pliant.tools.profile.measuring.request import RESOLUTION, BatchSearch
from tests.builders import cluster, job, mixed_cluster

EIGHT = MeasuredNode("gpu", "gpu", workers=8, cluster_gpus=16)


def trained(job_id: str = "a", **more: Any) -> Job:
    return job(job_id, **{"model": "net", "command": ("train.py",), **more})


def one(*jobs: Job, site: MeasuredNode = EIGHT, options: MeasuringOptions | None = None) -> ModelPlan:
    (study,) = model_plans(jobs, site, options or MeasuringOptions())
    return study


@pytest.mark.parametrize(
    ("stated", "sizes"),
    [
        pytest.param({"low": 1, "high": 12, "batch": 256}, (2, 4, 8), id="elastic: powers of two here"),
        pytest.param({"gpus": 3, "low": 1, "high": 6, "batch": 96}, (2, 3, 4, 6), id="what it asks for"),
        pytest.param({"gpus": 4, "batch": 64}, (4,), id="rigid: its own size"),
    ],
)
def test_the_sizes_of_a_job_are_measured(stated: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert one(trained(**stated)).gpus == sizes
    assert one(trained(**stated), options=MeasuringOptions(gpus=(1, 3))).gpus == (3,), "unless some are given"


def test_the_batches_of_all_jobs_of_a_model_are_measured_once() -> None:
    # Local batches reach from half the smallest share to the whole batch or the job's limit.
    assert one(trained(low=1, high=4, batch=64)).local_batches == (8, 16, 32, 64)
    study = one(trained(low=1, high=2, batch={"size": 256, "per_gpu_max": 48}))
    assert (study.local_batches, study.per_gpu_max) == ((48,), 48)
    # A job without a batch is measured up to what fits.
    study = one(trained(gpus=2, batch={"size": None}))
    assert study.local_batches == powers(1, 1024)
    assert study.global_batches == ()
    assert study.gangs_of_largest == (2,)
    # Gangs train the job's batch, half of it and the limits of one that may change.
    assert one(trained(low=1, batch=64)).global_batches == (32, 64)
    study = one(trained(low=1, elastic="size+batch", batch={"size": 64, "min": 16, "max": 256}))
    assert study.global_batches == (16, 32, 64, 256)
    # Powers of two between and both ends.
    assert powers(3, 20) == (3, 4, 8, 16, 20)
    assert powers(4, 4) == (4,)
    assert powers(1, 2) == (1, 2)
    # One study a model covers all its jobs.
    study = one(trained("a", gpus=1, batch=32), trained("b", gpus=2, batch=128))
    assert study.global_batches == (16, 32, 64, 128)
    assert study.gpus == (2,)
    assert study.notes == ()
    assert study.script.by_torchrun
    assert not one(trained(low=1)).script.by_torchrun, "as when it runs"
    # Jobs of one model with other commands are named.
    study = one(trained("a"), trained("b", command=("other.py",)))
    assert (study.script.command, study.script.python) == (("train.py",), None)
    own = one(trained("a", command=("v/bin/python", "train.py"))).script
    assert (own.command, own.python) == (("train.py",), "v/bin/python")
    assert study.notes == ('model "net" is measured with the command of job a; that of b differs',)
    # Only the models asked for.
    jobs = (trained("a"), trained("b", model="other"))
    assert [s.script.name for s in model_plans(jobs, EIGHT, MeasuringOptions(models=("other",)))] == ["other"]
    with pytest.raises(BadInputError, match='no job has the model "third"'):
        model_plans(jobs, EIGHT, MeasuringOptions(models=("third",)))


@pytest.mark.parametrize(
    ("jobs", "complaint"),
    [([trained(command=None)], 'no job of model "net" has a command'), ([], "there is no job to measure")],
)
def test_what_cannot_be_measured_is_refused(jobs: list[Job], complaint: str) -> None:
    with pytest.raises(BadInputError, match=complaint):
        model_plans(jobs, EIGHT, MeasuringOptions())


def test_model_whose_replicas_have_several_gpus_is_not_measured() -> None:
    with pytest.raises(BadInputError, match='model "net" has replicas of 2 GPUs, which cannot be measured'):
        one(trained(gpus=4, each=2))
    assert one(trained("a", gpus=4, each=2), trained("b", gpus=4)).gpus == (4,), "another job shows it"


# The search for the largest batch that fits.


def tried(bracket: BatchSearch, limit: int) -> list[int]:
    batches = []
    while (batch := bracket.next()) is not None:
        batches.append(batch)
        bracket.record(batch, fits=batch <= limit)
    return batches


@pytest.mark.parametrize(
    ("search", "limit", "batches", "fits"),
    [
        pytest.param(BatchSearch([8, 32, 16]), 1000, [8, 16, 32], 32, id="everything fits"),
        pytest.param(BatchSearch([16, 32, 64, 128]), 45, [16, 32, 64, 48, 40, 44], 44, id="to an eighth"),
        pytest.param(BatchSearch([4, 8]), 0, [4, 2, 1], 0, id="one sample does not fit"),
        pytest.param(BatchSearch([16, 32, 64], fits=32, misfit=64), 45, [48, 40, 44], 44, id="interrupted"),
    ],
)
def test_a_search_worked_by_hand(search: BatchSearch, limit: int, batches: list[int], fits: int) -> None:
    assert tried(search, limit) == batches
    assert search.fits == fits


@given(st.lists(st.integers(1, 4096), min_size=1), st.integers(0, 5000))
def test_the_limit_is_found_to_an_eighth(wanted: list[int], limit: int) -> None:
    bracket = BatchSearch(wanted)
    batches = tried(bracket, limit)
    assert len(batches) == len(set(batches))
    assert bracket.fits == max((batch for batch in batches if batch <= limit), default=0)
    if limit >= max(wanted):
        assert set(batches) == set(wanted)
    else:
        assert bracket.misfit is not None
        assert bracket.fits <= limit < bracket.misfit
        assert bracket.misfit - bracket.fits <= max(1, bracket.fits // RESOLUTION)


# Where measurements are made.


def of(*nodes: dict[str, Any], **more: Any) -> Cluster:
    return Cluster.model_validate({"nodes": nodes, **more})


ELSEWHERE = of(*({"name": f"n{i}", "gpus": 2, "address": f"10.0.0.{i}"} for i in range(3)))
NAMED = of(
    {"name": "big", "gpus": 8, "gpu_type": "a100"},
    {"name": "small", "gpus": 2, "gpu_type": "t4", "address": socket.gethostname()},
)


@pytest.mark.parametrize(
    ("nodes", "devices", "expected"),
    [
        pytest.param(cluster(2, 8, 4), 8, {"workers": 8, "cluster_gpus": 14}, id="the largest node"),
        pytest.param(NAMED, 8, {"gpu_type": "t4", "workers": 2}, id="the node that is this host"),
        pytest.param(ELSEWHERE, 8, {"workers": 2}, id="nodes with addresses are elsewhere"),
        pytest.param(cluster(8), 2, {"workers": 2}, id="no more workers than devices"),
        pytest.param(cluster(1, 1, slots="cpu"), 0, {"workers": 2}, id="nodes share this machine"),
        pytest.param(cluster(*[1] * 64, slots="cpu"), 0, {"workers": 3}, id="as far as it has cores"),
        pytest.param(cluster(1, 1), 2, {"workers": 2}, id="and devices"),
        pytest.param(cluster(4, slots="cpu"), 0, {"slots": "cpu", "workers": 4, "notes": ()}, id="no GPU"),
        pytest.param(None, 3, {"workers": 3, "slots": "gpu"}, id="without a cluster the machine itself"),
        pytest.param(None, 0, {"slots": "cpu"}, id="which may have no GPU"),
    ],
)
def test_which_node_is_measured(monkeypatch, nodes, devices, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(3)))
    site = node_to_measure(nodes, devices=devices)
    assert {name: getattr(site, name) for name in expected} == expected


def test_what_is_not_measured_is_named() -> None:
    assert "up to 8 of the cluster's 14 slots" in node_to_measure(cluster(2, 8, 4), devices=8).notes[0]
    site = node_to_measure(mixed_cluster(a100=(8,), t4=(4,)), devices=8)
    assert site.notes[0] == 'measuring "a100"; run profile on the others too: t4'
    # A cluster without GPUs here, or at all, is refused.
    with pytest.raises(ServiceMissingError, match="this machine has none"):
        node_to_measure(cluster(8), devices=0)
    with pytest.raises(BadInputError, match="nothing to measure on"):
        node_to_measure(cluster(0), devices=1)


@pytest.mark.parametrize(
    ("slots", "stated", "limit"),
    [
        ("cpu", {"gpu_memory": 5}, 5),
        ("cpu", {"memory": 12}, 3),
        ("cpu", {}, None),
        ("gpu", {"gpu_memory": 5}, 5),
        ("gpu", {"memory": 12}, None),
    ],
)
def test_the_memory_of_one_slot(slots: str, stated: dict[str, int], limit: int | None) -> None:
    assert (
        node_to_measure(of({"name": "n", "gpus": 4} | stated, slots=slots), devices=4).memory_limit == limit
    )
