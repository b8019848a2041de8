"""What workers report: the events that they append, and the newest measurements beside them.

The events of an attempt (:class:`Tail`) go into the log. The newest measurements are in one small file a job
(:class:`~pliant.tools.run.statedir.contract.plan.Progress`): the loop, or a bystander, lays them over what
was folded. They say how far a job is, never what it holds or whether it has ended.

The elastic library keeps a history of events; a script without it replaces one small file
(``tools/run/progress.py``). The launcher looks at that file and writes the events that workers would write:
the first step of an attempt, saves, ends of epochs and, every ``history_s`` of the plan, the speed. Work that
was done after the last acknowledged save is lost with the attempt; an event says how much, and the file is
put back to that save.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import WORKER_EVENTS, Event
from pliant.schemas.events import Checkpointed, EpochEnded, Progressed, Trained, row_of
from pliant.schemas.file_io.events import LogReader
from pliant.schemas.job import Job
from pliant.tools.run.statedir.contract import as_user
from pliant.tools.run.statedir.contract.as_user import files_of
from pliant.tools.run.statedir.contract.folders import JobDir, UnreadableError, read_record
from pliant.tools.run.statedir.contract.plan import Plan, Progress, ProgressFile
from pliant.tools.run.statedir.directory import StateDir, check_job
from pliant.tools.run.statedir.log.fold import JobLog, RunLog

LOOK_BYTES: Final = 1 << 18
"""Bytes of another account's events that one look reads; the next one goes on."""
MOST_BYTES: Final = 1 << 26
"""Bytes of such events that are read of an attempt: those of years."""
_log = logging.getLogger("pliant")


class Tail:
    """The events of a file that workers append to, each given out once.

    :param only: the names of the events to give out.
    :param skip: how many of its first events the log holds already.
    """

    def __init__(self, path: Path, skip: int = 0, only: Container[str] = WORKER_EVENTS) -> None:
        self._path = path
        self._reader: LogReader | None = LogReader(path, opener=as_user.opener)
        self._skip = skip
        self._only = only
        self._name = str(path)
        self._size = -1

    def _within_bounds(self, until: int) -> int:
        """The size up to which the file is known, if a part of it is left for the next look.

        :raises BadInputError: a line is longer than any event, or the file than the events of any job.
        """
        place = 0 if self._reader is None else self._reader.place.bytes
        if place + LOOK_BYTES == until or place > MOST_BYTES:
            raise BadInputError.one(self._name, f"has a line of more than {LOOK_BYTES} bytes, or too many")
        return place

    def read(self) -> list[Event]:
        """Whole lines since the last call; a file that is not an event file is warned of once."""
        if self._reader is None:
            return []
        try:
            size = os.stat(self._name).st_size
            if size == self._size:
                return []
            until = self._reader.place.bytes + LOOK_BYTES if as_user.is_other() else None
            events = [event for _, event in self._reader.read(until=until) if event.event in self._only]
            if until is not None and size > until:
                size = self._within_bounds(until)
        except OSError:
            return []
        except BadInputError as error:
            _log.warning("%s: not followed any more: %s", self._path, error)
            self._reader = None
            return []
        self._size = size
        skipped = min(self._skip, len(events))
        self._skip -= skipped
        return events[skipped:]


def refined(job: JobLog, progress: Progress | None) -> JobLog:
    """A running job with its newest progress, if the report is from its newest attempt."""
    if progress is None or job.ended or not job.gpus or progress.attempt < max(job.attempt.seen, default=0):
        return job
    done, speed = progress.samples_done, progress.samples_per_second
    points = ((0.0, done - (speed or 0.0)), (1.0, done))
    return replace(
        job,
        samples_done=done,
        loss=job.loss if progress.loss is None else progress.loss,
        retry=replace(job.retry, furthest=max(job.retry.furthest, done)),
        use=job.use if speed is None or job.attempt.change is not None else replace(job.use, points=points),
    )


def with_progress(event: Event, log: RunLog) -> Event:
    """An event of a running job, with how far the job is."""
    job, progress = log.jobs.get(event.job or ""), log.newest.get(event.job or "")
    if job is None or progress is None or event.gpus is None or event.samples_done is not None:
        return event
    newest = refined(job, progress)
    return replace(event, samples_done=newest.samples_done, loss=newest.loss) if newest.gpus else event


