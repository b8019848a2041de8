"""The formats by name."""

from __future__ import annotations

from typing import Final

from pliant.schemas.errors import UsageError
from pliant.tools.replay.importers.format import Format
from pliant.tools.replay.importers.formats import (
    alibaba_v2023,
    gavel,
    helios,
    ones,
    pai,
    philly,
    pollux,
    sia,
    slurm,
    tiresias,
)

FORMATS: Final[dict[str, Format]] = {
    module.FORMAT.name: module.FORMAT
    for module in (philly, helios, pai, alibaba_v2023, pollux, sia, ones, tiresias, gavel, slurm)
}


def format_named(name: str) -> Format:
    """The format of a name.

    :raises UsageError: there is none.
    """
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}, expected one of {', '.join(FORMATS)}")
    return FORMATS[name]
