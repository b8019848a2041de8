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
    from pliant.tools.live import LiveCluster, LiveJob, LiveJobs, cluster, submit

__version__ = "0.1.0"

__all__ = [
    "LiveCluster",
    "LiveJob",
    "LiveJobs",
    "PliantError",
    "ReplayResult",
    "ReportResult",
    "ScheduleResult",
    "__version__",
    "cluster",
    "read",
    "replay",
    "report",
    "schedule",
    "submit",
    "synth",
]
_MODULES = {
    "PliantError": "pliant.schemas.errors",
    **dict.fromkeys(("LiveCluster", "LiveJob", "LiveJobs", "cluster", "submit"), "pliant.tools.live"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_MODULES.get(name, "pliant.tools.api")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
