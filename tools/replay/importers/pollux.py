"""The Pollux artifact's data: applications measured on nodes of T4 GPUs, and its workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pliant.tools.replay.importers.format import FolderFormat, Imported
from pliant.tools.replay.importers.rows import Intake
from pliant.tools.replay.importers.workloads import read_folder


def read(folder: Path, workload: Path | None, intake: Intake) -> Imported:
    """Measurements and jobs; GPU type ``t4``."""
    intake.report.assume("all measurements are of the GPU type t4")
    return read_folder("pollux", "t4", folder, workload, intake)


FORMAT: Final = FolderFormat("pollux", "Pollux OSDI'21: data folder and --workload workload-N.csv", read)
