"""What is measured for which jobs."""

from __future__ import annotations

from typing import Any

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import Job
from pliant.tools.profile.measuring.plan import MeasuredNode, MeasuringOptions, ModelPlan, model_plans, powers
from tests.builders import job

EIGHT = MeasuredNode("gpu", "gpu", workers=8, cluster_gpus=16)


def trained(job_id: str = "a", **more: Any) -> Job:
    return job(job_id, **{"model": "net", "command": ("train.py",), **more})


def one(*jobs: Job, site: MeasuredNode = EIGHT, options: MeasuringOptions | None = None) -> ModelPlan:
    (study,) = model_plans(jobs, site, options or MeasuringOptions())
    return study


@pytest.mark.parametrize(
    ("stated", "sizes"),
    [
        pytest.param(
            {"low": 1, "high": 12, "batch": 256}, (2, 4, 8), id="elastic: powers of two that are here"
        ),
        pytest.param({"gpus": 3, "low": 1, "high": 6, "batch": 96}, (2, 3, 4, 6), id="what it asks for"),
        pytest.param({"gpus": 4, "batch": 64}, (4,), id="rigid: its own size"),
    ],
)
def test_the_sizes_of_a_job_are_measured(stated: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert one(trained(**stated)).gpus == sizes
    assert one(trained(**stated), options=MeasuringOptions(gpus=(1, 3))).gpus == (3,), "unless some are given"


def test_the_batches_of_a_job_are_measured() -> None:
    # Local batches reach from half the smallest share to the whole batch or the job's limit.
    assert one(trained(low=1, high=4, batch=64)).local_batches == (8, 16, 32, 64)
    study = one(trained(low=1, high=2, batch={"size": 256, "per_gpu_max": 48}))
    assert (study.local_batches, study.per_gpu_max) == ((48,), 48)
    study = one(trained(gpus=2, batch={"size": None}))
    assert study.local_batches == powers(1, 1024)
    assert study.global_batches == ()
    assert study.gangs_of_largest == (2,)
    # Gangs train the job's batch, half of it and the limits of one that may change.
    assert one(trained(low=1, batch=64)).global_batches == (32, 64)
    study = one(trained(low=1, elastic="size+batch", batch={"size": 64, "min": 16, "max": 256}))
    assert study.global_batches == (16, 32, 64, 256)
    assert powers(3, 20) == (3, 4, 8, 16, 20)
    assert powers(4, 4) == (4,)
    assert powers(1, 2) == (1, 2)


def test_one_study_a_model_covers_all_its_jobs() -> None:
    study = one(trained("a", gpus=1, batch=32), trained("b", gpus=2, batch=128))
    assert study.global_batches == (16, 32, 64, 128)
    assert study.gpus == (2,)
    assert study.notes == ()
    study = one(trained("a"), trained("b", command=("other.py",)))
    assert study.script.command == ("train.py",)
    assert study.notes == ('model "net" is measured with the command of job a; that of b differs',)
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


def test_a_model_whose_replicas_have_several_gpus_is_not_measured() -> None:
    with pytest.raises(BadInputError, match='model "net" has replicas of 2 GPUs, which cannot be measured'):
        one(trained(gpus=4, each=2))
    assert one(trained("a", gpus=4, each=2), trained("b", gpus=4)).gpus == (4,), "another job shows it"
