"""Where the Slurm job of an attempt stands, and what that means for a unit: pure functions."""

from __future__ import annotations

from typing import Final, Literal

from pliant.tools.run.backends.slurm.parsing import SlurmJob

Stage = Literal["queued", "running", "gone"]
_QUEUED: Final = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_GONE: Final = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
    | {"REVOKED", "TIMEOUT"}
)
_USUAL: Final = frozenset({"", "None", "Priority", "Resources", "BeginTime", "Cleaning"})
"""Reasons to wait that pass by themselves."""
_ENDS: Final = {
    "BOOT_FAIL": "its nodes did not boot",
    "CANCELLED": "somebody cancelled it",
    "DEADLINE": "its deadline has passed",
    "NODE_FAIL": "one of its nodes failed",
    "OUT_OF_MEMORY": "it took more memory than it has",
    "PREEMPTED": "another job took its place",
    "TIMEOUT": "its time was up",
}


def stage_of(job: SlurmJob | None) -> Stage:
    """Whether a job waits, runs, or is gone; None: Slurm does not list it."""
    if job is None or job.state in _GONE:
        return "gone"
    return "queued" if job.state in _QUEUED else "running"


def unusual(job: SlurmJob) -> str:
    """Why a job waits, where that may need somebody's help; empty: it does not."""
    if stage_of(job) != "queued" or job.reason in _USUAL:
        return ""
    return job.reason


def why_ended(state: str) -> str:
    """Why Slurm has ended a job, by the state that it left it in."""
    word = state.split(maxsplit=1)[0] if state.split() else ""
    return _ENDS.get(word, f"it is {word.lower().replace('_', ' ')}" if word else "")
