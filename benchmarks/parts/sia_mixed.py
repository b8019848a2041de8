"""shadow-price on Sia's mixed cluster, beside sia and pollux: the same physics, and all know the profile.

Replays take on the physics of Sia's simulator (``--compat sia``): a change costs 15 to 250 s by model.
``python -m benchmarks.parts.sia_mixed`` renews these rows of the benchmark shadow_price alone. One trace is
one draw, which the same change of a policy moves by several percent up or down: the rows named ``samples``
are the mean ratios to sia over further samples of two traces, with their standard errors.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.sia_artifact import inputs
from experiments.harness.data import data_folder
from experiments.shadow_price.runs import resampled
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import percentile

TRACES: Final = ("philly", "saturn", "newtrace")
OURS: Final = "shadow-price"
SAMPLED: Final = ("philly", "saturn")
SAMPLES: Final = 9
"""Of each, the published trace among them."""
OTHERS: Final = {"sia": {"knowledge": "profile"}, "pollux": {"knowledge": "profile"}}


class Outcome(NamedTuple):
    """Of one replay, in seconds."""

    mean_jct: float
    p99_jct: float
    makespan: float


def figures(traces: Sequence[str] = TRACES, jobs_limit: int | None = None) -> list[Figure]:
    """Ours over sia's mean JCT, over the best p99 and makespan of the others: the worst trace, and each."""
    need_data("sia")
    found: list[Figure] = []
    worst: dict[str, float] = {}
    for name in traces:
        trace = inputs(data_folder() / "sia", name, jobs_limit)
        ours = outcome(trace, OURS)
        others = {policy: outcome(trace, policy) for policy in OTHERS}
        ratios = {
            "over_sia": ours.mean_jct / others["sia"].mean_jct,
            "p99_over_best": ours.p99_jct / min(each.p99_jct for each in others.values()),
            "makespan_over_best": ours.makespan / min(each.makespan for each in others.values()),
        }
        for ratio, value in ratios.items():
            worst[ratio] = max(worst.get(ratio, 0.0), value)
            found.append(Figure(f"sp_sia_mixed_{name}_{ratio}", value, "ratio"))
    limits = {"over_sia": 0.8, "p99_over_best": 1.0, "makespan_over_best": 1.0}
    return [*(Figure(f"sp_sia_mixed_{each}", worst[each], "ratio", limits[each]) for each in worst), *found]


def sampled(
    traces: Sequence[str] = SAMPLED, samples: int = SAMPLES, jobs_limit: int | None = None
) -> list[Figure]:
    """Ours over sia's mean JCT and makespan: the mean over all samples, and its standard error."""
    need_data("sia")
    ratios: dict[str, list[float]] = {"mean_jct": [], "makespan": []}
    for name in traces:
        published = inputs(data_folder() / "sia", name, jobs_limit)
        for seed in range(samples):
            trace = replace(published, jobs=tuple(resampled(published.jobs, seed))) if seed else published
            ours, theirs = outcome(trace, OURS), outcome(trace, "sia")
            for what, found in ratios.items():
                found.append(getattr(ours, what) / getattr(theirs, what))
    rows: list[Figure] = []
    for what, found in ratios.items():
        name, error = f"sp_sia_mixed_samples_{what}_over_sia", statistics.stdev(found) / len(found) ** 0.5
        rows += [Figure(name, statistics.fmean(found), "ratio"), Figure(f"{name}_error", error, "ratio")]
    return rows


def outcome(trace: Inputs, policy: str) -> Outcome:
    """What a replay under a policy comes to."""
    done = replay(trace, Run(policy, OTHERS.get(policy, {}), conditions=Conditions(compat="sia")))
    submitted_s = {job.id: job.submit_time for job in trace.jobs}
    ended_s = {event.job: event.time for event in done.log.events() if event.event == "finish"}
    jcts_s = [ended_s[job_id] - came_s for job_id, came_s in submitted_s.items()]
    begun_s = min(submitted_s.values())
    return Outcome(statistics.fmean(jcts_s), percentile(jcts_s, 0.99) or 0.0, max(ended_s.values()) - begun_s)


def main() -> None:
    rows = [*figures(), *sampled()]
    figure.renew("shadow_price", rows)
    for row in rows:
        print(f"{row.name:45s} {row.value:.4g}")


if __name__ == "__main__":
    main()
