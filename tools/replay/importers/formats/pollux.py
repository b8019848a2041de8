"""The Pollux artifact's data: applications measured on nodes of T4 GPUs, and its workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pliant.tools.replay.importers.conversion import Conversion
from pliant.tools.replay.importers.format import FolderFormat, Imported
from pliant.tools.replay.importers.formats.workloads import read_folder


def read(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Measurements and jobs; GPU type ``t4``."""
    conversion.summary.assume("all measurements are of the GPU type t4")
    return read_folder("pollux", "t4", folder, workload, conversion)


FORMAT: Final = FolderFormat("pollux", read)
