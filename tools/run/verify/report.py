"""What a verification has shown, as a table with likely causes, or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pliant.schemas.errors import JobsFailedError
from pliant.schemas.text import Column, counted, text_table, wrapped
from pliant.tools.run.verify.comparison import Aspect, Comparison
from pliant.tools.run.verify.verify import SCENARIOS, Verified

SCHEMA: Final = "pliant.verify/1"
ASPECTS: Final = ("samples", "order", "weights", "learning rates", "loss")
_LIBRARY: Final = "docs/elastic-library.md"
_BY_DESIGN: Final = "docs/elastic-training.md#check-your-script"
_WITHOUT_CHANGES: Final = frozenset(scenario.name for scenario in SCENARIOS if not scenario.at)


@dataclass(frozen=True, slots=True)
class Cause:
    """A likely cause of what was not kept, and the section that says what to do."""

    text: str
    link: str


def causes(found: Verified) -> list[Cause]:
    """Likely causes, the first ones first; none if all is kept."""
    return list(dict.fromkeys(_causes(found)))


def _causes(found: Verified) -> Iterator[Cause]:
    if not found.runs[0].kept:
        yield Cause(
            "two plain processes differ: seed what is random before the data and the model are made, as "
            "elastic.init(seed=0) does at the top of the script",
            f"{_LIBRARY}#what-the-lines-do",
        )
        return
    broken = [run for run in found.runs if not run.kept]
    for run in broken:
        for warning in run.warnings:
            yield Cause(warning, f"{_LIBRARY}#common-mistakes")
        if run.error:
            yield Cause(f"{run.name}: {run.error}", f"{_LIBRARY}#common-mistakes")
    compared = [run for run in broken if not run.error]
    steady = [run for run in compared if run.name in _WITHOUT_CHANGES]
    yield from _data(compared, steady)
    yield from _gradients(compared, steady)
    changed = [run for run in compared if run.name not in _WITHOUT_CHANGES]
    if changed and not steady:
        yield Cause(
            "only runs with changes differ: something outlives a step and is not registered, is set at the "
            "top of an epoch, or is a plain variable, which a new worker finds as it was at first",
            f"{_LIBRARY}#what-must-be-registered",
        )


def _data(compared: list[Comparison], steady: list[Comparison]) -> Iterator[Cause]:
    if any(not run.aspects["samples"].kept for run in compared):
        is_short = any("missing" in run.aspects["samples"].text for run in compared)
        yield Cause(
            "samples are left out, trained again, or others under the same number: a loop that ends by a "
            "count of its own, or a data set that each process makes differently",
            f"{_LIBRARY}#loops-over-the-loader" if is_short else f"{_LIBRARY}#common-mistakes",
        )
    if any(not run.aspects["learning rates"].kept for run in steady):
        yield Cause(
            "a learning rate that is set by micro-steps or by worker: schedule by optimizer steps and epochs",
            f"{_LIBRARY}#what-must-be-registered",
        )


def _gradients(compared: list[Comparison], steady: list[Comparison]) -> Iterator[Cause]:
    if any(run.draws and not run.aspects["weights"].kept for run in compared):
        yield Cause(
            "the loop draws random numbers, which differ by worker and micro-step: take them from job.draw",
            f"{_LIBRARY}#loops-without-epochs",
        )
    if any(not run.first_loss for run in steady):
        yield Cause(
            "the loss of the first step differs already, from equal weights: it is no mean over the samples "
            "of its batch, or what is logged is another number",
            f"{_LIBRARY}#what-is-yours-and-what-the-plan-changes",
        )
    elif any(not run.aspects["weights"].kept for run in steady):
        tensor = next(run.tensor for run in steady if not run.aspects["weights"].kept)
        yield Cause(
            f"equal losses of the first step give other weights, most of all in {tensor}: gradients that are "
            "not averaged, clipped or changed before the batch is whole, or decisions by a worker's own loss",
            f"{_LIBRARY}#accumulation-and-no_sync",
        )
    if any(not run.alike for run in compared):
        yield Cause(
            "workers have different weights: a draw, a decision or a buffer of one worker alone changes them",
            f"{_LIBRARY}#common-mistakes",
        )


def head(found: Verified) -> str:
    """What was run, and what counts as kept."""
    script = found.script
    how = "float64" if found.double else "float32, as the script does not run in float64"
    size = f"{counted(found.steps, 'step')} of {counted(script.batch, 'sample')}"
    return f"{size}, in {how}; weights and losses are kept within {found.tolerance:.0e}"


def left_out(found: Verified) -> str:
    """What differs by design, and was switched off; empty if nothing was."""
    counts = (("dropout", found.script.dropouts), ("batch normalization", found.script.norms))
    parts = [f"{what} ({counted(count, 'layer')})" for what, count in counts if count]
    return f"Switched off, as they differ by design: {' and '.join(parts)}; see {_BY_DESIGN}" if parts else ""


def page(found: Verified, width: int | None) -> str:
    """The table, and what it comes from."""
    columns = [Column("run", least=12), *(Column(name) for name in ASPECTS)]
    failed = ["failed", *["-"] * (len(ASPECTS) - 1)]
    rows = [
        [run.name, *([run.aspects[name].text for name in ASPECTS] if run.aspects else failed)]
        for run in found.runs
    ]
    lines = [head(found), "", *text_table(columns, rows, width).splitlines()]
    if text := left_out(found):
        lines += ["", *wrapped(text, width or 100)]
    if likely := causes(found):
        lines += ["", "Likely causes:"]
    for cause in likely:
        lines += wrapped(f"- {cause.text} ({cause.link})", width or 100, indent="  ")
    return "\n".join(lines) + "\n"


def document(found: Verified) -> dict[str, Any]:
    """The same for programs."""
    return {
        "job": found.job.id,
        "kept": found.kept,
        "precision": "float64" if found.double else "float32",
        "tolerance": found.tolerance,
        "steps": found.steps,
        "batch": found.script.batch,
        "switched_off": {"dropout": found.script.dropouts, "batch_normalization": found.script.norms},
        "runs": [_run(run) for run in found.runs],
        "causes": [{"text": cause.text, "link": cause.link} for cause in causes(found)],
    }


def _run(run: Comparison) -> dict[str, Any]:
    aspects = {name.replace(" ", "_"): _aspect(aspect) for name, aspect in run.aspects.items()}
    return {"name": run.name, "kept": run.kept, "error": run.error or None, **aspects}


def _aspect(found: Aspect) -> dict[str, Any]:
    number = found.difference if math.isfinite(found.difference or 0.0) else None
    return {"kept": found.kept, "text": found.text, "difference": number}


def text_of(found: list[Verified]) -> str:
    """The JSON of several scripts."""
    jobs = [document(each) for each in found]
    whole = {"schema": SCHEMA, "kept": all(each.kept for each in found), "jobs": jobs}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def check_kept(found: Sequence[Verified]) -> None:
    """:raises JobsFailedError: something was not kept."""
    if lost := [each.job.id for each in found if not each.kept]:
        raise JobsFailedError(f"not all is kept: {', '.join(lost)}")
