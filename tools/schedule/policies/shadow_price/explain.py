"""Why each job has what it has: its price, when it would end, what one GPU more or less would be worth."""

from __future__ import annotations

import numpy as np

from pliant.schemas.text.times import span_text
from pliant.schemas.text.wording import counted, in_gpus
from pliant.tools.schedule.policies.shadow_price.fluid import ends_s
from pliant.tools.schedule.policies.shadow_price.shares import Shares
from pliant.tools.schedule.policy import Explanation

_HOUR_S = 3600.0


def explained(shares: Shares, slack_s: float) -> dict[str, Explanation]:
    """One clause a job. What GPUs are worth is said in completion time, over all jobs, saved in an hour.

    :param slack_s: what a change may cost if the bound is to hold.
    """
    members = shares.members
    all_end_s = ends_s(shares.prices, members.whole, members.left, members.sizes)
    worth = shares.values * _HOUR_S
    least = _least_worth(shares, worth)
    return {
        job.id: Explanation(
            "; ".join(
                (
                    *_outlook(shares, row, float(all_end_s[row])),
                    *_due(shares, row),
                    *_marginal(shares, worth, row, least),
                    *_unbounded(shares, row, slack_s),
                )
            ),
            None if shares.gpus(row) else job.spec.min_gpus,
        )
        for row, job in enumerate(members.jobs)
    }


def _outlook(shares: Shares, row: int, end_s: float) -> list[str]:
    """Its price and its end."""
    left = float(shares.members.left[row])
    whole = span_text(float(shares.prices[row]) * left)
    clauses = [f"price {shares.prices[row]:.3g} s a sample, {whole} for the work left"]
    if np.isfinite(end_s):
        clauses.append(f"would end in {span_text(end_s)} if none came")
    return clauses


def _due(shares: Shares, row: int) -> list[str]:
    """That it is served for the sake of the bound."""
    gpus = int(shares.guard.due_gpus[row])
    return [f"has had its grace: equal shares would give it {in_gpus(gpus)} now"] if gpus else []


def _unbounded(shares: Shares, row: int, slack_s: float) -> list[str]:
    """That its changes cost too much for the bound to hold, and what would mend it."""
    over_s = float(shares.members.rescale_s[row]) - slack_s
    return [f"may end past its bound unless lost_s is {over_s:.3g} s more"] if over_s > 0 else []


def _marginal(shares: Shares, worth: np.ndarray, row: int, least: float) -> list[str]:
    """What one GPU more and one less would change; of a waiting job why it waits."""
    sizes, own, chosen = shares.members.sizes, worth[row], int(shares.chosen[row])
    if not chosen:
        offers = np.flatnonzero(np.isfinite(own[1:])) + 1
        best = int(offers[(own[offers] / sizes[offers]).argmax()])
        before = len(shares.order) - 1 - shares.order.index(row)
        saves = span_text(float(own[best] / sizes[best]))
        return [
            f"waits: {counted(before, 'job')} would end before it",
            f"on {in_gpus(int(sizes[best]))} each would save {saves} an hour, elsewhere {span_text(least)}",
        ]
    clauses = []
    for other, words in ((chosen + 1, "more would save"), (chosen - 1, "less would cost")):
        if other < len(own) and np.isfinite(own[other]):
            gpus = abs(int(sizes[other] - sizes[chosen]))
            change = max(0.0, float((own[other] - own[chosen]) * (other - chosen)))
            clauses.append(f"{in_gpus(gpus)} {words} {span_text(change)} an hour")
    return clauses


def _least_worth(shares: Shares, worth: np.ndarray) -> float:
    """What the GPU saves in an hour that saves least, by job that has any."""
    has = np.flatnonzero(shares.chosen)
    found = worth[has, shares.chosen[has]] / shares.members.sizes[shares.chosen[has]]
    return max(0.0, float(found.min(initial=np.inf))) if has.size else 0.0
