"""What an event costs the queue with EASY backfilling, with many jobs waiting over that with few.

Jobs of one to sixteen GPUs and four models run on 64 GPUs; as each ends another one is submitted, so that the
backlog keeps its length. Nearly always the head waits, and some GPUs are free for others.
"""

from __future__ import annotations

import math
import time
from typing import Final

import numpy as np

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.fifo import Fifo
from pliant.tools.schedule.session.session import Session

SEED: Final = 20261123
FEW: Final = 1000
MANY: Final = 4000
_CLUSTER: Final = {"nodes": ({"name": "n{}", "gpus": 8, "count": 8},)}
_GPUS: Final = (1, 2, 4, 8, 16)
_WEIGHTS: Final = (0.5, 0.15, 0.15, 0.15, 0.05)
_MEDIAN_S: Final = 2400.0
_SIGMA: Final = 1.6
_WARM: Final = 5


def easy_backfill_growth(few: int = FEW, many: int = MANY, events: int = 200, repeats: int = 5) -> float:
    """CPU time of an event with ``many`` jobs waiting over that with ``few``; the least of several."""
    backlogs = Backlog(few), Backlog(many)
    taken_s = [[backlog.us_per_event(events) for backlog in backlogs] for _ in range(repeats)]
    least_few, least_many = (min(each) for each in zip(*taken_s, strict=True))
    return round(least_many / least_few, 2)


class Backlog:
    """A full cluster and a queue of a constant length before it."""

    def __init__(self, waiting: int) -> None:
        self._rng = np.random.default_rng(SEED)
        self.held = Session(Fifo("easy"), Cluster.model_validate(_CLUSTER), CurveThroughput())
        self._now_s, self._number = 0.0, 0
        while len(self.held.jobs) < waiting:
            self._submit()
        self.held.decide(self._now_s)
        self.us_per_event(_WARM)

    def us_per_event(self, events: int) -> float:
        """Mean CPU time of an end or an arrival and of the decision that follows, in microseconds."""
        return 1e6 * sum(self._one_ends_one_comes() for _ in range(events // 2)) / (events // 2 * 2)

    def _one_ends_one_comes(self) -> float:
        running = (job for job in self.held.jobs.values() if job.gpus)
        self._now_s, first = min((job.finish_time_s() or math.inf, job.id) for job in running)
        before = time.process_time()
        self.held.end(first, self._now_s)
        self.held.decide(self._now_s)
        self._submit()
        self.held.decide(self._now_s)
        return time.process_time() - before

    def _submit(self) -> None:
        gpus = int(self._rng.choice(_GPUS, p=_WEIGHTS))
        seconds = float(np.exp(self._rng.normal(np.log(_MEDIAN_S), _SIGMA)))
        job = {
            "id": f"j{self._number:06}",
            "submit_time": self._now_s,
            "model": f"model-{self._rng.integers(4)}",
            "gpus": {"requested": gpus},
            "batch": {"size": 256},
            "work": {"gpu_seconds": gpus * seconds},
        }
        self._number += 1
        self.held.submit(Job.model_validate(job), self._now_s)
