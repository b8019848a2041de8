"""A report as the metrics document: what it was asked for, in one JSON file."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pliant.schemas.metrics import CheckedFigure, JobFigures, Metrics, PairedJcts, ReportedRun
from pliant.tools.report.comparisons import ComparedJob
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.jobs_table import job_rows
from pliant.tools.report.rendering.sections import FIGURES, ratio_to
from pliant.tools.report.report import Report, RunReport
from pliant.tools.report.significance import Significance


@dataclass(frozen=True, slots=True)
class Extras:
    """What is shown beside the metrics."""

    jobs: bool = False
    compared: tuple[ComparedJob, ...] = ()
    simulated: RunRecord | None = None
    """The simulated run of ``compared``."""
    checked: tuple[CheckedFigure, ...] = ()


NO_EXTRAS = Extras()


def document(report: Report, extras: Extras = NO_EXTRAS) -> Metrics:
    """The figures of all runs, with the ratios, jobs and expected figures that were asked for."""
    return Metrics(
        runs=tuple(_run(each, report, with_jobs=extras.jobs) for each in report.runs),
        baseline=None if report.baseline is None else report.baseline.label,
        warnings=report.warnings,
        expectations=extras.checked or None,
    )


def _run(each: RunReport, report: Report, *, with_jobs: bool) -> ReportedRun:
    return ReportedRun(
        **dict(each.metrics),
        run=each.label,
        trace=each.run.info.trace,
        caveats=tuple(each.caveats),
        ratios=_ratios(each, report.baseline),
        paired=_paired(report.paired.get(each.label)),
        jobs=_jobs(each) if with_jobs else None,
    )


def _ratios(each: RunReport, baseline: RunReport | None) -> dict[str, float] | None:
    if baseline is None:
        return None
    found = {row.name: ratio_to(each.metrics, baseline.metrics, row.name) for row in FIGURES}
    return {name: ratio for name, ratio in found.items() if ratio is not None}


def _paired(found: Significance | None) -> PairedJcts | None:
    return None if found is None else PairedJcts(**asdict(found))


def _jobs(each: RunReport) -> tuple[JobFigures, ...]:
    rows = ({name: value for name, value in row.items() if name != "run"} for row in job_rows(each))
    return tuple(JobFigures.model_validate(row, strict=False) for row in rows)
