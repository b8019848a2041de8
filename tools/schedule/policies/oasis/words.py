"""What is said of jobs that the market admits or turns away, in words and as numbers."""

from __future__ import annotations

import math
from typing import Any

from pliant.schemas.job import Utility
from pliant.schemas.text.times import span_text
from pliant.schemas.text.wording import counted
from pliant.tools.schedule.policies.oasis.bookings import Booking
from pliant.tools.schedule.policies.oasis.market import Quote

_DIGITS = 6


def admission(quote: Quote, end: int | None, origin: int, slot_s: float) -> dict[str, Any]:
    """What one end of a job is worth and costs; nothing where there is none."""
    if end is None:
        return {}
    worth, cost = float(quote.worths[end - quote.first]), float(quote.costs[end - quote.first])
    found = {"payoff": worth - cost, "worth": worth, "cost": cost}
    return {
        **{name: _rounded(value) for name, value in found.items()},
        "end_s": (origin + end + 1) * slot_s,
    }


def terms(quote: Quote, utility: Utility, since_s: float, slot_s: float) -> dict[str, float]:
    """What would have been admitted: the smallest value, or the earliest target, all else being the same.

    :param since_s: seconds from the submission to the end of the first slot of the quote.
    """
    found = {}
    if math.isfinite(scale := quote.least_scale):
        found["least_value"] = _rounded(scale * utility.value)
    shapes = utility.shape == "sigmoid" and utility.decay > 0
    ends = ((since_s + at * slot_s, float(cost)) for at, cost in enumerate(quote.costs))
    targets = [
        end_s - math.log(utility.value / cost - 1) / utility.decay if shapes else end_s
        for end_s, cost in ends
        if cost > 0 and utility.value / cost > 1
    ]
    if targets and (shapes or utility.shape == "step"):
        found["least_target_s"] = _rounded(max(0.0, min(targets)))
    return found


def refusal(said: dict[str, Any], slots: int, slot_s: float) -> str:
    """Why a job is turned away, as a clause."""
    if "cost" not in said:
        return f"does not end within the {counted(slots, 'slot')} of {span_text(slot_s)} ahead"
    text = f"costs {said['cost']:.4g} and is worth {said['worth']:.4g} at best"
    ways = []
    if "least_value" in said:
        ways.append(f"a value above {said['least_value']:.4g}")
    if "least_target_s" in said:
        ways.append(f"a target later than {span_text(said['least_target_s'])}")
    return f"{text}; {' or '.join(ways)} would do" if ways else text


def planned(booking: Booking, slot: int, now_s: float, slot_s: float) -> str:
    """The slots to come of a job, as a clause."""
    spans = list(booking.spans(slot))
    parts = []
    for at, until, row in spans[:3]:
        begins, ends = (span_text(each * slot_s - now_s) for each in (at, until))
        parts.append(f"{counted(row.gpus, 'worker')} " + (f"for {ends}" if at <= slot else f"in {begins}"))
    if len(spans) > 3:
        parts.append(f"{len(spans) - 3} more changes")
    ends = f"ends within {span_text((booking.plan.last + 1) * slot_s - now_s)}"
    return "; ".join([*parts, ends]) if parts else "waits for another slot"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
