"""What a run takes up of jobs that were submitted before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pliant.schemas.shares import Shares, Team
from pliant.tools.run.service import submit as requests
from pliant.tools.run.service.arrivals import Arrivals
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.log.events import run_event
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import Question, decide, throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job


def test_jobs_of_before_the_first_run_join_the_team_of_a_group_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_groups_of", lambda user: ["vision"] if user == "ann" else [])
    (tmp_path / "train.py").touch()
    command = {"command": ("train.py",)}
    jobs = [job("a", user="ann", **command), job("b", user="bob", **command)]
    wrong = job("c", user="bob", team="vision", **command)
    submit(tmp_path / "state", [*jobs, wrong], "jobs", folder=tmp_path, now_s=100.0)
    nodes = cluster(2).model_copy(update={"shares": Shares(teams={"vision": Team(groups=("vision",))})})
    session = Session(make_policy("fifo"), nodes, throughput_for(None, nodes))
    with State(tmp_path / "state") as state:
        state.record([run_event(decide([], nodes, None, Question("fifo")), "hash", 100.0)])
        Arrivals(state, session, lambda: 101.0, 100.0).hear(101.0)
        found = state.log.jobs
    assert {name: each.job.team for name, each in found.items()} == {"a": "vision", "b": "", "c": "vision"}
    assert {name: each.phase for name, each in found.items()} == {
        "a": "waiting",
        "b": "waiting",
        "c": "rejected",
    }
    assert found["c"].reason == 'job "c" names team "vision", which user bob is not in'
