"""The Sia artifact's data: the applications of Pollux measured on several GPU types, and its workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pliant.tools.replay.importers.format import FolderFormat, Imported
from pliant.tools.replay.importers.rows import Intake
from pliant.tools.replay.importers.workloads import read_folder


def read(folder: Path, workload: Path | None, intake: Intake) -> Imported:
    """Measurements and jobs; the GPU type is the ending of a file's name, ``aws`` where it has none."""
    return read_folder("sia", "aws", folder, workload, intake)


FORMAT: Final = FolderFormat("sia", "Sia SOSP'23: data folder and --workload WORKLOAD.csv", read)
