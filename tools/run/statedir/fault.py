"""Errors in the work for one job: they end that job, never the loop that serves all.

Memory that runs out, a disk that is full for all, and errors outside of :meth:`Faults.of`, such as a log that
cannot be written, belong to no job.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.files import is_out_of_order, probe_room
from pliant.tools.run.statedir.contract.folders import UnreadableError

_PASSING: Final = {
    *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
    *(errno.EAGAIN, errno.EINTR, errno.ESTALE),
}
"""Shortages of the machine and hiccups of the network: no training job is ended for these."""
_log = logging.getLogger("pliant")


class Faults:
    """Errors in the work for single jobs.

    :param folder: where to test whether the disk is full for all jobs, or only for one.
    :param end: ends a job, for a reason; it may be called more than once.
    """

    def __init__(self, folder: Path, end: Callable[[str, str], object]) -> None:
        self._folder = folder
        self._end = end
        self._passing: dict[str, str] = {}

    def of(self, job_id: str, *, doing: str = "", tries_again: bool = False) -> _Work:
        """Work for one job: an error in it ends that job.

        :param doing: what could not be done, put before the reason.
        :param tries_again: the work is done again soon, so a passing error is only warned of. So is a file
            that cannot be read in any case: its content is unknown, so nothing is done.
        :raises ServiceMissingError: the disk is full for all.
        """
        return _Work(self, job_id, doing, tries_again)

    def went_well(self, job_id: str) -> None:
        self._passing.pop(job_id, None)

    def went_wrong(self, job_id: str, error: Exception, doing: str, *, tries_again: bool) -> None:
        """:raises ServiceMissingError: the disk is full for all."""
        if is_out_of_order(error):
            probe_room(self._folder)
        reason = f"{doing}: {reason_of(error)}" if doing else reason_of(error)
        if isinstance(error, UnreadableError) or (tries_again and may_pass(error)):
            if self._passing.get(job_id) != reason:
                _log.warning("job %s: %s; it is tried again", job_id, reason)
            self._passing[job_id] = reason
            return
        _log.debug("job %s: %s", job_id, reason, exc_info=error)
        self._end(job_id, reason)


class _Work:
    """One block of work; a class costs less than a generator, and each turn has several for each job."""

    __slots__ = ("_doing", "_faults", "_job_id", "_tries_again")

    def __init__(self, faults: Faults, job_id: str, doing: str, tries_again: bool) -> None:
        self._faults = faults
        self._job_id = job_id
        self._doing = doing
        self._tries_again = tries_again

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Whether the error belongs to the job, and is dealt with."""
        if error is None:
            self._faults.went_well(self._job_id)
            return False
        if isinstance(error, MemoryError) or not isinstance(error, Exception):
            return False
        self._faults.went_wrong(self._job_id, error, self._doing, tries_again=self._tries_again)
        return True


def reason_of(error: Exception) -> str:
    """An error in one line, as the reason for a job's end."""
    if isinstance(error, PliantError):
        return str(error).partition("\n")[0]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    text = str(error).partition("\n")[0]
    return f"internal error: {type(error).__name__}: {text}" if text else f"internal error: {error!r}"


def may_pass(error: Exception) -> bool:
    """Whether an error, or its cause, is a shortage that passes by itself."""
    found = error if isinstance(error, OSError) else error.__cause__
    return isinstance(found, OSError) and found.errno in _PASSING
