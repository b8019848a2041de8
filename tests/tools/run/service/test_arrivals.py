"""What a run takes up of jobs that were submitted before it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pliant.schemas.cluster import Shares, Team
from pliant.tools.run.service import submit as requests
from pliant.tools.run.service.decisions import Arrivals
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.log.events import run_event
from pliant.tools.run.statedir.log.fold import JobLog
from pliant.tools.run.statedir.state import State
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.rates import throughput_for
from pliant.tools.schedule.registry import make_policy
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job

VISION = Team(groups=("vision",), accounts=("cv",))


def taken_up(state_dir: Path, shares: Shares) -> Mapping[str, JobLog]:
    """What a first run makes of the jobs that were submitted."""
    nodes = cluster(2).model_copy(update={"shares": shares})
    session = Session(make_policy("fifo"), nodes, throughput_for(None, nodes))
    with State(state_dir) as state:
        state.record([run_event(decide([], nodes, None, Question("fifo")), "hash", 100.0)])
        Arrivals(state, session, lambda: 101.0, 100.0).hear(101.0)
        return state.log.jobs


def test_jobs_of_before_the_first_run_join_the_team_of_a_group_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_groups_of", lambda user: ["vision"] if user == "ann" else [])
    (tmp_path / "train.py").touch()
    command = {"command": ("train.py",)}
    jobs = [job("a", user="ann", **command), job("b", user="bob", **command)]
    wrong = job("c", user="bob", team="vision", **command)
    submit(tmp_path / "state", [*jobs, wrong], "jobs", folder=tmp_path, now_s=100.0)
    found = taken_up(tmp_path / "state", Shares(teams={"vision": Team(groups=("vision",))}))
    assert {name: each.job.team for name, each in found.items()} == {"a": "vision", "b": "", "c": "vision"}
    assert {name: each.phase for name, each in found.items()} == {
        "a": "waiting",
        "b": "waiting",
        "c": "rejected",
    }
    assert found["c"].reason == 'job "c" names team "vision", which user bob is not in'


def test_a_job_is_not_refused_because_slurm_does_not_say_who_is_in_its_team(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requests, "_groups_of", lambda user: [])
    monkeypatch.setattr(requests, "_accounts_of", lambda user, minute: "sacctmgr: no answer")
    (tmp_path / "train.py").touch()
    found = job("a", user="ann", team="vision", command=("train.py",))
    submit(tmp_path / "state", [found], "jobs", folder=tmp_path, now_s=100.0)
    taken = taken_up(tmp_path / "state", Shares(teams={"vision": VISION}))
    assert {name: (each.job.team, each.phase) for name, each in taken.items()} == {"a": ("vision", "waiting")}
    assert "sacctmgr: no answer" in caplog.text
