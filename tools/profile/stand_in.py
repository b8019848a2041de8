"""Which GPU type answers for one that a model was not measured on."""

from __future__ import annotations

from collections.abc import Mapping


def stand_in(rows: Mapping[str, int], gpu_type: str) -> str:
    """The type itself if it has rows, else the one with most.

    :param rows: how many rows a model has of each GPU type; at least one type.
    """
    return gpu_type if gpu_type in rows else min(rows, key=lambda name: (-rows[name], name))
