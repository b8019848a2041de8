"""Virtual time of the reference system: equal sharing, followed from departure to departure."""

from __future__ import annotations

import pytest

from pliant.tools.schedule.policies.ares.policy import VirtualTime


def test_one_job_alone_is_served_by_all_gpus() -> None:
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
    gps = VirtualTime()
    gps.enter("a", 4)
    gps.enter("b", 12)
    assert gps.advance(100, gpus=4) == [(2, "a"), (4, "b")]
    assert gps.virtual == 12

    gps = VirtualTime()
    gps.enter("a", 8)
    gps.enter("b", 8)
    gps.advance(1, gpus=4)  # 2 each done, 6 left
    gps.leave("a")
    gps.leave("a")
    assert gps.advance(100, gpus=4) == [(2.5, "b")]


def test_virtual_time_stands_still_while_no_job_is_served() -> None:
    gps = VirtualTime()
    gps.advance(50, gpus=4)
    assert gps.virtual == 0
    assert gps.enter("a", 4) == 4
    gps.advance(60, gpus=4)
    gps.advance(70, gpus=4)
    assert (gps.virtual, gps.time_s) == (4, 70)
    assert gps.enter("b", 4) == 8

    gps = VirtualTime()
    gps.enter("a", 8)
    gps.advance(1, gpus=4)
    gps.advance(5, gpus=0)
    assert gps.virtual == 4
    assert gps.advance(10, gpus=2) == [(7, "a")]

    gps = VirtualTime()
    gps.enter("a", 8)
    gps.advance(1, gpus=4)
    gps.advance(0.5, gpus=4)
    assert (gps.time_s, gps.virtual) == (1, 4)


def test_an_earlier_arrival_with_more_work_is_overtaken() -> None:
    gps = VirtualTime()
    assert gps.enter("long", 20) == 20
    gps.advance(2, gpus=4)
    assert gps.enter("short", 4) == 12
    assert [job_id for _, job_id in gps.advance(100, gpus=4)] == ["short", "long"]

    gps = VirtualTime()
    gps.advance(3, gpus=4)
    gps.enter("empty", 0)
    gps.enter("a", 4)
    assert gps.advance(10, gpus=4) == [(3, "empty"), (4, "a")]

    gps = VirtualTime()
    for job_id in "bca":
        gps.enter(job_id, 2)
    assert gps.advance(10, gpus=3) == [(pytest.approx(2), "a"), (2, "b"), (2, "c")]
