from typing import Any

import numpy as np
import pytest

from pliant.schemas.event import End
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput, Placement
from pliant.tools.schedule.policies.ares.policy import Ares, VirtualTime
from pliant.tools.schedule.policy import Decision
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Change, Snapshot
from tests.builders import cluster, job, session
from tests.tools.schedule.policies.started import joined, started

SIZES = [1, 2, 3, 4, 8]


class TwoTypes(CurveThroughput):
    """The second type is faster for one model and slower for the other; each further node costs 10 %."""

    def __init__(self) -> None:
        super().__init__({"bent": {1: 1.0, 2: 1.9, 4: 3.2, 8: 4.2}})

    def step_seconds(
        self, model: str, gpu_type: str, placement: Placement, global_batch: int, per_gpu_max: int | None
    ) -> float | None:
        seconds = super().step_seconds(model, gpu_type, placement, global_batch, per_gpu_max)
        factor = {("fast", "bent"): 0.5, ("fast", "linear"): 1.25}.get((gpu_type, model), 1.0)
        return None if seconds is None else seconds * factor * (0.9 + 0.1 * len(placement))


class Recorded(Ares):
    """Ares that keeps all changes it saw and its last decision."""

    def __init__(self, compact_s: float | None = None) -> None:
        super().__init__(pool=0.25, compact_s=compact_s)
        self.log: list[Change] = []
        self.said = Decision()

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self.log += snapshot.changes
        self.said = super().decide(snapshot, rng)
        return self.said


def some_job(number: int, choice: int, now_s: float) -> Job:
    rng = np.random.default_rng(choice)
    gpus = int(rng.choice(SIZES))
    limits: dict[str, Any] = {"elastic": "none"}
    if rng.random() < 0.7:
        limits = {"low": int(rng.integers(1, gpus + 1)), "high": gpus * int(rng.integers(1, 4))}
    return job(
        f"j{number:02}",
        at=max(0.0, now_s - float(rng.choice([0, 0, 5]))),
        gpus=gpus,
        gpu_seconds=float(rng.integers(1, 100)) / 3 if rng.random() < 0.8 else None,
        model=str(rng.choice(["linear", "bent"])),
        **limits,
    )


def assert_work_conserving(held: Session) -> None:
    """No job of known demand waits for free GPUs, except those that a placed job leaves as they slow it."""
    policy = held.policy
    queue = policy._queue
    left_over = dict.fromkeys(queue.sizes.gpu_types, 0)
    for entry in queue.entries:
        assert (entry.gpus > 0) == (entry.job.gpus > 0)
        assert entry.job.spec.min_gpus <= entry.job.gpus <= entry.gpus or not entry.gpus
        if entry.job.gpu_type is not None:
            left_over[entry.job.gpu_type] += entry.gpus - entry.job.gpus
    for entry in queue.entries:
        for kind, allowed in enumerate(entry.allowed_by_type):
            gpu_type = queue.sizes.gpu_types[kind]
            free = held.free.by_type[gpu_type] - left_over[gpu_type]
            assert entry.gpus or not allowed.sizes or allowed.sizes[0] > free


def test_finishes_stay_and_late_arrivals_take_the_logs_time() -> None:
    held = session(Recorded(), cluster(4, 4, 4), TwoTypes())
    for number, choice in enumerate((1, 69, 0)):
        joined(held, 0, some_job(number, choice, 0.0))
        assert_work_conserving(held)
    assert held.jobs["j02"].gpus == 7, "of the eight that it may have, over three nodes"
    # The virtual finish time never changes.
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
    held.node_down("n1", 10)  # V = 40
    held.node_up("n1", 20)  # V = 60
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
