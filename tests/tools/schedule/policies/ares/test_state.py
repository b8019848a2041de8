import pytest

from pliant.schemas.event import End
from pliant.schemas.job import Job
from pliant.tools.schedule.policies.ares.policy import Ares, VirtualTime
from tests.builders import cluster, job
from tests.tools.schedule.policies.started import joined, started


def test_finishes_stay_and_late_arrivals_take_the_logs_time() -> None:
    held = started(Ares(), cluster(4), work("a", 40), work("b", 40))
    held.end("a", 10)  # in the cluster; in GPS it goes on until 20
    joined(held, 10, work("c", 40, at=10))
    assert held.policy.dump_state() == {
        "time_s": 10,
        "virtual": 20,
        "gps": {"a": 40, "b": 40, "c": 60},
        "jobs": {"b": 40, "c": 60},
    }
    # A late arrival takes virtual time as the log has it.
    # A job of time 10 is seen at 60, after a cancellation at 50: V is that of 50, here and in a rebuild.
    held = started(Ares(), cluster(4), work("a", 400), work("b", 400))
    held.end("b", 50, "cancelled")
    joined(held, 60, work("late", 4, at=10))
    assert held.policy.dump_state()["jobs"] == {"a": 400, "late": 104}
    assert held.policy.dump_state()["time_s"] == 50

    held = started(Ares(), cluster(4), work("a", 400))
    joined(held, 60, work("b", 4, at=10))
    assert held.policy.dump_state()["jobs"] == {"a": 400, "b": 44}

    held = started(Ares(), cluster(2, 2), work("a", 400))
    held.maintenance.node_down("n1", 10)  # V = 40
    held.maintenance.node_up("n1", 20)  # V = 60
    joined(held, 25, work("b", 1, at=25))  # V = 80
    assert held.policy.dump_state()["jobs"]["b"] == 81


def work(name: str, gpu_seconds: float, at: float = 0.0) -> Job:
    """A job of four GPUs at most, or fewer."""
    return job(name, at=at, gpus=4, low=1, gpu_seconds=gpu_seconds)


@pytest.mark.parametrize(
    ("outcome", "virtual"), [("finished", 40.0), ("cancelled", 60.0), ("failed", 60.0), ("rejected", 60.0)]
)
def test_a_job_that_ends_before_its_time_leaves_its_share(outcome: End, virtual: float) -> None:
    # Two jobs on 4 GPUs: V = 20 at 10; from then on 2 or, if b is out of GPS, 4 a second.
    held = started(Ares(), cluster(4), work("a", 400), work("b", 400))
    held.end("b", 10, outcome)
    joined(held, 20, work("c", 1, at=20))
    assert held.policy.dump_state()["virtual"] == virtual


def gps_of(**work: float) -> VirtualTime:
    gps = VirtualTime()
    for name, gpu_seconds in work.items():
        gps.enter(name, gpu_seconds)
    return gps


def test_jobs_leave_in_the_order_of_virtual_finish_times() -> None:
    gps = VirtualTime()
    assert gps.enter("a", 12) == 12
    assert gps.advance(2, gpus=4) == []
    assert gps.virtual == 8
    assert gps.advance(10, gpus=4) == [(3, "a")]

    # Three GPUs, weights 2 and 1: two GPUs and one, so 20 GPU-seconds and 10 end together.
    gps = VirtualTime()
    assert gps.enter("heavy", 20.0, 2.0) == gps.enter("light", 10.0) == 10.0
    assert gps.advance(20.0, 3) == [(10.0, "heavy"), (10.0, "light")]
    assert not gps.weights

    # Two jobs on 4 GPUs, 2 each: a (4 GPU-s) leaves at 2; b has 8 left on 4 GPUs and leaves at 4.
    gps = gps_of(a=4, b=12)
    assert gps.advance(100, gpus=4) == [(2, "a"), (4, "b")]
    assert gps.virtual == 12

    gps = gps_of(a=8, b=8)
    gps.advance(1, gpus=4)  # 2 each done, 6 left
    gps.leave("a")
    gps.leave("a")
    assert gps.advance(100, gpus=4) == [(2.5, "b")]

    gps = gps_of(long=20)
    gps.advance(2, gpus=4)
    assert gps.enter("short", 4) == 12, "it came later, with less work"
    assert [job_id for _, job_id in gps.advance(100, gpus=4)] == ["short", "long"]

    gps = VirtualTime()
    gps.advance(3, gpus=4)
    gps.enter("empty", 0)
    gps.enter("a", 4)
    assert gps.advance(10, gpus=4) == [(3, "empty"), (4, "a")]
    assert gps_of(b=2, c=2, a=2).advance(10, gpus=3) == [(pytest.approx(2), "a"), (2, "b"), (2, "c")]


def test_virtual_time_stands_still_while_no_job_is_served() -> None:
    gps = VirtualTime()
    gps.advance(50, gpus=4)
    assert gps.virtual == 0
    assert gps.enter("a", 4) == 4
    gps.advance(60, gpus=4)
    gps.advance(70, gpus=4)
    assert (gps.virtual, gps.time_s) == (4, 70)
    assert gps.enter("b", 4) == 8

    gps = gps_of(a=8)
    gps.advance(1, gpus=4)
    gps.advance(0.5, gpus=4)
    assert (gps.time_s, gps.virtual) == (1, 4)
    gps.advance(5, gpus=0)
    assert gps.virtual == 4
    assert gps.advance(10, gpus=2) == [(7, "a")]
