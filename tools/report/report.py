"""A report: one or more runs with their figures, ready to be rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.bulk import garbage_collection_paused
from pliant.schemas.file_io.version import a_file
from pliant.schemas.kinds import kind_of_parquet
from pliant.schemas.metrics import RunMetrics
from pliant.schemas.text.wording import shortened
from pliant.tools.report.fairness import Fairness, Reference, References
from pliant.tools.report.labels import labels
from pliant.tools.report.metrics import NOTHING_MORE, Wanted, run_metrics
from pliant.tools.report.notes import (
    bound_caveats,
    caveats,
    differences,
    provenance,
    unknown_caveats,
    unknown_figures,
)
from pliant.tools.report.possible import withheld
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord
from pliant.tools.report.significance import Significance, compare_jcts, paired_jcts_s
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
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Figures that the run should have and that cannot be known, and why; the caveats say it, too."""


@dataclass(frozen=True, slots=True)
class Report:
    """Runs side by side. ``reference`` is the fair sharing that tables and figures show."""

    runs: tuple[RunReport, ...]
    warnings: tuple[str, ...]
    reference: Reference = "fair-share"
    baseline: RunReport | None = None
    """The run that the others are divided by."""
    paired: Mapping[str, Significance] = field(default_factory=dict)
    """The test of each run's JCTs against those of the baseline, by label, where there are pairs."""


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
    found = [event_files(path) for path in paths]
    made = make_report(
        [read_run(file) for files in found for file in files.events],
        reference=reference,
        baseline=baseline,
        wanted=wanted,
    )
    skipped = (f"{path} is {a_file(kind)}: left out" for files in found for path, kind in files.others)
    return replace(made, warnings=(*made.warnings, *skipped))


class Files(NamedTuple):
    """What a path of a report stands for."""

    events: Sequence[str | Path]
    others: Sequence[tuple[Path, str]] = ()
    """Parquet files of other kinds in the same folder, with their kinds."""


def event_files(path: str | Path) -> Files:
    """The file itself; of a folder its ``events.jsonl`` (a state directory) or all Parquet files of events.

    :raises UsageError: a folder has neither.
    """
    folder = Path(path)
    if str(path) == "-" or not folder.is_dir():
        return Files([path])
    live = folder / "events.jsonl"
    if live.exists():
        return Files([live])
    kinds = {found: kind_of_parquet(found) for found in sorted(folder.glob("*.parquet"))}
    others = [(found, kind) for found, kind in kinds.items() if kind not in (None, "event")]
    events = [found for found in kinds if kinds[found] in (None, "event")]
    if not events:
        beside = f", only {a_file(others[0][1])}: {others[0][0].name}" if others else ""
        raise UsageError(f"{path}: the folder has no events.jsonl and no .parquet file of events{beside}")
    return Files(events, others)


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
    return Report(
        made, tuple(differences(runs)), reference, base, {} if base is None else _paired(made, base)
    )


def _paired(runs: Sequence[RunReport], base: RunReport) -> dict[str, Significance]:
    others = [each for each in runs if each is not base and paired_jcts_s(each.run, base.run)]
    return {each.label: compare_jcts(each.run, base.run) for each in others}


def find_run(runs: Sequence[RunReport], name: str) -> RunReport:
    """The run with this label, else the only run of this policy.

    :raises UsageError: there is none, or several.
    """
    matches = [each for each in runs if each.label == name] or [
        each for each in runs if each.run.info.policy == name
    ]
    if len(matches) != 1:
        known = ", ".join(f'"{each.label}"' for each in runs)
        problem = "is the policy of several runs" if matches else "is not a run"
        raise UsageError(f'"{shortened(name)}" {problem}; the runs are {known}')
    return matches[0]


def _run_report(run: RunRecord, label: str, references: References, wanted: Wanted) -> RunReport:
    fair, usage = references.fairness(run), gpu_usage(run)
    metrics, impossible = withheld(run_metrics(run, fair, usage, wanted))
    unknown = {**unknown_figures(run, metrics, wanted), **impossible}
    notes = [
        *caveats(run, fair["fair-share"], usage),
        *unknown_caveats(unknown),
        *(bound_caveats(run) if metrics.bound_jct_s is not None else ()),
    ]
    return RunReport(label, run, fair, usage, metrics, provenance(run), notes, unknown)
