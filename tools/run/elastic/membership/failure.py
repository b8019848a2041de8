"""Telling a lost worker from every other error that a collective operation ends with."""

from __future__ import annotations

import traceback
from typing import Final

from pliant.tools.run.elastic.state.cursor import Cursor

_CUT_OFF: Final = ("closed by peer", "reset by peer", "broken pipe", "connection refused", "timed out")
_LIBRARIES: Final = ("gloo", "nccl")


def lost_peer(error: BaseException) -> bool:
    """Whether it comes from the exchange between workers, so that another worker's end may be the cause."""
    return isinstance(error, RuntimeError) and _tells(error, (*_CUT_OFF, *_LIBRARIES))


def cut_off(error: BaseException) -> bool:
    """Whether it says that a connection to another worker has ended."""
    return isinstance(error, RuntimeError) and _tells(error, _CUT_OFF)


def _tells(error: BaseException, signs: tuple[str, ...]) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in signs)


class Recurrence:
    """Notices an error that no lost worker explains: at the same place, twice, and all workers live.

    The workers that void a step meet before they train it again. If those that meet are the same as before
    the error, none of them was lost. Once, that may be a connection that was. A second time at the same
    place, it is the training or the machine, and would come at every further try.
    """

    def __init__(self) -> None:
        self._place: tuple[tuple[int, ...], Cursor | None] | None = None

    def check(
        self, error: RuntimeError, before: tuple[int, ...], after: tuple[int, ...], cursor: Cursor | None
    ) -> None:
        """The workers have met after an error, and go on from ``cursor``.

        :param before: the workers that trained together when it came.
        :param after: those that have met.
        :raises RuntimeError: the error itself, if going on is useless.
        """
        place = (after, cursor) if before == after else None
        if place is not None and place == self._place:
            error.add_note("This came twice at the same place, and all workers are alive.")
            raise error
        self._place = place


def released(error: RuntimeError) -> RuntimeError:
    """The error with its traceback, but without the variables in it: they keep connections open."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return error
