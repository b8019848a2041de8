"""Jobs with unclear files: whether they run is not known, so they are not started again.

A file that cannot be read is looked at again. Where one is damaged beyond repair, what may run is asked to
end, then killed; once nothing of the job is left, it can be launched again.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from pliant.tools.run.backends.protocol import Backend, Handle
from pliant.tools.run.service.timeouts import Timeouts
from pliant.tools.run.statedir.contract.files import DamagedError

AGAIN_S: Final = 1.0
"""Between two looks."""
_log = logging.getLogger("pliant")


@dataclass(slots=True)
class _Case:
    handle: Handle
    reason: str
    damaged: bool
    look_s: float
    kill_s: float = float("inf")


class UnclearJobs:
    """Those of one state directory."""

    def __init__(self, backend: Backend, timeouts: Timeouts) -> None:
        self._backend, self._timeouts = backend, timeouts
        self._cases: dict[str, _Case] = {}

    @property
    def jobs(self) -> Set[str]:
        """Their ids."""
        return self._cases.keys()

    @property
    def unreadable(self) -> Set[str]:
        """Those of them that are left as they are; the others are being ended."""
        return {job_id for job_id, case in self._cases.items() if not case.damaged}

    def add(self, handle: Handle, error: Exception, now_s: float) -> None:
        """Leave a job as it is; it is warned of once for each reason."""
        case, reason = self._cases.get(handle.job), str(error).partition("\n")[0]
        if case is None:
            case = self._cases[handle.job] = _Case(handle, "", damaged=False, look_s=now_s)
        if reason != case.reason:
            _log.warning("job %s is left as it is: %s", handle.job, reason)
        case.reason, case.damaged, case.look_s = reason, isinstance(error, DamagedError), now_s + AGAIN_S

    def drop(self, job_id: str) -> None:
        """It has become clear what the job does."""
        self._cases.pop(job_id, None)

    def due(self, now_s: float) -> list[Handle]:
        """Attempts to look at again."""
        return [case.handle for _, case in sorted(self._cases.items()) if now_s >= case.look_s]

    def end_damaged(self, handle: Handle, now_s: float) -> None:
        """End what may run of a job that will never become clear; drop it once nothing is left."""
        case = self._cases.get(handle.job)
        if case is None or not case.damaged:
            return
        if all(status.state != "running" for status in self._backend.poll([handle])[handle]):
            self._backend.stop(handle, "kill")
            self.drop(handle.job)
        elif case.kill_s == float("inf"):
            case.kill_s = now_s + self._timeouts.term_s
            self._backend.stop(handle, "term")
        elif now_s >= case.kill_s:
            self._backend.stop(handle, "kill")
