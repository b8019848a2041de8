"""One thing that was looked at.

What is looked at: a state directory with its log, and a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.io import read_cluster
from pliant.tools.run.statedir.directory import StateDir, check_own
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.view import LogView, Misfit

Verdict = Literal["ok", "warning", "problem"]
"""``problem``: runs fail, or lose something. ``warning``: they work, worse than they could."""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it."""

    area: str
    verdict: Verdict
    text: str
    advice: str = ""
    """What to do; empty where all is well."""


def ok(area: str, text: str) -> Check:
    """Nothing to do."""
    return Check(area, "ok", text)


def warning(area: str, text: str, advice: str) -> Check:
    """Runs work, worse than they could."""
    return Check(area, "warning", text, advice)


def problem(area: str, text: str, advice: str) -> Check:
    """Runs fail, or lose something."""
    return Check(area, "problem", text, advice)


def guarded(area: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks of an area; whatever goes wrong in them is a problem of that area, and ends it."""
    try:
        yield from look()
    except PliantError as error:
        yield problem(area, first_line(error), "mend that, and look again")
    except Exception as error:  # noqa: BLE001 - what is broken is what a doctor is asked about
        text = f"cannot be looked at: {type(error).__name__}: {first_line(error)}"
        yield problem(area, text, "mend that, and look again")


def first_line(error: Exception) -> str:
    """What an error says, in a line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class Site:
    """What the checks are about."""

    backend: str
    dirs: StateDir | None = None
    """The state directory; None: none was named."""
    refused: Exception | None = None
    """Why the state directory cannot be used, or its log not be read."""
    log: RunLog | None = None
    """None: it cannot be read, or there is none."""
    misfit: Misfit | None = None
    """What is wrong between the log and its snapshot."""
    cluster: Cluster | None = None
    unread: Exception | None = None
    """Why the cluster cannot be read."""

    @property
    def there(self) -> bool:
        """Whether there is a state directory."""
        return self.dirs is not None and os.path.isdir(self.dirs.path)

    @property
    def is_slurm(self) -> bool:
        """Whether Slurm runs the jobs."""
        return self.backend != LOCAL


def look_around(state: Path | None, cluster: str | None, backend: str | None) -> Site:
    """Read what there is; nothing is changed.

    :param cluster: its file; None: that of the state directory.
    :param backend: None: what the cluster says.
    """
    dirs = None if state is None else StateDir(_resolved(state))
    view, refused = _view(dirs)
    found, unread = _read_cluster(dirs, cluster)
    says = found.backend if found is not None else LOCAL
    log, misfit = (None, None) if view is None else (view.log, view.misfit)
    return Site(backend or says, dirs, refused, log, misfit, found, unread)


def _resolved(path: Path) -> Path:
    with suppress(OSError, RuntimeError):  # a circle of links
        return path.resolve()
    return path.absolute()


def _view(dirs: StateDir | None) -> tuple[LogView | None, Exception | None]:
    if dirs is None or not os.path.isdir(dirs.path):
        return None, None
    try:
        check_own(dirs, close=False)
        view = LogView(dirs)
        view.refresh()
    except (PliantError, OSError, ValueError) as error:
        return None, error
    return view, None


def _read_cluster(dirs: StateDir | None, name: str | None) -> tuple[Cluster | None, Exception | None]:
    if name is None and (dirs is None or not os.path.isfile(dirs.cluster)):
        return None, None
    try:
        return read_cluster(name or str(dirs.cluster if dirs else "")), None
    except (PliantError, OSError, ValueError) as error:
        return None, error
