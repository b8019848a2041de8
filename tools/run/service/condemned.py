"""Attempts that are ended for an error in the work for their job: killed until nothing is left of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace

from pliant.tools.run.backends.protocol import Backend, Handle
from pliant.tools.run.service.gang import Gang
from pliant.tools.run.statedir.contract.files import UnreadableError
from pliant.tools.run.statedir.fault import may_pass


class Condemned(Collection[str]):
    """The jobs whose attempts are to end, and why.

    :param next_handle: the attempt after the newest one of a job.
    """

    def __init__(self, backend: Backend, next_handle: Callable[[str], Handle]) -> None:
        self._backend = backend
        self._next_handle = next_handle
        self._reasons: dict[str, str] = {}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._reasons

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)

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
