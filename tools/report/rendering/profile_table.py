"""The profile that was given to a report: what was measured, and what the model says without that row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pliant.schemas.metrics import Unpredicted
from pliant.schemas.text import counted
from pliant.tools.report.rendering.sections import NOTHING, Section, number, percent
from pliant.tools.report.report import Report

_BUSY: Final = 0.1
"""Above this part of its time, a row was measured on a busy machine."""
_UNPREDICTED: Final[dict[Unpredicted, str]] = {
    "batch": "not the job's own batch",
    "spread": "on more nodes than needed",
    "shared": "shares its GPUs with another job",
    "speed": "no speed is known",
}
_MEAN_TYPE: Final = "predicted: at the mean speed of the GPU types"
_MOST: Final = 2000
"""Rows of a page."""


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One row of a profile."""

    model: str
    gpu_type: str
    placement: str
    local_batch: int
    accum_steps: int
    measured_s: float | None
    """Seconds of a step; None: it did not fit in memory."""
    stdev_s: float | None
    busy_share: float | None
    predicted_s: float | None
    """Predicted from the other rows; None where they do not say."""

    @property
    def residual(self) -> float | None:
        """Predicted over measured, minus 1."""
        if self.predicted_s is None or not self.measured_s:
            return None
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class GivenProfile:
    """A profile beside the runs of a report."""

    source: str
    sha256: str
    steps: tuple[ProfiledStep, ...]


def summary_section(profile: GivenProfile, used: Sequence[str | None]) -> Section:
    """A row for each model and GPU type.

    :param used: the hashes of the profiles that the runs state.
    """
    groups: dict[tuple[str, str], list[ProfiledStep]] = {}
    for step in profile.steps:
        groups.setdefault((step.model, step.gpu_type), []).append(step)
    rows = []
    for (model, gpu_type), steps in sorted(groups.items()):
        errors = [abs(step.residual) for step in steps if step.residual is not None]
        rows.append(
            (
                model,
                gpu_type,
                number(len(steps), 0),
                number(len(errors), 0),
                percent(median(errors) if errors else None),
                percent(max(errors, default=None)),
                number(sum(_is_busy(step) for step in steps), 0),
            )
        )
    headers = ("model", "GPU type", "rows", "rows held out", "error, median %", "worst %", "busy rows")
    found = ["error: of the model on a measured row of several GPUs that it was not shown"]
    if any(profile.sha256 != each for each in used):
        count = sum(profile.sha256 != each for each in used)
        found.append(f"{profile.source} is not the profile of {counted(count, 'run')} of {len(used)}")
    return Section(f"Profile: {profile.source}", headers, tuple(rows), 2, tuple(found))


def steps_section(profile: GivenProfile) -> Section:
    """A row for each measurement, the largest residuals first."""
    order = sorted(
        profile.steps,
        key=lambda step: (
            -abs(step.residual or 0.0),
            *(step.model, step.gpu_type, step.placement, step.local_batch, step.accum_steps),
        ),
    )
    rows = tuple(_step_row(step) for step in order[:_MOST])
    headers = (
        *("model", "GPU type", "GPUs per node", "local batch", "micro-steps", "measured, s", "± s"),
        *("predicted without it, s", "residual, %", "busy, %"),
    )
    more = len(order) - len(rows)
    found = (f"{more:,} rows with smaller residuals are not shown",) if more else ()
    return Section("Measured and predicted steps", headers, rows, 3, found)


def step_time_sections(report: Report) -> list[Section]:
    """Of each live run whose workers reported times of steps, a row for each configuration."""
    headers = ("model", "GPUs", "batch", "local", "reports", "predicted, s", "measured, s", "error, %")
    found = []
    for each in report.runs:
        rows = tuple(
            (
                row.model,
                row.placement,
                number(row.global_batch, 0),
                number(row.local_batch, 0) + (f" × {row.accum_steps}" if row.accum_steps > 1 else ""),
                number(row.reports, 0),
                _seconds(row.predicted_s),
                _seconds(row.measured_s),
                f"{NOTHING} {row.unpredicted}" if row.error is None else f"{100 * row.error:+.1f}",
            )
            for row in each.step_times
        )
        whys = dict.fromkeys(row.unpredicted for row in each.step_times if row.unpredicted)
        reasons = ", ".join(f"{why}: {_UNPREDICTED[why]}" for why in whys)
        notes = [
            "GPUs of each node, most first; local: batch of a GPU, × micro-steps where there are several",
            "measured: median of what workers reported; error: predicted / measured - 1",
            *([f"{NOTHING}: the log predicts nothing here; {reasons}"] if reasons else []),
            *([_MEAN_TYPE] if len({node.gpu_type for node in each.run.info.cluster.nodes}) > 1 else []),
        ]
        if rows:
            title = f"Steps of {each.label}: predicted and measured"
            found.append(Section(title, headers, rows, 2, tuple(notes)))
    return found


def _step_row(step: ProfiledStep) -> tuple[str, ...]:
    residual = step.residual
    return (
        step.model,
        step.gpu_type,
        step.placement,
        number(step.local_batch, 0),
        number(step.accum_steps, 0),
        _seconds(step.measured_s),
        _seconds(step.stdev_s),
        _seconds(step.predicted_s),
        NOTHING if residual is None else f"{100 * residual:+.1f}",
        percent(step.busy_share),
    )


def _seconds(value_s: float | None) -> str:
    return NOTHING if value_s is None else f"{value_s:.4g}"


def _is_busy(step: ProfiledStep) -> bool:
    return step.busy_share is not None and step.busy_share > _BUSY
