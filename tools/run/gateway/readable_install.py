"""Can other accounts run what the jobs of a shared run need: this Python, its packages, and pliant?"""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pliant.tools.profile.torchrun.start import ONE_WORKER
from pliant.tools.run.backends.local import SUPERVISOR

ADVICE: Final = "install Python and pliant where all accounts can read them, as in /opt, with umask 022"


def obstacle() -> str | None:
    """What keeps other accounts from running jobs with this Python, as a clause; None: nothing.

    The mode of each folder and file counts; what a group or an access list adds is not looked at.
    """
    if (closed := closed_to_others(Path(sys.executable), executes=True)) is not None:
        return f"{_closed(closed)}, so other accounts cannot run {sys.executable}"
    if (closed := _first_closed(_packages())) is not None:
        return f"{_closed(closed)}, so jobs of other accounts cannot import what they need"
    return None


def closed_to_others(path: Path, *, executes: bool = False) -> Path | None:
    """The first part of a path, of every link on the way, that accounts without special rights cannot pass
    or read; None: there is none.
    """
    for step in _steps(path):
        closed = next((above for above in reversed(step.parents) if not _allows(above, stat.S_IXOTH)), None)
        if closed is not None:
            return closed
    end = path.resolve()
    needed = stat.S_IROTH | (stat.S_IXOTH if executes or end.is_dir() else 0)
    return None if _allows(end, needed) else end


def _steps(path: Path) -> Iterable[Path]:
    """A path, and those that its links lead to."""
    seen, step = list[Path](), Path(os.path.abspath(path))
    while step not in seen:
        seen.append(step)
        if step.is_symlink():
            step = Path(os.path.normpath(step.parent / os.readlink(step)))
    return [*seen, path.resolve()]


def _packages() -> list[Path]:
    """Folders and files that a worker imports from."""
    names = ("pydantic", "torch", "psutil")
    specs = (find_spec(name) for name in names)
    origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin is not None]
    library = Path(sysconfig.get_path("stdlib"))
    return [library, library / "os.py", Path(ONE_WORKER), Path(SUPERVISOR), *origins]


def _first_closed(paths: Iterable[Path]) -> Path | None:
    closed = (closed_to_others(each) or closed_to_others(each.parent) for each in paths)
    return next((each for each in closed if each is not None), None)


def _allows(path: Path, needed: int) -> bool:
    try:
        return stat.S_IMODE(path.stat().st_mode) & needed == needed
    except OSError:
        return False


def _closed(path: Path) -> str:
    return f"{path} is closed to other accounts"
