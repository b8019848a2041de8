"""The parts of the benchmark ``mends``, run small: what each counts, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.parts import mends_report
from benchmarks.parts.elasticflow import trace
from benchmarks.parts.mends_backfill import Backlog, easy_backfill_growth
from benchmarks.parts.mends_oasis import oasis_deadlines_met
from benchmarks.parts.mends_speeds import faster_and_smaller, jobs_left_behind, part_of, slower_sizes_given
from pliant.tools.report import read_run
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import Speeds
from tests.builders import cluster, curves, job


def test_the_backlog_keeps_its_length_while_jobs_end_and_come(monkeypatch: pytest.MonkeyPatch) -> None:
    backlog = Backlog(40)
    ended = len(backlog.held.ended)
    assert backlog.us_per_event(20) >= 0
    assert (len(backlog.held.jobs), len(backlog.held.ended)) == (40, ended + 10)
    assert sum(job.gpus for job in backlog.held.jobs.values()) > 48
    monkeypatch.setattr(Backlog, "us_per_event", lambda backlog, _events: 5.0 * len(backlog.held.jobs))
    assert easy_backfill_growth(few=20, many=40, repeats=1) == 2.0


@pytest.mark.services
def test_deadlines_of_the_published_testbed(reference_data: Path) -> None:
    result = trace("195job", reference_data / "elasticflow")
    first = result.jobs[0]
    assert (len(result.jobs), result.cluster.total_gpus) == (195, 128)
    assert (first.model, first.batch.size, first.gpus.max) == ("deepspeech2", 32, 32)
    assert (first.utility.shape, first.utility.target) == ("step", 693.0)
    met = oasis_deadlines_met(reference_data, jobs_limit=10)
    assert met["oasis"] >= met["fifo"] > 0


def test_figures_that_rest_on_a_guess_are_senseless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers train ten times as fast as the log says of a run without a profile."""
    assert mends_report.senseless(mends_report.lived(6)) == 0
    monkeypatch.setattr(read_run, "guesses_speeds", lambda _info: False)
    assert mends_report.senseless(mends_report.lived(6)) > 0


def test_no_policy_leaves_jobs_behind_or_gives_slower_sizes() -> None:
    assert (jobs_left_behind(1), slower_sizes_given(1)) == (0, 0)


def test_an_allocation_counts_where_fewer_of_its_gpus_are_faster() -> None:
    """Six GPUs, and three, are slower than a part of them on one node."""
    speeds = Speeds(curves(m={1: 10.0, 2: 20.0, 3: 15.0, 4: 30.0, 6: 25.0}), node_states(cluster(4, 4)))
    spec = job(gpus=6, low=1, model="m", batch=64)
    places = ((4,), (4, 2), (2, 1), (1,))
    named = [tuple((f"n{node}", gpus) for node, gpus in enumerate(place)) for place in places]
    assert [faster_and_smaller(spec, place, 64, speeds) for place in named] == [None, (4,), (2,), None]
    assert [part_of((4, 2, 1), gpus) for gpus in (1, 4, 5, 7)] == [(1,), (4,), (4, 1), (4, 2, 1)]
