"""What a decision of each policy costs, by the number of GPUs and of active jobs, each in a fresh process.

All jobs are there at the first decision; then, ten minutes apart, the oldest running job ends, one arrives,
and the policy decides: the median of :data:`LATER` such decisions is recorded, and the first decision beside.
A policy that asks to be asked again at once, as oasis does while a long queue bids, has not done deciding.
Nodes have 8 GPUs of one type; jobs are elastic, 1 to 8 times what they request at most, and state their work;
one in ten states a deadline. A process that takes more than
:data:`MOST_CPU_S` is ended: its cell has no figure, and neither have larger ones of that policy.
``python -m benchmarks.parts.decisions_at_scale POLICY GPUS JOBS`` measures one cell.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session

GPUS: Final = (64, 512, 4096)
JOBS: Final = (100, 1_000, 10_000)
LATER: Final = 3
SEED: Final = 20261127
MOST_S: Final = 10.0
MOST_CPU_S: Final = 90
LEFT_OUT: Final = ("oasis-offline", "recorded")
"""They need a whole trace beforehand."""
_NODE_GPUS: Final = 8
_TURN_S: Final = 600.0
_EXPONENTS: Final = {"resnet50": 0.95, "bert": 0.9, "yolov3": 0.85, "deepspeech2": 0.8, "neumf": 0.6}
CURVES: Final = {name: {2**i: 2 ** (i * power) for i in range(12)} for name, power in _EXPONENTS.items()}
"""Speed by number of GPUs, over that of one, by model."""


def figures(
    policies: Sequence[str] | None = None, gpus: Sequence[int] = GPUS, jobs: Sequence[int] = JOBS
) -> Iterator[Figure]:
    """Two figures a cell."""
    for policy in policy_names() if policies is None else policies:
        if policy in LEFT_OUT:
            continue
        beyond: list[tuple[int, int]] = []
        for size in gpus:
            for count in jobs:
                late = any(size >= most_gpus and count >= most_jobs for most_gpus, most_jobs in beyond)
                found = None if late else _in_a_process(policy, size, count)
                if found is None:
                    beyond.append((size, count))
                first_s, later_s = found or (None, None)
                cell = f"{policy}_{size}_gpus_{count}_jobs"
                yield Figure(f"decision_s_{cell}", later_s, "s", MOST_S)
                yield Figure(f"first_decision_s_{cell}", first_s, "s")


def _in_a_process(policy: str, gpus: int, jobs: int) -> tuple[float, float] | None:
    """The first decision and the median of later ones, CPU s; None: it took too long, or failed."""
    command = [sys.executable, "-m", "benchmarks.parts.decisions_at_scale", policy, str(gpus), str(jobs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=as_installed())
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["ended for its time"]
        print(f"{' '.join(command[1:])}: {said[0]}", file=sys.stderr, flush=True)
        return None
    first_s, later_s = json.loads(done.stdout)
    return first_s, later_s


def decisions_s(policy: str, gpus: int, jobs: int) -> list[float]:
    """CPU seconds of each decision, the first with all jobs new."""
    rng = np.random.default_rng(SEED)
    shape = Cluster.model_validate({"nodes": ({"name": "n{}", "gpus": _NODE_GPUS, "count": gpus // 8},)})
    session = Session(make_policy(policy), shape, CurveThroughput(CURVES), seed=SEED)
    number, taken = 0, []
    for turn in range(LATER + 1):
        time_s = _TURN_S * turn
        if running := [state.id for state in session.jobs.values() if state.gpus]:
            session.end(min(running), time_s)
        while len(session.jobs) < jobs and number < jobs + turn:
            session.submit(_job(number, time_s, rng), time_s)
            number += 1
        started = time.process_time()
        session.decide(time_s)
        at_once_s = math.nextafter(time_s, math.inf)
        while session.ask_again_s is not None and session.ask_again_s <= at_once_s:
            session.decide(time_s)
        taken.append(time.process_time() - started)
    return taken


def _job(number: int, now_s: float, rng: np.random.Generator) -> Job:
    requested = int(rng.choice([1, 2, 4, 8], p=[0.5, 0.2, 0.2, 0.1]))
    work_s = float(np.exp(rng.uniform(np.log(7_200), np.log(144_000))))
    return Job.model_validate(
        {
            "id": f"j{number:06}",
            "user": f"u{rng.integers(40)}",
            "submit_time": now_s,
            "model": str(rng.choice(list(CURVES))),
            "gpus": {"requested": requested, "min": 1, "max": 8 * requested},
            "elastic": "size",
            "batch": {"size": 1024},
            "work": {"gpu_seconds": work_s},
            "utility": {"shape": "step", "target": 2 * work_s / requested} if number % 10 == 0 else {},
        }
    )


def main(policy: str, gpus: str, jobs: str) -> None:
    """One cell: the first decision and the median of the others, as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 1))
    taken = decisions_s(policy, int(gpus), int(jobs))
    print(json.dumps([round(taken[0], 6), round(statistics.median(taken[1:]), 6)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
