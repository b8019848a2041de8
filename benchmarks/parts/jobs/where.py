"""Where jobs may run: random clusters and jobs under every policy, what is refused, and what it costs.

What a node allows is said here a second time, in the plainest way, so that it is not checked by itself.
"""

from __future__ import annotations

import math
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from typing import Any, Final

import numpy as np

from benchmarks.parts.figure import Figure
from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import CurveThroughput
from pliant.tools.schedule.demand import JobCheck
from pliant.tools.schedule.jobs import JobState, node_states
from pliant.tools.schedule.predict_start import happen, in_order_of_arrival
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.registry import make_policy, policy_names
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.testing.harness import CheckedSession

WORLDS: Final = 1000
_QUICK: Final = ("fifo", "sjf", "srtf", "ares", "fair-share", "edf", "slurm", "tiresias")
_GB: Final = 10**9
_WITHOUT_GPU: Final = 0.2
_DECISIONS: Final = 100
_MOST_STEPS: Final = 3000
_NODE_DOWN, _NODE_UP = 3, 6
"""Steps at which a node vanishes and comes back."""
_EXPRESSIONS: Final[dict[str, Any]] = {
    "nvlink": lambda labels: "nvlink" in labels,
    "!nvlink": lambda labels: "nvlink" not in labels,
    "rack=a": lambda labels: labels.get("rack") == "a",
    "rack != a": lambda labels: labels.get("rack") != "a",
    "rack in (a, b)": lambda labels: labels.get("rack") in ("a", "b"),
    "rack notin (b,c)": lambda labels: labels.get("rack") not in ("b", "c"),
    "nvlink|rack=c": lambda labels: "nvlink" in labels or labels.get("rack") == "c",
    "!(nvlink & rack=a)": lambda labels: not ("nvlink" in labels and labels.get("rack") == "a"),
}


@dataclass(frozen=True, slots=True)
class World:
    """A cluster, and jobs of which some can never run there."""

    cluster: Cluster
    jobs: tuple[Job, ...]

    def can_run(self, job: Job, requested: int) -> bool:
        """Whether one GPU type has that many GPUs for a job, on nodes that suit it."""
        if job.on_cpus:
            return any(_fits(job, node) for node in self.cluster.nodes)
        room: dict[str, int] = {}
        for node in self.cluster.nodes:
            room[node.gpu_type] = room.get(node.gpu_type, 0) + _workers(job, node, self._largest(node))
        return max(room.values()) >= requested

    def _largest(self, node: Node) -> int:
        return max(each.gpus for each in self.cluster.nodes if each.gpu_type == node.gpu_type)


def allowed(job: Job, node: Node) -> bool:
    """Whether a job may run on a node."""
    named = job.only is None or node.name in job.only
    typed = job.gpus.types is None or node.gpu_type in job.gpus.types
    large = job.gpus.memory is None or (node.gpu_memory is not None and node.gpu_memory >= job.gpus.memory)
    return (
        named
        and typed
        and large
        and node.name not in job.exclude
        and all(_EXPRESSIONS[text](node.labels) for text in job.nodes)
    )


def _fits(job: Job, node: Node) -> bool:
    """Whether an empty node holds a job without GPUs."""
    has = {"cpu": node.cpus, "memory": node.memory}
    needs = job.resources.worker.items()
    return allowed(job, node) and all((has[name] or math.inf) >= amount for name, amount in needs)


def overfull(given: World, jobs: Iterable[JobState]) -> list[str]:
    """Nodes whose jobs demand more together than they have."""
    needed = defaultdict[tuple[str, str], float](float)
    for job in jobs:
        for (name, count), (resource, amount) in product(job.placement, job.spec.resources.worker.items()):
            needed[name, resource] += amount * count
    has = {(node.name, "cpu"): node.cpus for node in given.cluster.nodes}
    has |= {(node.name, "memory"): node.memory for node in given.cluster.nodes}
    return [
        f"{name} has too little {what}"
        for (name, what), amount in needed.items()
        if amount > (has[name, what] or math.inf)
    ]


