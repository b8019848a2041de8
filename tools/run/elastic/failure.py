"""Telling a lost worker from every other error that a collective operation ends with."""

from __future__ import annotations

from typing import Final

_SIGNS: Final = ("closed by peer", "reset by peer", "gloo", "nccl", "broken pipe", "connection refused")


def lost_peer(error: BaseException) -> bool:
    """Whether another worker's end is the likely cause."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in text for sign in _SIGNS)


class GroupLostError(Exception):
    """The process group is broken; its workers have to meet anew."""
