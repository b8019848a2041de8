"""A disk that is full for a while, for the loop of a state directory and for all that it starts.

Where the folder is a file system of its own (``make chaos`` mounts a small one if it may), a file takes all
its room. Elsewhere the processes may not make files any longer: what they write fails likewise, with EFBIG.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_BLOCK: Final = bytes(1 << 16)


class FullDisk:
    """The disk under one folder."""

    def __init__(self, folder: Path) -> None:
        self._own = folder.is_mount()
        self._ballast = folder / "ballast"

    def fill(self, pids: Iterable[int]) -> None:
        """No room from now on, for these processes and those that they start."""
        if not self._own:
            _limit(pids, 0)
            return
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                os.write(file.fileno(), _BLOCK)

    def free(self, pids: Iterable[int]) -> None:
        if not self._own:
            _limit(pids, resource.RLIM_INFINITY)
        self._ballast.unlink(missing_ok=True)


def _limit(pids: Iterable[int], most_bytes: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            soft = hard if most_bytes == resource.RLIM_INFINITY else most_bytes
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
