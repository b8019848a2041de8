"""Parts of several benchmarks, each in a test of a few lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import dead_node, elastic_dp
from benchmarks.__main__ import benchmarks
from benchmarks.import_rows import MAPPINGS, WRITERS, write
from benchmarks.oasis import feasibility, offline, ratios
from benchmarks.parts import (
    decisions_at_scale,
    evolution,
    figure,
    mistaken_work,
    pollux_workloads,
    status_width,
)
from benchmarks.parts.base_install import sizes
from benchmarks.parts.decisions_at_scale import ENOUGH_S, LATER, MOST_DECISIONS, measured
from benchmarks.parts.figure import Figure
from benchmarks.parts.progress_coverage import HIGH, LOW, coverage, published_history
from benchmarks.parts.published import published
from benchmarks.parts.robust import ERRORS, jcts_s, stated, truths
from benchmarks.parts.service_tick import log_bytes
from benchmarks.parts.shockwave import Outcome, errors, figures
from benchmarks.parts.shockwave import published as published_by_shockwave
from benchmarks.predicted_start import Wait, misjudged, waits
from benchmarks.replay_speed import main as replay_speed
from experiments.oasis.measure import PROVEN_GAP
from pliant.schemas.io import read_cluster, read_jobs, write_cluster, write_jobs, write_profile
from pliant.schemas.job import EpochWork, GpuTimeWork
from pliant.schemas.profile import Profile
from pliant.tools.replay.importers.run import FORMATS
from pliant.tools.run.watch.screen import status_text
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.registry import make_policy, policy_names
from tests.builders import cluster, job, session
from tests.tools.profile.histories import history, progress_of
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


def test_the_load_of_replays_is_0_85_of_the_gpus(tmp_path: Path) -> None:
    replay_speed("make", str(tmp_path), "fifo", "20000", "2048")
    jobs = read_jobs(tmp_path / "jobs.jsonl")
    works = [one.work for one in jobs]
    gpu_hours = sum(work.gpu_seconds for work in works if isinstance(work, GpuTimeWork)) / 3600
    gpus = sum(node.gpus for node in read_cluster(tmp_path / "cluster.json").expanded())
    assert gpus == 2048
    assert gpu_hours / (jobs[-1].submit_time / 3600 * gpus) == pytest.approx(0.85, rel=0.05)


def test_mistaken_work_is_equally_wrong_each_time() -> None:
    with mistaken_work.registered() as name:
        held = session(make_policy(name), cluster(4))
    for each in "abc":
        held.submit(job(each, low=1, high=4, work={"samples": 1000}), 0.0)
    known, again = (mistaken_work.MistakenWork(ShadowPrice(), 1.0, 0) for _ in range(2))
    estimates = [known.left(state, 0.0) for state in held.jobs.values()]
    assert estimates == [again.left(state, 0.0) for state in held.jobs.values()]
    assert len({1000.0, *estimates}) == 4
    assert name not in policy_names()


def test_the_base_install_counts_requirements_of_requirements() -> None:
    result = sizes("pliant")
    assert {"pliant", "numpy", "pyarrow", "pydantic", "pydantic-core", "markupsafe"} <= result.keys()
    assert not {"torch", "pandas", "matplotlib", "pytest"} & result.keys()
    assert all(size > 0 for size in result.values())


def test_the_best_genome_is_within_a_percent_of_the_optimum() -> None:
    rng = np.random.default_rng(evolution.SEED)
    assert sum(evolution.comes_close(evolution.small_instance(rng), rng) for _ in range(40)) >= 38


@pytest.mark.services
def test_progress_intervals_cover_the_published_jobs(reference_data: Path) -> None:
    if not (reference_data / "ones").is_dir():
        pytest.skip("the reference data has no folder ones")
    jobs = published_history(reference_data / "ones")
    assert (len(jobs), sum(len(job.epochs) for job in jobs)) == (20, 569)
    assert LOW <= coverage(jobs) <= HIGH


def test_every_job_is_predicted_by_all_others() -> None:
    few = history(4)
    within = [0.05 <= part <= 0.95 for job in few for part in progress_of(job)]
    assert coverage(few) == pytest.approx(np.mean(within))


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


def test_an_hour_of_training_keeps_the_log_small() -> None:
    assert log_bytes().holds


def test_the_error_of_shockwave_is_that_of_the_mean_jct() -> None:
    physical = {"a": Outcome(100.0, 1.0, 1.0, 1.0), "b": Outcome(200.0, 1.0, 1.0, 1.0)}
    ours = {"a": Outcome(90.0, 9.0, 9.0, 9.0), "b": Outcome(250.0, 9.0, 9.0, 9.0)}
    assert errors(ours, physical) == pytest.approx({"a": 0.1, "b": 0.25})


@pytest.mark.services
def test_four_published_jobs_of_shockwave_train_alone(reference_data: Path) -> None:
    if not (reference_data / "shockwave").is_dir():
        pytest.skip("no shockwave in the reference data")
    rows = {row.name: row for row in figures(jobs=4)}
    assert rows["shockwave_physical_error"].limit == pytest.approx(0.0369, abs=1e-4)
    for policy in published_by_shockwave("physical"):
        assert 1.0 < (rows[f"shockwave_{policy}_worst_ftf_static_ours"].value or 0.0) < 1.25


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda text: text.replace("\n", " " * 80 + "x\n", 1), id="too wide"),
        pytest.param(lambda text: "".join(text.splitlines(keepends=True)[:-1]), id="a job lacks its line"),
        pytest.param(lambda text: text.replace("  ", " x", 1), id="a cell is not below its header"),
    ],
)
def test_broken_tables_of_the_status_are_counted(
    broken: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not status_width.figures(1)[0].value
    monkeypatch.setattr(status_width, "status_text", lambda *args, **more: broken(status_text(*args, **more)))
    assert status_width.figures(1)[0].value


@pytest.mark.parametrize(
    ("decision_s", "used_s", "sessions"),
    [
        *((ENOUGH_S, 0.0, 1), (ENOUGH_S / LATER, 0.0, 1), (ENOUGH_S / LATER / 2.5, 0.0, 3)),
        *((1e-6, 0.0, MOST_DECISIONS // LATER), (1e-6, 15.0, 1)),
    ],
)
def test_only_quick_decisions_are_repeated_with_other_jobs(
    decision_s: float, used_s: float, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def decided(policy: str, gpus: int, jobs: int, seed: int = 0) -> list[float]:
        seeds.append(seed)
        return [1.0, *[decision_s] * LATER]

    monkeypatch.setattr(decisions_at_scale, "decisions_s", decided)
    monkeypatch.setattr(decisions_at_scale, "_used_s", lambda: used_s)
    assert measured("fifo", 64, 100) == (1.0, pytest.approx(decision_s), sessions * LATER)
    assert len(set(seeds)) == sessions


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


def test_a_figure_of_another_machine_than_most_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_no_schedule_is_infeasible_and_every_ratio_has_a_value() -> None:
    broken, schedules = feasibility(1, scale=20)
    assert broken.value == 0
    assert schedules.value
    result = {figure.name: figure.value for figure in ratios(scale=20, seeds=range(1))}
    assert len(result) == 16
    assert result["oasis_utility_ratio_drf_400"]


def test_a_proven_offline_optimum_is_never_less() -> None:
    result = {figure.name: figure.value or 0.0 for figure in offline(seeds=range(1))}
    assert result["oasis_offline_ratio_max"] >= result["oasis_offline_ratio_median"] >= 1 - PROVEN_GAP
    assert 0 < result["oasis_offline_proven"] <= 4


def test_every_format_is_measured() -> None:
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


@pytest.mark.services
def test_jobs_err_within_the_stated_factors_and_end_when_their_work_is_done(reference_data: Path) -> None:
    """Alone, a policy that does not look at work cannot tell the difference."""
    few = pollux_workloads.inputs("w6", 8)
    for error in ERRORS:
        for truth in truths(few, error).values():
            assert 0.5 <= truth.speed <= 2.0
            assert 0.25 <= truth.noise <= 4.0
            assert 0.01 <= truth.work <= 1.0
    true = truths(few, "work")
    for reported, one in zip(stated(few, "work").jobs, few.jobs, strict=True):
        assert isinstance(reported.work, EpochWork)
        assert isinstance(one.work, EpochWork)
        assert reported.work.epochs * true[one.id].work == pytest.approx(one.work.epochs)
    alone = replace(few, jobs=few.jobs[:1])
    assert jcts_s(alone, "fifo", "work") == pytest.approx(jcts_s(alone, "fifo", "nothing"))
