"""Totals of a whole log, for an operator's monitoring: they only grow, and survive restarts of the run."""

from __future__ import annotations

from dataclasses import dataclass, field

from pliant.schemas.event import RESCALES, STARTS, Event


@dataclass(slots=True)
class Counts:
    """What has happened since the log began."""

    submitted: int = 0
    starts: int = 0
    rescales: int = 0
    preemptions: int = 0
    failures: int = 0
    """Attempts that failed, whether or not the job was tried again."""
    decisions: int = 0
    policy_errors: int = 0
    """Decisions that came to nothing for an error of the policy."""
    decision_seconds: float = 0.0
    """How long the policy took, in all."""
    last_decision_seconds: float | None = None
    """How long it took the last time; None if that is not known."""
    decided_s: float | None = None
    """When it decided last (UTC)."""
    lost_gpu_seconds: dict[str, float] = field(default_factory=dict)
    """GPU seconds that jobs held without getting further, by cause: changes, checkpoints, repeats."""

    def decided(self, event: Event) -> None:
        detail = event.detail or {}
        self.decisions += 1
        self.policy_errors += "error" in detail
        self.decided_s = event.time
        seconds = detail.get("decision_seconds")
        self.last_decision_seconds = None if seconds is None else float(seconds)
        self.decision_seconds += self.last_decision_seconds or 0.0

    def happened(self, event: Event, gpus: float, repeated: float) -> None:
        """Count an event of a job.

        :param gpus: what the job holds after it; half of those that it shares.
        :param repeated: GPU seconds of work before the event that has to be done again.
        """
        name, failed = event.event, "attempt" in (event.detail or {})
        self.submitted += name == "submit"
        self.starts += name in STARTS
        self.rescales += name in RESCALES
        self.preemptions += name == "preempt"
        self.failures += name in ("requeue", "fail") and failed
        cause = "checkpoints" if name == "checkpoint" else "changes"
        self._lose(cause, (event.overhead_seconds or 0.0) * gpus)
        self._lose("repeats", repeated)

    def _lose(self, cause: str, gpu_seconds: float) -> None:
        if gpu_seconds > 0:
            self.lost_gpu_seconds[cause] = self.lost_gpu_seconds.get(cause, 0.0) + gpu_seconds
