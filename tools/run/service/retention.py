"""What ended long ago leaves a run: outputs and checkpoints its disk, jobs and decisions its log.

Only jobs of which nothing is left to happen; in their folders alone, with the rights of their owners, and
following no link.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable
from typing import Final

from pliant.schemas.cluster import Notify, Retention
from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.archives import archived_ids
from pliant.schemas.text import counted
from pliant.tools.run.service.notices import passed_by_all
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import JobDir, SplitFolder
from pliant.tools.run.statedir.log.archive import (
    CannotArchiveError,
    ended_before,
    lines_after,
    shorter_log,
    without_living_arrays,
)
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.statedir.state import State, UnknownLogError
from pliant.tools.schedule.session.session import Session

DAY_S: Final = 86_400.0
LOOK_S: Final = 3600.0
"""Seconds between two looks at what is over."""
MOST_REMOVED: Final = 20
"""Maximum folders that are emptied in one turn of the loop."""
_SLACK: Final = 8
"""The log is written anew for an eighth of its jobs, or an eighth of their days."""
_log = logging.getLogger("pliant")


class Retained:
    """What a run keeps of jobs that ended.

    :param session: of the run; None if it does not last.
    :param notify: targets that get notices of what is in the log before it goes to an archive.
    :param clock: seconds that never run backwards.
    """

    def __init__(
        self,
        state: State,
        retention: Retention | None,
        session: Session | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        notify: Iterable[Notify] = (),
    ) -> None:
        self._state, self._clock = state, clock
        self._removed_until_s = {"attempts": 0.0, "checkpoints": 0.0}
        self._due: list[tuple[str, str]] = []
        self._has_begun = False
        self.go_on_with(retention, session, notify)

    def go_on_with(
        self, retention: Retention | None, session: Session | None, notify: Iterable[Notify]
    ) -> None:
        """The run has another cluster, or another session."""
        self._notify = tuple(notify)
        self._retention, self._session, self._look_s = retention, session, 0.0

    def look(self, log: RunLog, now_s: float) -> None:
        """Tidy up a bit, if that is due; a failure stops nothing.

        :raises UnknownLogError: nothing can be recorded any more.
        """
        try:
            self._tidy_a_bit(log, now_s)
        except UnknownLogError:
            raise
        except (CannotArchiveError, OSError, PliantError, RecursionError) as error:
            self._look_s = self._clock() + DAY_S
            _log.warning("what ended long ago stays for another day: %s", error)

    def _tidy_a_bit(self, log: RunLog, now_s: float) -> None:
        for folder, job_id in self._due[:MOST_REMOVED]:
            self._remove(folder, job_id)
        del self._due[:MOST_REMOVED]
        if self._retention is None or self._due or self._clock() < self._look_s:
            return
        self._look_s = self._clock() + LOOK_S
        if not self._has_begun:
            self._has_begun = True
            self._due += self._left_folders(log)
        for folder, days in (
            ("attempts", self._retention.outputs),
            ("checkpoints", self._retention.checkpoints),
        ):
            if days is not None:
                since_s, until_s = self._removed_until_s[folder], now_s - days * DAY_S
                over = ended_before(log, until_s)
                self._due += [(folder, job_id) for job_id, ended_s in over.items() if ended_s > since_s]
                self._removed_until_s[folder] = max(since_s, until_s)
        if self._due:
            self._look_s = 0.0  # once that is done
        elif self._retention.jobs is not None:
            self._archive(log, now_s, self._retention.jobs * DAY_S)

    def tidy(self, log: RunLog, now_s: float) -> None:
        """Do all that is due, for a call that does not stay."""
        self.look(log, now_s)
        while self._due:
            self.look(log, now_s)

    def _archive(self, log: RunLog, now_s: float, kept_s: float) -> None:
        over = ended_before(log, now_s - kept_s)
        late = any(ended_s <= now_s - kept_s * (1 + 1 / _SLACK) for ended_s in over.values())
        if not over or not (late or len(over) * _SLACK >= len(log.jobs)):
            return
        place = passed_by_all(self._state.dirs, self._notify)
        undelivered, since_s = (set(), math.inf) if place is None else lines_after(self._state.dirs, place)
        spool = Spool(self._state.dirs)
        with spool.locked():  # who orders something for a job finds it in the log, or in the archive
            self._move(
                log,
                without_living_arrays(log, over.keys() - undelivered - _named(spool)),
                now_s,
                kept_s,
                since_s,
            )

    def _move(self, log: RunLog, gone: set[str], now_s: float, kept_s: float, undelivered_s: float) -> None:
        """Move jobs and old decisions to an archive.

        :param undelivered_s: decisions from then on stay in the log.
        :raises CannotArchiveError: the log has to stay as it is.
        """
        if self._state.rebuilding is None or not gone:
            return
        days = None if self._retention is None else self._retention.events
        decided_before_s = now_s - (kept_s if days is None else days * DAY_S)
        decided_before_s = min(decided_before_s, math.nextafter(undelivered_s, -math.inf))
        shorter = shorter_log(self._state.dirs, log, self._state.rebuilding, gone, decided_before_s)
        self._state.shorten(shorter)
        if self._session is not None:
            self._session.book.forget(gone, shorter.archived)
        if self._removes_folders:
            self._due += [("", job_id) for job_id in sorted(gone)]
        _log.info("%s moved to an archive", counted(len(gone), "job"))

    @property
    def _removes_folders(self) -> bool:
        """Whether nothing that a user may look for is left in the folder of a job that is archived."""
        kept = self._retention
        return kept is not None and kept.outputs is not None and kept.checkpoints is not None

    def _left_folders(self, log: RunLog) -> list[tuple[str, str]]:
        """Folders of archived jobs that an earlier run was to remove."""
        if not (log.archives and self._removes_folders):
            return []
        there = {path.name for path in self._state.dirs.jobs.iterdir()} - log.jobs.keys()
        old = archived_ids(self._state.dirs.events) if there else set[str]()
        return [("", job_id) for job_id in sorted(there & old)]

    def _remove(self, folder: str, job_id: str) -> None:
        if job_id in self._state.log.active or job_id in self._state.log.broken_off:
            return  # it was requeued meanwhile
        try:
            empty(self._state.dirs.job(job_id), folder)
        except (OSError, PliantError, RecursionError) as error:  # the last: folders nested a thousand deep
            _log.warning("job %s: what it left is not removed: %s", job_id, error)


def _named(spool: Spool) -> set[str]:
    """The jobs that requests are about which the run has not taken up yet."""
    named = set[str]()
    for request in spool.requests():
        named.update(request.cancelled, *(job.after for job in request.jobs))
        named.update([request.order.job] if request.order is not None and request.order.job else ())
    return named


def empty(job: JobDir, folder: str) -> None:
    """Remove what is in a folder of a job, but for the number of its newest attempt; "": all of the job's.

    :raises OSError: something cannot be removed.
    :raises ServiceMissingError: the rights of the job's owner cannot be taken.
    """
    newest = str(job.newest_attempt()) if folder == "attempts" else ""
    with files_of(job):
        _empty(job, folder, newest)
    if job.kept is not None:
        _empty(SplitFolder(job.kept), folder, newest)
    if not folder:
        for path in filter(None, (job.path, job.kept)):
            path.rmdir()


def _empty(job: SplitFolder, folder: str, newest: str) -> None:
    """No part of the path below the state directory is a link when this follows it."""
    opened: list[int] = []
    try:
        opened.append(os.open(job.path, _FOLDER))
        for name in filter(None, (folder,)):
            opened.append(os.open(name, _FOLDER, dir_fd=opened[-1]))
        names = os.listdir(opened[-1])
        if newest in names:
            opened.append(os.open(newest, _FOLDER, dir_fd=opened[-1]))
            _remove_all(opened[-1], os.listdir(opened[-1]))
            names.remove(newest)
            _remove_all(opened[-2], names)
        else:
            _remove_all(opened[-1], names)
    except (FileNotFoundError, NotADirectoryError):
        return
    finally:
        for descriptor in opened:
            os.close(descriptor)


_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _remove_all(within: int, names: Iterable[str]) -> None:
    for name in names:
        try:
            os.unlink(name, dir_fd=within)
        except IsADirectoryError:
            shutil.rmtree(name, dir_fd=within)
