"""Figures of teams: what they held, borrowed and lacked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.schemas.cluster import USER, Shares
from pliant.schemas.event import Event
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.figures import draw
from pliant.tools.report.metrics import team_figures, team_gpus_over_time
from pliant.tools.report.read_run import fold, read_run
from pliant.tools.report.rendering.output import document
from pliant.tools.report.rendering.sections import team_sections
from pliant.tools.report.report import make_report
from tests.builders import FREE_CHANGES, cluster, job
from tests.tools.report.runs import ran, story, submit

HOUR_S = 3600.0


def test_documents_tables_and_figures_show_the_teams(tmp_path):
    """Ann borrows all four GPUs; bob wants his two, and her job shrinks.

    Bob owns two of the four GPUs once he is there; ann had them all for half an hour, then shared.
    """
    nodes = cluster(4).model_copy(update={"shares": Shares(label=USER, half_life_hours=0.0)})
    jobs = [
        job("a", gpus=4, low=2, high=4, gpu_seconds=4 * HOUR_S, user="ann"),
        job("b", at=HOUR_S / 2, gpus=2, gpu_seconds=2 * HOUR_S, user="bob"),
    ]
    done = replay(inputs(jobs, nodes), Run("ares", simulated=FREE_CHANGES))
    write(done.log, done.summary, str(tmp_path / "run.parquet"))
    shared = make_report([read_run(tmp_path / "run.parquet")])
    teams = {each.team: each for each in shared.runs[0].teams}
    assert teams["ann"].service_gpu_hours == pytest.approx(4.0)
    assert teams["bob"].service_gpu_hours == pytest.approx(2.0)
    assert teams["ann"].deficit_gpu_hours == teams["bob"].deficit_gpu_hours == 0.0
    assert teams["bob"].mean_jct_s == pytest.approx(HOUR_S)
    assert [each.team for each in document(shared).runs[0].teams or ()] == ["ann", "bob"]
    assert [row[0] for row in team_sections(shared)[0].rows] == ["ann", "bob"]
    assert "teams-ares" in draw(shared)


def test_one_pool_has_no_teams():
    report = make_report([story(submit(job("x"), 8.0), *ran("x", 0.0, 2.0, 4))])
    assert not report.runs[0].teams
    assert not team_sections(report)
    assert document(report).runs[0].teams is None


TEAMS = cluster(4).model_copy(update={"shares": Shares.model_validate({"teams": {"a": {}, "b": {}}})})


def part(team: str, entitled: float, held: float, **more: object) -> dict[str, object]:
    """How a team, or one of its users, stands; borrowed GPUs and waiting jobs where there are some."""
    return {"team": team, "own": 2.0, "entitled": entitled, "held": held, **more}


def stood(at_s: float, *parts: dict[str, object]) -> Event:
    return Event(at_s, "decision", detail={"teams": parts})


def test_what_a_team_lacked_and_borrowed_is_summed_over_time():
    """For an hour each: b lacks two GPUs, then one, then none because it holds more than it is entitled to.
    No job of a waits while it holds less than its part: it lacks nothing."""
    begun_s, hour_s = 500.0, HOUR_S
    run = story(
        submit(job("x", at=begun_s, gpus=3, low=1, team="a", user="ann")),
        submit(job("y", at=begun_s, gpus=2, team="a", user="bob")),
        submit(job("z", at=begun_s, low=1, gpus=3, team="b")),
        Event(begun_s, "start", "x", 3),
        stood(begun_s, part("a", 2, 3, borrowed=1), part("b", 2, 0, waiting_jobs=1)),
        Event(begun_s + hour_s, "start", "z", 1),
        stood(begun_s + hour_s, part("a", 2, 3, borrowed=1), part("b", 2, 1, waiting_jobs=1)),
        Event(begun_s + 2 * hour_s, "shrink", "x", 1),
        Event(begun_s + 2 * hour_s, "grow", "z", 3),
        stood(begun_s + 2 * hour_s, part("a", 2, 1), part("b", 2, 3, borrowed=1, waiting_jobs=1)),
        Event(begun_s + 3 * hour_s, "finish", "z", 0),
        nodes=TEAMS,
    )
    found = {(each.team, each.user): each for each in team_figures(run)}
    assert [*found] == [("a", ""), ("a", "ann"), ("a", "bob"), ("b", "")]
    a, b = found["a", ""], found["b", ""]
    hours = [(each.deficit_gpu_hours, each.borrowed_gpu_hours, each.service_gpu_hours) for each in (a, b)]
    assert hours == [pytest.approx((0, 2, 3 + 3 + 1)), pytest.approx((2 + 1, 1, 1 + 3))]
    assert [(each.jobs, each.finished) for each in found.values()] == [(2, 0), (1, 0), (1, 0), (1, 1)]
    assert (b.mean_jct_s, b.p99_jct_s, a.mean_jct_s) == (3 * hour_s, 3 * hour_s, None)
    assert (found["a", "ann"].service_gpu_hours, found["a", "ann"].deficit_gpu_hours) == (7.0, None)
    times = [0.0, 0.0, hour_s, 2 * hour_s, 3 * hour_s]
    assert team_gpus_over_time(run)["b"] == (times, [0, 0, 1, 3, 3], [0, 2, 2, 2, 2])


def test_a_team_that_weighs_its_users_is_the_sum_of_them():
    arrivals = (submit(job(name, team="a", user=name)) for name in ("ann", "bob"))
    ann, bob = part("a", 1, 3, borrowed=2, user="ann"), part("a", 3, 1, waiting_jobs=2, user="bob")
    run = story(*arrivals, stood(0.0, ann, bob), Event(HOUR_S / 2, "start", "ann", 1), nodes=TEAMS)
    found = {each.user: (each.deficit_gpu_hours, each.borrowed_gpu_hours) for each in team_figures(run)}
    assert found == {"": (1.0, 1.0), "ann": (0.0, 1.0), "bob": (1.0, 0.0)}
    assert team_gpus_over_time(run)["a"][1:] == ([0, 4, 4], [0, 4, 4])
    # A job that names no user counts once.
    run = story(submit(job("x", team="a"), 8.0), *ran("x", 0.0, 2.0, 4), nodes=TEAMS)
    (found,) = team_figures(run)
    assert (found.jobs, found.finished, found.service_gpu_hours) == (1, 1, pytest.approx(8 / HOUR_S))


def test_a_team_borrows_once_its_part_is_smaller():
    """Three of eight GPUs are a's own until a node is lost, and then one more than its half of four is."""
    lost = NodeEvent(HOUR_S, "n1", up=False)
    nodes = TEAMS.model_copy(update={"nodes": cluster(4, 4).nodes})
    trace = [job("x", gpus=3, gpu_seconds=3 * 2 * HOUR_S, team="a")]
    simulated = replace(FREE_CHANGES, node_events=(lost,))
    done = replay(inputs(trace, nodes), Run("fifo", simulated=simulated))
    (found,) = team_figures(fold(done.log.events()))
    assert (found.service_gpu_hours, found.borrowed_gpu_hours) == pytest.approx((6.0, 1.0))
