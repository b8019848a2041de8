"""One attempt that is under way: its plan, its processes, and the stages of stopping it.

A stop goes through stages, each with its own time: the plan says ``abort`` and the workers save and leave;
then SIGTERM; then SIGKILL, again and again until all of it is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from pliant.tools.run.backends.protocol import Backend, Handle, UnitStatus
from pliant.tools.run.layout import JobDir
from pliant.tools.run.outcome import Verdict, broken, judge
from pliant.tools.run.plan import Plan, WorkerOutcome
from pliant.tools.run.planning import aborted, write_plan
from pliant.tools.run.steps import Target
from pliant.tools.run.tail import Tail

Stage = Literal["abort", "term", "kill"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each stage of a stop is given before the next one."""

    abort_s: float = 60.0
    term_s: float = 30.0
    kill_s: float = 5.0
    broken_s: float = 5.0
    """For SIGTERM to the rest of a gang that lost a worker: it only waits for the lost one."""

    def of(self, stage: Stage) -> float:
        """Seconds of one stage."""
        return {"abort": self.abort_s, "term": self.term_s, "kill": self.kill_s}[stage]


class Gang:
    """The processes of one attempt, from their start until nothing of them is left."""

    def __init__(
        self,
        handle: Handle,
        plan: Plan,
        target: Target,
        backend: Backend,
        *,
        timeouts: Timeouts,
        seen: int = 0,
    ) -> None:
        """:param seen: how many of its workers' events were read before."""
        self.handle = handle
        self.plan = plan
        self.target = target
        self.tail = Tail(handle.files.progress, skip=seen)
        self.statuses: tuple[UnitStatus, ...] = ()
        self._backend = backend
        self._timeouts = timeouts
        self._stage: Stage | None = None
        self._deadline_s = float("inf")
        self._at_break: tuple[UnitStatus, ...] = ()

    @property
    def stopping(self) -> bool:
        """Whether it is on its way out."""
        return self._stage is not None

    @property
    def ended(self) -> bool:
        """Whether none of its units runs."""
        return all(status.state != "running" for status in self.statuses)

    def serves(self, target: Target | None) -> bool:
        """Whether it runs on exactly these slots with this cut of the batch, and stays."""
        return (
            target is not None
            and not self.stopping
            and set(target.slots) == set(self.target.slots)
            and target.cut == self.target.cut
        )

    def request_stop(self, job: JobDir, now_s: float) -> None:
        """Ask the workers to save and leave; a script that knows nothing of plans gets SIGTERM at once."""
        if self.stopping:
            return
        if not self.plan.abort:
            self.plan = aborted(self.plan)
            write_plan(job, self.plan)
        self._enter("abort" if self._reads_plans() else "term", now_s)

    def kill(self, now_s: float) -> None:
        """End it at once."""
        self._enter("kill", now_s)

    def watch(self, now_s: float) -> None:
        """Move on to the next stage when its time has come; send the rest of a broken gang home.

        A part that has ended well sets no deadline: rank 0 may evaluate for as long as it likes.
        """
        outcomes = self.outcomes()
        if self._stage is None and broken(self.statuses, outcomes):
            self._at_break = self.statuses
            self._enter("term", now_s, self._timeouts.broken_s)
        elif self._stage is None and any(found.outcome == "stopped" for found in outcomes.values()):
            self._enter("abort", now_s)
        elif now_s >= self._deadline_s:
            self._enter("term" if self._stage == "abort" else "kill", now_s)

    def verdict(self) -> Verdict:
        """How it ended; nothing of it is left after this."""
        self._backend.stop(self.handle, "kill")
        return judge(
            self.outcomes(),
            self.statuses,
            ranks=len(self.plan.members),
            elastic=self.target.job.elastic != "none",
            stop_requested=self.plan.abort,
            at_break=self._at_break,
        )

    def outcomes(self) -> dict[int, WorkerOutcome]:
        """What the ranks wrote as their last act."""
        found = {}
        for rank in range(len(self.plan.members)):
            try:
                data = self.handle.files.outcome(rank).read_bytes()
                found[rank] = WorkerOutcome.model_validate_json(data)
            except (OSError, ValidationError):
                continue
        return found

    def _reads_plans(self) -> bool:
        files = self.handle.files
        return self.target.job.elastic != "none" or files.store.exists() or files.progress.exists()

    def _enter(self, stage: Stage, now_s: float, seconds: float | None = None) -> None:
        self._stage = stage
        self._deadline_s = now_s + (self._timeouts.of(stage) if seconds is None else seconds)
        if stage != "abort":
            self._backend.stop(self.handle, "term" if stage == "term" else "kill")