def measured_speeds(log: RunLog) -> dict[str, float]:
    """Median of the measured speeds of each running job at its present size, in samples per second."""
    return {job_id: median(speeds) for job_id, speeds in _measured(log).items()}


def measured_ranges(log: RunLog) -> dict[str, tuple[float, float]]:
    """The range of those measurements; jobs with a single one have none."""
    return {job_id: (min(speeds), max(speeds)) for job_id, speeds in _measured(log).items() if speeds[1:]}


def _measured(log: RunLog) -> dict[str, list[float]]:
    """Each job's speed: over the last minutes, over the last second, and by the time of a step."""
    speeds_by_job = {}
    for job_id, job in log.active.items():
        progress = log.newest.get(job_id)
        speeds = [job.use.samples_per_second if job.gpus else None]
        if progress is not None and job.attempt.change is None and refined(job, progress) is not job:
            step_s = progress.step_seconds
            speeds += [progress.samples_per_second, progress.global_batch / step_s if step_s else None]
        if known := [speed for speed in speeds if speed]:
            speeds_by_job[job_id] = known
    return speeds_by_job


class Reports:
    """The newest reports on all jobs of a state directory."""

    def __init__(self, dirs: StateDir) -> None:
        self._dirs = dirs
        self._files: dict[str, ProgressFile] = {}

    def lay_over(self, log: RunLog) -> None:
        """Put them into ``log.newest``.

        :raises UsageError: a job's folder is not a plain one of the state directory's owner.
        """
        for job_id, job in log.active.items():
            if not job.gpus:
                continue
            if job_id not in self._files:
                check_job(self._dirs, job_id)
                self._files[job_id] = ProgressFile(self._dirs.job(job_id).progress)
            file = self._files[job_id]
            with files_of(self._dirs.job(job_id)):
                file.fresh()
            if file.newest is not None:
                log.newest[job_id] = file.newest
                if job.attempt.change is not None and trains_as_held(
                    self._dirs.job(job_id), job, file.newest
                ):
                    job.attempt.change = job.attempt.begun = (
                        None  # the next run records that its first step is done
                    )


def trains_as_held(folder: JobDir, job: JobLog, report: Progress) -> bool:
    """Whether a report comes from workers on the GPUs and batch that the job was given last."""
    try:
        plan = read_record(folder.plan, "plan", Plan, tries=1)
    except (BadInputError, UnreadableError):
        return False
    return (
        plan is not None
        and not plan.abort
        and report.step > 0
        and (report.attempt, report.generation) == (plan.attempt, plan.generation)
        and report.attempt > job.attempt.over_attempt
        and Counter(member.node for member in plan.members) == dict(job.placement)
        and job.global_batch in (None, plan.global_batch)
    )


def reported(dirs: StateDir, log: RunLog, now_s: float) -> list[Event]:
    """The newest reports as events after those of the log, for a policy's decision."""
    Reports(dirs).lay_over(log)
    return [
        row_of(
            Progressed(
                *(now_s, job_id),
                samples_done=refined(log.jobs[job_id], progress).samples_done,
                noise_scale=progress.noise_scale,
            )
        )
        for job_id, progress in log.newest.items()
    ]


APART: Final = (
    "several of its {workers} workers train for themselves, each a whole training: the script does not "
    "connect them (in Lightning: devices and num_nodes), or the job needs one GPU"
)


