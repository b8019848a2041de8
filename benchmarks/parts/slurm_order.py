"""Whether the policy ``slurm`` starts jobs in the order in which a real Slurm starts them.

A plan is a day of a small cluster in a minute: jobs that sleep, with sizes, time limits, partitions and nice
values drawn at random. A real Slurm of one host (nodes of one GPU that computes nothing) lives through it
with priorities of several factors and backfill every second. Its log says when each job came and with which
priority, when it started and left, and what was planned for it. Then the policy gets the same jobs at those
times and with those run times, and is asked whenever Slurm looked.

The policy plans GPUs by number, and Slurm books nodes: of a plan that differs, the first job that the policy
starts otherwise is looked up in what Slurm had booked at that moment. Where the idle nodes that are not
booked are too few for it, the difference is explained. Every such plan is listed.

Age, fair share and QOS need Slurm's database daemon, which a Slurm of one host does not have: Slurm then
ignores their weights. So the plans weigh job size, partition and nice values.
"""

from __future__ import annotations

import math
import random
import re
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from benchmarks.parts.figure import Figure, NotMeasurableError
from benchmarks.parts.slurm_cluster import NoSlurmError, SlurmCluster, slurm_cluster
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.policies.slurm import Slurm
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, job

PLANS: Final = 20
JOBS: Final = 16
"""Of a plan."""
SIDE_BY_SIDE: Final = 4
"""Slurms at a time; most of what they do is sleep."""
NODES: Final = 8
WEIGHT: Final = 1000
ARRIVAL_GAP_S: Final = 2.5
"""Mean time between submissions."""
RUN_S: Final = (3.0, 15.0)
LIMITS_MIN: Final = (1, 1, 2, 3, 5, 10)
"""Time limits: whole minutes, so every user overestimates."""
SIZES: Final = (1, 1, 1, 2, 2, 3, 4, 5, 6, 8)
PARTITIONS: Final[Mapping[str, int]] = {"main": 1, "debug": 4}
"""Their PriorityJobFactor."""
NICE: Final = (-150, 0, 0, 0, 150)
CYCLE_S: Final = 1.0
RELEASE_S: Final = 0.05
"""For some milliseconds the nodes of a job that has left are completing: Slurm uses them at its next look."""
ENDS_S: Final = 300.0
_LINE: Final = re.compile(r"\[(?P<time>\d[^]]+)\] (?P<text>.*)")
_LOOKED: Final = re.compile(r"sched/backfill: _attempt_backfill: beginning")
_CAME: Final = re.compile(r"_slurm_rpc_submit_batch_job: JobId=(\d+) InitPrio=(\d+)")
_BOOKED: Final = re.compile(r"JobId=(\d+) to start at (\S+), end at (\S+) on nodes (\S+)")
_STARTED: Final = re.compile(
    r"(?:_start_job: Started|sched: Allocate) JobId=(\d+) .*?(?:on |NodeList=)(n\S*)"
)
_LEFT: Final = re.compile(r"_job_complete: JobId=(\d+) done")


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """One job of a plan; the first is job 1 of Slurm."""

    at_s: float
    gpus: int
    limit_min: int
    run_s: float
    partition: str
    nice: int


@dataclass(frozen=True, slots=True)
class Booked:
    """What Slurm has planned for a job."""

    start_s: float
    end_s: float
    nodes: frozenset[int]


@dataclass(slots=True)
class Lived:
    """What Slurm's log says; times in seconds since it began, jobs by number."""

    came_s: dict[int, float] = field(default_factory=dict)
    priorities: dict[int, int] = field(default_factory=dict)
    nodes: dict[int, frozenset[int]] = field(default_factory=dict)
    """In the order of the starts."""
    started_s: dict[int, float] = field(default_factory=dict)
    left_s: dict[int, float] = field(default_factory=dict)
    looks: dict[float, dict[int, Booked]] = field(default_factory=dict)
    """When Slurm looked what it can start, and what the backfill scheduler planned for jobs."""
    main_looks: set[float] = field(default_factory=set)
    """Those of the main scheduler, which starts jobs in order and backfills none."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One plan: jobs in the order of their starts, and those whose priorities differ."""

    plan: int
    slurm: tuple[int, ...]
    policy: tuple[int, ...]
    other_priority: tuple[int, ...]
    why: str = ""
    """Why the first start differs, as far as Slurm's log says it."""

    @property
    def is_equal(self) -> bool:
        return self.slurm == self.policy

    def __str__(self) -> str:
        wrong = f"; other priorities of {self.other_priority}" if self.other_priority else ""
        if self.is_equal:
            return f"plan {self.plan}: equal{wrong}"
        return f"plan {self.plan}: {self.why or 'not explained'}{wrong}\n  {self.slurm}\n  {self.policy}"


