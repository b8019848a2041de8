"""The status of each job in its owner's words: state, progress, until when, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import inf
from typing import Final

from pliant.schemas.cluster import OTHERS, Shares
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.job import Job
from pliant.schemas.text import EPOCH_LIKE_S, clock_text, counted, in_gpu_hours, in_gpus, span_text
from pliant.tools.run.statedir.log.fold import JobLog, RunLog, awaited
from pliant.tools.run.statedir.log.worker_reports import refined
from pliant.tools.run.watch.status import Status, measured_ends
from pliant.tools.schedule.policy import Reserved
from pliant.tools.schedule.predict_start import StartPrediction
from pliant.tools.schedule.session.user_limits import OVER_LIMIT

CHANGING: Final = {
    "start": "starting",
    "resume": "resuming",
    "grow": "growing",
    "shrink": "shrinking",
    "move": "moving",
}
STATES: Final = (
    *("submitted", "waiting", "preempted", "held", "retrying", *CHANGING.values(), "running", "ending"),
    *("cancelling", "finished", "failed", "timed out", "cancelled", "rejected"),
)
NODES_NAMED: Final = 3
"""Drained and down nodes that the reason of a waiting job names; of more it gives the number."""
_OVER: Final = "its processes have ended; the next call of pliant run records how"
_NOTHING: Final = StartPrediction()


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job; times are UTC seconds."""

    log: JobLog
    state: str
    """One of :data:`STATES`."""
    why: str = ""
    brief: str = ""
    policy_reason: str = ""
    expected: StartPrediction = field(default=_NOTHING)
    limit_s: float = inf
    """Latest end by a limit of the job."""
    reserved: tuple[Reserved, ...] = ()
    """Planned allocations from now on, if the policy plans ahead."""
    team: str = ""
    """Empty: of no team."""

    @property
    def id(self) -> str:
        return self.log.job.id

    @property
    def retry_s(self) -> float | None:
        """The earliest time of the retry that it waits for."""
        return None if self.log.gpus or self.log.ended else self.log.retry.retry_s

    @property
    def waits_for_limit(self) -> bool:
        """Whether it waits for its user's limit, and not for GPUs."""
        return not self.log.gpus and self.policy_reason.startswith(OVER_LIMIT)

    @property
    def samples_per_second(self) -> float | None:
        return self.log.use.samples_per_second if self.log.gpus else None

    @property
    def until_s(self) -> float | None:
        """When this state is expected to end. Returns None if it has ended or that is unknown."""
        if self.log.ended:
            return None
        if self.retry_s is not None:
            return self.retry_s
        if not self.log.gpus:
            return self.expected.start_s
        known = [at_s for at_s in (self.expected.end_s, self.limit_s) if at_s is not None and at_s < inf]
        return min(known, default=None)

    @property
    def progress(self) -> float | None:
        if self.state == "finished":
            return 1.0
        job = self.log
        return min(1.0, job.samples_done / job.total_samples) if job.total_samples else None


@garbage_collection_paused()
def statuses(status: Status, now_s: float) -> list[JobStatus]:
    """All jobs in order of (submission, id), those that no run has taken up last."""
    expected = measured_ends(status.log, now_s) if status.outlook is None else status.outlook
    waiting = sum(not job.gpus for job in status.log.active.values())
    taken_up = [_status(job, now_s, status, expected, waiting) for job in in_order(status.log)]
    submitted = [_submitted(job, asked_s, now_s, status, expected) for job, asked_s in status.submitted]
    cluster = None if status.log.info is None else status.log.info.cluster
    shares = None if cluster is None else cluster.shares
    return [replace(each, team=_team(each.log.job, shares)) for each in (*taken_up, *submitted)]


