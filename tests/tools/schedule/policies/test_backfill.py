"""Who passes the head of a queue: the search by kinds against one that reads every waiting job."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas.cluster import Cluster
from pliant.schemas.job import Job
from pliant.tools.schedule.policies.backfill import WaitingLine
from pliant.tools.schedule.policies.common import GpuBudget, Grant, is_in_reach, reject_impossible
from pliant.tools.schedule.policies.fifo import Backfill, Fifo
from pliant.tools.schedule.policy import Decision, Policy, Target
from pliant.tools.schedule.session.session import Session
from tests.builders import cluster, curves, job, mixed_cluster, session
from tests.effort import examples
from tests.tools.schedule.policies.started import joined, started

KINDS = (
    *(*["submit"] * 3, *["finish"] * 3, "pass", "cancel", "lose", "down", "up"),
    *("prioritize", "hold_back", "let_go", "drain", "resume", "withdraw", "report"),
)
SPEEDS = curves(fast={1: 3.0, 8: 24.0}, flat={1: 1.0, 8: 1.0})


class PlainBackfill(Policy):
    """The rules of ``fifo`` straight from its page: it keeps nothing and reads every job."""

    name = "plain"

    def __init__(self, backfill: Backfill) -> None:
        self.backfill = backfill

    def decide(self, snapshot, rng):
        rejected = reject_impossible(snapshot)
        line = [each for each in snapshot.arrivals() if not each.gpus and each.id not in rejected]
        budget, grants, head = GpuBudget(snapshot.free_gpus), {}, None
        for each in line:
            size = each.spec.gpus.requested
            grant = budget.fit(each, size, snapshot.speeds) if budget.total else None
            if head is None:
                if grant is None:
                    reach = is_in_reach(each, size, snapshot.gpus_by_type(), snapshot.speeds)
                    head = each if reach and budget.total else None
                    if not budget.total:
                        break
                    if head is not None and self.backfill == "none":
                        break
                    start = self.start_of(head, snapshot, budget, grants) if head is not None else None
                    if head is not None and self.backfill == "easy" and start is None:
                        break
                    continue
            elif self.backfill == "easy":
                grant = self.passes(each, size, grant, start, snapshot, budget)
            if grant is not None:
                budget.take(grant)
                grants[each.id] = grant
        return Decision({name: Target(*grant) for name, grant in grants.items()}, rejected)

    def passes(self, each, size, grant, start, snapshot, budget):
        if grant is None or grant.gpu_type != start["type"]:
            return grant
        if self.end_s(each, grant, snapshot) <= start["time"]:
            return grant
        if size <= start["spare"]:
            start["spare"] -= size
            return grant
        others = {kind: left for kind, left in budget.left.items() if kind != start["type"]}
        return GpuBudget(others).fit(each, size, snapshot.speeds)

    def start_of(self, head, snapshot, budget, grants):
        if self.backfill != "easy":
            return None
        size, result = head.spec.gpus.requested, []
        for kind, free in budget.left.items():
            if snapshot.speeds.gpu_types[kind] < size or snapshot.speeds.rate(head, size, kind) <= 0:
                continue
            running = [each for each in snapshot.jobs.values() if each.gpu_type == kind]
            ends = [
                (max(end, snapshot.time_s), each.gpus)
                for each in running
                if (end := each.finish_time_s()) is not None
            ]
            granted = {name: grant for name, grant in grants.items() if grant.gpu_type == kind}
            then = {name: self.end_s(snapshot.jobs[name], grant, snapshot) for name, grant in granted.items()}
            ends += [(end, granted[name].gpus) for name, end in then.items() if end < float("inf")]
            for moment in sorted({end for end, _ in ends}):
                left = free + sum(gpus for end, gpus in ends if end <= moment)
                if left >= size:
                    result.append((moment, kind, left - size))
                    break
        if not result:
            return None
        moment, kind, spare = min(result)
        return {"time": moment, "type": kind, "spare": spare}

    def end_s(self, each, grant: Grant, snapshot):
        left = each.remaining_samples(snapshot.time_s)
        speed = snapshot.speeds.rate(each, grant.gpus, grant.gpu_type)
        return float("inf") if left is None else snapshot.time_s + left / speed


def with_cpus(nodes: Cluster, *cpus: int) -> Cluster:
    """Nodes with these CPUs in turn."""
    each = zip(nodes.nodes, itertools.cycle(cpus), strict=False)
    return nodes.model_copy(update={"nodes": tuple(n.model_copy(update={"cpus": c}) for n, c in each)})


CLUSTERS = (
    cluster(4, 4),
    cluster(8, 8, 8),
    with_cpus(mixed_cluster(a=(4, 4), b=(8,)), 4, 2),
    mixed_cluster(a=(2,), b=(4,), c=(4,)),
)


def random_job(draw: random.Random, number: int, at: float) -> Job:
    """Some are of unknown work, of a small batch, of a priority, or with demands of nodes."""
    work = None if draw.random() < 0.1 else {"samples": draw.choice((5, 20, 60, 60, 300, 3000))}
    more = {"resources": {"worker": {"cpu": draw.choice((1, 2, 3))}}} if draw.random() < 0.2 else {}
    return job(
        f"j{number:03}",
        at=at,
        gpus=draw.choice((1, 1, 1, 2, 3, 4, 8)),
        work=work,
        model=draw.choice(("linear", "fast", "flat")),
        batch=draw.choice((4, 960)),
        priority=float(draw.choice((0, 0, 0, 1))),
        **more,
    )


class Story:
    """The same things happen to two sessions; each decides after each of them."""

    def __init__(self, nodes: Cluster, backfill: Backfill, seed: int) -> None:
        self.draw, self.time_s, self.number = random.Random(seed), 0.0, 0
        self.both = [session(policy, nodes, SPEEDS) for policy in (Fifo(backfill), PlainBackfill(backfill))]
        for _ in range(self.draw.choice((0, 10, 300))):
            self.submit()
        self.decide()

    def submit(self) -> None:
        late_s = self.draw.choice((0.0, 0.0, 30.0))
        each = random_job(self.draw, self.number, max(0.0, self.time_s - late_s))
        self.number += 1
        for held in self.both:
            held.submit(each, self.time_s)

    def decide(self) -> None:
        new, plain = ([str(each) for each in held_by(held, self.time_s)] for held in self.both)
        assert new == plain

    def go_on(self) -> None:
        first = self.both[0]
        running = sorted(each.id for each in first.jobs.values() if each.gpus)
        waiting = sorted(each.id for each in first.jobs.values() if not each.gpus)
        begun = sorted(each.id for each in first.jobs.values() if each.first_start_s is not None)
        what = self.draw.choice(KINDS)
        name = self.draw.choice(first.nodes).name
        index, level, at_once = self.draw.randrange(10**6), self.draw.randrange(3), self.draw.random() < 0.5
        self.time_s += self.draw.choice((0.0, 1.0, 7.0, 50.0))
        if what == "submit":
            self.submit()
        for held in self.both:
            if what in ("finish", "lose") and running:
                chosen = running[index % len(running)]
                (held.end if what == "finish" else held.lose)(chosen, self.time_s)
            elif what == "report" and begun:
                held.jobs[begun[index % len(begun)]].report_progress(self.time_s, 10.0 * level)
            elif what in ("cancel", "prioritize", "hold_back") and (running or waiting):
                chosen = (waiting or running)[index % len(waiting or running)]
                if what == "cancel":
                    held.end(chosen, self.time_s, "cancelled")
                elif what == "prioritize":
                    held.prioritize(chosen, self.time_s, float(level))
                else:
                    held.hold_back(chosen, self.time_s, "its owner")
                    if at_once:
                        held.prioritize(chosen, self.time_s, float(level))
            elif what == "let_go" and held.commands.held:
                held.let_go(sorted(held.commands.held)[index % len(held.commands.held)], self.time_s)
            elif what == "down":
                held.node_down(name, self.time_s)
            elif what == "up":
                held.node_up(name, self.time_s)
            elif what == "drain":
                held.drain(name, self.time_s, now=at_once)
            elif what == "resume":
                held.resume(name, self.time_s)
            elif what == "withdraw" and held.free.free_on(name):
                held.withdraw(f"{name}/{index % 1000}", self.time_s, self.time_s + 60.0)
        self.decide()


def held_by(held: Session, time_s: float) -> list[tuple[str, str, object]]:
    """What a decision changes, job by job, and what every job then holds."""
    changes = [(each.job.id, each.step, each.before) for each in held.decide(time_s)]
    return [*changes, *((each.id, "holds", each.placement) for each in held.jobs.values() if each.gpus)]


@given(seed=st.integers(0, 10**9), backfill=st.sampled_from(["easy", "skip", "none"]))
@settings(max_examples=examples(30))
def test_decisions_are_those_of_one_that_reads_every_job(seed: int, backfill: Backfill):
    story = Story(CLUSTERS[seed % len(CLUSTERS)], backfill, seed)
    for _ in range(60):
        story.go_on()


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=400), st.integers(0, 400))
def test_a_line_keeps_the_order_of_turns(moves: list[tuple[int, int]], first: int):
    held = session(Fifo(), cluster(1))
    states = [held.submit(job(f"j{n:03}", at=0.0), 0.0) for n in range(401)]
    line, expected = WaitingLine(), {}
    for number, work in moves:
        if number in expected:
            line.remove(states[number].turn)
            del expected[number]
        else:
            line.add(states[number], states[number].turn, float(work))
            expected[number] = work
    assert [each.id for each in line.after()] == [f"j{n:03}" for n in sorted(expected)]
    able = [each.id for each in line.after(states[first].turn, lambda work: work <= 2)]
    assert able == [f"j{n:03}" for n in sorted(expected) if n > first and expected[n] <= 2]


@pytest.mark.parametrize(("backfill", "size"), [("easy", 1), ("skip", 3)])
def test_a_decision_reads_few_of_the_jobs_that_cannot_pass(backfill: Backfill, size: int, monkeypatch):
    """Two GPUs are free, the head needs four at 100 s; a thousand jobs of one GPU end after that."""
    held = started(Fifo(backfill), cluster(4), job("a", gpus=2, gpu_seconds=200))
    head = job("head", at=1, gpus=4, gpu_seconds=400)
    late = (job(f"j{index:04}", at=2, gpus=size, gpu_seconds=1000) for index in range(1000))
    assert joined(held, 2, head, *late) == {"a": 2}
    held.submit(job("short", at=3, gpus=1, gpu_seconds=50), 3)
    read, state = set(), type(held.jobs["a"])
    plain = state.remaining_samples
    monkeypatch.setattr(state, "remaining_samples", lambda job, at: read.add(job.id) or plain(job, at))
    assert [each.job.id for each in held.decide(3)] == ["short"]
    assert len(read) < 10


def test_lost_jobs_and_larger_demands_may_pass() -> None:
    # a holds 3 of 4 GPUs until 100 s. b was lost with 1000 s to go; a late report leaves it 50 s.
    jobs = job("a", gpus=3, gpu_seconds=300), job("b", at=2, gpu_seconds=1000)
    held = started(Fifo("easy"), cluster(4), *jobs)
    held.submit(job("head", at=1, gpus=4, gpu_seconds=400), 3)
    held.lose("b", 4)
    assert held.decide(4) == []
    held.jobs["b"].report_progress(5, 950)
    assert [each.job.id for each in held.decide(5)] == ["b"]

    # The node with 12 CPUs is down. Two GPUs are free beside 2 CPUs: x wants 6 of these, y wants 2.
    held = session(Fifo("skip"), with_cpus(cluster(4, 4), 12, 2))
    held.node_down("n0", 0)
    joined(held, 0, job("a", gpus=2))
    demands = [
        job(name, at=1, gpus=2, resources={"worker": {"cpu": cpus}}) for name, cpus in (("x", 3), ("y", 1))
    ]
    assert joined(held, 1, job("head", at=1, gpus=4), *demands) == {"a": 2, "y": 2}
