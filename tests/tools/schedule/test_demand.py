from __future__ import annotations

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.job import EpochWork, GpuTimeWork, IterationWork, SampleWork
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import NodeState
from pliant.tools.schedule.rates import Speeds
from tests.builders import job

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
