"""What the owner of a state directory orders about a job that is there: to hold it, or to let it go on.

An order is one small file of the spool. The number of the file is in the event that executes it, so it is
executed once, wherever a process is killed between the two.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pydantic import Field

from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.record import Identifier, NonNegativeFloat, Record

Action = Literal["hold", "release"]
_EVENTS: Final[dict[Action, EventName]] = {"hold": "hold", "release": "unhold"}


class Order(Record):
    """One order, as it lies in the spool."""

    schema_: Literal["pliant.order/1"] = Field(default="pliant.order/1", alias="schema")
    action: Action
    job: Identifier
    user: str
    """Who gave it."""
    asked_s: NonNegativeFloat
    """When, in UTC seconds by the clock of then."""


class Numbered(NamedTuple):
    """An order with the number of its file."""

    number: int
    order: Order


def order_event(number: int, order: Order, time_s: float) -> Event:
    """What the log gets.

    :param number: of the order's file.
    """
    return Event(time_s, _EVENTS[order.action], order.job, detail={"user": order.user, "order": number})
