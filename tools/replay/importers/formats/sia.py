"""The Sia artifact's data: the applications of Pollux measured on several GPU types, and its workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pliant.tools.replay.importers.conversion import Conversion
from pliant.tools.replay.importers.format import FolderFormat, Imported
from pliant.tools.replay.importers.formats.workloads import read_folder


def read(folder: Path, workload: Path | None, conversion: Conversion) -> Imported:
    """Measurements and jobs; the GPU type is the ending of a file's name, ``aws`` where it has none."""
    return read_folder("sia", "aws", folder, workload, conversion)


FORMAT: Final = FolderFormat("sia", read)
