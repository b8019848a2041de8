"""When nodes were there: faults of servers, and counts of GPUs or instances over time.

- InfiniteHBD's faults: a JSON list of node_id, event_time (days) and event_type, ``fault_start`` or
  ``fault_end``. A server is down while any of its faults lasts.
- Availability as Sailor publishes it: a JSON list of Time (s) and GPUs.
- Spot instances as Parcae publishes them: lines of time (ms) and instances, without a header; with the header
  ``time,instances`` times are seconds.

Of a count, the first nodes are up and the others down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.tools.replay.engine.failures import NodeEvent
from pliant.tools.replay.importers.conversion import (
    Conversion,
    InputRow,
    MalformedRowError,
    NodeFormat,
    NodeHistory,
    parse_number,
)
from pliant.tools.replay.importers.reading import csv_rows, first_line, json_rows

_DAY_S: Final = 86_400.0
_STARTS: Final = {"fault_start": False, "fault_end": True}
_GPUS_OF_SERVER: Final = 8
_MOST_NODES: Final = 100_000


def read(paths: Sequence[str], conversion: Conversion) -> NodeHistory:
    """The nodes of one file, by the first of its rows."""
    (path,) = paths
    beginning = first_line(path).lstrip()
    if not beginning.startswith("["):
        return _counts(conversion.convert(_spot_rows(path, beginning, conversion), _spot), conversion)
    rows = json_rows(path, conversion)
    first = next(rows, None)
    if first is None:
        raise BadInputError.one(path, "is an empty list, expected faults or counts of GPUs")
    every = _chain(first, rows)
    if "node_id" in first.values:
        return _faults(conversion.convert(every, _fault), conversion)
    return _counts(conversion.convert(every, partial(_count, "Time", "GPUs")), conversion)


FORMAT: Final = NodeFormat("faults", read)


def _chain(first: InputRow, others: Iterable[InputRow]) -> Iterator[InputRow]:
    yield first
    yield from others


def _fault(row: InputRow) -> tuple[float, str, bool]:
    """When, at which server, and whether a fault ends there."""
    kind = row.text("event_type")
    if kind not in _STARTS:
        raise MalformedRowError("event_type", f"{kind!r}, expected fault_start or fault_end")
    return row.number("event_time") * _DAY_S, row.text("node_id"), _STARTS[kind]


def _faults(rows: Iterable[tuple[float, str, bool]], conversion: Conversion) -> NodeHistory:
    """Servers are numbered as they fail for the first time; of one moment, faults begin before others end."""
    conversion.summary.assume(f"a server has {_GPUS_OF_SERVER} GPUs, and is down while any fault of it lasts")
    conversion.summary.assume("servers without a fault are not in the trace")
    numbers: dict[str, int] = {}
    faults: Counter[int] = Counter()
    events = []
    for time_s, server, ends in sorted(rows, key=lambda each: each[0]):
        node = numbers.setdefault(server, len(numbers))
        if ends and not faults[node]:
            conversion.summary.assume_here("a fault that ends without having begun was left out")
            continue
        before = faults[node]
        faults[node] += -1 if ends else 1
        if bool(before) != bool(faults[node]):
            events.append(NodeEvent(round(time_s, 3), str(node), up=ends))
    return NodeHistory(len(numbers), _GPUS_OF_SERVER, events)


def _spot_rows(path: str, beginning: str, conversion: Conversion) -> Iterator[InputRow]:
    if beginning[:1].isdecimal():
        conversion.summary.assume("without a header, times are milliseconds")
        return csv_rows(path, conversion, (), names=("time_ms", "instances"))
    return csv_rows(path, conversion, ("time", "instances"))


def _spot(row: InputRow) -> tuple[float, int]:
    if "time" in row.values:
        return _count("time", "instances", row)
    return row.number("time_ms") / 1000, row.count("instances")


def _count(time: str, count: str, row: InputRow) -> tuple[float, int]:
    for name in (time, count):
        if name not in row.values:
            raise MalformedRowError(name, "is missing")
    nodes = row.count(count)
    if nodes > _MOST_NODES:
        raise MalformedRowError(count, f"{nodes} is above {_MOST_NODES:,}")
    return parse_number(str(row.values[time]), time), nodes


def _counts(rows: Iterable[tuple[float, int]], conversion: Conversion) -> NodeHistory:
    """Nodes of one GPU; the one that came last goes first."""
    conversion.summary.assume("a node has one GPU; the node that came last goes first")
    at_time = dict(sorted(rows, key=lambda each: each[0]))  # of one moment, the last row counts
    most = max(at_time.values(), default=0)
    up, events = most, []
    for time_s, count in at_time.items():
        came = count > up
        changed = range(up, count) if came else range(up - 1, count - 1, -1)
        events += [NodeEvent(time_s, str(node), up=came) for node in changed]
        up = count
    return NodeHistory(most, 1, events)
