"""Words that messages share."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 job``, ``2 jobs``; for nouns whose plural takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_gpus(count: int) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return counted(count, "GPU")
