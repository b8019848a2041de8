"""The nodes of a run: what they have, who holds it, what is free, and why the rest gets no work."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pliant.schemas.cluster import Node, NodeReservation
from pliant.schemas.text import Column, clock_text, counted, iso_time, text_table
from pliant.tools.run.statedir.log.fold import JobLog, LeftOut, RunLog
from pliant.tools.run.watch.top import Use
from pliant.tools.schedule.session.quarantine import node_of

SCHEMA: Final = "pliant.nodes/1"
COLUMNS: Final = (
    Column("node"),
    Column("type"),
    Column("GPUs", right=True),
    Column("held", right=True),
    Column("free", right=True),
    Column("busy", right=True),
    Column("jobs"),
    Column("state"),
)


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a node gets no work."""

    state: Literal["down", "drained"]
    reason: str = ""
    user: str = ""
    since_s: float | None = None

    @classmethod
    def of(cls, log: RunLog, name: str) -> Closed | None:
        """Returns None if it gets work."""
        drain = log.drained.get(name)
        if name in log.down:
            return cls("down", log.down[name])
        return None if drain is None else cls("drained", drain.reason, drain.user, drain.since_s)

    def words(self, now_s: float) -> str:
        by = f" by {self.user}" if self.user else ""
        since = "" if self.since_s is None else f" since {clock_text(self.since_s, now_s)}"
        return f"{self.state}{by}{since}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class NodeUse:
    """One node and what is on it."""

    node: Node
    held: int = 0
    """GPUs that jobs hold; shared ones count once."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """Slots in quarantine."""
    jobs: tuple[tuple[JobLog, int], ...] = ()
    """Jobs and their GPUs here."""
    busy: float | None = None
    """Part of the held GPUs that is used, where that is measured."""
    closed: Closed | None = None
    """Why it gets no work."""
    reservations: tuple[NodeReservation, ...] = ()
    """Those that are not over."""
    reserved: NodeReservation | None = None
    """The one that keeps jobs from it now."""

    @property
    def free(self) -> int:
        """GPUs that a job could get now."""
        return 0 if self.closed or self.reserved else max(0, self.node.gpus - self.held - len(self.left_out))

    def state(self, now_s: float) -> str:
        words = "up" if self.closed is None else self.closed.words(now_s)
        if self.reserved is not None:
            until = clock_text(self.reserved.end, now_s)
            words = f"{words}, reserved as {self.reserved.name} until {until}"
        out = f"; {counted(len(self.left_out), 'slot')} out of service" if self.left_out else ""
        return f"{words}{out}"


def node_uses(log: RunLog, uses: Iterable[Use], now_s: float) -> list[NodeUse]:
    """The nodes in the order of the cluster file; empty before the run has begun."""
    busy = {use.id: use.busy for use in uses}
    on: dict[str, list[tuple[JobLog, int]]] = {}
    for job in log.active.values():
        for name, gpus in job.placement:
            on.setdefault(name, []).append((job, 0 if job.job.on_cpus else gpus))
    out: dict[str, dict[str, LeftOut]] = {}
    for slot, left in log.out_of_service(now_s).items():
        out.setdefault(node_of(slot), {})[slot] = left
    cluster = None if log.info is None else log.info.cluster
    reservations = [] if cluster is None else [each for each in cluster.reservations if each.end > now_s]
    of = {
        node.name: tuple(each for each in reservations if node.name in each.nodes)
        for node in (() if cluster is None or not reservations else cluster.expanded())
    }
    return [
        NodeUse(
            node,
            sum(gpus for job, gpus in on.get(node.name, ()) if job.beside is None or job.beside > job.job.id),
            out.get(node.name, {}),
            tuple(on.get(node.name, ())),
            _mean([(busy.get(job.job.id), gpus) for job, gpus in on.get(node.name, ())]),
            Closed.of(log, node.name),
            of.get(node.name, ()),
            next((each for each in of.get(node.name, ()) if each.begin - each.notice_seconds <= now_s), None),
        )
        for node in (() if cluster is None else cluster.expanded())
    ]


def _mean(parts: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(part, gpus) for part, gpus in parts if part is not None and gpus]
    return sum(part * gpus for part, gpus in known) / sum(gpus for _, gpus in known) if known else None


def nodes_text(nodes: Iterable[NodeUse], now_s: float, width: int | None = None) -> str:
    return text_table(COLUMNS, [_row(each, now_s) for each in nodes], width)


def _row(each: NodeUse, now_s: float) -> tuple[str, ...]:
    jobs = ", ".join(f"{job.job.id} {gpus}" for job, gpus in each.jobs)
    return (
        each.node.name,
        each.node.gpu_type,
        str(each.node.gpus),
        str(each.held),
        str(each.free),
        "-" if each.busy is None else f"{100 * each.busy:.0f} %",
        jobs or "-",
        each.state(now_s),
    )


def node_page(each: NodeUse, now_s: float) -> Iterator[str]:
    """All about one node, a line for each fact."""
    node = each.node
    yield f"node {node.name}: {each.state(now_s)}"
    yield f"{counted(node.gpus, 'GPU')} of type {node.gpu_type}: {each.held} held, {each.free} free"
    if each.busy is not None:
        yield f"jobs use {100 * each.busy:.0f} % of what they hold"
    for slot, left in sorted(each.left_out.items()):
        until = f"pliant resume {node.name}" if left.is_sick else clock_text(left.until_s, now_s)
        yield f"slot {slot} gets no job until {until}: {left.reason}"
    for reservation in each.reservations:
        begin, end = clock_text(reservation.begin, now_s), clock_text(reservation.end, now_s)
        yield f"reserved as {reservation.name} from {begin} until {end}"
    stated = {"cpus": node.cpus, "memory": node.memory, "switch": node.switch, **node.resources}
    if any(value is not None for value in stated.values()):
        yield ", ".join(f"{name} {value}" for name, value in stated.items() if value is not None)
    if node.labels:
        yield "labels: " + ", ".join(f"{k}={v}" if v else k for k, v in sorted(node.labels.items()))
    for job, gpus in each.jobs:
        since = "" if job.use.runs_from_s is None else f" since {clock_text(job.use.runs_from_s, now_s)}"
        yield f"job {job.job.id} of {job.job.user or 'no user'}: {counted(gpus, 'GPU')}{since}"


def free_lines(nodes: Sequence[NodeUse], log: RunLog) -> Iterator[str]:
    """What could start now, by GPU type, and what waits for it."""
    for kind, free in _free(nodes).items():
        if not free["gpus"]:
            yield f"{kind}: nothing is free"
            continue
        where = counted(int(free["nodes"]), "node")
        yield (
            f"{kind}: {counted(int(free['gpus']), 'GPU')} free on {where}, "
            f"up to {free['most_on_a_node']} on one: pliant submit --gpus {free['most_on_a_node']}"
        )
    if waiting := sum(not job.gpus and job.held is None for job in log.active.values()):
        yield f"{counted(waiting, 'job')} {'waits' if waiting == 1 else 'wait'} already: pliant why says why"


def _free(nodes: Iterable[NodeUse]) -> dict[str, dict[str, int]]:
    by_type: dict[str, list[int]] = {}
    for each in nodes:
        by_type.setdefault(each.node.gpu_type, []).append(each.free)
    return {
        kind: {"gpus": sum(free), "nodes": sum(map(bool, free)), "most_on_a_node": max(free)}
        for kind, free in by_type.items()
    }


def nodes_document(nodes: Sequence[NodeUse], log: RunLog, now_s: float) -> str:
    """For programs: docs/running-json.md lists the fields."""
    document = {
        "schema": SCHEMA,
        "time": iso_time(now_s),
        "nodes": [_fields(each) for each in nodes],
        "free": _free(nodes),
        "waiting": sum(not job.gpus and job.held is None for job in log.active.values()),
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _fields(each: NodeUse) -> dict[str, Any]:
    closed = each.closed
    return {
        "name": each.node.name,
        "gpu_type": each.node.gpu_type,
        "gpus": each.node.gpus,
        "held": each.held,
        "free": each.free,
        "busy": each.busy,
        "state": "up" if closed is None else closed.state,
        "reason": None if closed is None else closed.reason or None,
        "since": None if closed is None else iso_time(closed.since_s),
        "labels": each.node.labels,
        "reservations": [
            {"name": one.name, "from": iso_time(one.begin), "until": iso_time(one.end)}
            for one in each.reservations
        ],
        "out_of_service": [
            {"slot": slot, "until": iso_time(left.until_s), "reason": left.reason}
            for slot, left in sorted(each.left_out.items())
        ],
        "jobs": [{"id": job.job.id, "user": job.job.user or None, "gpus": gpus} for job, gpus in each.jobs],
    }
