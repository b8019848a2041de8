"""Published data of third parties that experiments and benchmarks replay. They are no part of the project.

They are looked for in the folder that the environment variable PLIANT_DATA names, else in ``shared/data``
beside the repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_BESIDE: Final = Path(__file__).resolve().parents[3] / "shared" / "data"


def data_folder() -> Path:
    """The folder of the data, whether it is there or not."""
    return Path(os.environ.get("PLIANT_DATA", _BESIDE))


def missing(names: Iterable[str]) -> list[Path]:
    """Which of these folders below it are not there."""
    return [path for name in names if not (path := data_folder() / name).is_dir()]