class ScriptReports:
    """Reports of the script of one attempt.

    :param started: the log has its first step already.
    :param before: the newest report as the attempt began; the saves of earlier attempts are in it.
    """

    def __init__(self, plan: Plan, *, started: bool, before: Progress | None) -> None:
        self._plan = plan
        self._started = self._known = started
        known = before is not None and before.attempt < plan.attempt
        self._saved = (before.step, before.samples_done) if known and before is not None else None
        self._newest: Progress | None = None
        self._saved_step = -1
        self._saves, self._saves_s = 0, 0.0
        self._keep_due_s = self._save_due_s = float("-inf")
        self._has_speed = self._apart = False

    def watches_stop(self, newest: Progress | None) -> bool:
        """Whether its script looks at the file that asks it to stop."""
        return newest is not None and newest.attempt == self._plan.attempt and bool(newest.watches_stop)

    def leaves(self, job: Job, *, asked: bool, signalled: bool) -> bool:
        """Whether an exit code of 0 means that it can go on, and not that its training is complete.

        :param signalled: it was asked by a signal, after which few scripts train to their end.
        """
        ended = None if self._newest is None else self._newest.ended
        return ended == "stopped" or (ended is None and asked and (signalled or job.resize == "relaunch"))

    @property
    def samples_done(self) -> float | None:
        """As it last said."""
        return None if self._newest is None else self._newest.samples_done

    def events(self, progress: Progress, time_s: float) -> list[Event]:
        """What a new report adds to the history.

        :param time_s: when it was written.
        """
        before, self._newest = self._newest, progress
        if self._known:
            self._known = False
            self._take_up(progress, time_s)
            return []
        first_s = time_s - (progress.since_first_step_s or 0.0)
        events = [_of(progress, event) for event in self._progressed(progress, first_s, time_s)]
        if before is not None and progress.epoch > before.epoch:
            events.append(_of(progress, EpochEnded(time_s, epoch=progress.epoch - 1)))
        return [*events, *self._saving(progress, time_s)]

    def rewound(self) -> Progress | None:
        """The newest report, put back to the last acknowledged save. Returns None if nothing is lost."""
        newest = self._newest
        if newest is None or self._saved is None or newest.samples_done <= self._saved[1]:
            return None
        step, samples = self._saved
        gone = {"samples_per_second": None, "step_seconds": None}
        return newest.model_copy(update={"step": step, "samples_done": samples, **gone})

    def loss(self, left: Progress, time_s: float) -> Event:
        """The event that says how much is lost with the attempt, which goes back to ``left``."""
        lost = (self.samples_done or 0.0) - left.samples_done
        return _of(left, Checkpointed(time_s, step=left.step, lost_samples=lost))

    def _take_up(self, progress: Progress, time_s: float) -> None:
        """Go on after another launcher, which has written what was known so far."""
        self._has_speed = progress.step_seconds is not None
        self._keep_due_s = self._save_due_s = time_s + self._plan.history_s
        if (save := progress.checkpoint) is not None:
            self._saved_step, self._saved = save.step, (save.step, save.samples_done)

    def _progressed(self, progress: Progress, first_s: float, time_s: float) -> Iterator[Progressed]:
        speed_s, reason = progress.step_seconds, self._plan.reason
        if not self._started:
            self._started, self._keep_due_s = True, time_s + self._plan.history_s
            yield Progressed(
                first_s,
                first_step=True,
                generation=progress.generation,
                workers=progress.gpus,
                mechanism="relaunched" if reason else None,
                reason=reason or None,
            )
        elif speed_s is not None and (time_s >= self._keep_due_s or not self._has_speed):
            self._keep_due_s, self._has_speed = time_s + self._plan.history_s, True
            yield Progressed(time_s, step_seconds=speed_s)
        workers = len(self._plan.members)
        if progress.rank and progress.gpus < workers and not self._apart:
            self._apart = True
            warning = APART.format(workers=workers)
            _log.warning("job %s: %s", self._plan.job, warning)
            yield Progressed(time_s, warning=warning)

    def _saving(self, progress: Progress, time_s: float) -> list[Event]:
        """A save that is acknowledged. The one before leaving has no time: that is part of leaving."""
        save = progress.checkpoint
        if save is None or save.step == self._saved_step:
            return []
        self._saved_step, self._saved = save.step, (save.step, save.samples_done)
        at = progress.model_copy(update={"samples_done": save.samples_done, "loss": None})
        if progress.ended == "stopped":
            return [_of(at, Checkpointed(time_s, step=save.step))]
        self._saves, self._saves_s = self._saves + 1, self._saves_s + save.seconds
        if time_s < self._save_due_s:
            return []
        event = Checkpointed(time_s, overhead_seconds=self._saves_s, step=save.step, count=self._saves)
        self._saves, self._saves_s, self._save_due_s = 0, 0.0, time_s + self._plan.history_s
        return [_of(at, event)]


def _of(progress: Progress, event: Trained) -> Event:
    """An event of the job that reports, with how far it is."""
    return row_of(
        replace(
            event,
            job=progress.job,
            gpus=progress.gpus,
            global_batch=progress.global_batch,
            samples_done=progress.samples_done,
            loss=progress.loss,
        )
    )
