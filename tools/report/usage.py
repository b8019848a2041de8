"""``pliant usage``: GPU hours, money and jobs by user, team or label, in a span of time.

One pass over the log, which keeps the active jobs, the sums, and of ended jobs only which sum is theirs.
Lines are read without the checks of other readers, which take most of the time: what damages a log is said by
every other command.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import ENDS, FREES, PLACED
from pliant.schemas.io import read_events
from pliant.schemas.job import Job
from pliant.schemas.text import Column, iso_time, text_table

SCHEMA: Final = "pliant.usage/1"
USER: Final = "user"
TEAM: Final = "team"
MODEL: Final = "model"
JOB: Final = "job"
_READ: Final = ("time", "event", "job", "gpus", "placement", "overhead_seconds", "detail")
_HOUR_S: Final = 3600.0
_HOLDS: Final = frozenset({*PLACED, *FREES, "preempt"})
_SILENT: Final = re.compile(rb'"event":"(?:slot_|node_|epoch"|progress"(?!.*"overhead_seconds"))').search
"""Finds lines that say nothing of usage."""


@dataclass(slots=True)
class GroupUsage:
    """What the jobs of one group used in the span."""

    jobs: int = 0
    """Jobs that held GPUs."""
    ended: dict[str, int] = field(default_factory=dict)
    """Jobs that ended, by how."""
    gpu_s: dict[str, float] = field(default_factory=dict)
    """GPU seconds by GPU type; of GPUs that two jobs share one half."""
    lost_gpu_s: float = 0.0
    """GPU seconds among these without training: for starts, changes and checkpoints."""
    measured_gpu_s: float = 0.0
    """GPU seconds of jobs that ended, and whose use was measured."""
    used_gpu_s: float = 0.0
    """GPU seconds among these in which the GPUs were busy."""
    memory_measured_gpu_s: float = 0.0
    memory_gpu_s: float = 0.0
    """GPU seconds times the part of their memory that was taken."""
    money: float = 0.0

    @property
    def total_gpu_s(self) -> float:
        return sum(self.gpu_s.values())


_Use = tuple[float, float]
"""GPU seconds that were busy, and GPU seconds times the part of the memory that was taken."""


@dataclass(slots=True)
class _Holder:
    """An active job."""

    group: GroupUsage
    gpus: int = 0
    kind: str = ""
    since_s: float = 0.0
    beside: str | None = None
    is_counted: bool = False
    gpu_s: float = 0.0
    """What it has held in the span since an end stated its use."""
    all_s: float = 0.0
    """The same, outside the span too."""
    stated_s: _Use = (0.0, 0.0)
    """The use that ends have stated: an end states that of all attempts."""
    end: str = ""
    """How it has ended, where that is counted."""


class UsageFold:
    """Sums up the events of a log, in their order.

    :param by: what groups jobs: "user", "team", "model", "job", or the name of a label.
    :param since_s: begin of the span, on the clock of the log.
    """

    def __init__(self, by: Sequence[str], since_s: float = 0.0, until_s: float = inf) -> None:
        self.by = tuple(by)
        self.groups: dict[tuple[str, ...], GroupUsage] = {}
        self.kinds: list[str] = []
        self.price: Mapping[str, float] = {}
        self.last_s = 0.0
        self._since_s, self._until_s = since_s, until_s
        self._cluster: Cluster | None = None
        self._kind_of: dict[str, str] = {}
        self._jobs: dict[str, _Holder] = {}
        # Groups of ended jobs, which a requeue may start again, by how each ended and whether it is counted.
        self._ended: dict[tuple[str, bool], dict[str, GroupUsage]] = {}
        # What their ends have stated, where they have.
        self._stated: dict[str, _Use] = {}
        self._teams: dict[tuple[str, ...], str] = {}

    def take(self, row: Mapping[str, Any]) -> None:
        """The next event, as its line has it."""
        name, job_id = row["event"], row.get("job")
        time_s = self.last_s = max(self.last_s, row["time"])
        if job_id is None:
            detail = row.get("detail") or {}
            if name in ("decision", "reload") and detail.get("cluster"):
                self._change_cluster(Cluster.model_validate_json(json.dumps(detail["cluster"])), time_s)
        elif name == "submit":
            self._jobs[job_id] = _Holder(self._group_of(row["detail"]["job"]))
        elif (holder := self._jobs.get(job_id) or self._back(name, job_id)) is not None:
            if name in _HOLDS and row.get("gpus") is not None:
                self._change(job_id, holder, row, time_s)
            if (seconds := row.get("overhead_seconds")) and self._since_s <= time_s <= self._until_s:
                gpus = holder.gpus if holder.beside is None else holder.gpus / 2
                holder.group.lost_gpu_s += seconds * gpus
            if name in ENDS:
                is_in_span = self._since_s <= time_s <= self._until_s
                if is_in_span:
                    _count_end(holder, ENDS[name])
                _count_use(holder, row.get("detail") or {}, is_in_span=is_in_span)
                if name != "fail":
                    del self._jobs[job_id]
                    self._ended.setdefault((holder.end, holder.is_counted), {})[job_id] = holder.group
                    if any(holder.stated_s):
                        self._stated[job_id] = holder.stated_s

    def finish(self, now_s: float | None = None) -> None:
        """Count what jobs hold until now; None: until the last event."""
        for holder in self._jobs.values():
            self._settle(holder, self.last_s if now_s is None else now_s)

    def _back(self, name: str, job_id: str) -> _Holder | None:
        """A job that had ended and is requeued, active again."""
        for (end, is_counted), ended in self._ended.items() if name == "requeue" else ():
            if (group := ended.pop(job_id, None)) is not None:
                holder = self._jobs[job_id] = _Holder(group, is_counted=is_counted, end=end)
                holder.stated_s = self._stated.pop(job_id, holder.stated_s)
                return holder
        return None

    def _change_cluster(self, cluster: Cluster, time_s: float) -> None:
        self.finish(time_s)
        self._cluster, self.price = cluster, cluster.price
        self._kind_of |= {node.name: node.gpu_type for node in cluster.expanded()}
        self.kinds = list(dict.fromkeys((*self.kinds, *self._kind_of.values())))
        self._teams.clear()

    def _group_of(self, job: Mapping[str, Any]) -> GroupUsage:
        user, labels = job.get("user", ""), job.get("labels") or {}
        stated = {USER: user or "-", TEAM: "", MODEL: job.get("model", ""), JOB: job["id"]}
        key = tuple(
            self._team_of(job, user, labels) if name == TEAM else stated.get(name) or labels.get(name) or "-"
            for name in self.by
        )
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = GroupUsage()
        return found

    def _team_of(self, job: Mapping[str, Any], user: str, labels: Mapping[str, str]) -> str:
        shares = None if self._cluster is None else self._cluster.shares
        if shares is None:
            return job.get("team") or "-"
        asked = (job.get("team", ""), user, labels.get(shares.label or "", ""))
        if asked not in self._teams:
            stated = Job.model_construct(team=asked[0], user=user, labels=dict(labels))
            self._teams[asked] = shares.team_of(stated)
        return self._teams[asked]

    def _change(self, job_id: str, holder: _Holder, row: Mapping[str, Any], time_s: float) -> None:
        self._settle(holder, time_s)
        other = self._jobs.get(holder.beside or "")
        if other is not None:
            self._settle(other, time_s)
            holder.beside = other.beside = None
        place, detail = row.get("placement") or (), row.get("detail") or {}
        holder.gpus = row["gpus"] if place else 0
        holder.kind = self._kind_of.get(place[0][0], "") if place else ""
        partner = self._jobs.get(detail.get("beside") or "") if holder.gpus else None
        if partner is not None and partner.beside is None:
            self._settle(partner, time_s)
            holder.beside, partner.beside = detail["beside"], job_id

    def _settle(self, holder: _Holder, time_s: float) -> None:
        """Count until a time what a job holds."""
        from_s, to_s = max(holder.since_s, self._since_s), min(time_s, self._until_s)
        gpus = holder.gpus * (1.0 if holder.beside is None else 0.5)
        holder.all_s += (time_s - holder.since_s) * gpus
        holder.since_s = time_s
        if not gpus or to_s <= from_s:
            return
        gpu_s = (to_s - from_s) * gpus
        group, kind = holder.group, holder.kind
        group.gpu_s[kind] = group.gpu_s.get(kind, 0.0) + gpu_s
        group.money += gpu_s / _HOUR_S * self.price.get(kind, 0.0)
        group.jobs += not holder.is_counted
        holder.is_counted = True
        holder.gpu_s += gpu_s


def _count_end(holder: _Holder, end: str) -> None:
    """Count the end of a job once: its last one."""
    ended = holder.group.ended
    if holder.end:
        ended[holder.end] -= 1
    holder.end = end
    ended[end] = ended.get(end, 0) + 1


def _count_use(holder: _Holder, detail: Mapping[str, Any], *, is_in_span: bool) -> None:
    """Count the use that an end states and no earlier one has, in proportion to the time in the span."""
    used_s, memory_s = detail.get("used_gpu_seconds"), detail.get("memory_gpu_seconds")
    if used_s is None:
        return
    group, held_s, all_s = holder.group, holder.gpu_s, holder.all_s
    before_s, memory_before_s = holder.stated_s
    if is_in_span and held_s:
        group.measured_gpu_s += held_s
        group.used_gpu_s += held_s * _new_part(used_s - before_s, all_s)
        if memory_s is not None:
            group.memory_measured_gpu_s += held_s
            group.memory_gpu_s += held_s * _new_part(memory_s - memory_before_s, all_s)
    holder.stated_s = (used_s, memory_before_s if memory_s is None else memory_s)
    holder.gpu_s = holder.all_s = 0.0


def _new_part(used_s: float, held_s: float) -> float:
    """The part of what was held that was used; attempts of long ago are left out of what an end states."""
    return min(1.0, max(0.0, used_s / held_s))


def usage_of_log(path: Path, fold: UsageFold) -> None:
    """Take all whole lines of a log.

    :raises BadInputError: a line is no event.
    """
    with path.open("rb") as file:
        take_lines(file, fold, str(path))


def money_by_job(source: str) -> dict[str, float] | None:
    """What each job of an event file has cost. Returns None if the events came through a pipe.

    :raises BadInputError: the file makes no sense.
    """
    if not Path(source).is_file():
        return None
    fold = UsageFold((JOB,))
    for event in read_events(source):
        fold.take({name: getattr(event, name) for name in _READ})
    fold.finish()
    return {job_id: group.money for (job_id,), group in fold.groups.items()}


def take_lines(lines: Iterable[bytes], fold: UsageFold, source: str) -> None:
    for number, line in enumerate(lines, 1):
        if _SILENT(line) or not line.endswith(b"\n") or line.startswith(b'{"schema"'):
            continue
        try:
            fold.take(from_json(line))
        except (KeyError, TypeError, ValueError, ValidationError) as error:
            text = f"this line cannot be read: {str(error).partition(chr(10))[0]}"
            raise BadInputError.one(source, text, line=number) from error


def ranked(fold: UsageFold) -> list[tuple[tuple[str, ...], GroupUsage]]:
    """The groups that used anything, most GPU time first."""
    used = [(key, group) for key, group in fold.groups.items() if group.jobs or group.ended]
    return sorted(used, key=lambda pair: (-pair[1].total_gpu_s, pair[0]))


def usage_rows(fold: UsageFold) -> Iterator[dict[str, Any]]:
    """A row for each group, for programs."""
    total = sum(group.total_gpu_s for group in fold.groups.values())
    for key, group in ranked(fold):
        held = group.total_gpu_s
        yield {
            **dict(zip(fold.by, key, strict=True)),
            "jobs": group.jobs,
            **{name: group.ended.get(name, 0) for name in dict.fromkeys(ENDS.values())},
            **{f"gpu_hours_{kind}": group.gpu_s.get(kind, 0.0) / _HOUR_S for kind in fold.kinds},
            "gpu_hours": held / _HOUR_S,
            "share": held / total if total else 0.0,
            "training": 1 - min(1.0, group.lost_gpu_s / held) if held else None,
            "used": _part(group.used_gpu_s, group.measured_gpu_s),
            "memory_used": _part(group.memory_gpu_s, group.memory_measured_gpu_s),
            "money": group.money if fold.price else None,
        }


def _part(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"


def usage_text(fold: UsageFold, width: int | None = None) -> str:
    several = len(fold.kinds) > 1
    measured = any(group.measured_gpu_s for group in fold.groups.values())
    columns = [
        *(Column(name) for name in fold.by),
        Column("jobs", right=True),
        *(Column(f"{kind} h", 1, right=True) for kind in fold.kinds if several),
        Column("GPU hours", right=True),
        Column("share", right=True),
        Column("training", 2, right=True),
        *((Column("used", 1, right=True), Column("memory", 1, right=True)) if measured else ()),
        *([Column("money", right=True)] if fold.price else []),
    ]
    cells = [
        (
            *(str(row[name]) for name in fold.by),
            str(row["jobs"]),
            *(f"{row[f'gpu_hours_{kind}']:,.1f}" for kind in fold.kinds if several),
            f"{row['gpu_hours']:,.1f}",
            f"{100 * row['share']:.1f} %",
            _percent(row["training"]),
            *((_percent(row["used"]), _percent(row["memory_used"])) if measured else ()),
            *([f"{row['money']:,.2f}"] if fold.price else []),
        )
        for row in usage_rows(fold)
    ]
    return text_table(columns, cells, width)


def usage_csv(fold: UsageFold) -> str:
    rows, out = [*usage_rows(fold)], io.StringIO()
    if rows:
        writer = csv.DictWriter(out, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def usage_document(fold: UsageFold, since_s: float, until_s: float) -> str:
    """For programs: docs/running-json.md lists the fields."""
    span = {"since": iso_time(since_s), "until": iso_time(until_s)}
    document = {"schema": SCHEMA, **span, "by": list(fold.by), "price": dict(fold.price)}
    return json.dumps({**document, "groups": [*usage_rows(fold)]}, indent=1, ensure_ascii=False) + "\n"
