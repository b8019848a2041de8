"""What a job cost, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pliant.schemas.text import counted, in_gpus, rate_text
from pliant.tools.report.job_cost import LOSSES, JobCost

_HOUR_S: Final = 3600.0
_SAMPLES: Final = 1000
"""Samples that a price is for."""
_SILENT: Final = "its script reports no steps, so the time of its starts is not known"


def cost_facts(cost: JobCost) -> Iterator[tuple[str, str]]:
    """(label, text) of each thing to say."""
    yield "cost", f"{_gpu_time(cost.held_gpu_s)} held"
    if cost.lost_gpu_s is None or cost.trained_gpu_s is None:
        yield "trained", f"- ({_SILENT})"
    else:
        yield "trained", _part(cost.trained_gpu_s, cost.held_gpu_s)
        lost = [
            f"{_part(cost.lost_gpu_s[name], cost.held_gpu_s)} to {name}"
            for name in LOSSES
            if cost.lost_gpu_s[name] > 0
        ]
        yield "lost", "; ".join(lost) or "nothing"
    if cost.repeated_samples:
        yield "repeated", f"{cost.repeated_samples:,.0f} samples, trained again from a checkpoint"
    yield "speed", f"- ({cost.no_speed})" if cost.speed is None else f"{cost.speed:.2f} of its profile's"
    yield "cheapest", _cheapest(cost)
    yield "changes", _changes(cost)


def _cheapest(cost: JobCost) -> str:
    if cost.cheapest_gpus is None or cost.cheapest_gpu_s is None:
        return f"- ({cost.no_cheapest})"
    price = f"{in_gpus(cost.cheapest_gpus)}, {_price(cost.cheapest_gpu_s)} per {_SAMPLES:,} samples"
    own = cost.gpu_s_per_sample
    return price if own is None else f"{price}; it has cost {_price(own)}"


def _changes(cost: JobCost) -> str:
    counts = (
        (cost.preemptions, "preemption"),
        (cost.rescales, "rescale"),
        (cost.moves, "move"),
        (cost.restarts, "restart"),
    )
    return ", ".join(counted(count, noun) for count, noun in counts if count) or "none"


def _gpu_time(gpu_s: float) -> str:
    if gpu_s >= _HOUR_S:
        return f"{rate_text(gpu_s / _HOUR_S)} GPU hours"
    return f"{rate_text(gpu_s)} GPU seconds"


def _part(gpu_s: float, held_gpu_s: float) -> str:
    share = f" ({100 * gpu_s / held_gpu_s:.0f} %)" if held_gpu_s else ""
    return f"{_gpu_time(gpu_s)}{share}"


def _price(gpu_s_per_sample: float) -> str:
    return _gpu_time(_SAMPLES * gpu_s_per_sample)


def cost_fields(cost: JobCost) -> dict[str, Any]:
    return {
        "held_gpu_seconds": cost.held_gpu_s,
        "trained_gpu_seconds": cost.trained_gpu_s,
        "lost_gpu_seconds": None if cost.lost_gpu_s is None else dict(cost.lost_gpu_s),
        "lost_unknown": _SILENT if cost.lost_gpu_s is None else None,
        "samples": cost.samples,
        "repeated_samples": cost.repeated_samples,
        "relative_speed": cost.speed,
        "relative_speed_unknown": cost.no_speed or None,
        "gpu_seconds_per_sample": cost.gpu_s_per_sample,
        "cheapest_gpus": cost.cheapest_gpus,
        "cheapest_gpu_seconds_per_sample": cost.cheapest_gpu_s,
        "cheapest_unknown": cost.no_cheapest or None,
        "preemptions": cost.preemptions,
        "rescales": cost.rescales,
        "moves": cost.moves,
        "restarts": cost.restarts,
    }
