"""Random sequences of faults, each on simulated nodes under the real loop: how many break a promise."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.parts.chaos.world import DEEDS, MEMORY, POLICIES, live_through
from benchmarks.parts.figure import Figure

SEQUENCES: Final = 1000
LENGTHS: Final = (5, 30)
SUBMISSIONS: Final = 4
"""As often as any other deed."""


def figures(sequences: int = SEQUENCES, first: int = 0) -> list[Figure]:
    """How many of them failed; each of those is named on stderr, by its seed.

    :param first: the seed of the first one.
    """
    with silent():
        failed = sum(not holds(seed) for seed in range(first, first + sequences))
    return [Figure("fault_sequences_failed", float(failed), "sequences", 0.0)]


def holds(seed: int) -> bool:
    """Whether the sequence of a seed keeps every promise."""
    policy, deeds = sequence(seed)
    with tempfile.TemporaryDirectory(prefix="pliant-faults-", dir=MEMORY) as folder:
        try:
            live_through(Path(folder).resolve(), policy, deeds)
        except Exception as error:  # noqa: BLE001 - counted, whatever it is
            print(f"sequence {seed} failed: {str(error)[:200] or repr(error)}", file=sys.stderr)
            return False
    return True


def sequence(seed: int) -> tuple[int, list[tuple[str, int]]]:
    """Number of a policy, and deeds."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    weights = [SUBMISSIONS if name == "submit" else 1 for name in DEEDS]
    count = chance.randint(*LENGTHS)
    deeds = [(chance.choices(list(DEEDS), weights)[0], chance.randrange(1000)) for _ in range(count)]
    return chance.randrange(len(POLICIES)), deeds


@contextmanager
def silent() -> Iterator[None]:
    """Without the warnings that such a life is full of."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