def _workers(job: Job, node: Node, largest: int) -> int:
    """How many of its workers an empty node holds, in whole replicas."""
    if not allowed(job, node):
        return 0
    most, each = float(node.gpus), job.gpus.per_replica
    for name, has in (("cpu", node.cpus), ("memory", node.memory)):
        if has is not None and (needs := job.resources.worker.get(name)):
            most = min(most, has // needs)
    return int(most - most % each) if each <= largest else int(most)


def world(rng: np.random.Generator) -> World:
    nodes = [_node(f"n{number}", rng) for number in range(int(rng.integers(2, 7)))]
    names = [node["name"] for node in nodes]
    cluster = Cluster.model_validate({"nodes": tuple(nodes)})
    return World(cluster, tuple(_job(f"j{number}", names, rng) for number in range(int(rng.integers(4, 10)))))


def _node(name: str, rng: np.random.Generator) -> dict[str, Any]:
    gpus = int(rng.choice([1, 2, 4]))
    labels = {} if rng.random() < 0.3 else {"rack": str(rng.choice(["a", "b", "c"]))}
    node: dict[str, Any] = {"name": name, "gpus": gpus, "gpu_type": str(rng.choice(["slow", "fast"]))}
    node["labels"] = labels | ({"nvlink": ""} if rng.random() < 0.5 else {})
    if rng.random() < 0.8:
        node["gpu_memory"] = int(rng.choice([16, 40])) * _GB
    if rng.random() < 0.7:
        node |= {"cpus": float(gpus * rng.choice([2, 4])), "memory": int(gpus * 32 * _GB)}
    return node


def _job(name: str, nodes: Sequence[str], rng: np.random.Generator) -> Job:
    each = int(rng.choice([1, 1, 1, 2]))
    gpus: dict[str, Any] = {"requested": each * int(rng.integers(1, 4)), "per_replica": each}
    elastic = str(rng.choice(["none", "size"]))
    if elastic == "size":
        gpus |= {"min": each, "max": 4 * each}
    record: dict[str, Any] = {
        "id": name,
        "model": "linear",
        "submit_time": float(rng.integers(0, 60)),
        "gpus": gpus,
        "elastic": elastic,
        "batch": {"size": 64},
        "work": {"gpu_seconds": float(rng.integers(20, 200))},
    }
    if rng.random() < _WITHOUT_GPU:
        record |= {"elastic": "none", "gpus": {"requested": 0}}
        record["resources"] = {"worker": {"cpu": float(rng.integers(1, 20)), "memory": 8.0 * _GB}}
        return Job.model_validate(record | _names(nodes, rng))
    if rng.random() < 0.3:
        gpus["types"] = (str(rng.choice(["slow", "fast"])),)
    if rng.random() < 0.2:
        gpus["memory"] = int(rng.choice([16, 40])) * _GB
    if rng.random() < 0.4:
        record["resources"] = {"worker": {"cpu": float(rng.choice([1, 2, 4]))}}
    return Job.model_validate(record | _names(nodes, rng))


def _names(nodes: Sequence[str], rng: np.random.Generator) -> dict[str, Any]:
    """The fields of a job that say on which nodes it may run."""

    def some() -> tuple[str, ...]:
        return tuple(map(str, rng.choice(nodes, int(rng.integers(1, len(nodes))), replace=False)))

    found: dict[str, Any] = {}
    if rng.random() < 0.5:
        found["nodes"] = tuple(map(str, rng.choice(list(_EXPRESSIONS), int(rng.integers(1, 3)))))
    if rng.random() < 0.3:
        found["exclude"] = some()
    if rng.random() < 0.2:
        found["only"] = some()
    return found


def worlds(count: int, seed: int = 7) -> Iterator[World]:
    rng = np.random.default_rng(seed)
    return (world(rng) for _ in range(count))


def accepted(given: World, policy: str) -> Iterator[Job]:
    """The jobs that ``submit`` takes on such a cluster."""
    speeds = Speeds(CurveThroughput(), node_states(given.cluster))
    check = JobCheck(given.cluster, speeds, make_policy(policy))
    return (job for job in given.jobs if not check.problems(job, "jobs"))


def mistakes_of_checks(given: World) -> tuple[int, int]:
    """Jobs that are accepted though they can never run, and jobs that are refused though they can."""
    taken = {job.id for job in accepted(given, "fair-share")}
    able = {job.id for job in given.jobs if given.can_run(job, job.min_gpus)}
    return len(taken - able), len(able - taken)


def violations(given: World, policy: str) -> list[str]:
    """What a policy does that no job may suffer: a node that it does not allow, or a job that never ends.

    A node vanishes early and comes back.
    """
    held, found = CheckedSession(make_policy(policy), given.cluster), list[str]()
    nodes = {node.name: node for node in given.cluster.nodes}
    elastic = held.session.policy.traits.elasticity != "none"
    jobs = [job for job in given.jobs if given.can_run(job, job.min_gpus if elastic else job.gpus.requested)]
    coming = in_order_of_arrival(jobs)
    happen(held.session, held.time_s, coming)
    lost = given.cluster.nodes[0].name
    for step in range(_MOST_STEPS):
        if step == _NODE_DOWN:
            held.session.maintenance.node_down(lost, held.time_s)
        if step == _NODE_UP:
            held.session.maintenance.node_up(lost, held.time_s)
        try:
            held.decide()
        except AssertionError as error:
            return [f"{policy}: {error}"]
        for job in held.jobs.values():
            wrong = [name for name, _ in job.placement if not allowed(job.spec, nodes[name])]
            found += [f"{policy}: {job.id} is on {name}" for name in wrong]
        found += [f"{policy}: {what}" for what in overfull(given, held.jobs.values())]
        if not held.advance(coming):
            if held.session.cluster.free.node(lost).up:
                break
            held.session.maintenance.node_up(lost, held.time_s)
    if held.jobs:
        found.append(f"{policy}: {sorted(held.jobs)} never end")
    return found


def decision_seconds(policy: str, jobs: Sequence[Job], nodes: Cluster) -> float:
    """CPU time of decisions while jobs end and others take their GPUs, and of all arrivals."""
    session = Session(make_policy(policy), nodes, CurveThroughput(speeds={"fast": 2.0}))
    begin, now_s = time.process_time(), 0.0
    for job in jobs:
        session.submit(job, 0.0)
    session.decide(now_s)
    for _ in range(_DECISIONS):
        now_s += 1.0
        running = next((job.id for job in session.jobs.values() if job.gpus), None)
        if running is None:
            break
        session.end(running, now_s)
        session.decide(now_s)
    return time.process_time() - begin


MANY_NODES: Final = Cluster.model_validate(
    {
        "nodes": tuple(
            {
                "name": f"n{number}",
                "gpus": 8,
                "gpu_type": ("slow", "fast")[number % 2],
                "gpu_memory": (16, 40)[number // 2 % 2] * _GB,
                "labels": {"rack": "abcd"[number // 4 % 4]} | ({"nvlink": ""} if number % 3 else {}),
            }
            for number in range(64)
        )
    }
)
_WHERE: Final[tuple[dict[str, Any], ...]] = (
    {"nodes": ("nvlink",)},
    {"nodes": ("rack in (a,b)",)},
    {"exclude": ("n3", "n7")},
    {"types": ("fast",)},
    {"memory": 40 * _GB},
    {"nodes": ("!nvlink",), "types": ("slow",)},
    {},
)


def many_jobs(*, bound: bool, count: int = 1000) -> list[Job]:
    """:param bound: most of them may run on some nodes only."""
    found = []
    for number, where in zip(range(count), cycle(_WHERE), strict=False):
        gpus: dict[str, Any] = {"requested": (1, 2, 4, 8)[number % 4], "min": 1, "max": 16}
        record = {"id": f"j{number}", "model": "linear", "elastic": "size", "batch": {"size": 64}}
        record |= {"work": {"gpu_seconds": 100.0 + number}, "gpus": gpus}
        for name, value in where.items() if bound else ():
            (gpus if name in ("types", "memory") else record)[name] = value
        found.append(Job.model_validate(record))
    return found


def decision_ratio(policies: Sequence[str] = _QUICK) -> float:
    """CPU time of the same decisions with constraints, over that without; the least of five in turn."""
    queues = [many_jobs(bound=bound) for bound in (False, True)]
    seconds = np.array(
        [
            [[decision_seconds(policy, jobs, MANY_NODES) for jobs in queues] for _ in range(5)]
            for policy in policies
        ]
    )
    free, bound = seconds.min(axis=1).sum(axis=0)
    return float(bound / free)


def figures(
    count: int = WORLDS, policies: Sequence[str] | None = None, measured: Sequence[str] = _QUICK
) -> list[Figure]:
    """:param policies: under which each world is lived through. Default: all."""
    refused = [mistakes_of_checks(given) for given in worlds(count)]
    names = policy_names() if policies is None else policies
    broken = [each for given in worlds(count) for name in names for each in violations(given, name)]
    for each in broken:
        print(each, file=sys.stderr)
    return [
        Figure("constraint_violations", len(broken), "", 0),
        Figure("impossible_jobs_accepted", sum(taken for taken, _ in refused), "", 0),
        Figure("possible_jobs_refused", sum(lost for _, lost in refused), "", 0),
        Figure("decision_ratio_constraints_1000_jobs", decision_ratio(measured), "", 1.3),
    ]
