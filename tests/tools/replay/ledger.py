"""An independent bookkeeper: from an event table it computes what each job held and did.

It knows the cluster, how fast a model is and how progress follows from speed, and nothing of the engine.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.tools.profile.throughput import Throughput

ProgressAt = Callable[[Job, int, float, float], tuple[float, float]]
"""(job, global batch, samples per second, samples done) -> (progress per second, where that ends)."""

ENDS = ("finish", "reject")
CHANGES = ("start", "resume", "grow", "shrink", "move", "preempt", "requeue", *ENDS)


@dataclass
class Stay:
    event: Event
    paid_s: float
    rate: float
    saved_s: float
    """When its last checkpoint is taken, if a node takes it away."""
    saved: float = 0.0


@dataclass
class JobAccount:
    spec: Job
    total: float
    done: float = 0.0
    stay: Stay | None = None
    runs: int = 0
    trained: bool = False
    ended: bool = False
    gpu_seconds: float = 0.0


@dataclass
class Ledger:
    """The rules; :meth:`audit` holds an event table against them."""

    nodes: Cluster
    throughput: Throughput
    progress_at: ProgressAt
    start_cost_s: float = 0.0
    rescale_cost_s: float = 0.0
    interference: float = 0.0
    accounts: dict[str, JobAccount] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)

    def audit(self, events: Iterable[Event]) -> Mapping[str, JobAccount]:
        """The accounts at the end.

        :raises AssertionError: the table breaks a rule.
        """
        listed = list(events)
        assert all(a.time <= b.time for a, b in pairwise(listed)), "time runs backwards"
        follows = _follows(listed)
        before_s = 0.0
        for now_s, moment in groupby(enumerate(listed), key=lambda item: item[1].time):
            self._pass(before_s, now_s)
            for row, event in moment:
                self._book(event, follows.get(row))
            self._check_nodes()
            before_s = now_s
        return self.accounts

    def _book(self, event: Event, follows: Event | None) -> None:
        if event.event in ("node_down", "node_up"):
            node = (event.detail or {})["node"]
            (self.down.add if event.event == "node_down" else self.down.discard)(node)
        elif event.event == "submit":
            assert event.job not in self.accounts, f"{event.job} is submitted twice"
            detail = event.detail or {}
            spec = Job.model_validate(detail["job"], strict=False)
            assert spec.submit_time == event.time
            self.accounts[event.job or ""] = JobAccount(spec, detail["samples"])
        elif event.event in CHANGES:
            self._change(self.accounts[event.job or ""], event, follows)

    def _change(self, account: JobAccount, event: Event, follows: Event | None) -> None:
        stay, told = account.stay, event.samples_done
        assert not account.ended, f"{event.job} has ended before it does {event.event}"
        assert told is not None
        if stay is not None and event.time > stay.paid_s:
            account.trained = True
        if event.event == "requeue":
            assert stay is not None
            assert {node for node, _ in stay.event.placement or ()} & self.down, "its nodes are all up"
            account.done = stay.saved
        assert told == pytest.approx(account.done, rel=1e-6, abs=1e-6), f"{event.job} at {event.time}"
        _check_name(event, stay.event.gpus or 0 if stay is not None else 0, account.runs)
        account.done = min(told, account.total)
        account.ended = event.event in ENDS
        if event.event == "finish":
            assert told == account.total, "it ends with its work done"
        account.stay = self._stay(account, event, follows) if event.gpus else None

    def _stay(self, account: JobAccount, event: Event, follows: Event | None) -> Stay:
        account.runs += 1
        assert event.placement is not None
        assert event.gpus == sum(count for _, count in event.placement)
        assert account.spec.min_gpus <= event.gpus <= account.spec.max_gpus(10**6)
        each = account.spec.gpus.per_replica
        assert all(count % each == 0 for _, count in event.placement), "replicas are whole, on one node each"
        cost_s = self.rescale_cost_s if account.trained else self.start_cost_s
        held_s = float("inf") if follows is None else follows.time - event.time
        assert event.overhead_seconds == pytest.approx(min(cost_s, held_s)), "what a change costs"
        paid_s = event.time + cost_s
        kinds = {node.gpu_type for node in self.nodes.expanded() if node.name in dict(event.placement)}
        assert len(kinds) == 1, "a job never mixes GPU types"
        shape = tuple(sorted((count for _, count in event.placement), reverse=True))
        batch = event.global_batch or 0
        seconds = self.throughput.step_seconds(account.spec.model, kinds.pop(), shape, batch * each, None)
        saved_s = paid_s
        if follows is not None:
            every_s = account.spec.checkpoint_seconds or 60.0
            trained_s = max(0.0, follows.time - paid_s)
            saved_s = paid_s + trained_s - trained_s % every_s
        return Stay(event, paid_s, batch / seconds if seconds else 0.0, saved_s, account.done)

    def _pass(self, from_s: float, to_s: float) -> None:
        """Every job goes on from one moment to the next."""
        stays = [account.stay for account in self.accounts.values() if account.stay is not None]
        cuts = {cut_s for stay in stays for cut_s in (stay.paid_s, stay.saved_s) if from_s < cut_s < to_s}
        contended = self._contended(stays)
        for since_s, until_s in pairwise([from_s, *sorted(cuts), to_s]):
            for account in self.accounts.values():
                stay = account.stay
                if stay is None:
                    continue
                account.gpu_seconds += (until_s - since_s) * (stay.event.gpus or 0)
                if since_s >= stay.paid_s:
                    speed_factor = 1 - self.interference if _spans(stay) and _names(stay) & contended else 1.0
                    self._train(account, stay, until_s - since_s, speed_factor)
                if until_s <= stay.saved_s:
                    stay.saved = account.done

    def _train(self, account: JobAccount, stay: Stay, seconds: float, speed_factor: float) -> None:
        batch = stay.event.global_batch or 0
        while seconds > 0 and account.done < account.total:
            speed, until = self.progress_at(account.spec, batch, stay.rate * speed_factor, account.done)
            if speed <= 0:
                return
            lasts_s = min(seconds, (min(until, account.total) - account.done) / speed)
            account.done = account.done + speed * lasts_s if lasts_s == seconds else min(until, account.total)
            seconds -= lasts_s

    def _contended(self, stays: Sequence[Stay]) -> set[str]:
        spanning = [node for stay in stays if _spans(stay) for node in _names(stay)]
        return {node for node in spanning if spanning.count(node) > 1}

    def _check_nodes(self) -> None:
        """At the end of every moment no node has more GPUs in use than it has, none while it is down."""
        used: dict[str, int] = {}
        for account in self.accounts.values():
            for node, count in (account.stay.event.placement or ()) if account.stay is not None else ():
                used[node] = used.get(node, 0) + count
        for node in self.nodes.expanded():
            room = 0 if node.name in self.down else node.gpus
            assert used.pop(node.name, 0) <= room, f"more GPUs in use on {node.name} than it has"
        assert not used, "nodes that are not there"


def _follows(events: Sequence[Event]) -> dict[int, Event]:
    found, later = {}, dict[str | None, Event]()
    for row in range(len(events) - 1, -1, -1):
        event = events[row]
        if event.event in CHANGES:
            if event.job in later:
                found[row] = later[event.job]
            later[event.job] = event
    return found


def _check_name(event: Event, had: int, runs: int) -> None:
    gpus = event.gpus or 0
    fits = {
        "start": not had and gpus and not runs,
        "resume": not had and gpus and runs,
        "grow": 0 < had < gpus,
        "shrink": had > gpus > 0,
        "move": had == gpus > 0,
        "preempt": had and not gpus,
        "requeue": had and not gpus,
        "finish": had and not gpus,
        "reject": not gpus,
    }
    assert fits[event.event], f"{event.job} has {had} GPUs, then {event.event} to {gpus}"


def _spans(stay: Stay) -> bool:
    return len(stay.event.placement or ()) > 1


def _names(stay: Stay) -> set[str]:
    return {node for node, _ in stay.event.placement or ()}
