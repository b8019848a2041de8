"""What the owner of a state directory orders about a job or a node: to hold a job, to drain a node, …

An order is one small file of the spool. The number of the file is in the event that executes it, so it is
executed once, wherever a process is killed between the two.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from pliant.schemas.event import Event, EventName
from pliant.schemas.file_io.record import BoundedFloat, Identifier, NonNegativeFloat, PlainText, Record

JobAction = Literal["hold", "release", "priority"]
NodeAction = Literal["drain", "resume"]
_EVENTS: Final[dict[JobAction | NodeAction, EventName]] = {
    "hold": "hold",
    "release": "unhold",
    "priority": "priority",
    "drain": "drain",
    "resume": "undrain",
}


class Order(Record):
    """One order, as it lies in the spool."""

    schema_: Literal["pliant.order/1"] = Field(default="pliant.order/1", alias="schema")
    action: JobAction | NodeAction
    job: Identifier | None = None
    node: PlainText | None = None
    """The job or the node that it is about."""
    user: str
    """Who gave it."""
    asked_s: NonNegativeFloat
    """When, in UTC seconds by the clock of then."""
    priority: BoundedFloat | None = None
    """Of ``priority``: the new one."""
    reason: PlainText = ""
    """Of ``drain``: why."""
    now: bool = False
    """Of ``drain``: the jobs of the node leave it at the next decision."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        of_a_node = self.action in ("drain", "resume")
        if (self.job is None, self.node is None) != (of_a_node, not of_a_node):
            raise ValueError(f"{self.action!r} is about a {'node' if of_a_node else 'job'}")
        if (self.priority is None) == (self.action == "priority"):
            raise ValueError("an order of a priority, and no other one, states a priority")
        return self

    @property
    def words(self) -> str:
        """What was ordered, as in "alice has ordered to …"."""
        if self.priority is not None:
            return f"give it priority {self.priority:g}"
        return f"{self.action} {'it' if self.node is None else f'node {self.node}'}"


class Numbered(NamedTuple):
    """An order with the number of its file."""

    number: int
    order: Order


def order_event(number: int, order: Order, time_s: float) -> Event:
    """What the log gets.

    :param number: of the order's file.
    """
    said = order.model_dump(include={"user", "node", "priority", "reason", "now"}, exclude_defaults=True)
    detail: dict[str, Any] = {**said, "order": number}
    return Event(time_s, _EVENTS[order.action], order.job, detail=detail)
