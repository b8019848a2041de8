"""Words that messages share."""

from __future__ import annotations

import re
from collections.abc import Sequence


def shortened(text: str, limit: int = 60) -> str:
    """A value of a file as a message shows it: a long one is cut."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def without_long_words(line: str, limit: int = 300) -> str:
    """A line of a message: the middle of a word that is too long to be read is left out."""
    return re.sub(rf"\S{{{limit},}}", lambda word: f"{word[0][: limit // 2]}…{word[0][-limit // 4 :]}", line)


def counted(count: int, noun: str) -> str:
    """``1 job``, ``2 jobs``; for nouns whose plural takes an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_gpus(count: int) -> str:
    """``1 GPU``, ``2 GPUs``."""
    return counted(count, "GPU")


def listed(names: Sequence[str], shown: int = 3) -> str:
    """``"a", "b", "c" and 2 more``."""
    text = ", ".join(f'"{name}"' for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
