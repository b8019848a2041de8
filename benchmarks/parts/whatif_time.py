"""How long ``pliant whatif`` takes on a live state of a thousand jobs.

The run has been deciding under shadow-price, the policy that README recommends, for two hours on 512 GPUs;
1,000 elastic jobs of all sizes are there, a part of them training. Asked is for two nodes more and for
another policy; each is a whole process, and counts with its processor time, which is what it takes on a
machine that has nothing else to do.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.used_cpu import PLIANT, cpu_s
from pliant.schemas.job import Job
from tests.builders import cluster, job
from tests.tools.run.live_states import live_state

JOBS: Final = 1_000
NODES: Final = 64
HOURS: Final = 2.0
VISITS: Final = 3
LIMIT_S: Final = 5.0
QUESTIONS: Final = (("--add-nodes", "2"), ("--policy", "ares"))


def figures(jobs: int = JOBS, visits: int = VISITS) -> list[Figure]:
    """The slowest question; of each the least of several visits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        state = live_state(
            *(folder / "state", load(jobs), cluster(*[8] * NODES)),
            policy="shadow-price",
            ago_s=HOURS * 3600 + 60,
            lasted_s=HOURS * 3600,
        )
        env = as_installed()
        spent = [
            min(cpu_s(*PLIANT, "whatif", "--state", str(state), *asked, env=env) for _ in range(visits))
            for asked in QUESTIONS
        ]
    return [Figure("whatif_s", round(max(spent), 2), "s", LIMIT_S)]


def load(jobs: int) -> Iterator[Job]:
    """Jobs that arrive within two hours, half of them at once, of 1 to 16 GPUs and hours of work."""
    numbers = random.Random(1)  # noqa: S311
    for index in range(jobs):
        gpus = numbers.choice((1, 1, 2, 4, 8, 16))
        at_s = 0.0 if index % 2 else numbers.uniform(0.0, HOURS * 3600)
        work_s = 3600 + numbers.expovariate(1 / 14_400)
        yield job(f"j{index}", at=at_s, gpus=gpus, low=1, high=2 * gpus, gpu_seconds=gpus * work_s)
