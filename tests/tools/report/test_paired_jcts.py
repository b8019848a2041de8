"""Reports that hold runs against a baseline: whether the same jobs fare differently."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from pliant.schemas.event import Event
from pliant.tools.report.read_run import fold
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, ReportFormat, render
from pliant.tools.report.report import Report, make_report
from tests.builders import job
from tests.tools.report.runs import begin, submit

JOBS = "abcdefgh"


def run(policy: str, longer: float = 1.0, jobs: str = JOBS, **info: Any) -> RunRecord:
    """Jobs that take 100, 101, … seconds, times ``longer``; of eight only ``jobs`` finish."""
    return fold(
        [
            begin(policy=policy, **info),
            *(submit(job(name), 10.0) for name in JOBS),
            *(Event(longer * (100.0 + n), "finish", name, 0) for n, name in enumerate(jobs)),
        ],
        f"{policy}.parquet",
    )


def beside(*others: RunRecord) -> Report:
    return make_report([run("fifo"), *others], baseline="fifo")


def shown(report: Report, kind: ReportFormat) -> str:
    return render(report, kind, Extras())


def test_the_table_has_the_pairs_and_their_p_values() -> None:
    """Eight pairs of one sign: one of 256 sums of ranks, or two."""
    text = shown(beside(run("ares", 0.5)), "table")
    assert "Against fifo: Wilcoxon's signed-rank tests" in text
    (row,) = (line.split() for line in text.splitlines() if line.split()[:2] == ["ares", "8"])
    assert row == ["ares", "8", "0.00781", "1.00000", "0.00391"]


def test_the_document_has_them_beside_the_ratios() -> None:
    first, second = json.loads(shown(beside(run("ares", 0.5)), "json"))["runs"]
    assert first["paired"] is None, "the baseline itself"
    assert second["paired"] == {
        "pairs": 8,
        "two_sided": pytest.approx(2 / 256),
        "greater": pytest.approx(1.0),
        "less": pytest.approx(1 / 256),
    }
    assert second["ratios"]["mean_jct_s"] == 0.5


def test_so_has_csv_one_column_each() -> None:
    fifo, ares = csv.DictReader(io.StringIO(shown(beside(run("ares", 2.0)), "csv")))
    assert (fifo["paired_pairs"], ares["paired_pairs"]) == ("", "8")
    assert float(ares["paired_greater"]) == pytest.approx(1 / 256)


def test_jobs_count_that_finished_in_both() -> None:
    report = beside(run("ares", 0.5, jobs="abcde"), run("las", jobs=""))
    assert {label: found.pairs for label, found in report.paired.items()} == {"ares": 5}


def test_equal_runs_differ_in_nothing() -> None:
    (found,) = beside(run("ares")).paired.values()
    assert (found.pairs, found.two_sided, found.greater, found.less) == (8, 1.0, 1.0, 1.0)


def test_other_traces_are_not_tested_and_the_report_goes_on() -> None:
    report = beside(run("ares", trace_hash="cd" * 32))
    assert report.paired == {}
    assert "Wilcoxon" not in shown(report, "table")
    assert any("different traces" in warning for warning in report.warnings)


def test_without_a_baseline_nothing_is_tested() -> None:
    report = make_report([run("fifo"), run("ares")])
    assert report.paired == {}
    assert "Wilcoxon" not in shown(report, "md")


def test_a_tiny_p_value_keeps_its_power_of_ten() -> None:
    from pliant.tools.report.rendering.sections import p_text

    assert [p_text(p) for p in (0.99974, 5.17e-4, 7.55e-10, 0.0)] == [
        "0.99974",
        "0.00052",
        "7.5e-10",
        "0.00000",
    ]
