"""``schedule.json`` of a run: its last decision, with the reasons and the jobs still to come.

What was decided is in the log before, so this file may lag behind for a moment.
"""

from __future__ import annotations

import logging
from pathlib import Path

from pliant.schemas.errors import PliantError
from pliant.schemas.io import write_schedule
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.fault import may_pass
from pliant.tools.run.statedir.private import PRIVATE

_log = logging.getLogger("pliant")


class ScheduleFile:
    """The file, and what is still to be written to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due: Schedule | None = None

    @property
    def is_behind(self) -> bool:
        """Whether it does not hold the last decision yet."""
        return self._due is not None

    def write(self, schedule: Schedule) -> None:
        """Make this the last decision, now or, where the machine is short of something, a little later.

        :raises PliantError: it cannot be written, and that will not pass.
        """
        self._due = schedule
        self.catch_up()

    def catch_up(self) -> None:
        """Write what could not be written before.

        :raises PliantError: it cannot be written, and that will not pass.
        """
        if self._due is None:
            return
        try:
            write_schedule(self._due, self._path, mode=PRIVATE)
        except PliantError as error:
            if not may_pass(error):
                raise
            _log.debug("%s; it is tried again", error)
        else:
            self._due = None
