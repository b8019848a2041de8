"""One replay of the matrix: what it varies, and the figures that are kept of it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from benchmarks.parts import mistaken_work
from benchmarks.parts.pollux_workloads import fixed, inputs, unknown
from experiments.harness.replays import Outcome, outcome_of
from experiments.shadow_price.ablations import ablated
from pliant.schemas.job import Job
from pliant.tools.replay.engine.costs import Cost
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay

OURS: Final = "shadow-price"
KEPT: Final = (
    "mean_jct_s",
    "p99_jct_s",
    "unfair_fraction",
    "worst_ftf",
    "makespan_s",
    "rescales_per_job",
    "jobs_finished",
    "total_utility",
)
START_S: Final = 30.0
IN_PLACE_S: Final = 1.0
_JITTER_S: Final = 600.0
Work = Literal["stated", "mistaken", "unknown", "predicted"]


@dataclass(frozen=True)
class Replay:
    """One replay under the physics of the Pollux simulator, on 64 T4."""

    group: str
    trace: str
    policy: str = OURS
    variant: str = ""
    """What differs, in words."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    batch: Literal["free", "fixed"] = "free"
    work: Work = "stated"
    rescale_s: float = START_S
    load: float = 1.0
    """By which times between arrivals are divided."""
    sample: int = 0
    """0: the published trace; others are drawn from it."""
    ablation: str = ""
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its row in the results."""
        parts = (self.group, self.trace, self.policy, self.variant, str(self.sample), str(self.seed))
        return "/".join(parts)

    def row(self) -> dict[str, Any]:
        """Replay, and keep what is shown."""
        found = self.outcome()
        kept = {name: round(found.metrics[name], 4) for name in KEPT if name in found.metrics}
        words = {"group": self.group, "trace": self.trace, "policy": self.policy, "variant": self.variant}
        return {**words, "sample": self.sample, "seed": self.seed, "trace_hash": found.trace_hash, **kept}

    def outcome(self) -> Outcome:
        """Replay."""
        costs = SimulatedCluster(start_cost=Cost(START_S), rescale_cost=Cost(self.rescale_s))
        with self._policy() as (policy, parameters):
            conditions = Conditions(
                compat="pollux", demand="predicted" if self.work == "predicted" else "stated"
            )
            run = Run(policy, parameters, self.seed, conditions=conditions, simulated=costs)
            done = replay(self.inputs(), run)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "events.parquet"
            write(done.log, done.summary, str(path))
            return outcome_of(self.name, path)

    def inputs(self) -> Inputs:
        """The trace that is replayed."""
        found = _sample(self.trace, self.sample)
        if self.batch == "fixed":
            found = fixed(found)
        if self.work in ("unknown", "predicted"):
            found = unknown(found)
        if self.load != 1.0:
            jobs = (job.model_copy(update={"submit_time": job.submit_time / self.load}) for job in found.jobs)
            found = replace(found, jobs=tuple(jobs))
        return found

    @contextmanager
    def _policy(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if self.work == "mistaken":
            with mistaken_work.registered() as name:
                yield name, self.parameters
        else:
            with ablated(self.ablation):
                yield self.policy, self.parameters


@lru_cache(maxsize=4)
def _sample(trace: str, sample: int) -> Inputs:
    published = inputs(trace)
    return replace(published, jobs=tuple(resampled(published.jobs, sample))) if sample else published


def resampled(jobs: Sequence[Job], seed: int) -> list[Job]:
    """As many jobs, each one of those given at the time of another, moved by up to ten minutes."""
    rng = np.random.default_rng(seed)
    times_s = rng.choice([job.submit_time for job in jobs], len(jobs))
    times_s = np.sort(np.maximum(0.0, times_s + rng.uniform(-_JITTER_S, _JITTER_S, len(jobs))))
    return [
        jobs[int(rng.integers(len(jobs)))].model_copy(
            update={"id": f"j{number:04}", "submit_time": round(at_s, 3)}
        )
        for number, at_s in enumerate(times_s.tolist())
    ]
