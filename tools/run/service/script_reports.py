"""What a script without the elastic library says in its progress file, as events that workers would write.

The library keeps a history of events; a script replaces one small file (``tools/run/progress.py``). So the
launcher looks at that file and writes the first step of an attempt, saves, ends of epochs and, every
``history_s`` of the plan, the speed. Work that was done after the last acknowledged save is lost with the
attempt; an event says how much, and the file is put back to that save.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from pliant.schemas.event import Event
from pliant.schemas.job import Job
from pliant.tools.run.statedir.contract.plan import Plan, Progress

_log = logging.getLogger("pliant")
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
        said = None if self._newest is None else self._newest.ended
        return said == "stopped" or (said is None and asked and (signalled or job.resize == "relaunch"))

    @property
    def samples_done(self) -> float | None:
        """As it last said."""
        return None if self._newest is None else self._newest.samples_done

    def events(self, found: Progress, time_s: float) -> list[Event]:
        """What a new report adds to the history.

        :param time_s: when it was written.
        """
        before, self._newest = self._newest, found
        if self._known:
            self._known = False
            self._take_up(found, time_s)
            return []
        first_s = time_s - (found.since_first_step_s or 0.0)
        events = [
            self._event("progress", found, first_s if "first_step" in detail else time_s, detail)
            for detail in self._details(found, time_s)
        ]
        if before is not None and found.epoch > before.epoch:
            events.append(self._event("epoch", found, time_s, {"epoch": found.epoch - 1}))
        return [*events, *self._saving(found, time_s)]

    def rewound(self) -> Progress | None:
        """The newest report, put back to the last acknowledged save. Returns None if nothing is lost."""
        found = self._newest
        if found is None or self._saved is None or found.samples_done <= self._saved[1]:
            return None
        step, samples = self._saved
        gone = {"samples_per_second": None, "step_seconds": None}
        return found.model_copy(update={"step": step, "samples_done": samples, **gone})

    def loss(self, left: Progress, time_s: float) -> Event:
        """The event that says how much is lost with the attempt, which goes back to ``left``."""
        lost = (self.samples_done or 0.0) - left.samples_done
        return self._event("checkpoint", left, time_s, {"step": left.step, "lost_samples": lost})

    def _take_up(self, found: Progress, time_s: float) -> None:
        """Go on after another launcher, which has written what was known so far."""
        self._has_speed = found.step_seconds is not None
        self._keep_due_s = self._save_due_s = time_s + self._plan.history_s
        if (save := found.checkpoint) is not None:
            self._saved_step, self._saved = save.step, (save.step, save.samples_done)

    def _details(self, found: Progress, time_s: float) -> list[dict[str, Any]]:
        details: list[dict[str, Any]] = []
        measured = {} if found.step_seconds is None else {"step_seconds": found.step_seconds}
        if not self._started:
            self._started, self._keep_due_s = True, time_s + self._plan.history_s
            again = {"mechanism": "relaunched", "reason": self._plan.reason} if self._plan.reason else {}
            first = {"first_step": True, "generation": found.generation, "workers": found.gpus}
            details.append({**first, **again})
        elif measured and (time_s >= self._keep_due_s or not self._has_speed):
            self._keep_due_s, self._has_speed = time_s + self._plan.history_s, True
            details.append(measured)
        workers = len(self._plan.members)
        if found.rank and found.gpus < workers and not self._apart:
            self._apart = True
            warning = APART.format(workers=workers)
            _log.warning("job %s: %s", self._plan.job, warning)
            details.append({"warning": warning})
        return details

    def _saving(self, found: Progress, time_s: float) -> list[Event]:
        """A save that is acknowledged. The one before leaving has no time: that is part of leaving."""
        save = found.checkpoint
        if save is None or save.step == self._saved_step:
            return []
        self._saved_step, self._saved = save.step, (save.step, save.samples_done)
        at = found.model_copy(update={"samples_done": save.samples_done, "loss": None})
        if found.ended == "stopped":
            return [self._event("checkpoint", at, time_s, {"step": save.step})]
        self._saves, self._saves_s = self._saves + 1, self._saves_s + save.seconds
        if time_s < self._save_due_s:
            return []
        event = self._event(
            "checkpoint", at, time_s, {"step": save.step, "count": self._saves}, self._saves_s
        )
        self._saves, self._saves_s, self._save_due_s = 0, 0.0, time_s + self._plan.history_s
        return [event]

    def _event(
        self, name: Any, found: Progress, time_s: float, detail: dict[str, Any], cost_s: float | None = None
    ) -> Event:
        return Event(
            time=time_s,
            event=name,
            job=found.job,
            gpus=found.gpus,
            global_batch=found.global_batch,
            samples_done=found.samples_done,
            loss=found.loss,
            overhead_seconds=cost_s,
            detail=detail,
        )
