"""The work of the commands on files, DataFrames and records, for notebooks and scripts.

::

    import pliant

    result = pliant.replay("jobs.jsonl", "cluster.json", policy=["fifo", "shadow-price"])
    result.report(baseline="fifo").frame()

docs/notebooks.md has examples. A name is loaded when it is first used: every command imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pliant.schemas.errors import PliantError
    from pliant.tools.api import (
        ReplayResult,
        ReportResult,
        ScheduleResult,
        read,
        replay,
        report,
        schedule,
        synth,
    )

__version__ = "0.1.0"

__all__ = [
    "PliantError",
    "ReplayResult",
    "ReportResult",
    "ScheduleResult",
    "__version__",
    "read",
    "replay",
    "report",
    "schedule",
    "synth",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    where = "pliant.schemas.errors" if name == "PliantError" else "pliant.tools.api"
    found: object = getattr(import_module(where), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
