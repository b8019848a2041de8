"""What is looked at: a state directory with its log, and a cluster."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.io import read_cluster
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.view import LogView, Misfit
from pliant.tools.run.statedir.private import check_own

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
    found, unread = _cluster(dirs, cluster)
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


def _cluster(dirs: StateDir | None, name: str | None) -> tuple[Cluster | None, Exception | None]:
    if name is None and (dirs is None or not os.path.isfile(dirs.cluster)):
        return None, None
    try:
        return read_cluster(name or str(dirs.cluster if dirs else "")), None
    except (PliantError, OSError, ValueError) as error:
        return None, error
