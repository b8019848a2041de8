"""One attempt and its Slurm job: submitted, waiting, running, gone; and what that means for its units."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pliant.schemas.file_io.files import atomic_write
from pliant.tools.run.backends.protocol import Handle, UnitStatus
from pliant.tools.run.backends.slurm.command_lines import show_job
from pliant.tools.run.backends.slurm.later import Later
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmStep, job_state
from pliant.tools.run.backends.slurm.units import Seen, SlurmUnit
from pliant.tools.run.backends.slurm_jobs.state import Stage, stage_of, unusual, why_ended
from pliant.tools.run.statedir.contract.files import PRIVATE, open_log
from pliant.tools.run.statedir.contract.heartbeat import Heartbeats
from pliant.tools.run.statedir.folder_cache import FolderCache

BEAT_S: Final = 1.0
"""Between two looks at whether keepers live."""
SHOWS_S: Final = 10.0
"""For a file that was written on another host to be seen here, and for a job to be listed."""
UNKNOWN_S: Final = 60.0
"""For a job to be listed that another process may just have submitted."""
_RUNNING: Final = UnitStatus("running")
_QUEUED: Final = UnitStatus("running", queued=True)
_CODES: Final = {"term": -signal.SIGTERM, "kill": -signal.SIGKILL}
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Listed:
    """What Slurm said of an attempt's job last."""

    asked_s: float
    """When; long ago where it does not answer."""
    job: SlurmJob | None
    """None: it is not listed."""


@dataclass(slots=True)
class Attempt:
    """The units of one attempt, and the job that they run in."""

    handle: Handle
    name: str
    """Of the job."""
    units: list[SlurmUnit]
    folder: FolderCache
    since_s: float
    """When this process began to look at it."""
    submission: Later | None = None
    """The submission, where this process has made it."""
    beats: Heartbeats = field(default_factory=Heartbeats)
    _looked_s: float = float("-inf")
    _absent_s: float | None = None
    """When the job was first found not to be listed any more."""
    _job_id: str = ""
    _end: Later | None = None
    _said: str = ""

    def statuses(self, listed: Listed, now_s: float) -> tuple[UnitStatus, ...]:
        """What became of the units."""
        self.folder.look()
        self._take_note(listed, now_s)
        if now_s - self._looked_s >= BEAT_S:
            self._looked_s = now_s
            self.beats.look((unit.beat_file for unit in self.units), now_s)
        stage = stage_of(listed.job)
        return tuple(self._status(unit, listed, stage, now_s) for unit in self.units)

    @property
    def began(self) -> bool:
        """Whether a keeper has taken one of its units over."""
        return any(unit.is_taken_over() for unit in self.units)

    def _status(self, unit: SlurmUnit, listed: Listed, stage: Stage, now_s: float) -> UnitStatus:
        ended = self.folder.get(f"exit {unit.number}", unit.ended)
        if ended is not None:
            return ended
        if self.folder.get(f"keeper {unit.number}", unit.is_taken_over):
            return unit.kept(self.beats, self._seen(unit, listed, stage), now_s)
        if unit.order:  # looked at after the order was given: who takes it over from now on finds that
            return _RUNNING if unit.is_taken_over() else UnitStatus("exited", _CODES[unit.order])
        if stage != "gone":
            return _QUEUED if stage == "queued" else _RUNNING
        if self._may_come(now_s):
            return _QUEUED
        return self._give_up(unit)

    def _seen(self, unit: SlurmUnit, listed: Listed, stage: Stage) -> Seen:
        """A task ends with its job at the latest."""
        job = listed.job
        return Seen(
            listed.asked_s, None if job is None or stage == "gone" else SlurmStep(job.id, "", unit.name)
        )

    def _may_come(self, now_s: float) -> bool:
        """Whether a job that is not listed may still be, or files of it still be seen."""
        if self.submission is not None:
            if not self.submission.done:
                return True
            if self.submission.failure:
                return False
        if self._absent_s is None:
            return True
        known = bool(self._job_id) or self.submission is not None
        return now_s - self._absent_s < (SHOWS_S if known else UNKNOWN_S)

    def _take_note(self, listed: Listed, now_s: float) -> None:
        """Remember the job while it is listed, and ask for its end when it is gone."""
        if stage_of(listed.job) != "gone" and listed.job is not None:
            self._job_id, self._absent_s = listed.job.id, None
            if (reason := unusual(listed.job)) and reason != self._said:
                self._said = reason
                _log.warning("job %s waits in Slurm's queue: %s", self.handle.job, reason)
            return
        asked_after = self.since_s if self.submission is None else self.submission.ended_s
        if listed.asked_s <= asked_after or self._absent_s is not None:
            return
        self._absent_s = now_s
        if self._job_id:
            self._end = Later(show_job(self._job_id))

    def _give_up(self, unit: SlurmUnit) -> UnitStatus:
        """It does not start any more; the reason goes where its own last words would be."""
        unit.give_order("kill")
        if unit.is_taken_over():  # in the very last moment
            return _RUNNING
        files = self.handle.files
        with suppress(OSError), open_log(files.launcher_log(unit.number)) as log:
            log.write(f"pliant: {self._why()}\n".encode())
        atomic_write(files.exit_code(unit.number), b"1\n", mode=PRIVATE)
        return UnitStatus("exited", 1)

    def _why(self) -> str:
        """Why nothing has begun."""
        if self.submission is not None and self.submission.failure:
            return f"Slurm does not take the job: {self.submission.failure}"
        ended = why_ended(job_state(self._end.text)) if self._end is not None else ""
        log = self.handle.files.logs / "slurm.log"
        said = _last_line(log.read_text(errors="replace")) if log.is_file() else ""
        facts = [ended, said] if ended or said else [f"its nodes have to see {self.handle.folder}"]
        return "Slurm's job ended before its workers began: " + "; ".join(filter(None, facts))

    def end_in_words(self) -> str:
        """Why Slurm ended the job, where it did; empty: it did not, or does not say."""
        if self._end is None or not self._end.done:
            return ""
        state = job_state(self._end.text)
        return "" if state in ("COMPLETED", "FAILED") else why_ended(state)


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