def figures(plans: int = PLANS, jobs: int = JOBS) -> list[Figure]:
    """The parts of plans whose order is equal, and equal or explained, and of jobs with equal priority.

    :raises NotMeasurableError: no Slurm can be started here.
    """
    try:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            found = list(pool.map(lambda plan: compare(plan, jobs), range(plans)))
    except NoSlurmError as error:
        raise NotMeasurableError(str(error)) from error
    for each in found:
        print(each, file=sys.stderr)
    alike = 1 - sum(len(each.other_priority) for each in found) / (plans * jobs)
    understood = sum(each.is_equal or bool(each.why) for each in found)
    return [
        Figure("slurm_order_equal", sum(each.is_equal for each in found) / plans, "part of plans"),
        Figure("slurm_order_agreement", understood / plans, "part of plans", 1.0, at_least=True),
        Figure("slurm_priority_agreement", alike, "part of jobs", 1.0, at_least=True),
    ]


def compare(plan: int, jobs: int = JOBS) -> Compared:
    """Live through a plan with Slurm, then with the policy.

    :raises NoSlurmError: no Slurm can be started here.
    """
    planned = drawn(plan, jobs)
    favor_small = bool(plan % 2)
    lived = live(planned, favor_small=favor_small)
    return judged(plan, planned, lived, favor_small=favor_small)


def drawn(plan: int, jobs: int) -> list[PlannedJob]:
    chance, at_s, found = random.Random(plan), 0.0, []  # noqa: S311 - no secret
    for _ in range(jobs):
        each = PlannedJob(
            at_s,
            gpus=chance.choice(SIZES),
            limit_min=chance.choice(LIMITS_MIN),
            run_s=round(chance.uniform(*RUN_S), 1),
            partition=chance.choice(tuple(PARTITIONS)),
            nice=chance.choice(NICE),
        )
        found.append(each)
        at_s += chance.expovariate(1 / ARRIVAL_GAP_S)
    return found


def live(planned: Sequence[PlannedJob], *, favor_small: bool) -> Lived:
    """What a real Slurm makes of a plan.

    :raises NoSlurmError: none can be started here.
    :raises TimeoutError: jobs do not end.
    """
    debug = f"PartitionName=debug Nodes=ALL PriorityJobFactor={PARTITIONS['debug']}"
    settings = (
        "PriorityType=priority/multifactor",
        f"PriorityWeightJobSize={WEIGHT}",
        f"PriorityWeightPartition={WEIGHT}",
        f"PriorityFavorSmall={'YES' if favor_small else 'NO'}",
        "SchedulerParameters=sched_interval=1,bf_interval=1,bf_resolution=1,batch_sched_delay=0",
        "DebugFlags=Backfill",
        debug,
    )
    with slurm_cluster((1,) * NODES, settings=settings) as slurm:
        began_s = time.monotonic()
        for each in planned:
            time.sleep(max(0.0, began_s + each.at_s - time.monotonic()))
            _submit(slurm, each)
        deadline_s = time.monotonic() + ENDS_S
        while slurm.command("squeue", "-h", "-o", "%i", check=False).strip():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"not all of {len(planned)} jobs have ended")
            time.sleep(1.0)
        return lived_in((slurm.folder / "slurmctld.log").read_text(errors="replace"))


def _submit(slurm: SlurmCluster, one: PlannedJob) -> None:
    """All cores of a node go to a job: then its size in nodes and in cores is one number."""
    slurm.command(
        *("sbatch", f"--nodes={one.gpus}", f"--ntasks={one.gpus}", "--cpus-per-task=8", "--gres=gpu:1"),
        *(f"--time={one.limit_min}", f"--partition={one.partition}", f"--nice={one.nice}"),
        *("--no-requeue", "--output=/dev/null", "--wrap", f"exec sleep {one.run_s}"),
    )


def lived_in(log: str) -> Lived:
    """What the controller's log says."""
    found = Lived()
    lines = [match for match in map(_LINE.match, log.splitlines()) if match is not None]
    began = datetime.fromisoformat(lines[0]["time"]).replace(microsecond=0)

    def seconds(stamp: str) -> float:
        return (datetime.fromisoformat(stamp) - began).total_seconds()

    look: dict[int, Booked] = {}
    for time_s, text in ((seconds(match["time"]), match["text"]) for match in lines):
        if _LOOKED.search(text):
            look = found.looks[time_s] = {}
        elif match := _CAME.match(text):
            found.came_s[int(match[1])], found.priorities[int(match[1])] = time_s, int(match[2])
        elif match := _BOOKED.search(text):
            look[int(match[1])] = Booked(seconds(match[2]), seconds(match[3]), _nodes(match[4]))
        elif match := _STARTED.search(text):
            found.started_s[int(match[1])], found.nodes[int(match[1])] = time_s, _nodes(match[2])
            if "Allocate" in text:
                look = found.looks[time_s] = {}
                found.main_looks.add(time_s)
        elif match := _LEFT.match(text):
            found.left_s[int(match[1])] = time_s
    return found


