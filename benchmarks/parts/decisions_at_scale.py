"""What a decision of each policy costs, by the number of GPUs and of active jobs, each in a fresh process.

All jobs are there at the first decision; then, ten minutes apart, the oldest running job ends, one arrives,
and the policy decides, :data:`LATER` times. The mean of such decisions is recorded, and the first decision
beside. What a policy asks for at once belongs to the decision, as with oasis, whose queue bids in parts.
Where decisions are quick, the same is done with other jobs in further sessions, until they have taken
:data:`ENOUGH_S` or there are :data:`MOST_DECISIONS`: further turns of one session would leave it with jobs
whose work is done. ``decisions_of_POLICY`` says how many decisions the figures of a policy are means of.
Nodes have 8 GPUs of one type; jobs are elastic, 1 to 8 times what they request at most, and state their work;
one in ten states a deadline. A process that takes more than
:data:`MOST_CPU_S` is ended: its cell has no figure, and neither have larger ones of that policy.
``python -m benchmarks.parts.decisions_at_scale POLICY GPUS JOBS`` measures one cell.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
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
ENOUGH_S: Final = 0.05
MOST_DECISIONS: Final = 50
MOST_REPEATING_S: Final = 20.0
"""CPU seconds of the process after which no further session begins: first decisions may be slow."""
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
    """Two figures a cell, and one a policy."""
    for policy in policy_names() if policies is None else policies:
        if policy in LEFT_OUT:
            continue
        beyond: list[tuple[int, int]] = []
        decisions = 0
        for size in gpus:
            for count in jobs:
                late = any(size >= most_gpus and count >= most_jobs for most_gpus, most_jobs in beyond)
                found = None if late else _in_a_process(policy, size, count)
                if found is None:
                    beyond.append((size, count))
                first_s, later_s, number = found or (None, None, 0)
                decisions += number
                cell = f"{policy}_{size}_gpus_{count}_jobs"
                yield Figure(f"decision_s_{cell}", later_s, "s", MOST_S)
                yield Figure(f"first_decision_s_{cell}", first_s, "s")
        yield Figure(f"decisions_of_{policy}", decisions, "decisions")


def _in_a_process(policy: str, gpus: int, jobs: int) -> tuple[float, float, int] | None:
    """The first decision and the mean of later ones, CPU s, and their number; None: too long, or failed."""
    command = [sys.executable, "-m", "benchmarks.parts.decisions_at_scale", policy, str(gpus), str(jobs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=as_installed())
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["ended for its time"]
        print(f"{' '.join(command[1:])}: {said[0]}", file=sys.stderr, flush=True)
        return None
    first_s, later_s, number = json.loads(done.stdout)
    return first_s, later_s, number


def measured(policy: str, gpus: int, jobs: int) -> tuple[float, float, int]:
    """CPU seconds of the first decision, the mean of later ones in as many sessions as it takes, their
    number.
    """
    first_s, *later_s = decisions_s(policy, gpus, jobs)
    session_s = _used_s()
    while (
        sum(later_s) < ENOUGH_S
        and len(later_s) + LATER <= MOST_DECISIONS
        and _used_s() + session_s <= MOST_REPEATING_S
    ):
        later_s += decisions_s(policy, gpus, jobs, SEED + len(later_s))[1:]
    return first_s, sum(later_s) / len(later_s), len(later_s)


def _used_s() -> float:
    """CPU seconds of all threads, to the microsecond.

    With a limit on CPU time, as :func:`main` sets it, the clock of :func:`time.process_time` moves only when
    the kernel's timer ticks, every 4 ms.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def decisions_s(policy: str, gpus: int, jobs: int, seed: int = SEED) -> list[float]:
    """CPU seconds of each decision of one session, the first with all jobs new."""
    rng = np.random.default_rng(seed)
    shape = Cluster.model_validate({"nodes": ({"name": "n{}", "gpus": _NODE_GPUS, "count": gpus // 8},)})
    session = Session(make_policy(policy), shape, CurveThroughput(CURVES), seed=seed)
    number, taken = 0, []
    for turn in range(LATER + 1):
        time_s = _TURN_S * turn
        if running := [state.id for state in session.jobs.values() if state.gpus]:
            session.end(min(running), time_s)
        while len(session.jobs) < jobs and number < jobs + turn:
            session.submit(_job(number, time_s, rng), time_s)
            number += 1
        started_s = _used_s()
        session.decide(time_s)
        at_once_s = math.nextafter(time_s, math.inf)
        while session.decided.due_s is not None and session.decided.due_s <= at_once_s:
            session.decide(time_s)
        taken.append(_used_s() - started_s)
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
    """One cell: the first decision, the mean of the others and their number, as JSON."""
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S + 1))
    first_s, later_s, number = measured(policy, int(gpus), int(jobs))
    print(json.dumps([round(first_s, 6), round(later_s, 6), number]))


if __name__ == "__main__":
    main(*sys.argv[1:])
