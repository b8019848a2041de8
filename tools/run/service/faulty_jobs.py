"""Jobs that are not served as the others: an error ends them, or it is not clear whether they run.

Where the work for a job fails, its attempt is condemned: killed until nothing of it is left.

A job with unclear files may run, so it is not started again. A file that cannot be read is looked at again.
Where one is damaged beyond repair, what may run is asked to end, then killed; once nothing of the job is
left, it can be launched again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from pliant.tools.run.backends.protocol import Backend, Handle
from pliant.tools.run.service.attempt.gang import Gang
from pliant.tools.run.service.attempt.timeouts import Timeouts
from pliant.tools.run.statedir.contract.files import DamagedError, UnreadableError
from pliant.tools.run.statedir.fault import may_pass


class Condemned:
    """The jobs whose attempts are to end, and why.

    :param next_handle: the attempt after the newest one of a job.
    """

    def __init__(self, backend: Backend, next_handle: Callable[[str], Handle]) -> None:
        self._backend = backend
        self._next_handle = next_handle
        self._reasons: dict[str, str] = {}

    @property
    def jobs(self) -> Set[str]:
        """Their ids."""
        return self._reasons.keys()

    def add(self, job_id: str, reason: str) -> None:
        """One more; its first reason counts."""
        self._reasons.setdefault(job_id, reason)

    def finish_off(self, gangs: Mapping[str, Gang]) -> Iterator[tuple[str, int, str]]:
        """Kill them; gives (job, attempt, reason) of each that nothing is left of."""
        for job_id, reason in sorted(self._reasons.items()):
            gang = gangs.get(job_id)
            if gang is None or not self._outlives_a_kill(gang):
                del self._reasons[job_id]
                yield job_id, self._last_attempt(job_id), reason

    def _outlives_a_kill(self, gang: Gang) -> bool:
        """Whether processes are left, or may be; False where it can never be found out."""
        try:
            self._backend.stop(gang.handle, "kill")
            gang.statuses = self._backend.poll([gang.handle])[gang.handle]
        except UnreadableError:  # started again beside what may run, it would train twice in one folder
            return True
        except Exception as error:  # noqa: BLE001 - it is ended for an error already
            return may_pass(error)
        return not gang.ended

    def _last_attempt(self, job_id: str) -> int:
        """Number of the newest attempt that has a folder, after making sure that none of it runs."""
        number = 0
        with contextlib.suppress(Exception):
            following = self._next_handle(job_id)
            number = following.attempt - 1
            if number:
                folder = following.folder.with_name(str(number))
                self._backend.stop(replace(following, attempt=number, folder=folder), "kill")
        return number


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
