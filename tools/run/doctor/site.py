"""What the checks of ``pliant doctor`` examine, and what they say."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.io import read_cluster
from pliant.tools.run.statedir.directory import StateDir, check_own
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import LogView, Misfit

Verdict = Literal["ok", "warning", "problem"]
"""``problem``: runs fail or lose something. ``warning``: they work, but worse than they could."""
LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it if all is not well."""

    verdict: Verdict
    text: str
    advice: str = ""
    area: str = ""


def ok(text: str) -> Check:
    return Check("ok", text)


def warning(text: str, advice: str) -> Check:
    return Check("warning", text, advice)


def problem(text: str, advice: str) -> Check:
    return Check("problem", text, advice)


@dataclass(frozen=True, slots=True)
class Began:
    """When the examination began, by both clocks."""

    wall_s: float = field(default_factory=time.time)
    steady_s: float = field(default_factory=time.monotonic)

    def jumped_s(self) -> float:
        """By how much the clock was set forward since."""
        return (time.time() - self.wall_s) - (time.monotonic() - self.steady_s)


@dataclass(frozen=True, slots=True)
class Site:
    """What the checks examine."""

    backend: str
    dirs: StateDir | None = None
    refused: Exception | None = None
    """Error for which the state directory or its log cannot be used."""
    log: RunLog | None = None
    misfit: Misfit | None = None
    """Difference between the log and its snapshot."""
    cluster: Cluster | None = None
    unread: Exception | None = None
    began: Began = field(default_factory=Began)

    @property
    def there(self) -> bool:
        return self.dirs is not None and os.path.isdir(self.dirs.path)

    @property
    def is_slurm(self) -> bool:
        return self.backend != LOCAL


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def look_around(state: Path | None, cluster: str | None, backend: str | None) -> Site:
    dirs = None if state is None else StateDir(_resolved(state))
    view, refused = _view(dirs)
    cluster_read, unread = _read_cluster(dirs, cluster)
    says = cluster_read.backend if cluster_read is not None else LOCAL
    log, misfit = (None, None) if view is None else (view.log, view.misfit)
    return Site(backend or says, dirs, refused, log, misfit, cluster_read, unread)


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
