"""Section IV-H with real processes: short jobs under elastic-dp on CPU slots, held against their own replay.

``python -m experiments.elastic_scaling.live`` profiles the jobs, runs them, replays them with the measured
profile and costs, and prints both sides and their difference. The paper's simulator comes
within 7 % of the jobs completed, 5 % of the SJS efficiency and 17 % of the average JCT. Slots whose cores
have other work make any of the three meaningless: run it on a quiet machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from experiments.harness.live import Compared, main, run_and_replay
from pliant.schemas.job import Job
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.records import RunRecord

ROOT: Final = Path(__file__).resolve().parents[2]
SEED: Final = 2006
POLICY: Final = "elastic-dp"
LIMITS: Final = {"completed": 0.07, "sjs": 0.05, "jct": 0.17}
"""Section IV-H: how far the paper's simulator is off."""
WORDS: Final = {
    "live_vs_replay_completed": "jobs completed, mean over the run",
    "live_vs_replay_sjs": "SJS efficiency",
    "live_vs_replay_jct": "average JCT, s",
}
INTERVAL_S: Final = 20.0
"""Seconds between scaling decisions."""
RECORD: Final = Path(__file__).with_name("live.json")
"""The comparison that the page shows, made on a quiet machine."""
_DIGITS: Final = 32768
_STEPS: Final = 40
"""Measured for each point of the profile: two workers on a small machine vary from step to step."""
_GAP_S: Final = 36.0
"""Mean time between arrivals. Starting a worker takes a core for seconds: with jobs of a few seconds the
experiment would measure little else."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Jobs that train the multilayer perceptron of examples/ in one width."""

    width: int
    epochs: tuple[int, int]
    """Fewest and most."""
    batches: tuple[int, int]
    """Smallest and largest global batch; equal: neither batch nor size may change."""
    per_gpu_max: int

    @property
    def model(self) -> str:
        """Key into the profile."""
        return f"mlp-{self.width}"


KINDS: Final = (
    Kind(256, (36, 72), (64, 512), 256),
    Kind(1024, (6, 11), (64, 512), 256),
    Kind(512, (11, 22), (256, 256), 256),
)


def live_jobs(count: int, slots: int, seed: int = SEED, *, shorter: int = 1) -> Iterator[Job]:
    """Jobs of all kinds in Poisson arrivals; work and kind are drawn.

    :param shorter: divides the time between arrivals and the epochs.
    """
    rng = np.random.default_rng(seed)
    gap_s = _GAP_S / shorter
    arrivals = np.cumsum(rng.exponential(gap_s, count)) - gap_s
    for number, at in enumerate(arrivals):
        kind = KINDS[int(rng.integers(len(KINDS)))]
        epochs = int(rng.integers(kind.epochs[0], kind.epochs[1] + 1))
        at_s = round(max(0.0, float(at)), 3)
        yield _job(f"job-{number:02}", at_s, kind, -(-epochs // shorter), slots)


def _job(job_id: str, at: float, kind: Kind, epochs: int, slots: int) -> Job:
    low, high = kind.batches
    size = min(kind.per_gpu_max, high)
    options = {"epochs": epochs, "size": _DIGITS, "batch": size, "width": kind.width}
    rigid = low == high
    return Job.model_validate(
        {
            "id": job_id,
            "submit_time": at,
            "model": kind.model,
            "command": ("examples/mlp.py", *(f"--{name}={value}" for name, value in options.items())),
            "workdir": str(ROOT),
            "gpus": {"requested": 1} if rigid else {"requested": 1, "min": 1, "max": slots},
            "elastic": "none" if rigid else "size+batch",
            "batch": {"size": size, "min": low, "max": high, "per_gpu_max": kind.per_gpu_max},
            "work": {"epochs": epochs, "dataset_size": _DIGITS},
        }
    )


def compare(live: RunRecord, simulated: RunRecord) -> list[Compared]:
    """The three figures of the paper's section IV-H.

    Jobs completed: the mean number of completed jobs from the first submission to the last event of either,
    the area under the curve that the paper plots.
    """
    until_s = max(live.last_event_s, simulated.last_event_s)
    sides = [(run_metrics(run), _mean_completed(run, until_s)) for run in (live, simulated)]
    figures = {
        "completed": [completed for _, completed in sides],
        "sjs": [metrics.sjs_efficiency or 0.0 for metrics, _ in sides],
        "jct": [metrics.mean_jct_s or 0.0 for metrics, _ in sides],
    }
    return [
        Compared(f"live_vs_replay_{name}", first, second, LIMITS[name])
        for name, (first, second) in figures.items()
    ]


def _mean_completed(run: RunRecord, until_s: float) -> float:
    ends = [job.end_s for job in run.with_outcome("finished") if job.end_s is not None]
    return sum(until_s - end for end in ends) / until_s


def run(folder: Path, count: int, slots: int) -> list[Compared]:
    """Profile, run, replay and compare, in a folder that is emptied first."""
    asked = ("--policy", POLICY, "--param", f"interval_s={INTERVAL_S}")
    return compare(*run_and_replay(folder, live_jobs(count, slots), slots, asked, steps=_STEPS))


if __name__ == "__main__":
    sys.exit(main(__doc__, RECORD, 20, run, {"seed": SEED, "interval_s": INTERVAL_S}))
