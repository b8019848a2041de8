"""Good Parquet event files, fast: whole columns are checked at once and details stay text until wanted.

A file with anything unusual gives nothing here; :func:`~pliant.schemas.file_io.events.parse_events` reads it
event by event and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import ValidationError

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import EVENT, EVENT_NAMES, OF_THE_CLUSTER, EventName
from pliant.schemas.file_io.arrays import text_array
from pliant.schemas.file_io.files import PARQUET_MAGIC
from pliant.schemas.file_io.rows import validator
from pliant.schemas.file_io.tables import file_metadata, read_arrow
from pliant.schemas.file_io.version import schema_id

if TYPE_CHECKING:
    import pyarrow as pa

_MAYBE_INFINITE: Final = r"NaN|Infinity|[0-9][eE]\+?[0-9]{3}"
"""What JSON text holds wherever one of its numbers is not finite, and seldom else."""


class EventRow(NamedTuple):
    """The columns of an :class:`~pliant.schemas.event.Event` that a report reads; ``detail`` is JSON text."""

    time: float
    event: EventName
    job: str | None
    gpus: int | None
    global_batch: int | None
    samples_done: float | None
    loss: float | None
    overhead_seconds: float | None
    detail: str | None


def event_rows(data: bytes, source: str) -> Iterator[EventRow] | None:
    """The events of a Parquet file; None where it needs the careful reader.

    Every value is checked as that reader does, but the details of ``submit`` events: their text is finite and
    no more is known of it.
    """
    if not data.startswith(PARQUET_MAGIC):
        return None
    try:
        arrow = read_arrow(data, source, EVENT.kind)
    except BadInputError:
        return None
    same = arrow.schema.equals(EVENT.arrow().remove_metadata(), check_metadata=False)
    is_current = same and file_metadata(arrow).get("schema") == schema_id(EVENT.kind)
    holds = is_current and _numbers_hold(arrow) and _names_hold(arrow)
    if not (holds and _preempted_hold_nothing(arrow) and _texts_hold(arrow)):
        return None
    columns = (arrow.column(name).to_pylist() for name in EventRow._fields)
    return map(EventRow._make, zip(*columns, strict=True))


def _numbers_hold(arrow: pa.Table) -> bool:
    import pyarrow.compute as pc

    for column in EVENT.columns:
        values = arrow.column(column.name)
        if not column.nullable and values.null_count:
            return False
        if column.type == "float64" and pc.all(pc.is_finite(values)).as_py() is False:
            return False
        if column.about.least is not None:
            least = pc.min(values).as_py()
            if least is not None and least < column.about.least:
                return False
    return True


def _names_hold(arrow: pa.Table) -> bool:
    """Whether the events are known and those of jobs name one."""
    import pyarrow.compute as pc

    events = arrow.column("event")
    nameless = events.filter(pc.is_null(arrow.column("job")))
    return _all_in(events, EVENT_NAMES) and _all_in(nameless, OF_THE_CLUSTER)


def _preempted_hold_nothing(arrow: pa.Table) -> bool:
    import pyarrow.compute as pc

    held = arrow.column("gpus").filter(_is_in(arrow.column("event"), ["preempt"]))
    return not pc.max(held).as_py()


def _all_in(values: Any, words: Iterable[str]) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(_is_in(values, words), min_count=0).as_py())


def _is_in(values: Any, words: Iterable[str]) -> Any:
    """Whether each of them is one of the words; comparing with a Python string would import pandas, too."""
    import pyarrow.compute as pc

    return pc.is_in(values, text_array(words))


def _texts_hold(arrow: pa.Table) -> bool:
    """Whether the JSON columns hold what they should; equal texts are looked at once."""
    import pyarrow.compute as pc

    details = arrow.column("detail")
    if pc.any(pc.match_substring_regex(details, _MAYBE_INFINITE)).as_py():
        return False
    others = details.filter(pc.invert(_is_in(arrow.column("event"), ["submit"])))
    check = validator(EVENT, json_as_text=True).validate_python
    try:
        for name, texts in (("placement", arrow.column("placement")), ("detail", others)):
            for text in pc.unique(texts).to_pylist():
                check({"time": 0.0, "event": "decision", name: text})
    except ValidationError:
        return False
    return True
