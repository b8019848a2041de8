"""The formats by name."""

from __future__ import annotations

from typing import Final

from pliant.tools.replay.importers.format import Format
from pliant.tools.replay.importers.formats import (
    alibaba_v2023,
    gavel,
    helios,
    ones,
    pai,
    philly,
    pollux,
    slurm,
    tiresias,
)

FORMATS: Final[dict[str, Format]] = {
    each.name: each
    for each in (
        philly.FORMAT,
        helios.FORMAT,
        pai.FORMAT,
        alibaba_v2023.FORMAT,
        pollux.FORMAT,
        pollux.SIA,
        ones.FORMAT,
        tiresias.FORMAT,
        gavel.FORMAT,
        slurm.FORMAT,
    )
}
