"""Parts of several benchmarks, each in a test of a few lines."""

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from benchmarks import dead_node, elastic_dp
from benchmarks.__main__ import benchmarks
from benchmarks.import_rows import MAPPINGS, WRITERS, write
from benchmarks.oasis import offline
from benchmarks.parts import (
    figure,
    mends_report,
    promise,
    status_width,
)
from benchmarks.parts.figure import Figure
from benchmarks.parts.mends_speeds import faster_and_smaller, jobs_left_behind, part_of, slower_sizes_given
from benchmarks.parts.published import published
from benchmarks.parts.shockwave import Outcome, errors
from benchmarks.predicted_start import Wait, misjudged, waits
from experiments.oasis.measure import PROVEN_GAP
from pliant.schemas.io import write_cluster, write_jobs, write_profile
from pliant.schemas.profile import Profile
from pliant.tools.replay.importers.run import FORMATS
from pliant.tools.report import read_run
from pliant.tools.run.watch.screen import status_text
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.policies.shadow_price.bound import Bound, Guard
from pliant.tools.schedule.rates import Speeds
from tests.builders import cluster, curves, job
from tests.tools.profile.rows_builder import step
from tests.tools.replay.importers.importing import run


def test_a_dead_node_costs_the_longer_of_two_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_node, "dead_s", lambda: 10.0)
    monkeypatch.setattr(dead_node, "cut_off_s", lambda: 12.5)
    (result,) = dead_node.figures()
    assert (result.value, result.holds) == (12.5, True)


def test_sizes_that_are_not_the_best_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    instances = [elastic_dp._small(rng) for _ in range(60)]
    assert all(map(elastic_dp.is_right, instances))
    monkeypatch.setattr(elastic_dp.Optimizer, "sizes", lambda self: list(self._sizes))
    assert not all(map(elastic_dp.is_right, instances))


def test_numbers_of_a_table_come_with_the_published_ones() -> None:
    assert "published" not in benchmarks()
    rows = published("elastic-scaling", ["mixed-40.toml", "queue-40.toml"], ["Table III"], smoke=True)
    result = {row.name: row for row in rows}
    ours, theirs, ratio = (
        result[f"table3_elastic_drop_sjs_{kind}"] for kind in ("ours", "published", "ratio")
    )
    assert (theirs.value, theirs.unit) == (80.46, "%")
    assert ours.value is not None
    assert ratio.value == ours.value / theirs.value
    assert {name.rsplit("_", 1)[1] for name in result} == {"ours", "published", "ratio"}


def test_the_error_of_shockwave_is_that_of_the_mean_jct() -> None:
    physical = {"a": Outcome(100.0, 1.0, 1.0, 1.0), "b": Outcome(200.0, 1.0, 1.0, 1.0)}
    ours = {"a": Outcome(90.0, 9.0, 9.0, 9.0), "b": Outcome(250.0, 9.0, 9.0, 9.0)}
    assert errors(ours, physical) == pytest.approx({"a": 0.1, "b": 0.25})


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda text: text.replace("\n", " " * 80 + "x\n", 1), id="too wide"),
        pytest.param(lambda text: "".join(text.splitlines(keepends=True)[:-1]), id="a job lacks its line"),
        pytest.param(lambda text: text.replace("  ", " x", 1), id="a cell is not below its header"),
    ],
)
def test_broken_tables_of_the_status_are_counted(broken, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not status_width.figures(1)[0].value
    monkeypatch.setattr(status_width, "status_text", lambda *args, **more: broken(status_text(*args, **more)))
    assert status_width.figures(1)[0].value


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (Figure("a", 1.0, "s"), None),
        (Figure("a", None, "s", 1.0), False),
        *((Figure("a", value, "s", 1.0), value <= 1.0) for value in (1.0, 1.1)),
        *((Figure("a", value, "", 10.0, at_least=True), value >= 10.0) for value in (12.0, 9.0)),
        *((Figure("a", value, "", 1.1, low=0.9), value == 0.9) for value in (0.8, 0.9, 1.2)),
    ],
)
def test_a_figure_says_whether_it_keeps_to_its_limit(one: Figure, holds: bool | None) -> None:
    assert one.row("make bench NAME=x")["holds"] is holds


def test_a_figure_of_another_machine_than_most_says_so(tmp_path, monkeypatch) -> None:
    one, other, third = ({"cores": 2, "cpu": name} for name in ("one", "other", "third"))
    monkeypatch.setattr(figure, "RESULTS", tmp_path)

    def renew(names: str, machine: dict[str, object]) -> tuple[dict[str, str | None], str]:
        monkeypatch.setattr(figure, "machine", lambda: machine)
        rows = json.loads(figure.renew("x", [Figure(name, 1.0, "s") for name in names]).read_text())
        recorded = json.loads((tmp_path / "x.machine.json").read_text())
        return {row["name"]: row.get("machine") for row in rows}, recorded["cpu"]

    assert renew("abc", one) == ({"a": None, "b": None, "c": None}, "one")
    assert renew("a", third) == ({"a": "2 cores of third", "b": None, "c": None}, "one")
    assert renew("b", other) == ({"a": "2 cores of third", "b": "2 cores of other", "c": None}, "one")
    assert renew("a", other) == ({"a": None, "b": None, "c": "2 cores of one"}, "other")
    assert renew("abc", one) == ({"a": None, "b": None, "c": None}, "one")
    (tmp_path / "x.machine.json").unlink()
    assert renew("a", one) == ({"a": None, "b": "unknown", "c": "unknown"}, "one")


