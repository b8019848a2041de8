"""Mean JCT of shadow-price on Pollux's, Philly's and Saturn's workloads, beside Ares, and its decision time.

Replays take on the physics of the Pollux simulator (``--compat pollux``) on 16 nodes of 4 T4: 160 jobs,
changes cost 30 s. ``fixed``: no job lets its batch move. ``in_place``: changes of size cost 1 s.
``sigma1``: what is left of each job is mistaken by a lognormal factor of σ = 1. ``unknown``: no job states
its work.
``bound``: mean JCT over that without a bound on delays (``price``), the largest part that a job took of the
time in which it was to end (``used``), and the jobs that ended after it, by curves that these physics do not
follow in every epoch; ``tight`` with a grace of :data:`TIGHT`.
``promise``: see :mod:`benchmarks.parts.promise`.
``makespan_mode``: with a worth of GPUs to jobs to come, :data:`FUTURE`. The limits of the unfair fraction and
the worst FTF are those of Ares on the same jobs, that of the makespan is Pollux's.
``over_lower_bound``, ``makespan_over_best``, ``ones_trace``, ``sia_mixed``, ``deadlines_met``, ``utility``,
``unknown_regained`` and ``robust`` are of the parts :mod:`~benchmarks.parts.shadow_price_ratios`,
:mod:`~benchmarks.parts.sia_mixed`, :mod:`~benchmarks.parts.sp_deadlines`,
:mod:`~benchmarks.parts.unknown_work` and :mod:`~benchmarks.parts.robust`, which renew them alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from benchmarks.parts import (
    mistaken_work,
    promise,
    robust,
    shadow_price_ratios,
    sia_artifact,
    sia_mixed,
    sp_deadlines,
    unknown_work,
)
from benchmarks.parts.decisions_at_scale import CURVES
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.pollux_workloads import (
    IN_PLACE,
    WORKLOADS,
    fixed,
    inputs,
    outcome,
    unknown,
)
from experiments.harness.replays import Outcome
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.schedule.policies.shadow_price.policy import ShadowPrice
from pliant.tools.schedule.session.session import Session

MEASURES: Final = ("tools/schedule/policies/shadow_price", "tools/schedule/session", "tools/replay")

SEED: Final = 20261122
FUTURE: Final = 0.7
TIGHT: Final = 1.0
"""Of the time alone, as the grace of a job."""
FREE_S: Final = {"w6": 1890.0, "w1": 1665.0, "philly1": 2235.0, "saturn1": 2430.0}
FIXED_S: Final = {"w6": 2370.0, "w1": 1980.0, "philly1": 3095.0, "saturn1": 3470.0}
DECISION_MS: Final = {64: 5.0, 2048: 50.0}
CROWDED_MS: Final = {(64, 100): 20.0, (2048, 1000): 500.0}
"""By GPUs and jobs."""
_JOBS_PER_GPU: Final = 0.25
_ROUNDS: Final = 12
_FASTER: Final = {"rtx": 1.5, "dgx-ext": 3.0}


def figures(
    workloads: Sequence[str] = tuple(WORKLOADS),
    clusters: Mapping[int, float] = DECISION_MS,
    jobs_limit: int | None = None,
    *,
    with_pollux: bool = True,
) -> list[Figure]:
    """All figures."""
    need_data("pollux", "sia", "ones", "elasticflow")
    return [
        *promise.figures(),
        *_replays(workloads, jobs_limit, with_pollux=with_pollux),
        *(Figure(f"sp_decision_ms_{gpus}", decision_ms(gpus), "ms", most) for gpus, most in clusters.items()),
        *crowded(),
        *shadow_price_ratios.figures(),
        *sia_mixed.figures(),
        *sia_mixed.sampled(),
        *sp_deadlines.figures(),
        *unknown_work.figures(),
        *robust.figures(),
    ]


def smallest() -> list[Figure]:
    """All of it, small."""
    need_data("pollux", "sia", "ones", "elasticflow")
    return [
        *promise.figures(2),
        *_replays(("w6",), jobs_limit=3, with_pollux=False),
        Figure("sp_decision_ms_16", decision_ms(16), "ms", 5.0),
        *crowded({(64, 4): 20.0}, rounds=1),
        *shadow_price_ratios.figures(("w6",), jobs_limit=3, smoke=True),
        *sia_mixed.figures(("saturn",), jobs_limit=3),
        *sia_mixed.sampled(("saturn",), samples=2, jobs_limit=3),
        *sp_deadlines.figures(("half_testbed",), seeds=(0,), jobs_limit=6),
        *unknown_work.figures(("w6",), jobs_limit=3),
        *robust.figures(("w6",), jobs_limit=3, errors=("work",), others=("srtf",)),
    ]


def crowded(clusters: Mapping[tuple[int, int], float] = CROWDED_MS, rounds: int = _ROUNDS) -> list[Figure]:
    """What a decision takes where many jobs wait, on one GPU type and on three."""
    found = []
    for (gpus, jobs), most in clusters.items():
        name = f"decision_ms_{gpus}_gpus_{jobs}_jobs"
        found.append(Figure(name, decision_ms(gpus, rounds, jobs=jobs), "ms", most))
        found.append(Figure(f"{name}_mixed", decision_ms(gpus, rounds, jobs=jobs, mixed=True), "ms", most))
    return found


def _replays(workloads: Sequence[str], jobs_limit: int | None, *, with_pollux: bool) -> Iterator[Figure]:
    traces = {name: inputs(name, jobs_limit) for name in workloads}
    for name, trace in traces.items():
        yield from _against_ares(f"sp_{name}", trace, FREE_S[name])
        yield from _against_ares(f"sp_fixed_{name}", fixed(trace), FIXED_S[name])
        yield from _bound(f"sp_bound_{name}", trace)
        yield from _bound(f"sp_bound_fixed_{name}", fixed(trace))
    main = traces[workloads[0]]
    yield from _against_ares("sp_in_place_w6", main, 1760.0, {"rescale_s": 1.0}, IN_PLACE)
    with mistaken_work.registered() as mistaken:
        yield Figure("sp_sigma1_w6_s", _jct_s(outcome(main, mistaken)), "s", 2020.0)
    yield Figure("sp_unknown_w6_s", _jct_s(outcome(unknown(main), "shadow-price")), "s", 2190.0)
    found = outcome(main, "shadow-price", {"future": FUTURE})
    yield Figure("sp_makespan_mode_w6_s", _jct_s(found), "s", 2100.0)
    if with_pollux:
        theirs = outcome(main, "pollux").metrics["makespan_s"]
        yield Figure("sp_makespan_mode_w6", found.metrics["makespan_s"] / theirs, "ratio", 1.05)


def _against_ares(
    name: str,
    trace: Inputs,
    most_s: float,
    parameters: Mapping[str, Any] | None = None,
    simulated: SimulatedCluster | None = None,
) -> Iterator[Figure]:
    """The mean JCT, and two figures of fairness that Ares's limit."""
    ours = outcome(trace, "shadow-price", parameters, simulated)
    ares = outcome(trace, "ares", None, simulated)
    yield Figure(f"{name}_s", _jct_s(ours), "s", most_s)
    for metric in ("unfair_fraction", "worst_ftf"):
        yield Figure(f"{name}_{metric}", ours.metrics[metric], "ratio", ares.metrics[metric])


