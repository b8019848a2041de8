"""Tell the kind of a file and validate it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.documents import parse_document
from pliant.schemas.file_io.events import parse_events
from pliant.schemas.file_io.files import PARQUET_MAGIC, read_bytes, source_name
from pliant.schemas.file_io.foreign import foreign
from pliant.schemas.file_io.limits import ROWS_BYTES
from pliant.schemas.file_io.parquet import file_metadata, parse_parquet, read_arrow, schema_in_footer
from pliant.schemas.file_io.record import KINDS
from pliant.schemas.io import jobs_of
from pliant.schemas.metrics import Metrics
from pliant.schemas.predictor import Predictor
from pliant.schemas.profile import CONVERGENCE, PROFILE
from pliant.schemas.schedule import Schedule
from pliant.schemas.text import counted, did_you_mean

_READERS: Final[dict[str, Callable[[bytes, str], Sequence[Any]]]] = {
    "job": jobs_of,
    "cluster": lambda data, source: (
        parse_document(data, source, "cluster", Cluster, schema_required=False),
    ),
    "profile": lambda data, source: parse_parquet(data, source, PROFILE)[0],
    "convergence": lambda data, source: parse_parquet(data, source, CONVERGENCE)[0],
    "schedule": lambda data, source: (parse_document(data, source, "schedule", Schedule),),
    "event": parse_events,
    "metrics": lambda data, source: (parse_document(data, source, "metrics", Metrics),),
    "predictor": lambda data, source: (parse_document(data, source, "predictor", Predictor),),
}
_KEYS: Final = (
    ("job", {"id", "model"}),
    ("job", {"id", "command"}),
    ("cluster", {"nodes"}),
    ("event", {"time", "event"}),
    ("schedule", {"allocations"}),
    ("metrics", {"runs"}),
    ("predictor", {"rows_seen"}),
)
"""Fields by which a file without a schema is recognised."""


def validate_file(path: str | Path, kind: str | None = None) -> str:
    """Read a file as its kind and say what it holds: ``jobs.jsonl: job, 3 records``.

    :param kind: one of the kinds. Default: found from the content, then from the file's name.
    :raises BadInputError: with every problem of the file.
    :raises UsageError: there is no such kind.
    """
    kind, content = read_kind(path, kind)
    return f"{source_name(path)}: {kind}, {counted(len(content), 'record')}"


def read_kind(path: str | Path, kind: str | None = None) -> tuple[str, Sequence[Any]]:
    """The kind of a file, and its records or its document; see :func:`validate_file`."""
    check_kind(kind)
    data, source = read_bytes(path, most=ROWS_BYTES), source_name(path)
    kind = kind or kind_of(data, source)
    return kind, _READERS[kind](data, source)


def check_kind(kind: str | None) -> None:
    if kind is not None and kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f"expected one of {', '.join(KINDS)}"
        raise UsageError(f'there is no kind "{kind}"; {hint}')


def kind_of(data: bytes, source: str) -> str:
    """The kind that the content states or looks like, else that in the name."""
    name = Path(source).name
    named = _stated(data, source) or next((kind for kind in KINDS if kind in name), None)
    if named is None:
        if (text := foreign(data, source)) is not None:
            raise BadInputError.one(source, f"is no file of pliant: it {text}")
        expected = f'expected a "schema" field, or give --kind ({"|".join(KINDS)})'
        raise BadInputError.one(source, f"its kind is unclear{_why_not(data)}: {expected}")
    return named


def kind_of_parquet(path: Path) -> str | None:
    """Returns None if the footer states no kind, or cannot be read."""
    return _kind_in(schema_in_footer(path))


def _why_not(data: bytes) -> str:
    """Why text that looks like JSON does not say its kind."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return ""
    try:
        value = json.loads(data)
    except json.JSONDecodeError as error:
        return f", for it is not readable JSON (line {error.lineno}: {error.msg})"
    except (ValueError, RecursionError):
        return ""
    return ", for it is a list (jobs and events are one object a line)" if isinstance(value, list) else ""


def _stated(data: bytes, source: str) -> str | None:
    if data.startswith(PARQUET_MAGIC):
        return _kind_in(file_metadata(read_arrow(data, source, "pliant")).get("schema"))
    fields = _first_object(data)
    looks = (kind for kind, keys in _KEYS if keys <= fields.keys())
    return _kind_in(fields.get("schema")) or next(looks, None)


def _first_object(data: bytes) -> dict[str, Any]:
    """The object on the first line, else the whole document."""
    for text in (data.lstrip().partition(b"\n")[0], data):
        try:
            value = json.loads(text.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return {}


def _kind_in(schema: object) -> str | None:
    match = re.match(r"pliant\.([a-z]+)/", schema) if isinstance(schema, str) else None
    return match[1] if match and match[1] in KINDS else None
