"""The benchmark of operations, each part of it run small."""

import json

import pytest

from benchmarks import operate
from benchmarks.parts import fault_sequences, figure, slurm_day, soak
from benchmarks.parts.figure import Figure
from tests.slurm_cluster import NoSlurmError


def test_sequences_of_faults_that_fail_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fault_sequences.sequence(7) == fault_sequences.sequence(7) != fault_sequences.sequence(8)
    monkeypatch.setattr(fault_sequences, "live_through", None)
    assert [row.value for row in fault_sequences.figures(3)] == [3.0]


@pytest.mark.services
@pytest.mark.torch
def test_a_day_on_slurm_ends_with_all_jobs_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_day, "AWAY_S", 0.5)
    try:
        result = slurm_day.live(2, gap_s=1.0, epochs=(1, 2), profiled=False)
    except NoSlurmError as error:
        pytest.skip(str(error))
    assert (result.lost, result.wrong) == (0, 0)
    assert result.jct_s > 0
    assert result.simulated_jct_s > 0


def soaked(grows: float, leaks: float) -> list[soak.Sample]:
    """Half an hour with a job every 5 s: it grows by some MiB until the fourth minute, and each job leaks."""
    return [
        soak.Sample(time_s, 40 + grows * min(1.0, time_s / 240) + leaks * (time_s // 5), 30, time_s // 5)
        for time_s in range(1801)
    ]


def test_a_soak_tells_a_leak_from_a_warm_up() -> None:
    warms_up = soaked(20.0, 0.0)
    assert soak.growth(warms_up) == (0.0, 0.0)
    assert soak.slope(warms_up) == pytest.approx(0.0, abs=1e-6)
    leaks = soaked(0.0, 0.1)
    memory, handles = soak.growth(leaks)
    assert memory == pytest.approx(0.1 * (1800 - soak.WARM_UP_S - soak.WINDOW_S) / 5, rel=0.01)
    assert handles == 0
    assert soak.slope(leaks) == pytest.approx(0.1 * 1024)
    assert soak.memory_after(warms_up, 60.0) == pytest.approx(40 + 20 * 30 / 240, rel=0.01)
    assert soak.memory_after(warms_up, 1800.0) == 60
    assert soak.memory_after(warms_up[:1200], 1800.0) is None


def test_a_part_that_is_measured_alone_leaves_the_other_rows(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(figure, "RESULTS", tmp_path)
    figure.write(operate.NAME, [Figure("a", 1.0, "s"), Figure("b", 2.0, "s")])
    monkeypatch.setitem(operate.PARTS, "faults", lambda: [Figure("a", 3.0, "s"), Figure("c", 4.0, "s")])
    assert operate.main(["faults"]) == 0
    rows = json.loads((tmp_path / "operate.json").read_text())
    assert {row["name"]: row["value"] for row in rows} == {"a": 3.0, "b": 2.0, "c": 4.0}
