"""A report: one or more runs with their figures, ready to be rendered.

Beside the figures stands what a reader must know: where they come from, what they leave out, and whether
jobs fare differently than under the baseline, by Wilcoxon's signed-rank test on runs of one trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from pathlib import Path
from typing import Final

import numpy as np

from pliant.schemas.checks import constraint_of
from pliant.schemas.errors import UsageError
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.file_io.record import a_file
from pliant.schemas.io import JOBS
from pliant.schemas.kinds import kind_of_parquet
from pliant.schemas.metrics import RUN_METRICS, PairedJcts, Reference, RunMetrics, StepTime, TeamFigures
from pliant.schemas.text import counted, in_gpu_hours, shortened
from pliant.tools.report.fairness import Fairness, References
from pliant.tools.report.job_arrays import START, Jobs, optional
from pliant.tools.report.job_record import Outcome
from pliant.tools.report.metrics import (
    NOTHING_MORE,
    MetricOptions,
    know_one_gpu,
    off_caveat,
    run_metrics,
    step_times,
    team_figures,
    withheld,
)
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord, Usage, gpu_usage, kind, labels, parameters_text

_DEMANDS: Final = {
    "predicted": "predicted demand",
    "oracle": "oracle demand (knows when jobs end, as no scheduler can)",
}
_NEED_SPEEDS: Final = (
    *(name for name, metric in RUN_METRICS.items() if metric.reference is not None),
    "worst_gps_delay_s",
)
_BOUNDS: Final = [name for name, metric in RUN_METRICS.items() if metric.is_bound]
DIFFERENT_TRACES: Final = "the runs are of different traces: their figures do not compare"
DIFFERENT_CLUSTERS: Final = "the runs are on different clusters"
_UNKNOWN: Final = "work or speed is unknown"
_TITLED: Final = ("sjs_efficiency", "utilization")
"""Figures that caveats call by their titles."""
_OPEN: tuple[Outcome, ...] = ("unfinished", "failed", "cancelled", "rejected")


@dataclass(frozen=True, slots=True)
class Report:
    """Runs side by side; tables and figures show the fair sharing ``reference``."""

    runs: tuple[RunReport, ...]
    warnings: tuple[str, ...]
    reference: Reference = "fair-share"
    baseline: RunReport | None = None
    """The run that the others are divided by."""
    paired: Mapping[str, PairedJcts] = field(default_factory=dict)
    """Tests of JCTs against those of the baseline, by label."""
    base_policy: str | None = None
    """The policy that others are compared with where it has a run for each seed, trace or cluster."""


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
    """Figures that the run should have and that cannot be known, and why."""
    step_times: tuple[StepTime, ...] = ()
    """What workers measured beside what the profile predicted; of live runs with a profile only."""
    teams: tuple[TeamFigures, ...] = ()
    """Where teams share the cluster."""


@garbage_collection_paused()
def read_report(
    paths: Sequence[str | Path],
    *,
    reference: Reference = "fair-share",
    baseline: str | None = None,
    wanted: MetricOptions = NOTHING_MORE,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Report:
    """Read event files (or folders of them) and compute their figures; see :func:`make_report`.

    :param advance: called with the steps done and the steps there are, two for each file.
    """
    if sum(str(path) == "-" for path in paths) > 1:
        raise UsageError("stdin (-) holds one event file, it cannot be named twice")
    files_by_path = [event_files(path) for path in paths]
    files = [file for events, _ in files_by_path for file in events]
    runs = []
    for done, file in enumerate(files):
        advance(done, 2 * len(files))
        runs.append(read_run(file))
    made = make_report(
        runs,
        reference=reference,
        baseline=baseline,
        wanted=wanted,
        advance=lambda done, of: advance(of + done, 2 * of),
    )
    skipped = (f"{path} is {a_file(kind)}: left out" for _, others in files_by_path for path, kind in others)
    return replace(made, warnings=(*made.warnings, *skipped))


def event_files(path: str | Path) -> tuple[Sequence[str | Path], Sequence[tuple[Path, str]]]:
    """The event files that a path stands for, and Parquet files of other kinds beside them, with their kinds.

    Of a folder it is ``events.jsonl`` (a state directory) or all Parquet files of events.

    :raises UsageError: a folder has neither.
    """
    folder = Path(path)
    if str(path) == "-" or not folder.is_dir():
        return [path], []
    live = folder / "events.jsonl"
    if live.exists():
        return [live], []
    kinds = {file: kind_of_parquet(file) for file in sorted(folder.glob("*.parquet"))}
    others = [(file, kind) for file, kind in kinds.items() if kind not in (None, "event")]
    events = [file for file in kinds if kinds[file] in (None, "event")]
    if not events:
        if (folder / JOBS).is_file():
            raise UsageError(
                f"{path}: the folder has no events but a trace: pliant replay {path} -o FILE makes some"
            )
        beside = f", only {a_file(others[0][1])}: {others[0][0].name}" if others else ""
        raise UsageError(f"{path}: the folder has no events.jsonl and no .parquet file of events{beside}")
    return events, others


def make_report(
    runs: Sequence[RunRecord],
    *,
    reference: Reference = "fair-share",
    baseline: str | None = None,
    wanted: MetricOptions = NOTHING_MORE,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Report:
    """Compute the figures of folded runs.

    :param baseline: a label; or a policy, of one run or of runs that differ in seed, trace or cluster.
    :param advance: called with the runs done and the runs there are.
    :raises UsageError: no run is called ``baseline``.
    """
    references = References()
    made: tuple[RunReport, ...] = ()
    for run, label in zip(runs, labels(runs), strict=True):
        advance(len(made), len(runs))
        made = (*made, _run_report(run, label, references, wanted))
    warnings = tuple(differences(runs))
    if baseline is None:
        return Report(made, warnings, reference)
    if _is_swept(made, baseline):
        return Report(made, warnings, reference, base_policy=baseline)
    return against(Report(made, warnings, reference), find_run(made, baseline))


def against(report: Report, base: RunReport) -> Report:
    """The report with one of its runs as the baseline of the others."""
    others = [each for each in report.runs if each is not base and paired_jcts_s(each.run, base.run)]
    paired = {each.label: compare_jcts(each.run, base.run) for each in others}
    return replace(report, baseline=base, paired=paired)


def baseline_of(report: Report, each: RunReport) -> RunReport | None:
    """The run that the figures of another are divided by. Of a swept policy it has the same trace, cluster
    and seed.

    A policy without chance may have one run for all seeds of a trace. Returns None if there is none.
    """
    if report.base_policy is None:
        return report.baseline
    of_trace = [
        base
        for base in report.runs
        if base.run.info.policy == report.base_policy and _is_beside(base.run, each.run)
    ]
    same = [base for base in of_trace if base.run.info.seed == each.run.info.seed]
    candidates = same or of_trace
    return candidates[0] if len(candidates) == 1 else None


def warnings_of(report: Report) -> tuple[str, ...]:
    """The warnings, but those of different traces and clusters where each run has a baseline on its own."""
    if report.base_policy is None or any(baseline_of(report, each) is None for each in report.runs):
        return report.warnings
    return tuple(text for text in report.warnings if text not in (DIFFERENT_TRACES, DIFFERENT_CLUSTERS))


def _is_swept(runs: Sequence[RunReport], policy: str) -> bool:
    """Whether a policy has several runs, each of another seed, trace or cluster."""
    infos = [each.run.info for each in runs if each.run.info.policy == policy]
    places = {(info.trace_hash, info.seed, info.cluster.model_dump_json()) for info in infos}
    return 1 < len(infos) == len(places) and all(each.label != policy for each in runs)


def _is_beside(run: RunRecord, other: RunRecord) -> bool:
    """Whether two runs are of one trace on one cluster."""
    return run.info.trace_hash == other.info.trace_hash and run.info.cluster == other.info.cluster


def _run_report(run: RunRecord, label: str, references: References, wanted: MetricOptions) -> RunReport:
    fair, usage = references.fairness(run), gpu_usage(run)
    metrics, impossible = withheld(run_metrics(run, fair, usage, wanted))
    unknown = {**unknown_figures(run, metrics, wanted), **impossible}
    steps = step_times(run)
    off = off_caveat(steps)
    notes = [
        *caveats(run, fair["fair-share"], usage),
        *([off] if off else []),
        *unknown_caveats(unknown),
        *(bound_caveats(run) if metrics.bound_jct_s is not None else ()),
    ]
    return RunReport(
        *(label, run, fair, usage, metrics, provenance(run), notes, unknown, steps), teams=team_figures(run)
    )


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


def provenance(run: RunRecord) -> str:
    info = run.info
    parts = [
        kind(run),
        f"{run.total_gpus} {'GPUs' if info.cluster.slots == 'gpu' else 'CPU slots'}",
        " ".join(["trace", *([info.trace] if info.trace else []), info.trace_hash[:12]]),
        f"seed {info.seed}",
        *parameters_text(run),
        f"pliant {info.pliant_version}",
    ]
    if info.oracle and info.demand != "oracle":
        parts.insert(1, "oracle (knows what no scheduler can know)")
    if info.demand != "stated":
        parts.insert(1, _DEMANDS[info.demand])
    return " · ".join(parts)


def caveats(run: RunRecord, fair: Fairness, usage: Usage) -> list[str]:
    """Sentences about one run that its figures do not say."""
    texts = [assumption.text for assumption in run.info.assumptions]
    open_jobs = [(name, run.jobs.ended(name)) for name in _OPEN]
    left_out = ", ".join(f"{count} {name}" for name, count in open_jobs if count)
    if left_out:
        texts.append(f"{left_out} of {counted(len(run.jobs), 'job')}: in no JCT and no FTF")
    unknown = run.jobs.ended("finished") - fair.jobs
    if unknown:
        verb = "has" if unknown == 1 else "have"
        texts.append(f"{counted(unknown, 'finished job')} {verb} no FTF: work or speed is unknown")
    types = {node.gpu_type for node in run.info.cluster.nodes if node.gpus}
    if run.jobs.any_form(lambda job: constraint_of(job, types) is not None):
        texts.append("FTF: fair shares are of all GPUs, also of jobs that may run on some of them only")
    if (usage.held > usage.available).any():
        texts.append("at times jobs hold more GPUs than there are: the log contradicts itself")
    unsaved = run.jobs.counts(lambda job: not job.can_save) > 0
    if run.info.simulated and run.info.preemptible == "stated" and unsaved.any():
        kept = counted(int(np.count_nonzero(unsaved)), "job")
        texts.append(f"{kept} that state no checkpoint kept their GPUs until they ended")
    if (lost_s := run.unsaved_gpu_s) > 0:
        texts.append(
            f"preemptions of jobs that do not say that they can save have lost {in_gpu_hours(lost_s)}"
        )
    texts += _free_changes(run)
    texts += _measured(run)
    texts += _forecasts(run)
    if len(run.policies) > 1:
        texts.append(f"the policy changed during the run: {', '.join(run.policies)}")
    return texts


def _free_changes(run: RunRecord) -> list[str]:
    """A simulation in which changes took no time flatters a policy that makes many."""
    jobs, steps = run.jobs, run.jobs.steps
    started = ~np.isnan(jobs.first_start_s)
    counts = {
        "preemptions": int(jobs.preemptions[started].sum()),
        "rescales": int(jobs.rescales_until(inf)[started].sum()),
        "moves": int(jobs.moves[started].sum()),
    }
    if not run.info.simulated or not started.any() or sum(counts.values()) < np.count_nonzero(started):
        return []
    if steps.stalled_s[steps.event != START].any():
        return []
    most = max(counts, key=lambda name: counts[name])
    count = counts[most] / int(np.count_nonzero(started))
    return [
        f"its {count:.3g} {most} a job cost no time in this replay: state --rescale-cost and --start-cost"
    ]


def _measured(run: RunRecord) -> list[str]:
    if not run.is_measured or not any(run.jobs.curves[number] for number in set(run.jobs.curve.tolist())):
        return []
    texts = ["no profile: FTF rests on the speeds that this run measured, in proportion below the least size"]
    finished = run.jobs.have_outcome("finished")
    known, total = (int(np.count_nonzero(each)) for each in (finished & know_one_gpu(run.jobs), finished))
    if 0 < known < total:
        texts.append(f"SJS efficiency: of {known} of {counted(total, 'job')}, those measured on one GPU")
    return texts


def _forecasts(run: RunRecord) -> list[str]:
    pairs = [run.jobs[row].forecasts_held for row, extras in run.jobs.extras.items() if extras.forecasts]
    held, made = sum(held for held, _ in pairs), sum(made for _, made in pairs)
    if made:
        return [
            f"{held / made:.0%} of {counted(made, 'predicted 90 % interval')} of progress held what followed"
        ]
    if run.info.demand == "predicted":
        return ["the work of jobs was predicted where they state none"]
    if run.info.demand == "oracle":
        return ["the policy saw when each job would end, whatever the job states"]
    return []


def unknown_figures(run: RunRecord, metrics: RunMetrics, wanted: MetricOptions) -> dict[str, str]:
    """Figures that a run with finished jobs should have and does not, and why."""
    if not metrics.jobs_finished:
        return {}
    reasons = dict.fromkeys(_NEED_SPEEDS, _UNKNOWN)
    reasons["sjs_efficiency"] = "no finished job was measured on one GPU" if run.is_measured else _UNKNOWN
    if wanted.bound:
        reasons |= dict.fromkeys(_BOUNDS, "without a profile the speed at other sizes is unknown")
    return {name: why for name, why in reasons.items() if getattr(metrics, name) is None}


def unknown_caveats(unknown: Mapping[str, str]) -> list[str]:
    """One sentence for each reason, but for work and speed: the jobs that lack these are counted."""
    words: dict[str, dict[str, None]] = {}
    for name, why in unknown.items():
        if why != _UNKNOWN:
            title = RUN_METRICS[name].title if name in _TITLED else name
            words.setdefault(why, {})["lower bounds" if name in _BOUNDS else title] = None
    return [f"{', '.join(names)} not known: {why}" for why, names in words.items()]


def bound_caveats(run: RunRecord) -> list[str]:
    texts = []
    if run.info.progress != "samples" or run.jobs.any_form(lambda job: job.elastic == "size+batch"):
        texts.append(
            "lower bounds: of work in samples at the requested batches; a policy that moves batches, or work "
            "in epochs that take fewer samples, may pass them"
        )
    if len({node.gpu_type for node in run.info.cluster.nodes}) > 1:
        texts.append("lower bounds: at the mean speed of the GPU types; jobs on the fastest may pass them")
    return texts


def differences(runs: Sequence[RunRecord]) -> list[str]:
    """Warnings about runs that do not compare."""
    texts = []
    if len({run.info.trace_hash for run in runs}) > 1:
        texts.append(DIFFERENT_TRACES)
    if any(run.info.cluster != runs[0].info.cluster for run in runs):
        texts.append(DIFFERENT_CLUSTERS)
    if len({run.info.simulated for run in runs}) > 1:
        texts.append("some runs are simulated and some are measured")
    if len({run.info.oracle for run in runs}) > 1:
        texts.append("some policies knew what no scheduler can know (oracle), the others were not")
    elif any(run.info.oracle and run.info.demand != "oracle" for run in runs):
        texts.append("what no scheduler can know was known here (oracle)")
    if len({run.info.demand for run in runs}) > 1:
        seen = " and ".join(sorted({f"{run.info.demand} demand" for run in runs}))
        texts.append(f"the policies did not see the same of the work of jobs: {seen}")
    return texts


def compare_jcts(first: RunRecord, second: RunRecord, dropped: float = 0.0) -> PairedJcts:
    """Test the JCTs of the jobs that finished in both runs.

    :param dropped: as :func:`steady`.
    :raises UsageError: the runs are not of the same jobs, or no job finished in both.
    """
    if not first.serves_jobs_of(second):
        others = "traces" if first.info.trace_hash != second.info.trace_hash else "jobs"
        raise UsageError(f"{first.source} and {second.source} are runs of different {others}")
    pairs = paired_jcts_s(first, second, dropped)
    return wilcoxon([left for left, _ in pairs], [right for _, right in pairs])


def paired_jcts_s(first: RunRecord, second: RunRecord, dropped: float = 0.0) -> list[tuple[float, float]]:
    """Both JCTs of each job that finished in two runs; empty for runs of different jobs."""
    if not first.serves_jobs_of(second):
        return []
    mine, theirs = first.jobs, second.jobs
    if not dropped and mine.has_ids_of(theirs):
        both = ~np.isnan(mine.jct_s) & ~np.isnan(theirs.jct_s)
        return [*zip(mine.jct_s[both].tolist(), theirs.jct_s[both].tolist(), strict=True)]
    left = steady(first, dropped)
    of_second = dict(zip(theirs.ids(), optional(theirs.jct_s), strict=True))
    return [
        (own_s, other_s)
        for job_id, own_s in zip(left.ids(), optional(left.jct_s), strict=True)
        if own_s is not None and (other_s := of_second.get(job_id)) is not None
    ]


def steady(run: RunRecord, dropped: float = 0.0) -> Jobs:
    """The jobs without the first to be submitted, which found the cluster empty.

    :param dropped: part of the jobs to leave out, 0 to below 1, rounded up.
    """
    return run.jobs[ceil(dropped * len(run.jobs)) :]


def wilcoxon(first: Sequence[float], second: Sequence[float]) -> PairedJcts:
    """Test the n-th value of ``first`` against the n-th of ``second``.

    ONES (SC '21, table 4) prints ``greater``: close to 1, the first are smaller. If no pair differs, all
    p values are 1.

    :raises UsageError: there are no pairs, or a value has no partner.
    """
    if len(first) != len(second) or not first:
        raise UsageError(f"a paired test needs values in pairs, got {len(first)} and {len(second)}")
    if all(left == right for left, right in zip(first, second, strict=True)):
        return PairedJcts(pairs=len(first), two_sided=1.0, greater=1.0, less=1.0)
    from scipy.stats import wilcoxon as signed_rank

    two_sided, greater, less = (
        float(signed_rank(first, second, alternative=alternative).pvalue)
        for alternative in ("two-sided", "greater", "less")
    )
    return PairedJcts(pairs=len(first), two_sided=two_sided, greater=greater, less=less)
