"""What a unit uses, as its keeper reports it: one small file a unit, replaced in place."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pliant.tools.run.statedir.contract.as_user import files_of, opened
from pliant.tools.run.statedir.contract.folders import AttemptDir

_MOST_BYTES: Final = 4096
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class UnitUse:
    """Means over the last minute, of all processes of one unit or of several."""

    cpus: float
    """CPUs that were busy."""
    memory: int
    """Resident bytes now."""
    gpus: float | None = None
    """GPUs that were busy; None if the driver does not say."""
    gpu_memory: int | None = None
    """Bytes of these GPUs that are taken now, by any process."""

    def of_slots(self, slots: int, *, gpus: bool) -> float | None:
        """The part of its slots that was busy, 1 at most. Returns None if that is not known."""
        busy = self.gpus if gpus else self.cpus
        return None if busy is None or not slots else min(1.0, busy / slots)


def use_of(attempt: AttemptDir, units: Iterable[int]) -> UnitUse | None:
    """What these units of an attempt use together. Returns None unless each has said so."""
    with files_of(attempt):
        found = [_read(attempt.use(unit)) for unit in units]
    known = [use for use in found if use is not None]
    if not known or len(known) < len(found):
        return None
    gpus = [use.gpus for use in known]
    taken = [use.gpu_memory for use in known]
    return UnitUse(
        sum(use.cpus for use in known),
        sum(use.memory for use in known),
        None if None in gpus else sum(filter(None, gpus)),
        None if None in taken else sum(filter(None, taken)),
    )


def _read(path: Path) -> UnitUse | None:
    """Returns None if there is no file, or it makes no sense at the moment."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        descriptor = opened(path, _FLAGS)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            said = json.loads(os.read(descriptor, _MOST_BYTES))
        finally:
            os.close(descriptor)
        return UnitUse(
            float(_amount(said["cpus"])),
            int(_amount(said["memory"])),
            None if said["gpus"] is None else float(_amount(said["gpus"])),
            None if said["gpu_memory"] is None else int(_amount(said["gpu_memory"])),
        )
    return None


def _amount(value: Any) -> float:
    """:raises ValueError: it is not an amount."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ValueError(value)
    return value
