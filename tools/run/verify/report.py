"""What a verification has shown, as a table with likely causes, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from pliant.schemas.errors import JobsFailedError
from pliant.schemas.text import Column, counted, text_table, wrapped
from pliant.tools.run.verify.comparison import ASPECTS, RATES, SAMPLES, WEIGHTS, Comparison
from pliant.tools.run.verify.verify import SCENARIOS, Verified

SCHEMA: Final = "pliant.verify/1"
_LIBRARY: Final = "docs/elastic-library.md#"
_DIFFER: Final = "when-workers-differ"
_BY_DESIGN: Final = "docs/elastic-training.md#check-your-script"
_STEADY: Final = frozenset(scenario.name for scenario in SCENARIOS if not scenario.at)
"""Runs whose workers do not change."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause of what was not kept, and the section that says what to do."""

    text: str
    link: str


def causes(found: Verified) -> list[Cause]:
    """Likely causes, the surest first; none if all is kept."""
    if not found.runs[0].kept:
        text = (
            "elastic.init(seed=0) at the top seeds what is random later, and sorted() orders what a set gives"
        )
        return [Cause(f"two plain processes differ: {text}", f"{_LIBRARY}what-the-lines-do")]
    broken = [run for run in found.runs if not run.kept]
    said = [warning for run in broken for warning in run.warnings]
    said += [f"{run.name}: {run.error}" for run in broken if run.error]
    likely = {text: _DIFFER if "When workers differ" in text else "common-mistakes" for text in said}
    likely |= dict(_guesses([run for run in broken if not run.error]))
    return [Cause(text, f"{_LIBRARY}{anchor}") for text, anchor in likely.items()]


def _guesses(runs: Sequence[Comparison]) -> list[tuple[str, str]]:
    """What the differences look like, with the section about it."""
    steady = [run for run in runs if run.name in _STEADY]
    draws = any(run.draws and run.lost(WEIGHTS) for run in runs)
    is_sum = not draws and not all(run.first_loss for run in steady)
    tensors = [run.tensor for run in steady if run.lost(WEIGHTS) and not draws and not is_sum]
    shown = {
        "samples": any(run.lost(SAMPLES) for run in runs),
        "draws": draws,
        "loss": is_sum,
        "gradients": bool(tensors),
        "rates": any(run.lost(RATES) for run in steady),
        "apart": not all(run.alike for run in runs),
        "state": bool(runs) and not steady,
    }
    guesses = [_LOOKS[name] for name, holds in shown.items() if holds]
    return [(text.format(*tensors[:1]), anchor) for text, anchor in guesses]


_LOOKS: Final = {
    "samples": (
        (
            "samples are left out, trained again, or others under the same number: a loop that ends by a "
            "count of its own, or a data set that each process makes differently"
        ),
        "loops-over-the-loader",
    ),
    "draws": (
        "the loop draws random numbers, which differ by worker and micro-step: take them from job.draw",
        "loops-without-epochs",
    ),
    "loss": (
        (
            "the loss of the first step differs already, from equal weights: it is no mean over the samples "
            "of its batch, or what is logged is another number"
        ),
        "what-the-plan-changes",
    ),
    "gradients": (
        (
            "weights differ without a change, most in {0}: gradients that are changed before the "
            "batch is whole, a loss that is no mean over samples, or a decision by one worker's loss"
        ),
        "what-the-plan-changes",
    ),
    "rates": ("a learning rate that is set by micro-steps, or by worker", "accumulation-and-no_sync"),
    "apart": (
        "workers have different weights: a draw, a decision or a buffer of one worker alone does it",
        "common-mistakes",
    ),
    "state": (
        (
            "only runs with changes differ: something outlives a step and is not registered, is set at the "
            "top of an epoch, or is a plain variable, which a new worker finds as it was at first"
        ),
        "what-must-be-registered",
    ),
}
"""Likely causes by the look of differences, with the section of the library's page."""


def page(found: Verified, width: int | None) -> str:
    """The table, and what it comes from."""
    script, columns = found.script, [Column("run", least=12), *(Column(name) for name in ASPECTS)]
    how = "float64" if found.double else "float32, as the script does not run in float64"
    size = f"{counted(found.steps, 'step')} of {counted(script.batch, 'sample')}"
    failed = ["failed", *["-"] * (len(ASPECTS) - 1)]
    rows = [
        [run.name, *([run.aspects[name].text for name in ASPECTS] if run.aspects else failed)]
        for run in found.runs
    ]
    lines = [f"{size}, in {how}; weights and losses are kept within {found.tolerance:.0e}", ""]
    lines += text_table(columns, rows, width).splitlines()
    counts = (("dropout", script.dropouts), ("batch normalization", script.norms))
    if parts := [f"{what} ({counted(count, 'layer')})" for what, count in counts if count]:
        text = f"Switched off, as they differ by design: {' and '.join(parts)}; see {_BY_DESIGN}"
        lines += ["", *wrapped(text, width or 100)]
    if likely := causes(found):
        lines += ["", "Likely causes:"]
    for cause in likely:
        lines += wrapped(f"- {cause.text} ({cause.link})", width or 100, indent="  ")
    return "\n".join(lines) + "\n"


def text_of(found: Sequence[Verified]) -> str:
    """The same for programs."""
    jobs: list[dict[str, Any]] = [
        {
            "job": each.job.id,
            "kept": each.kept,
            "precision": "float64" if each.double else "float32",
            "tolerance": each.tolerance,
            "steps": each.steps,
            "script": asdict(each.script),
            "runs": [{"kept": run.kept, **asdict(run)} for run in each.runs],
            "causes": [asdict(cause) for cause in causes(each)],
        }
        for each in found
    ]
    whole = {"schema": SCHEMA, "kept": all(each.kept for each in found), "jobs": jobs}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def check_kept(found: Sequence[Verified]) -> None:
    """:raises JobsFailedError: something was not kept."""
    if lost := [each.job.id for each in found if not each.kept]:
        raise JobsFailedError(f"not all is kept: {', '.join(lost)}")
