"""What a reader must know beside the figures: where they come from, and what they leave out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pliant.schemas.metrics import RunMetrics
from pliant.schemas.text.wording import counted
from pliant.tools.report.fairness import Fairness
from pliant.tools.report.labels import kind, parameters_text
from pliant.tools.report.metrics import Wanted, knows_one_gpu
from pliant.tools.report.records import Outcome, RunRecord
from pliant.tools.report.usage import Usage

_DEMANDS: Final = {
    "predicted": "predicted demand",
    "oracle": "oracle demand (knows when jobs end, as no scheduler can)",
}
_OF_REFERENCES: Final = (
    *(
        f"{name}{suffix}"
        for suffix in ("", "_gps", "_isolated")
        for name in ("mean_ftf", "worst_ftf", "unfair_fraction")
    ),
    "worst_gps_delay_s",
)
_UNKNOWN: Final = "work or speed is unknown"
_OF_BOUNDS: Final = (
    "bound_jct_s",
    "bound_jct_alone_s",
    "bound_jct_pooled_s",
    "bound_makespan_s",
    "cheapest_gpu_s",
)
_WORDS: Final = {"sjs_efficiency": "SJS efficiency", "utilization": "GPUs held"}
"""What notes call a figure, where that is not its name."""
_OPEN: tuple[Outcome, ...] = ("unfinished", "failed", "cancelled", "rejected")


def provenance(run: RunRecord) -> str:
    """One line: simulated or measured, the trace, the seed, the versions."""
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
    found = [assumption.text for assumption in run.info.assumptions]
    open_jobs = [(name, len(run.with_outcome(name))) for name in _OPEN]
    left_out = ", ".join(f"{count} {name}" for name, count in open_jobs if count)
    if left_out:
        found.append(f"{left_out} of {counted(len(run.jobs), 'job')}: in no JCT and no FTF")
    unknown = len(run.with_outcome("finished")) - len(fair.ftf)
    if unknown:
        verb = "has" if unknown == 1 else "have"
        found.append(f"{counted(unknown, 'finished job')} {verb} no FTF: work or speed is unknown")
    if any(held > up for held, up in zip(usage.held, usage.available, strict=True)):
        found.append("at times jobs hold more GPUs than there are: the log contradicts itself")
    found += _measured(run)
    found += _forecasts(run)
    if len(run.policies) > 1:
        found.append(f"the policy changed during the run: {', '.join(run.policies)}")
    return found


def _measured(run: RunRecord) -> list[str]:
    """What references rest on where the run measured speeds itself."""
    if not run.is_measured or not any(job.curve for job in run.jobs):
        return []
    found = ["no profile: FTF rests on the speeds that this run measured, in proportion below the least size"]
    finished = run.with_outcome("finished")
    known = sum(map(knows_one_gpu, finished))
    if 0 < known < len(finished):
        found.append(
            f"SJS efficiency: of {known} of {counted(len(finished), 'job')}, those measured on one GPU"
        )
    return found


def unknown_figures(run: RunRecord, metrics: RunMetrics, wanted: Wanted) -> dict[str, str]:
    """Figures that a run with finished jobs should have and does not, and why."""
    if not metrics.jobs_finished:
        return {}
    found = dict.fromkeys(_OF_REFERENCES, _UNKNOWN)
    found["sjs_efficiency"] = "no finished job was measured on one GPU" if run.is_measured else _UNKNOWN
    if wanted.bound:
        found |= dict.fromkeys(_OF_BOUNDS, "without a profile the speed at other sizes is unknown")
    return {name: why for name, why in found.items() if getattr(metrics, name) is None}


def unknown_caveats(unknown: Mapping[str, str]) -> list[str]:
    """One sentence for each reason, but for work and speed: the jobs that lack these are counted."""
    words: dict[str, dict[str, None]] = {}
    for name, why in unknown.items():
        if why != _UNKNOWN:
            words.setdefault(why, {})["lower bounds" if name in _OF_BOUNDS else _WORDS.get(name, name)] = None
    return [f"{', '.join(names)} not known: {why}" for why, names in words.items()]


def _forecasts(run: RunRecord) -> list[str]:
    """How good predictions of work turned out to be."""
    pairs = [job.forecasts_held for job in run.jobs]
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


def bound_caveats(run: RunRecord) -> list[str]:
    """What the lower bounds of a run take for granted."""
    found = []
    if run.info.progress != "samples" or any(job.job.elastic == "size+batch" for job in run.jobs):
        found.append(
            "lower bounds: of work in samples at the requested batches; a policy that moves batches, or work "
            "in epochs that take fewer samples, may pass them"
        )
    if len({node.gpu_type for node in run.info.cluster.nodes}) > 1:
        found.append("lower bounds: at the mean speed of the GPU types; jobs on the fastest may pass them")
    return found


def differences(runs: Sequence[RunRecord]) -> list[str]:
    """Warnings about runs that should not be compared without a thought."""
    found = []
    if len({run.info.trace_hash for run in runs}) > 1:
        found.append("the runs are of different traces: their figures do not compare")
    if any(run.info.cluster != runs[0].info.cluster for run in runs):
        found.append("the runs are on different clusters")
    if len({run.info.simulated for run in runs}) > 1:
        found.append("some runs are simulated and some are measured")
    if len({run.info.oracle for run in runs}) > 1:
        found.append("some policies knew what no scheduler can know (oracle), the others were not")
    if len({run.info.demand for run in runs}) > 1:
        seen = " and ".join(sorted({f"{run.info.demand} demand" for run in runs}))
        found.append(f"the policies did not see the same of the work of jobs: {seen}")
    return found
