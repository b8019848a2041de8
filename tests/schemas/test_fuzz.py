"""Whatever bytes come in, a reader returns records or raises BadInputError; nothing else gets out."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.schemas import io
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, Event
from pliant.schemas.file_io.documents import parse_document, parse_jobs
from pliant.schemas.file_io.events import parse_events
from pliant.schemas.file_io.parquet import parquet_bytes, parse_parquet
from pliant.schemas.file_io.record import KINDS
from pliant.schemas.kinds import kind_of
from pliant.schemas.metrics import Metrics
from pliant.schemas.profile import PROFILE, ProfileRow
from pliant.schemas.schedule import Schedule
from tests.effort import examples

PARSERS: dict[str, Callable[[bytes, str], Any]] = {
    "job": parse_jobs,
    "cluster": lambda data, source: parse_document(data, source, "cluster", Cluster, schema_required=False),
    "schedule": lambda data, source: parse_document(data, source, "schedule", Schedule),
    "metrics": lambda data, source: parse_document(data, source, "metrics", Metrics),
    "event": parse_events,
    "profile": lambda data, source: parse_parquet(data, source, PROFILE),
}
FIELDS = st.sampled_from(
    ["id", "submit_time", "model", "gpus", "work", "samples", "requested", "batch", "nodes", "name",
     "time", "event", "job", "placement", "detail", "policy", "allocations", "jobs", "runs", "schema"]
)  # fmt: skip
SCALARS = st.sampled_from([None, True, 0, 1, -1, 2**70, 0.5, float("nan"), float("inf"), "", "start", "n{}"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", PARSERS)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.binary(max_size=60), head=st.sampled_from([b"", b"{", b"PAR1", b"\xef\xbb\xbf", b"\n"]))
def test_any_bytes_are_read_or_refused(kind: str, data: bytes, head: bytes) -> None:
    with contextlib.suppress(BadInputError):
        PARSERS[kind](head + data, "file")
    with contextlib.suppress(BadInputError):
        assert kind_of(head + data, "file") in KINDS


@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_a_changed_page_is_refused_or_holds_the_same(data: st.DataObject) -> None:
    """Checksums find what decoding would not; the footer, which has none, is left whole here."""
    events = (Event(0.0, "start", "a", detail={"a": "b" * 90}),)
    whole = bytearray(parquet_bytes(events, EVENT))
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    at = data.draw(st.integers(4, len(whole) - footer - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadInputError):
        assert parse_events(bytes(whole), "file") == events


@settings(max_examples=examples(25), deadline=None)
@given(changed=st.dictionaries(st.sampled_from(PROFILE.names), st.lists(VALUES, max_size=3), max_size=3))
def test_any_columns_are_read_or_refused(changed: dict[str, list[Any]]) -> None:
    row = ProfileRow("train", "m", "gpu", 1, 1, "1", 8, step_seconds=0.5)
    with contextlib.suppress(BadInputError):
        io.profile_from_columns({**io.profile_to_columns([row]), **changed})