def _nodes(text: str) -> frozenset[int]:
    """Numbers of nodes: ``n[0-3,7]``."""
    spans = (span.partition("-") for span in text[1:].strip("[]").split(","))
    return frozenset(n for first, _, last in spans for n in range(int(first), int(last or first) + 1))


def judged(plan: int, planned: Sequence[PlannedJob], lived: Lived, *, favor_small: bool) -> Compared:
    """Let the policy decide about the same jobs, and compare."""
    parameters: dict[str, Any] = {
        "priority_weight_job_size": float(WEIGHT),
        "priority_weight_partition": float(WEIGHT),
        **dict.fromkeys(("priority_weight_age", "priority_weight_fairshare", "priority_weight_qos"), 0.0),
        "priority_favor_small": favor_small,
        "partitions": ",".join(f"{name}={factor}" for name, factor in PARTITIONS.items()),
        "bf_resolution_s": 1.0,
    }
    policy = Slurm(**parameters)
    held = Session(policy, cluster(*[1] * NODES), CurveThroughput())
    coming = sorted(lived.came_s, key=lambda number: lived.came_s[number])
    ends_s: dict[int, float] = {}
    order: list[int] = []
    slurm = tuple(lived.nodes)
    priorities: dict[int, int] = {}
    why = ""
    for look_s in _looks(lived):
        now_s = float(math.floor(look_s))  # on Slurm's clock
        for number in [number for number, end_s in ends_s.items() if end_s <= look_s]:
            held.end(_name(number), now_s)
            del ends_s[number]
        while coming and lived.came_s[coming[0]] <= look_s:
            number = coming.pop(0)
            held.submit(_job(number, planned[number - 1], lived), now_s)
        if not coming and not held.jobs:
            break
        policy.bf_interval_s = math.inf if look_s in lived.main_looks else 0.0
        for change in held.decide(now_s):
            number = int(change.job.id)
            if slurm[: len(order)] == tuple(order) and slurm[len(order)] != number:
                why = why_differs(number, planned[number - 1], look_s, lived, order)
            order.append(number)
            ends_s[number] = look_s + lived.left_s[number] - lived.started_s[number]
        state: Any = held.policy_host.policy_state().state
        priorities |= {int(job_id): priority for job_id, (_, _, priority, _) in state["jobs"].items()}
    other = tuple(number for number in priorities if priorities[number] != lived.priorities[number])
    return Compared(plan, slurm, tuple(order), other, why)


def why_differs(
    number: int, planned: PlannedJob, look_s: float, lived: Lived, started: Collection[int]
) -> str:
    """Why Slurm does not start a job that the policy starts, by its log; empty if that does not say it.

    :param started: by both until then.
    """
    for other, left_s in lived.left_s.items():
        if look_s - RELEASE_S < left_s <= look_s:
            return f"job {other} had left {1000 * (look_s - left_s):.0f} ms before, its nodes were completing"
    running = (one for one in started if look_s < lived.left_s[one])
    idle = frozenset(range(NODES)).difference(*(lived.nodes[one] for one in running))
    until_s = math.floor(look_s) + 60 * planned.limit_min
    booked = {
        other: each.nodes & idle
        for other, each in lived.looks.get(look_s, {}).items()
        if other != number and each.start_s <= until_s and each.nodes & idle
    }
    left = idle.difference(*booked.values())
    if not booked or len(left) >= planned.gpus:
        return ""
    told = ", ".join(f"job {other} n{sorted(nodes)}" for other, nodes in sorted(booked.items()))
    return f"job {number} asks for {planned.gpus} of the idle n{sorted(idle)}, of which are booked: {told}"


def _looks(lived: Lived) -> Iterator[float]:
    """When Slurm looked what it can start; after its last look once a cycle."""
    look_s = 0.0
    for look_s in sorted(lived.looks):
        yield look_s
    while True:
        look_s += CYCLE_S
        yield look_s


def _name(number: int) -> str:
    return f"{number:04}"


def _job(number: int, planned: PlannedJob, lived: Lived) -> Job:
    return job(
        _name(number),
        at=lived.came_s[number],
        gpus=planned.gpus,
        gpu_seconds=planned.gpus * (lived.left_s[number] - lived.started_s[number]),
        priority=float(-planned.nice),
        labels={"time_limit": f"{planned.limit_min}m", "partition": planned.partition},
    )