def _bound(name: str, trace: Inputs) -> Iterator[Figure]:
    """How much of its time the tightest job takes, and what the bound costs in mean JCT, also a tight one."""
    parameters: tuple[dict[str, Any], ...] = ({"grace": None}, {}, {"grace": TIGHT})
    without, usual, tight = (outcome(trace, "shadow-price", each) for each in parameters)
    yield Figure(f"{name}_price", _jct_s(usual) / _jct_s(without), "ratio", 1.03)
    for kind, found in (("", usual), ("_tight", tight)):
        yield Figure(f"{name}{kind}_used", found.metrics["worst_bound_used"], "ratio")
        yield Figure(f"{name}{kind}_jobs_past", found.metrics["jobs_past_gps_bound"], "jobs")
    yield Figure(f"{name}_tight_price", _jct_s(tight) / _jct_s(without), "ratio")


def _jct_s(found: Outcome) -> float:
    return round(found.metrics["mean_jct_s"], 2)


def decision_ms(gpus: int, rounds: int = _ROUNDS, *, jobs: int | None = None, mixed: bool = False) -> float:
    """Median CPU time of a decision on nodes of 8 GPUs under load.

    Between decisions a minute passes, jobs that are done leave, and as many arrive.

    :param jobs: that are there; None: one for four GPUs.
    :param mixed: on the three GPU types of Sia's cluster.
    """
    rng = np.random.default_rng(SEED)
    shape = Cluster.model_validate({"nodes": ({"name": "n{}", "gpus": 8, "count": gpus // 8},)})
    speeds = CurveThroughput(CURVES, _FASTER if mixed else {})
    held = Session(ShadowPrice(), sia_artifact.nodes(gpus // 64) if mixed else shape, speeds)
    most = round(_JOBS_PER_GPU * gpus) if jobs is None else jobs
    taken_s, number = [], 0
    for minute in range(rounds + 1):
        now_s = 60.0 * minute
        for job in [*held.jobs.values()]:
            end_s = job.finish_time_s()
            if end_s is not None and end_s <= now_s:
                held.end(job.id, now_s)
        while len(held.jobs) < most:
            held.submit(_job(number, now_s, rng), now_s)
            number += 1
        before = time.process_time()
        held.decide(now_s)
        taken_s.append(time.process_time() - before)
    return round(1000 * statistics.median(taken_s[1:]), 2)


def _job(number: int, now_s: float, rng: np.random.Generator) -> Job:
    return Job.model_validate(
        {
            "id": f"j{number:05}",
            "submit_time": now_s,
            "model": str(rng.choice(list(CURVES))),
            "gpus": {"requested": 1, "min": 1, "max": 64},
            "elastic": "size",
            "batch": {"size": 1024},
            "work": {"gpu_seconds": float(np.exp(rng.uniform(np.log(600), np.log(36_000))))},
        }
    )
