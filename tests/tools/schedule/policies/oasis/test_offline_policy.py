"""The offline optimum as a policy: it keeps slots for jobs to come, and says what it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from pliant.cli.common import command
from pliant.cli.replay import replay
from pliant.cli.run import run
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import UsageError
from pliant.schemas.io import write_cluster, write_jobs
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.report.read_run import read_run
from pliant.tools.schedule.policies.oasis import offline as offline_policy
from pliant.tools.schedule.policies.oasis.offline import OasisOffline
from pliant.tools.schedule.policies.oasis.policy import Oasis
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, sizes
from tests.tools.schedule.policies.oasis.test_policy import (
    SLOT_S,
    bidder,
    check_slots,
    drawn,
    fleet,
    run_out,
)


def offline(**more: Any) -> OasisOffline:
    return OasisOffline(**{"slot_seconds": SLOT_S, "horizon_slots": 12} | more)


def opened(policy: Policy, trace: list[Job], nodes: Cluster | None = None) -> Session:
    return Session(policy, nodes or cluster(4), CurveThroughput(), trace=trace)


def earned(policy: Policy, trace: list[Job], nodes: Cluster | None = None) -> float:
    """The utility of all jobs that end, whole slots checked at every decision."""
    held = opened(policy, trace, nodes)
    ends = run_out(held, trace, check_slots if nodes else None)
    done = {job_id for job_id, state in held.ended.items() if state.first_start_s is not None}
    return sum(job.utility.worth(ends[job.id] - job.submit_time) for job in trace if job.id in done)


def early_and_late() -> list[Job]:
    """The first is worth admitting alone; the second needs the same slots, and is worth ten times as much."""
    return [
        bidder("early", 12, value=5.0, shape="step", target=350.0),
        bidder("late", 8, at=100.0, value=50.0, decay=0.1, target=250.0),
    ]


def test_it_turns_a_job_away_for_a_better_one_that_has_not_arrived():
    held = opened(offline(), trace := early_and_late())
    ends = run_out(held, trace)
    assert held.ended["early"].first_start_s is None
    assert ends["late"] == 300.0


def test_without_the_trace_it_knows_no_more_than_others():
    held = opened(offline(), [])
    held.submit(early_and_late()[0], 0.0)
    held.decide(0.0)
    assert sizes(held) == {"early": 4}


@pytest.mark.parametrize("seed", range(3))
def test_no_policy_that_keeps_to_slots_earns_more(seed: int):
    rng = np.random.default_rng([7, seed])
    trace = sorted((drawn(rng, index) for index in range(7)), key=lambda job: (job.submit_time, job.id))
    online = Oasis(slot_seconds=SLOT_S, horizon_slots=12, rescale_s=0.0)
    assert earned(offline(), trace, fleet()) >= earned(online, trace, fleet()) * (1 - 1e-3)


def test_events_keep_what_a_job_is_worth_and_how_sure_that_is():
    held = opened(offline(), trace := early_and_late())
    held.submit(trace[0], 0.0)
    [turned_away] = held.decide(0.0)
    assert turned_away.reason == "the largest total utility is without it"
    assert held.admissions["early"] == {"admitted": False, "gap": 0.0}
    held.submit(trace[1], 100.0)
    held.decide(100.0)
    said = held.admissions["late"]
    assert said["admitted"]
    assert said["end_s"] == 300.0
    assert said["worth"] == pytest.approx(trace[1].utility.worth(200.0), rel=1e-5)


def test_a_job_that_loses_its_node_is_planned_again_beside_those_to_come():
    trace = [bidder("a", 16, value=20.0), bidder("b", 8, at=200.0, value=30.0)]
    held = opened(offline(), trace, cluster(4, 4))
    held.submit(trace[0], 0.0)
    held.decide(0.0)
    (node, *_), *_ = held.jobs["a"].placement
    held.node_down(node, 50.0)
    held.decide(50.0)
    held.decide(100.0)
    assert held.jobs["a"].gpus
    assert node not in dict(held.jobs["a"].placement)
    held.submit(trace[1], 200.0)
    held.decide(200.0)
    assert "b" in held.jobs


def test_a_problem_that_is_too_large_is_refused_with_its_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offline_policy, "MOST_VARIABLES", 20)
    held = opened(offline(), early_and_late())
    held.submit(early_and_late()[0], 0.0)
    with pytest.raises(
        UsageError, match=r"2 jobs in 12 slots on 1 node are a problem of \d+ variables, and 20"
    ):
        held.decide(0.0)


app = typer.Typer()
for each in (replay, run):
    app.command(each.__name__)(command(each))


def test_a_replay_labels_it_as_an_oracle_and_a_run_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_jobs(early_and_late(), "jobs.jsonl")
    write_cluster(cluster(4), "cluster.json")
    inputs = ["--policy", "oasis-offline", "--param", f"slot_seconds={SLOT_S:g}", "--cluster", "cluster.json"]
    done = CliRunner().invoke(app, ["replay", "--jobs", "jobs.jsonl", *inputs, "-o", "found.jsonl", "-q"])
    assert done.exit_code == 0, done.stderr
    found = read_run("found.jsonl")
    assert found.info.oracle
    assert {job.id: job.admission["admitted"] for job in found.jobs} == {"early": False, "late": True}
    live = CliRunner().invoke(app, ["run", "--follow", "--state", "live", *inputs])
    assert live.exit_code == 2
    assert 'policy "oasis-offline" knows the jobs to come: it is for replays, not for a run' in live.stderr
