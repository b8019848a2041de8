"""What the parts of a session have in common: a state that survives a restart."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

State = TypeVar("State", bound="DataclassInstance")


class SessionPart(Generic[State]):
    """One part of a session.

    ``state`` is a dataclass with all that a restart must keep; everything else follows from the cluster, the
    policy and the jobs.
    """

    state: State

    def restore(self, state: State) -> None:
        """Take over a saved state, in place: other parts refer to the present one."""
        for field in fields(state):
            setattr(self.state, field.name, getattr(state, field.name))
