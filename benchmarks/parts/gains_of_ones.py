"""By how much the average JCT of ones is below that of other schedulers, on the published trace of its paper.

As docs/experiments/ones.md has it; the trace is in ``$PLIANT_DATA/ones``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks.parts.figure import Figure
from experiments.harness.replays import Outcome, carry_out, matching
from experiments.harness.spec import load
from experiments.ones.artifact import GAINS
from experiments.ones.experiment import NEAR
from experiments.ones.scenes import ALSO, MAIN

OVER: Final = {"drl": MAIN, "tiresias": MAIN, "optimus": MAIN, "pollux": ALSO, "ares": ALSO}


def gains(*, smoke: bool = False) -> Iterator[Figure]:
    """A gain over each; the published ones have limits ten points around them."""
    outcomes = _outcomes(smoke=smoke)
    for policy, scene in OVER.items():
        gain = _gain(outcomes, scene.name, policy)
        published = GAINS.get(policy)
        low, high = (None, None) if published is None else (published - NEAR, published + NEAR)
        yield Figure(f"ones_gain_over_{policy}", gain, "ratio", high, low=low)


def _outcomes(*, smoke: bool) -> Mapping[str, Outcome]:
    sweeps = [name for scene in (MAIN, ALSO) for name, _ in scene.sweeps()]
    with tempfile.TemporaryDirectory() as folder:
        return carry_out(load("ones"), Path(folder) / "out", sweeps=sweeps, smoke=smoke)


def _gain(outcomes: Mapping[str, Outcome], scene: str, policy: str) -> float:
    """1 - the ratio of the means over the seeds that both have."""
    theirs = matching(f"{scene}-s?-{policy}*", outcomes)
    ours = {each.trace_hash: each for each in matching(f"{MAIN.name}-s?-ones*", outcomes)}
    paired = [(ours[each.trace_hash], each) for each in theirs]
    first, second = (fmean(each.metrics["mean_jct_s"] for each in side) for side in zip(*paired, strict=True))
    return 1 - first / second