def _team(job: Job, shares: Shares | None) -> str:
    """The team that a job counts for; empty for one of no team."""
    if shares is None:
        return job.team
    team = shares.team_of(job)
    return "" if team == OTHERS else team


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to show; an empty set stands for all."""

    users: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    """Patterns of ids, as in a shell: ``sweep-*``."""
    ended_after_s: float = -inf
    """Jobs that ended earlier (UTC) are left out."""

    def of(self, jobs: Iterable[JobStatus]) -> list[JobStatus]:
        return [
            job
            for job in jobs
            if (not self.users or job.log.job.user in self.users)
            and (not self.states or job.state in self.states)
            and (not self.teams or job.team in self.teams)
            and (not self.patterns or any(fnmatchcase(job.id, pattern) for pattern in self.patterns))
            and (job.log.ended_s is None or job.log.ended_s >= self.ended_after_s)
        ]


EVERY_JOB: Final = JobFilter()


def status_of(status: Status, job_id: str, now_s: float) -> JobStatus | None:
    """The job with an id; else the newest one of that name, of those that archives hold."""
    jobs = statuses(status, now_s)
    by_id = (job for job in jobs if job.id == job_id)
    return next(by_id, next((job for job in reversed(jobs) if job.log.job.name == job_id), None))


def in_order(log: RunLog) -> list[JobLog]:
    jobs = (refined(job, log.newest.get(job_id)) for job_id, job in log.jobs.items())
    return sorted(jobs, key=lambda job: (job.submitted_s, job.job.id))


def _status(
    job: JobLog, now_s: float, status: Status, expected: Mapping[str, StartPrediction], waiting: int
) -> JobStatus:
    job_id = job.job.id
    if job_id in status.launched:
        job = replace(job, attempt=replace(job.attempt, change=None))
    prediction = _NOTHING if job_id in status.over else expected.get(job_id, _NOTHING)
    why = _why(job, now_s, prediction, waiting - 1, status)
    if job.ended:
        return JobStatus(job, _state(job), why)
    return JobStatus(
        job,
        _state_now(job, status),
        why,
        _brief(job, prediction, status),
        status.reasons.get(job_id, ""),
        prediction,
        job.next_limit(now_s)[0],
        tuple(span for span in status.reserved.get(job_id, ()) if span.until_s > now_s),
    )


def _state_now(job: JobLog, status: Status) -> str:
    if job.job.id in status.cancelled:
        return "cancelling"
    return "ending" if job.job.id in status.over else _state(job)


def _state(job: JobLog) -> str:
    if job.ended:
        return job.end
    if job.held and not job.gpus:
        return "held"
    if job.phase == "preempted" and job.retry.retry_s is not None:
        return "retrying"
    change = _open_change(job)
    return job.phase if change is None else CHANGING.get(change[0], job.phase)


def _open_change(job: JobLog) -> tuple[str, float] | None:
    """The change since which the job has not made a step: its start, if it has made none at all."""
    return None if job.attempt.change is None else job.attempt.begun or job.attempt.change


def _why(job: JobLog, now_s: float, expected: StartPrediction, others: int, status: Status) -> str:
    if job.ended:
        return job.reason
    cancelled = job.job.id in status.cancelled
    orders = None if cancelled else _orders(job, now_s, status)
    if job.job.id in status.over:
        return "; ".join(filter(None, [_OVER, orders]))
    if cancelled:
        return ""
    if orders is not None:
        return orders
    if job.gpus:
        change = _open_change(job)
        parts = [] if change is None else [f"for {span_text(max(0.0, now_s - change[1]))}"]
        if job.use.idle is not None:
            since_s, used = job.use.idle
            parts.append(f"idle: {100 * used:.0f} % of its slots used, as of {clock_text(since_s, now_s)}")
        limit_s = job.next_limit(now_s)[0]
        if limit_s < inf and (expected.end_s is None or limit_s < expected.end_s):
            parts.append("its limit ends it then")
        for slot, (since_s, times) in sorted(job.use.stragglers.items()):
            parts.append(
                f"slow worker: {slot} needs {times:.1f} times as long, as of {clock_text(since_s, now_s)}"
            )
        return "; ".join([*parts, *filter(None, [job.retry.trouble, _lost(job)])])
    if job.retry.retry_s is not None:
        return "; ".join(filter(None, [_retry(job, now_s), _lost(job)]))
    kept = _kept_back(job, status)
    waits = [kept] if kept else [_waits_for(job, expected, others), *_out_of_service(status)]
    return "; ".join(filter(None, [*waits, job.retry.trouble, _lost(job), status.log.policy_error]))


def _lost(job: JobLog) -> str:
    """What stops have cost a job that cannot save; empty if nothing."""
    return f"stops have lost {in_gpu_hours(job.use.lost_gpu_s)}" if job.use.lost_gpu_s else ""


def lost_on(jobs: Iterable[JobLog], nodes: Collection[str], now_s: float) -> dict[str, float]:
    """GPU seconds that jobs on these nodes lose if they have to leave, by their ids; none of those that can
    save.
    """
    there = [job for job in jobs if any(name in nodes for name, _ in job.placement)]
    return {job.job.id: lost_s for job in there if (lost_s := job.unsaved_gpu_s(now_s))}


def _orders(job: JobLog, now_s: float, status: Status) -> str | None:
    """Who holds a job and since when, or has ordered that. Returns None if it is not held."""
    order = status.ordered.get(job.job.id)
    if job.held is None:
        return f"{order.user} has ordered to {order.words}" if order and order.action == "hold" else None
    by, since_s = job.held
    let_go = f"; {order.user} has ordered to release it" if order and order.action == "release" else ""
    return f"held by {by} since {clock_text(since_s, now_s)}{let_go}"


def _kept_back(job: JobLog, status: Status) -> str:
    """The job or the limit that it waits for; empty if it waits for GPUs alone."""
    wait = awaited(job.job, status.log)
    if wait is not None:
        return wait.words
    reason = status.reasons.get(job.job.id, "")
    return reason if reason.startswith(OVER_LIMIT) else ""


def _waits_for(job: JobLog, expected: StartPrediction, others: int) -> str:
    """Why a job waits: for how many GPUs, and behind how many jobs or beside how many ``others``."""
    words = f"waits {_for_gpus(job, expected)}"
    ahead = expected.jobs_ahead
    if ahead is None:
        return f"{words}; {_are(others, 'other job', 'waits', 'wait')}" if others else words
    return f"{words}; {_are(ahead, 'job', 'is ahead', 'are ahead')}" if ahead else f"{words}; it is next"


def _out_of_service(status: Status) -> list[str]:
    """GPUs without a job that no job gets, and why."""
    closed = sorted(status.closed_gpus.items())
    if len(closed) > NODES_NAMED:
        gpus = in_gpus(sum(status.closed_gpus.values()))
        return [f"{gpus} out of service on {len(closed)} drained or down nodes"]
    return [_closed_words(name, gpus, status) for name, gpus in closed]


def _closed_words(node: str, gpus: int, status: Status) -> str:
    if not gpus:
        return f"node {node} is {_closed(node, status)}"
    if node in status.log.down:
        return f"{node} with {in_gpus(gpus)} is down"
    return f"{in_gpus(gpus)} free on {node}, which is drained"


def _closed(node: str, status: Status) -> str:
    return "down" if node in status.log.down else "drained"


def _for_gpus(job: JobLog, expected: StartPrediction) -> str:
    """The GPUs that the policy waits for, or the minimum if it was not asked."""
    if job.job.on_cpus:
        return "for cores or memory of a node"
    least = job.job.min_gpus
    at_least = "at least " if expected.needs_gpus is None and least < job.job.gpus.requested else ""
    return f"for {at_least}{in_gpus(expected.needs_gpus or least)}"


def _brief(job: JobLog, expected: StartPrediction, status: Status) -> str:
    """:func:`_why` in brief; empty if there is more to say about the job."""
    if job.job.id in status.over:
        return "ended, to be recorded"
    waits = not (
        job.gpus or job.held or job.retry.trouble or job.use.lost_gpu_s or job.retry.retry_s is not None
    )
    asked = job.job.id in status.cancelled or job.job.id in status.ordered
    if not waits or asked or _kept_back(job, status):
        return ""
    ahead = expected.jobs_ahead
    place = {None: "", 0: ", next"}.get(ahead, f", {ahead} ahead")
    closed = sorted(status.closed_gpus)
    if len(closed) == 1:
        place += f"; {closed[0]} is {_closed(closed[0], status)}"
    elif closed:
        place += f"; {len(closed)} nodes are drained or down"
    return f"{_for_gpus(job, expected)}{'; the policy fails' if status.log.policy_error else place}"


def _are(count: int, noun: str, one: str, many: str) -> str:
    return f"{counted(count, noun)} {one if count == 1 else many}"


def _retry(job: JobLog, now_s: float) -> str:
    left_s = max(0.0, (job.retry.retry_s or 0.0) - now_s)
    when = f" in {left_s:.0f} s" if left_s else ""
    failed = job.retry.failed_attempt >= job.attempt.over_attempt
    which = f"retry {job.retry.failures} of {job.retry.retries}" if failed else "another attempt"
    return f"{which}{when}: {job.reason}"


def _submitted(
    job: Job, asked_s: float, now_s: float, status: Status, expected: Mapping[str, StartPrediction]
) -> JobStatus:
    order = status.ordered.get(job.id)
    ordered = "" if order is None else f"; {order.user} has ordered to {order.words}"
    why = f"{_not_yet(job, now_s, asked_s)}{ordered}"
    return JobStatus(JobLog(job, asked_s), "submitted", why, expected=expected.get(job.id, _NOTHING))


def _not_yet(job: Job, now_s: float, asked_s: float) -> str:
    left_s = min(job.submit_time - now_s, job.submit_time - asked_s)
    if left_s < 1 or now_s < EPOCH_LIKE_S:
        return "no run has taken it up yet"
    set_back = f" (the clock was set back by {asked_s - now_s:.0f} s)" if asked_s - now_s > 1 else ""
    return f"submit_time is in {left_s:.0f} s{set_back}"


def standing(job: JobLog) -> str:
    """The phase in words: a job that waits for its retry was not preempted by the policy."""
    return "waiting to retry" if job.phase == "preempted" and job.retry.retry_s is not None else job.phase


def known_ids(status: Status) -> list[str]:
    return sorted({*status.log.jobs, *(job.id for job, _ in status.submitted)})
