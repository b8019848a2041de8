"""Figures of teams: what they held, borrowed and lacked."""

from __future__ import annotations

import pytest

from pliant.schemas.cluster import USER, Shares
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.figures import draw
from pliant.tools.report.read_run import read_run
from pliant.tools.report.rendering.output import document
from pliant.tools.report.rendering.sections import team_sections
from pliant.tools.report.report import Report, make_report
from tests.builders import FREE_CHANGES, cluster, job

HOUR_S = 3600.0


@pytest.fixture
def shared(tmp_path) -> Report:
    """Ann borrows all four GPUs; bob wants his two, and her job shrinks."""
    nodes = cluster(4).model_copy(update={"shares": Shares(label=USER, half_life_hours=0.0)})
    jobs = [
        job("a", gpus=4, low=2, high=4, gpu_seconds=4 * HOUR_S, user="ann"),
        job("b", at=HOUR_S / 2, gpus=2, gpu_seconds=2 * HOUR_S, user="bob"),
    ]
    done = replay(inputs(jobs, nodes), Run("ares", simulated=FREE_CHANGES))
    write(done.log, done.summary, str(tmp_path / "run.parquet"))
    return make_report([read_run(tmp_path / "run.parquet")])


def test_service_and_loans_of_each_team(shared: Report):
    """Bob owns two of the four GPUs once he is there; ann had them all for half an hour, then shared."""
    teams = {each.team: each for each in shared.runs[0].teams}
    assert teams["ann"].service_gpu_hours == pytest.approx(4.0)
    assert teams["bob"].service_gpu_hours == pytest.approx(2.0)
    assert teams["ann"].deficit_gpu_hours == teams["bob"].deficit_gpu_hours == 0.0
    assert teams["bob"].mean_jct_s == pytest.approx(HOUR_S)


def test_documents_tables_and_figures_show_the_teams(shared: Report):
    assert [each.team for each in document(shared).runs[0].teams or ()] == ["ann", "bob"]
    section = team_sections(shared)[0]
    assert [row[0] for row in section.rows] == ["ann", "bob"]
    assert "teams-ares" in draw(shared)


def test_one_pool_has_no_teams(tmp_path):
    done = replay(inputs([job("a", gpu_seconds=10.0)], cluster(1)), Run("fifo", simulated=FREE_CHANGES))
    write(done.log, done.summary, str(tmp_path / "run.parquet"))
    report = make_report([read_run(tmp_path / "run.parquet")])
    assert not report.runs[0].teams
    assert not team_sections(report)
    assert document(report).runs[0].teams is None
