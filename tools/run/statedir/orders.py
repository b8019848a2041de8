"""What the owner of a state directory orders about a job: to hold it, to let it go on, how important it is.

An order is one small file of the spool. The number of the file is in the event that executes it, so it is
executed once, wherever a process is killed between the two.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.record import BoundedFloat, Identifier, NonNegativeFloat, Record

Action = Literal["hold", "release", "priority"]
_EVENTS: Final[dict[Action, EventName]] = {"hold": "hold", "release": "unhold", "priority": "priority"}


class Order(Record):
    """One order, as it lies in the spool."""

    schema_: Literal["pliant.order/1"] = Field(default="pliant.order/1", alias="schema")
    action: Action
    job: Identifier
    user: str
    """Who gave it."""
    asked_s: NonNegativeFloat
    """When, in UTC seconds by the clock of then."""
    priority: BoundedFloat | None = None
    """Of ``priority``: the new one."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if (self.priority is None) == (self.action == "priority"):
            raise ValueError("an order of a priority, and no other one, states a priority")
        return self

    @property
    def words(self) -> str:
        """What was ordered, as in "alice has ordered to …"."""
        return f"{self.action} it" if self.priority is None else f"give it priority {self.priority:g}"


class Numbered(NamedTuple):
    """An order with the number of its file."""

    number: int
    order: Order


def order_event(number: int, order: Order, time_s: float) -> Event:
    """What the log gets.

    :param number: of the order's file.
    """
    detail: dict[str, Any] = {"user": order.user, "order": number}
    if order.priority is not None:
        detail["priority"] = order.priority
    return Event(time_s, _EVENTS[order.action], order.job, detail=detail)