def test_the_offline_optimum_is_never_less_and_all_is_measured() -> None:
    result = {figure.name: figure.value or 0.0 for figure in offline(seeds=range(1))}
    assert result["oasis_offline_ratio_max"] >= result["oasis_offline_ratio_median"] >= 1 - PROVEN_GAP
    assert 0 < result["oasis_offline_proven"] <= 4
    # Every format is measured.
    assert set(WRITERS) == set(FORMATS)


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_measured_is_read_whole_and_strictly(kind: str, tmp_path: Path) -> None:
    path, workload = write(kind, tmp_path / "data", 200)
    summary = run(tmp_path, kind, str(path), workload=workload, mapping=MAPPINGS.get(kind)).summary
    assert summary.rows >= 200
    assert summary.jobs or summary.node_events


def test_the_same_seed_writes_the_same_rows(tmp_path: Path) -> None:
    first, second = (write("philly", tmp_path / name, 50)[0] for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_what_is_predicted_at_arrival_and_what_happens(tmp_path: Path) -> None:
    """One GPU does 10 samples per second; three jobs of 100 s come at 0, 10 and 20 s, then a short one."""
    lengths = {"a": 100, "b": 100, "c": 100, "d": 10}
    jobs = [
        job(name, at=10.0 * place, work={"samples": 10.0 * length_s}, batch=10, model="net")
        for place, (name, length_s) in enumerate(lengths.items())
    ]
    write_jobs(jobs, tmp_path / "jobs.jsonl")
    write_cluster(cluster(1), tmp_path / "cluster.json")
    write_profile(Profile((step(1, 10, 1.0),)), tmp_path / "profile.parquet")
    expected = [Wait("b", 90.0, 90.0), Wait("c", 180.0, 180.0), Wait("d", 270.0, 270.0)]
    assert waits(tmp_path, "fifo") == expected
    overtaken = [Wait("b", 100.0, 90.0), Wait("c", 190.0, 180.0)]
    assert waits(tmp_path, "srtf")[:2] == overtaken


def test_a_misjudged_profile_is_off_by_one_factor_per_model() -> None:
    rows = (step(1, 10, 1.0), step(2, 10, 1.5), step(1, 10, 1.0, model="other"))
    result = misjudged(Profile(rows), 0.2).rows
    factors = [
        (new.step_seconds or 0) / (old.step_seconds or 1) for new, old in zip(result, rows, strict=True)
    ]
    assert factors[0] == factors[1] != factors[2]
    assert all((row.samples_per_second or 0) * (row.step_seconds or 0) == row.gpus * 10 for row in result)


def test_figures_that_rest_on_a_guess_are_senseless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers train ten times as fast as the log says of a run without a profile."""
    assert mends_report.senseless(mends_report.lived(6)) == 0
    monkeypatch.setattr(read_run, "guesses_speeds", lambda _info: False)
    assert mends_report.senseless(mends_report.lived(6)) > 0


def test_no_job_is_behind_and_a_part_that_is_faster_counts() -> None:
    assert (jobs_left_behind(1), slower_sizes_given(1)) == (0, 0)
    # Six GPUs, and three, are slower than a part of them on one node.
    speeds = Speeds(curves(m={1: 10.0, 2: 20.0, 3: 15.0, 4: 30.0, 6: 25.0}), node_states(cluster(4, 4)))
    spec = job(gpus=6, low=1, model="m", batch=64)
    places = ((4,), (4, 2), (2, 1), (1,))
    named = [tuple((f"n{node}", gpus) for node, gpus in enumerate(place)) for place in places]
    assert [faster_and_smaller(spec, place, 64, speeds) for place in named] == [None, (4,), (2,), None]
    assert [part_of((4, 2, 1), gpus) for gpus in (1, 4, 5, 7)] == [(1,), (4,), (4, 1), (4, 2, 1)]


TIGHT = 8
"""An instance in which jobs would be late."""


@pytest.mark.parametrize("number", [3, 6, TIGHT, 9])
def test_policy_report_and_page_agree_on_the_latest_ends(number: int) -> None:
    result = promise.verdict(promise.instance(number))
    assert (result.late, result.alarms, result.differing) == ((), (), ())
    assert 0 < result.used <= 1


def test_without_the_guard_late_jobs_are_counted() -> None:
    with patch.object(Bound, "guard", lambda self, members, known, time_s: Guard.none(members)):
        result = promise.verdict(promise.instance(TIGHT))
    assert result.late
    assert result.alarms == ()
    assert result.used > 1
