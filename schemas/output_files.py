"""Names of output files, with placeholders as sbatch has them: ``logs/%j-%r.out``."""

from __future__ import annotations

import re
from typing import Final

PLACE: Final = re.compile(r"%(\d?)(.?)")
"""A placeholder: digits that its number has at least, and its letter."""
PLACES: Final = {
    "j": "its id",
    "x": "the same",
    "A": "the name of its array, else its id",
    "a": "its number in the array, else the attempt",
    "r": "the rank of the worker",
    "t": "the same",
    "N": "the node",
    "u": "the user",
    "%": "a percent sign",
}


def pattern_fault(pattern: str) -> str | None:
    """What is wrong with the pattern of an output file. Returns None if nothing is."""
    if not pattern or pattern.endswith("/"):
        return "names no file"
    known = ", ".join(f"%{letter}" for letter in PLACES)
    for place in PLACE.finditer(pattern):
        if place[2] not in PLACES:
            return f"has {place[0]}, expected {known}"
    return None
