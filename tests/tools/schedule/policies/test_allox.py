import numpy as np
import pytest

from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.allox import Allox, match
from tests.builders import cluster, decided, job, mixed_cluster, opened, sizes
from tests.tools.schedule.policies.started import joined, started


def test_a_type_that_cannot_run_a_job_is_not_chosen():
    assert match(np.array([[np.inf, 50.0], [1.0, 1.0]]), (1, 1)) == [1, 0]


@pytest.mark.parametrize(("preempt", "later"), [(True, {"short": 1}), (False, {"long": 1})])
def test_a_running_job_may_keep_its_gpu_to_its_end(preempt: bool, later: dict[str, int]):
    held = started(Allox(preempt=preempt), cluster(1), job("long", gpu_seconds=100))
    assert sizes(held) == {"long": 1}
    assert joined(held, 0.0, job("short", gpu_seconds=10)) == later


def test_types_are_waited_for_and_matches_are_by_work_or_arrival() -> None:
    jobs = [job(name, work={"samples": samples}) for name, samples in (("long", 2_000), ("short", 1_000))]
    fast = CurveThroughput({}, {"fast": 10.0})
    held = started(Allox(), mixed_cluster(slow=(1,), fast=(1,)), *jobs, throughput=fast)
    assert {name: state.gpu_type for name, state in held.jobs.items()} == {"long": None, "short": "fast"}
    # The least work to go runs first.
    held = started(Allox(), cluster(2), job("long", gpus=2, gpu_seconds=10_000))
    assert joined(held, 360, job("short", at=360, gpus=2, gpu_seconds=1_000)) == {"short": 2}

    held = started(Allox(), cluster(1), job("unknown"))
    # 360 s done, so 360 s are expected to be left
    assert joined(held, 360, job("known", at=360, gpu_seconds=400)) == {"unknown": 1}
    assert decided(held, 720) == {"known": 1}

    jobs = [job(name, gpu_seconds=work) for name, work in (("a", 100.0), ("b", 300.0), ("c", 200.0))]
    assert decided(opened(Allox(most=1), cluster(2), *jobs), 0) == {"a": 1, "c": 1}
    # Matches by arrival are of one GPU and last.
    # Two GPUs, so two matches: the pair trains half as often as the single, and the short job not at all.
    jobs = [job("wide", gpus=2, gpu_seconds=1e6), job("one", at=1, gpu_seconds=1e6)]
    held = opened(Allox(matching="arrival"), cluster(2), *jobs, job("last", at=2, gpu_seconds=10))
    result = [decided(held, 360.0 * number) for number in range(1, 41)]
    assert all("last" not in each for each in result)
    assert result.count({"one": 1}) == pytest.approx(40 * 2 / 3, abs=1)
    assert result.count({"wide": 2}) == pytest.approx(40 / 3, abs=1)

    jobs = [job(name, at=at, gpu_seconds=1e6) for at, name in enumerate("abc")]
    held = opened(Allox(matching="arrival"), mixed_cluster(old=(1,), new=(1,)), *jobs)
    assert decided(held, 360) == {"a": 1, "b": 1}
    held.end("a", 400)
    assert decided(held, 720) == {"b": 1, "c": 1}
