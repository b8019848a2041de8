"""Words that messages share."""

from __future__ import annotations


def in_gpus(count: int) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"
