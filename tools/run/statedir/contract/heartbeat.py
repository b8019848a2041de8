"""How long others have not shown that they run: by their files' times, and by no clock but one's own.

A worker sets its file's time every second, and the keeper of its unit that of another file. The file system
sets it by its own clock, a file server's by the server's, so clocks of hosts are never compared: who looks
measures how long the time has stood still. Who has not looked for long enough, as a call from cron, takes the
file system's clock for that, and looks for a few seconds more before it believes it: after a machine has
slept all files are old.

The lock on a worker's file says more, and at once, where the worker's host lives. A file server keeps the
locks of a host that is dead for a minute or two, or for good. Then only the heartbeat is left.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pliant.tools.run.statedir.contract.files import look_again

SURE_S: Final = 3.0
"""Who looks believes in no silence that it has not seen for so long."""
_ABSENCE_S: Final = 8.0
"""Who was away for longer itself has seen nothing that it could blame others for."""


def last_beat(path: str | Path) -> float:
    """When the owner of a file last showed that it runs, on the file system's clock; 0: there is no file."""
    found = look_again(path)
    return 0.0 if found is None else found.st_mtime


class Heartbeats:
    """Files of others, looked at again and again by one who has a clock that cannot be set."""

    def __init__(self) -> None:
        self._looked_s = float("-inf")
        self._seen: dict[str, tuple[float, float]] = {}
        """By path: the last beat, and since when it was that one."""
        self._clocks = FileClock()

    def look(self, paths: Iterable[str], now_s: float) -> None:
        """See which of the files have a new time."""
        seen = {} if now_s - self._looked_s > _ABSENCE_S else self._seen
        self._looked_s, self._seen = now_s, {}
        for path in paths:
            beat = last_beat(path)
            before, since_s = seen.get(path, (beat, now_s))
            self._seen[path] = (beat, since_s if beat == before else now_s)

    def silence_s(self, path: str, limit_s: float) -> float:
        """Since when there was no beat, as of the last look; 0 where that is not known, or was no silence.

        :param limit_s: what the caller compares it with; the file system's clock is not asked without need.
        """
        beat, since_s = self._seen.get(path, (0.0, self._looked_s))
        still_s = self._looked_s - since_s
        if not beat or still_s < SURE_S:
            return 0.0
        return still_s if still_s >= limit_s else max(still_s, self._clocks.now_s(path) - beat)

    def in_doubt(self, path: str, limit_s: float) -> bool:
        """Whether a file is old, and was not looked at for long enough to be sure."""
        beat, since_s = self._seen.get(path, (0.0, self._looked_s))
        if not beat or self._looked_s - since_s >= SURE_S:
            return False
        return self._clocks.about_s(path) - beat >= limit_s


class FileClock:
    """The clock of the file system that a file is on: what it says is the time of a file that is made now."""

    def __init__(self) -> None:
        self._ahead_s: float | None = None

    def now_s(self, path: str) -> float:
        """Now; long ago where nothing can be written."""
        try:
            with tempfile.TemporaryFile(dir=os.path.dirname(path)) as made:
                now_s = os.fstat(made.fileno()).st_mtime
        except OSError:
            return 0.0
        self._ahead_s = now_s - time.monotonic()
        return now_s

    def about_s(self, path: str) -> float:
        """Now, by what it said last: without it being set meanwhile that is as good."""
        return self.now_s(path) if self._ahead_s is None else time.monotonic() + self._ahead_s
