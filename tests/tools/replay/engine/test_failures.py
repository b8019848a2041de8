from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.replay.engine.failures import (
    Mtbf,
    NodeEvent,
    drawn_failures,
    failures_end_s,
    read_failures,
    together,
)
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.progress import SampleProgress
from pliant.tools.replay.run import Run, replay
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job
from tests.tools.replay.world import given

HOUR_S = 3600.0


def test_a_file_names_nodes_that_go_down_and_up(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    path.write_text(
        '{"time": 90, "node": "n0", "event": "up"}\n{"time": 60.5, "node": "n0", "event": "down"}\n'
    )
    assert read_failures(str(path)) == (NodeEvent(60.5, "n0", up=False), NodeEvent(90, "n0", up=True))


def test_a_wrong_file_is_told_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    path.write_text('{"time": -1, "node": "n0", "event": "up"}\n{"time": 1, "node": "n0", "event": "off"}\n')
    with pytest.raises(BadInputError) as caught:
        read_failures(str(path))
    first, second = str(caught.value).splitlines()
    assert first == f"{path}:1: /time: -1 is below 0, expected 0 or more"
    assert second.startswith(f'{path}:2: /event: "off" is unknown')


def test_nodes_fail_and_are_repaired_after_the_mean_times() -> None:
    days = 2000
    events = drawn_failures(["n0", "n1"], Mtbf(24, 6), seed=1, from_s=0, until_s=days * 24 * HOUR_S)
    down = [event for event in events if not event.up]
    assert len(down) == pytest.approx(2 * days * 24 / 30, rel=0.05)
    assert [event.time_s for event in events] == sorted(event.time_s for event in events)
    for node in ("n0", "n1"):
        turns = [event.up for event in events if event.node == node]
        assert turns == [False, True] * (len(turns) // 2)


def test_a_seed_gives_the_same_failures_and_another_node_changes_none() -> None:
    one = drawn_failures(["n0"], Mtbf(5, 1), seed=3, from_s=0, until_s=1e6)
    two = drawn_failures(["n0", "n1"], Mtbf(5, 1), seed=3, from_s=0, until_s=1e6)
    assert one == tuple(event for event in two if event.node == "n0")
    assert one != drawn_failures(["n0"], Mtbf(5, 1), seed=4, from_s=0, until_s=1e6)


def test_a_node_is_down_while_a_file_or_the_dice_have_it_down() -> None:
    def turns(*times_s: float) -> list[NodeEvent]:
        return [NodeEvent(time_s, "n0", up=number % 2 == 1) for number, time_s in enumerate(times_s)]

    found = together(turns(10, 100), turns(20, 30, 90, 120, 130, 130), [NodeEvent(5, "n1", up=True)])
    assert found == tuple(turns(10, 120, 130, 130))
    twice = [NodeEvent(1, "n0", up=False), NodeEvent(2, "n0", up=False), NodeEvent(3, "n0", up=True)]
    assert together(twice) == (twice[0], twice[2])


def test_an_outage_that_begins_as_another_ends_goes_on() -> None:
    first, back, again, last = (NodeEvent(t, "n0", up=up) for t, up in ((0, 0), (9, 1), (9, 0), (20, 1)))
    assert together([first, back, again, last]) == (first, last) == together([first, again, back, last])


def test_failures_by_the_million_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--mtbf 0\.001: this trace would meet about 4\.4e\+07 failures"):
        drawn_failures(["n0"], Mtbf(0.001, 0.001), seed=0, from_s=0, until_s=10 * 365 * 24 * HOUR_S)


def test_failures_are_drawn_for_twice_the_work_of_a_trace() -> None:
    trace = [job("a", gpus=2, gpu_seconds=100), job("b", at=50, low=1, gpu_seconds=30)]
    held = given(trace, cluster(2))
    speeds = Session(Fifo(), held.cluster, held.throughput).speeds
    assert failures_end_s(held.jobs, speeds, SampleProgress()) == 50 + 2 * 130 / 2 + 2 * 50


def test_every_policy_meets_the_same_failures_and_jobs_get_done_nevertheless() -> None:
    trace = [job(f"j{n}", at=600.0 * n, gpus=2, gpu_seconds=7200) for n in range(10)]
    simulated = SimulatedCluster(mtbf=Mtbf(2, 0.5))
    held = inputs(trace, cluster(4, 4))
    logs = [replay(held, Run(policy, seed=1, simulated=simulated)) for policy in ("fifo", "las")]
    down = [
        [(event.time, event.event) for event in done.log.events() if event.event.startswith("node_")]
        for done in logs
    ]
    shared = min(map(len, down))
    assert shared > 2
    assert down[0][:shared] == down[1][:shared]
    assert all(done.summary.finished == len(trace) for done in logs)


def test_a_job_that_can_never_run_ends_a_replay_with_failures_all_the_same() -> None:
    held = inputs([job("big", gpus=9, gpu_seconds=100)], cluster(4, 4))
    done = replay(held, Run("ares", simulated=SimulatedCluster(mtbf=Mtbf(1, 1))))
    assert (done.summary.rejected, done.summary.unfinished) == (1, ())
