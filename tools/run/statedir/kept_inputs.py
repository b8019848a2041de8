"""The cluster and the profile that a run began with, when a file is named for them again.

The command that began a run can be given again, as a unit of systemd does: the same file is accepted, and one
that differs is refused with a line for each difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import Problem, UsageError
from pliant.schemas.file_io.documents import line_of
from pliant.schemas.file_io.files import source_name
from pliant.schemas.file_io.record import as_pointer
from pliant.schemas.io import read_cluster, read_profile
from pliant.schemas.profile import ProfileRow
from pliant.schemas.text import counted, shortened

T = TypeVar("T")
Place = tuple[str | int, ...]
SHOWN: Final = 20
"""Differences that a message names."""
_MISSING: Final = object()


class Difference(NamedTuple):
    """One place where two files differ."""

    path: Place
    """JSON path in the file that is named now."""
    words: str


def kept_cluster(kept: Path, named: str | None, *, begun: bool = True) -> Cluster | None:
    """The cluster that a run keeps if it has begun, else the one that is named.

    :raises UsageError: the two differ, in more than whose GPUs policies may take: there the named one counts.
    """
    return _kept(kept, named, read_cluster, _cluster_differences, _with_rule_of, begun=begun)


def cluster_changes(own: Cluster, asked: Cluster, source: str, text: str = "") -> list[str]:
    """A line for each difference; none if the same cluster is written in another way.

    :param source: name of the file that states ``asked``.
    :param text: its text, for the numbers of lines.
    """
    found = list(_cluster_differences(own, asked))
    who, before = asked.preemptible or "stated", own.preemptible or "stated"
    if who != before:
        found.append(Difference(("preemptible",), f'"{who}", and the run has "{before}"'))
    return list(_lines(source, text, found))


def kept_profile(kept: Path, named: str | None, *, begun: bool = True) -> tuple[ProfileRow, ...] | None:
    """The rows of the profile, as :func:`kept_cluster`."""
    return _kept(kept, named, lambda path: read_profile(path).rows, _row_differences, begun=begun)


def _with_rule_of(own: Cluster, asked: Cluster) -> Cluster:
    return own.model_copy(update={"preemptible": asked.preemptible})


def _kept(
    kept: Path,
    named: str | None,
    read: Callable[[str | Path], T],
    differences: Callable[[T, T], Iterator[Difference]],
    taken: Callable[[T, T], T] = lambda own, _: own,
    *,
    begun: bool,
) -> T | None:
    own = read(kept) if begun and kept.exists() else None
    asked = None if named is None else read(named)
    if named is None or asked is None or not begun:
        return asked if own is None else own
    if own is None:
        raise UsageError(f"{named} is not used, for there is no {kept}: {_ADVICE}")
    if own != asked and (found := list(differences(own, asked))):
        lines = _lines(named, text_of(named), found)
        raise UsageError("\n".join([f"{named} differs from {kept}: {_ADVICE}", *lines]))
    return taken(own, asked)


_ADVICE: Final = "the run there goes on with what it began with; name the same file, or leave it out"


def text_of(named: str) -> str:
    """The text of a file that was read, for the numbers of lines; empty if it cannot be had again."""
    try:
        return Path(named).read_text()
    except (OSError, ValueError):  # a pipe, or Parquet
        return ""


def _lines(named: str, text: str, found: list[Difference]) -> Iterator[str]:
    for path, words in islice(found, SHOWN):
        line = line_of(text, path) if text.lstrip().startswith("{") else None
        yield str(Problem(source_name(named), line, as_pointer(path), words))
    if len(found) > SHOWN:
        yield f"… and {counted(len(found) - SHOWN, 'more difference')}"


def _cluster_differences(own: Cluster, asked: Cluster) -> Iterator[Difference]:
    """None if the same nodes are written in another way, or in another order."""
    asked = asked.keeping_reservations(own)
    if any(_differences(_plain(own, expanded=True), _plain(asked, expanded=True), ())):
        yield from _differences(_plain(own), _plain(asked), ())


def _plain(cluster: Cluster, *, expanded: bool = False) -> Any:
    plain = cluster.model_copy(update={"nodes": cluster.expanded()}) if expanded else cluster
    return plain.model_dump(mode="json", by_alias=True, exclude={"preemptible"})


def _differences(own: Any, asked: Any, path: Place) -> Iterator[Difference]:
    if isinstance(own, dict) and isinstance(asked, dict):
        for key in dict.fromkeys([*asked, *own]):
            yield from _differences(own.get(key, _MISSING), asked.get(key, _MISSING), (*path, key))
    elif (kept := _by_name(own)) is not None and (named := _by_name(asked)) is not None:
        for name, (place, each) in named.items():
            yield from _differences(kept.get(name, (0, _MISSING))[1], each, (*path, place))
        for name in (name for name in kept if name not in named):
            yield Difference(path, f"lacks {name}, which the run has")
    elif own is _MISSING:
        yield Difference(path, f"{_shown(asked)}, which the run does not have")
    elif own != asked:
        yield Difference(path, f"{_shown(asked)}, and the run has {_shown(own)}")


def _by_name(value: Any) -> dict[str, tuple[int, Any]] | None:
    """The places and the values of a list of things with names. Returns None for anything else."""
    if not isinstance(value, list) or not all(isinstance(each, dict) and "name" in each for each in value):
        return None
    return {each["name"]: (place, each) for place, each in enumerate(value)}


def _shown(value: Any) -> str:
    if value is _MISSING or value is None:
        return "none"
    if isinstance(value, dict) and "name" in value:
        return f"{value['name']} with {counted(value['gpus'], 'GPU')}" if "gpus" in value else value["name"]
    return shortened(json.dumps(value, ensure_ascii=False))


def _row_differences(own: tuple[ProfileRow, ...], asked: tuple[ProfileRow, ...]) -> Iterator[Difference]:
    """The first row that differs, and whether there are more or fewer."""
    place = next((at for at, pair in enumerate(zip(own, asked)) if pair[0] != pair[1]), None)  # noqa: B905
    if place is not None:
        row = asked[place]
        what = f"{row.model} on {counted(row.gpus, 'GPU')} of type {row.gpu_type}"
        yield Difference((), f"row {place + 1} ({what}) is not the run's")
    if len(own) != len(asked):
        yield Difference((), f"has {counted(len(asked), 'row')}, and the run has {len(own)}")
