"""A report: one or more runs with their figures, ready to be rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pliant.schemas.bulk import garbage_collection_paused
from pliant.schemas.errors import UsageError
from pliant.schemas.metrics import Metrics, RunMetrics
from pliant.schemas.wording import shortened
from pliant.tools.report.fairness import Fairness, Reference, References
from pliant.tools.report.fold import read_run
from pliant.tools.report.labels import labels
from pliant.tools.report.metrics import NOTHING_MORE, Wanted, run_metrics
from pliant.tools.report.notes import bound_caveats, caveats, differences, provenance
from pliant.tools.report.records import RunRecord
from pliant.tools.report.usage import Usage, gpu_usage


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run and everything computed from it."""

    label: str
    run: RunRecord
    fair: Mapping[Reference, Fairness]
    usage: Usage
    metrics: RunMetrics
    provenance: str
    caveats: Sequence[str]


@dataclass(frozen=True, slots=True)
class Report:
    """Runs side by side. ``reference`` is the fair sharing that tables and figures show."""

    runs: tuple[RunReport, ...]
    warnings: tuple[str, ...]
    reference: Reference = "fair-share"
    baseline: RunReport | None = None
    """The run that the others are divided by."""

    @property
    def metrics(self) -> Metrics:
        """The figures of all runs as a document."""
        return Metrics(runs=tuple(each.metrics for each in self.runs))


@garbage_collection_paused()
def read_report(
    paths: Sequence[str | Path],
    *,
    reference: Reference = "fair-share",
    baseline: str | None = None,
    wanted: Wanted = NOTHING_MORE,
) -> Report:
    """Read event files (or folders of them) and compute their figures; see :func:`make_report`."""
    if sum(str(path) == "-" for path in paths) > 1:
        raise UsageError("stdin (-) holds one event file, it cannot be named twice")
    files = [file for path in paths for file in event_files(path)]
    return make_report(
        [read_run(file) for file in files], reference=reference, baseline=baseline, wanted=wanted
    )


def event_files(path: str | Path) -> list[str | Path]:
    """The file itself; of a folder its ``events.jsonl`` (a state directory) or all its Parquet files.

    :raises UsageError: a folder has neither.
    """
    folder = Path(path)
    if str(path) == "-" or not folder.is_dir():
        return [path]
    live = folder / "events.jsonl"
    found: list[str | Path] = [live] if live.exists() else [*sorted(folder.glob("*.parquet"))]
    if not found:
        raise UsageError(f"{path}: the folder has no events.jsonl and no .parquet file")
    return found


def make_report(
    runs: Sequence[RunRecord],
    *,
    reference: Reference = "fair-share",
    baseline: str | None = None,
    wanted: Wanted = NOTHING_MORE,
) -> Report:
    """Compute the figures of folded runs.

    :raises UsageError: no run is called ``baseline``.
    """
    references = References()
    named = zip(runs, labels(runs), strict=True)
    made = tuple(_run_report(run, label, references, wanted) for run, label in named)
    base = None if baseline is None else find_run(made, baseline)
    return Report(made, tuple(differences(runs)), reference, base)


def find_run(runs: Sequence[RunReport], name: str) -> RunReport:
    """The run with this label, else the only run of this policy.

    :raises UsageError: there is none, or several.
    """
    matches = [each for each in runs if each.label == name] or [
        each for each in runs if each.run.info.policy == name
    ]
    if len(matches) != 1:
        known = ", ".join(f'"{each.label}"' for each in runs)
        problem = "is the policy of several runs" if matches else "is no run"
        raise UsageError(f'"{shortened(name)}" {problem}; the runs are {known}')
    return matches[0]


def _run_report(run: RunRecord, label: str, references: References, wanted: Wanted) -> RunReport:
    fair, usage = references.fairness(run), gpu_usage(run)
    metrics = run_metrics(run, fair, usage, wanted)
    notes = [*caveats(run, fair["fair-share"], usage), *(bound_caveats(run) if wanted.bound else ())]
    return RunReport(label, run, fair, usage, metrics, provenance(run), notes)
