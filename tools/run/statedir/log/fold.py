"""Fold the log to the state of the run: nothing else is the truth.

``pliant.schemas.events`` says what each kind of event is and holds. How ``run`` uses them:

- The first event names the run. A submission's submit_time is moved to UTC; where several accounts share the
  run, it and every order say the ``uid`` of the account that asked.
- What a job is to hold is written when it is decided, before anything is done, with how far the job was. A
  changed batch on the same GPUs is a move to the same place.
- The cost of a change is known after its first training step, and in that ``progress`` event
  (``overhead_seconds``, from the decision to the end of the step; ``after``). If another change comes before
  that step, only the later one is measured.
- Events of workers name their ``attempt``, so that the next launcher knows how many it has seen. They are
  few: the newest progress of a job is in a file of its own (``worker_reports.py``).
- A job that finishes, or fails with an ``attempt``, ends only when nothing of it is left; after other ends a
  ``release`` says so. Jobs with GPUs on a node have left it before it goes down, by a shrink or a requeue.

The fold also keeps totals of the whole log for an operator's monitoring, which only grow and survive restarts
of the run, and it knows which jobs wait for others, and which of them can never start.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, assert_never, get_args

from pydantic import ConfigDict, TypeAdapter

from pliant.schemas.cluster import Cluster
from pliant.schemas.event import ENDS, End, Event
from pliant.schemas.events import (
    Cancelled,
    Checkpointed,
    Decided,
    Drained,
    Ended,
    EpochEnded,
    Failed,
    Finished,
    Held,
    Moved,
    NodeDown,
    NodeUp,
    Null,
    Ordered,
    Placed,
    Preempted,
    Prioritized,
    Progressed,
    Rejected,
    Released,
    Reloaded,
    Requeued,
    Resized,
    RunBegan,
    SlotCleared,
    SlotQuarantined,
    Started,
    Submitted,
    Trained,
    Undrained,
    Unheld,
    Updated,
    checked,
    detail_of,
)  # fmt: skip
from pliant.schemas.job import Job, updated_if_valid
from pliant.schemas.runinfo import RunInfo
from pliant.schemas.schedule import Allocation, BatchPlan, Cut
from pliant.schemas.text import EPOCH_LIKE_S, counted, span_text
from pliant.tools.run.statedir.contract.plan import Progress
from pliant.tools.run.statedir.slot_faults import (
    CHECKPOINT_S,
    UNTIL_RESUMED_S,
    WINDOW_S,
    FailureRecord,
    Fault,
    SlotFaults,
    is_alike,
    is_worth_its_while,
)
from pliant.tools.schedule.jobs import NodeGpus, gpus_of
from pliant.tools.schedule.session.admission import first_holder
from pliant.tools.schedule.session.dependencies import Wait, wait_of
from pliant.tools.schedule.session.quarantine import node_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(slots=True)
class RunTotals:
    """What has happened since the log began."""

    submitted: int = 0
    starts: int = 0
    first_starts: int = 0
    wait_seconds: float = 0.0
    """Time from submission to the first start, summed over the jobs that have started."""
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
    """GPU seconds that jobs held without getting further, by cause: changes, checkpoints, repeats, stops."""

    def decided(self, event: Decided) -> None:
        self.decisions += 1
        self.policy_errors += event.error is not None
        self.decided_s = event.time
        self.last_decision_seconds = event.decision_seconds
        self.decision_seconds += event.decision_seconds or 0.0

    def happened(self, event: Submitted | JobEvent, gpus: float, repeated: float) -> None:
        """Count an event of a job.

        :param gpus: what the job holds after it; half of those that it shares.
        :param repeated: GPU seconds of work before the event that has to be done again.
        """
        match event:
            case Progressed() | Checkpointed():
                pass
            case Submitted():
                self.submitted += 1
            case Started():
                self.starts += 1
            case Resized() | Moved():
                self.rescales += 1
            case Preempted():
                self.preemptions += 1
            case Requeued() | Failed():
                self.failures += event.attempt is not None
        if event.overhead_seconds is not None:
            cause = "checkpoints" if isinstance(event, Checkpointed) else "changes"
            self._lose(cause, event.overhead_seconds * gpus)
        self._lose("repeats", repeated)
        self._lose("stops", _HOUR_S * _lost_gpu_hours(event))

    def _lose(self, cause: str, gpu_seconds: float) -> None:
        if gpu_seconds > 0:
            self.lost_gpu_seconds[cause] = self.lost_gpu_seconds.get(cause, 0.0) + gpu_seconds


_HOUR_S: Final = 3600.0
JobEvent = Placed | Preempted | Requeued | Ended | Trained | Held | Unheld | Prioritized | Updated
"""Events of a job that was submitted."""
_Changed = Started | Resized | Moved
_Held = _Changed | Preempted | Requeued | Ended
_Executed = Ordered | Requeued


def _lost_gpu_hours(event: Submitted | JobEvent) -> float:
    """Hours lost by a stop or a change of a job that cannot save."""
    return (event.lost_gpu_hours or 0.0) if isinstance(event, _Held) else 0.0


LEAVES: Final = "leaves the cluster, or comes back as its file says now"
"""Reason of the drain of a node that the new cluster does not have as it is."""
AS_JSON: Final = ConfigDict(ser_json_inf_nan="constants")
"""How a snapshot keeps these records: all fields, infinities included."""
JobPhase = End | Literal["waiting", "running", "preempted"]


@dataclass(slots=True)
class AttemptState:
    """What a run knows of a job's attempts, beyond what the job holds."""

    __pydantic_config__ = AS_JSON

    is_batch_decided: bool = True
    """Whether its batch was decided, and not left to the script."""
    accum: int = 1
    lr_scale: float = 1.0
    launched_s: float = 0.0
    """When the last attempt was decided on."""
    seen: dict[int, int] = field(default_factory=dict)
    """How many worker events of each attempt the log holds."""
    change: tuple[str, float] | None = None
    """The last change of its GPUs and when it was decided, until its first step is done."""
    begun: tuple[str, float] | None = None
    """The last start or resume and when it was decided, until its first step is done."""
    stall_s: float | None = None
    """What the last measured change of its GPUs cost."""
    over_attempt: int = 0
    """The last one that is over, whether it failed or not."""
    exit_code: int | None = None
    """Exit code of the last attempt that ended by itself; negative for a signal."""
    timed_out: bool = False
    """Whether a limit of its own ended it; its phase is "failed" then."""

    def place(self, event: Placed) -> None:
        self.is_batch_decided = event.global_batch is not None
        self.change = event.name, event.time
        self.accum = 1 if event.accum is None else event.accum
        self.lr_scale = 1.0 if event.lr_scale is None else float(event.lr_scale)
        if isinstance(event, Started):
            self.launched_s, self.begun = event.time, self.change

    def report(self, event: Trained) -> None:
        """Count what workers reported, and note what the first step after a change cost."""
        if isinstance(event, Progressed) and event.after is not None:
            self.change = self.begun = None
            self.stall_s = event.overhead_seconds
        attempt = event.attempt or 0
        self.seen[attempt] = self.seen.get(attempt, 0) + 1


@dataclass(slots=True)
class GpuUse:
    """For how long a job has held GPUs, and how well it uses them."""

    __pydantic_config__ = AS_JSON

    ran_s: float = 0.0
    """Seconds for which it has held GPUs, until ``runs_from_s``."""
    runs_from_s: float | None = None
    """Since when it holds those that it has."""
    lost_gpu_s: float = 0.0
    """GPU seconds that stops and changes have lost: it neither states nor shows that it can save."""
    points: tuple[tuple[float, float], ...] = ()
    """(time, samples done) of the newest two progress events since the last change."""
    gpu_seconds_per_sample: float | None = None
    """What a sample cost when its speed was last measured."""
    idle: tuple[float, float] | None = None
    """Since when the cluster's rule calls it idle, and the part of its slots that it used."""
    stragglers: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By slot: since when the cluster's rule calls its worker slow, and how many times slower it was."""
    straggled: str = ""
    """The slot that it has left because a worker was slow there."""

    @property
    def samples_per_second(self) -> float | None:
        """The measured speed. Returns None if it is not known yet."""
        if len(self.points) < 2:
            return None
        (before_s, before), (after_s, after) = self.points
        return (after - before) / (after_s - before_s) if after_s > before_s else None

    def running_s(self, now_s: float) -> float:
        """Seconds for which it has held GPUs until now."""
        return self.ran_s + (0.0 if self.runs_from_s is None else now_s - self.runs_from_s)

    def hold(self, time_s: float, gpus: int) -> None:
        """It holds other GPUs from now on, or none."""
        self.ran_s = self.running_s(time_s)
        self.runs_from_s = time_s if gpus else None
        self.idle, self.stragglers = None, {}

    def measure(self, time_s: float, samples_done: float, gpus: float) -> None:
        """It had done these samples, on GPUs of which shared ones count half."""
        self.points = (*self.points[-1:], (time_s, samples_done))
        if speed := self.samples_per_second:
            self.gpu_seconds_per_sample = gpus / speed

    def judge(self, event: Progressed) -> None:
        """Note what the rules of the cluster make of it."""
        if event.idle is not None:
            self.idle = None if event.idle is Null.NULL else (event.time, float(event.idle))
        if event.straggler is not None:
            slot, times = str(event.straggler["slot"]), event.straggler.get("times")
            rest = {name: each for name, each in self.stragglers.items() if name != slot}
            self.stragglers = rest if times is None else {**rest, slot: (event.time, float(times))}


@dataclass(slots=True)
class RetryState:
    """Failures and displacements of a job in a row, and when it may be started again."""

    __pydantic_config__ = AS_JSON

    furthest: float = 0.0
    """The most samples it had ever done."""
    failures: int = 0
    """Failures in a row, without progress in between."""
    failed_at: float = -1.0
    """The most samples it had done at the first failure of the row."""
    failed_as: tuple[str, float] | None = None
    """The reason of the last failure and the samples trained, if the script caused it and would again."""
    failed_s: tuple[float, ...] = ()
    """When attempts failed, as far back as it matters."""
    failed_attempt: int = 0
    """The last attempt that failed."""
    retries: int = 0
    """Failures in a row that are retried, as of the last one."""
    displacements: int = 0
    """Attempts in a row whose place was taken away, without progress in between."""
    displaced_at: float = -1.0
    """The most samples it had done at the first one of the row."""
    retry_s: float | None = None
    """After a failure or a displacement: not to be started before this time."""
    trouble: str = ""
    """Why it last lost GPUs without the policy's doing; until the policy changes them."""

    def repeats(self, reason: str, fault: Fault) -> bool:
        """Whether the last attempt failed for the same reason at the same step."""
        if self.failed_as is None or not is_alike(self.failed_as[0], reason):
            return False
        return abs(fault.at_samples - self.failed_as[1]) <= (fault.within or 0.0)

    def begin_again(self, *, from_start: bool) -> None:
        """As if it had never failed."""
        self.failures, self.failed_at, self.failed_as, self.failed_s = 0, -1.0, None, ()
        self.displacements, self.displaced_at, self.retry_s = 0, -1.0, None
        if from_start:
            self.furthest = 0.0

    def displace(self, event: Preempted | Requeued, displacements: int) -> None:
        """Its place was taken away, so often in a row."""
        self.displacements = displacements
        self.displaced_at = self.furthest if displacements == 1 else self.displaced_at
        self.retry_s = event.time + (event.wait_seconds or 0.0)

    def fail(self, event: Preempted | Requeued, attempt: int, failures: int) -> None:
        """An attempt failed, so many of them in a row."""
        time_s, at_samples = event.time, event.at_samples
        self.failures = failures
        self.failed_at = self.furthest if failures == 1 else self.failed_at
        self.failed_as = None if at_samples is None else (event.reason or "", float(at_samples))
        self.failed_s = (*(at_s for at_s in self.failed_s if at_s > time_s - WINDOW_S), time_s)
        self.failed_attempt = max(self.failed_attempt, attempt)
        self.retries = event.retries or 0
        self.retry_s = None if event.wait_seconds is None else time_s + event.wait_seconds


PARTS: Final = {"attempt": AttemptState, "use": GpuUse, "retry": RetryState}
"""Parts of the record of a job; no two of them have a field of one name."""


@dataclass(slots=True)
class JobLog:
    """One job, as the log tells."""

    __pydantic_config__ = AS_JSON

    job: Job
    submitted_s: float
    phase: JobPhase = "waiting"
    gpus: int = 0
    placement: NodeGpus = ()
    global_batch: int | None = None
    """As decided; where nothing was, as its workers reported."""
    beside: str | None = None
    """The job that holds the same GPUs; None if it has them alone."""
    started_s: float | None = None
    ended_s: float | None = None
    samples_done: float = 0.0
    """Where training is; a job that failed goes back to its last checkpoint."""
    total_samples: float | None = None
    loss: float | None = None
    held: tuple[str, float] | None = None
    """Who holds it, and since when."""
    held_by: int | None = None
    """The account that holds it, if the door proved it."""
    reason: str = ""
    uid: int | None = None
    """The account that submitted it through the door; None for the owner of the state directory."""
    attempt: AttemptState = field(default_factory=AttemptState)
    use: GpuUse = field(default_factory=GpuUse)
    retry: RetryState = field(default_factory=RetryState)

    @property
    def ended(self) -> bool:
        return self.ended_s is not None

    @property
    def end(self) -> str:
        """How it ended, in the words that people read."""
        return "timed out" if self.attempt.timed_out else self.phase

    def next_limit(self, now_s: float) -> tuple[float, str]:
        """When it reaches a limit if it goes on as it is, and the reason then; infinite: never."""
        limits = self.job.limits
        if limits is None:
            return math.inf, ""
        until_s = limits.until or math.inf
        until_s = until_s if until_s >= EPOCH_LIKE_S else self.submitted_s + until_s
        left_s = math.inf if limits.run_seconds is None else limits.run_seconds - self.use.running_s(now_s)
        if left_s <= 0 or (self.use.runs_from_s is not None and now_s + left_s < until_s):
            return now_s + left_s, f"it has run for {span_text(limits.run_seconds or 0.0)}, its limit"
        return until_s, "its time is over (limits.until)"

    def unsaved_gpu_s(self, now_s: float) -> float:
        """GPU seconds that a stop would lose; 0 of a job that can save, or holds no GPUs."""
        if self.use.runs_from_s is None or self.job.can_save:
            return 0.0
        return self.counted_gpus * max(0.0, now_s - self.use.runs_from_s)

    @property
    def held_gpus(self) -> int:
        """Its GPUs; ``gpus`` counts its place on a node where it needs none."""
        return 0 if self.job.on_cpus else self.gpus

    @property
    def counted_gpus(self) -> float:
        """Its GPUs; half of them if it shares them, none if it needs none."""
        return self.held_gpus if self.beside is None else self.held_gpus / 2

    @property
    def allocation(self) -> Allocation:
        """What it holds by the last decision."""
        attempt = self.attempt
        batch = self.global_batch if attempt.is_batch_decided else None
        cut = (batch, attempt.accum, attempt.lr_scale)
        return allocation_of(self.job.id, self.placement, cut, self.beside)

    def next_failure(self, time_s: float) -> FailureRecord:
        """Failures in a row and within the last hour if it failed now."""
        restarts = self._made_progress(self.retry.failed_at, time_s)
        recent = sum(failed_s > time_s - WINDOW_S for failed_s in self.retry.failed_s) + 1
        return FailureRecord(1 if restarts else self.retry.failures + 1, recent)

    def shows_cause(self, time_s: float, fault: Fault) -> bool:
        """Whether the same failure in the next attempt would show that there is no way past it."""
        checkpoint_s = self.job.checkpoint_seconds or CHECKPOINT_S
        return fault.within is not None or time_s - self.attempt.launched_s < checkpoint_s

    def next_displacement(self, time_s: float) -> int:
        """Displacements in a row if its place were taken away now; an attempt of an hour begins a new row."""
        lasted_s = time_s - self.attempt.launched_s
        restarts = lasted_s >= WINDOW_S or self._made_progress(self.retry.displaced_at, time_s)
        return 1 if restarts else self.retry.displacements + 1

    def _made_progress(self, since: float, time_s: float) -> bool:
        """Whether it made progress since a row of ends began at that many samples; negative if none has."""
        gained = self.retry.furthest - since if since >= 0 else 0.0
        checkpoint_s = self.job.checkpoint_seconds or CHECKPOINT_S
        return is_worth_its_while(gained, self.total_samples, time_s - self.attempt.launched_s, checkpoint_s)

    def repeated_by(self, event: JobEvent) -> float:
        """GPU seconds of work that an event says is to be done again; 0 if the speed is unknown."""
        if not isinstance(event, Progressed | Checkpointed | EpochEnded) or event.samples_done is None:
            return 0.0
        is_step = isinstance(event, Progressed) and event.first_step is not None
        began_at = event.samples_done - (event.global_batch or 0 if is_step else 0)
        return max(0.0, self.samples_done - began_at) * (self.use.gpu_seconds_per_sample or 0.0)

    def add(self, event: JobEvent) -> None:
        if event.gpus is not None:
            self.placement = event.placement or ()
            self.gpus = len(self.placement) if self.job.on_cpus else event.gpus
            self.use.hold(event.time, self.gpus)
        if isinstance(event, _Changed):
            self.attempt.place(event)
        if event.global_batch is not None and (event.gpus is not None or self._changes_batch):
            self.global_batch = event.global_batch
        if (samples := event.samples_done) is not None:
            self.samples_done = samples
            self.retry.furthest = max(self.retry.furthest, samples)
        if isinstance(event, Progressed) and samples is not None:
            self.use.measure(event.time, samples, self.counted_gpus)
        elif event.gpus is not None:
            self.use.points = ()
        if event.loss is not None:
            self.loss = event.loss
        self.use.lost_gpu_s += _HOUR_S * _lost_gpu_hours(event)
        self._enter(event)

    @property
    def _changes_batch(self) -> bool:
        """Whether its script chooses the batch."""
        return bool(self.job.batch.regimes) or not self.attempt.is_batch_decided

    def _enter(self, event: JobEvent) -> None:
        match event:
            case Progressed() | Checkpointed() | EpochEnded():
                self._report(event)
            case Held():
                self.held, self.held_by = (event.user or "", event.time), event.uid
            case Unheld():
                self.held = self.held_by = None
            case Updated():
                self.job = updated_if_valid(self.job, event.changes)
            case Prioritized():
                self.job = self.job.model_copy(update={"priority": float(event.priority)})
            case Started() | Resized() | Moved():
                self._explain(event, unasked=event.setback is not None or event.straggled is not None)
                self.use.straggled = event.straggled or self.use.straggled
                self.phase = "running"
                self.started_s = event.time if self.started_s is None else self.started_s
                if isinstance(event, Started):
                    self.retry.retry_s = None
            case Preempted() | Requeued():
                self._explain(event, unasked=isinstance(event, Requeued))
                self.phase, self.attempt.change, self.attempt.begun = "preempted", None, None
                self._stop(event)
            case Finished() | Failed() | Cancelled() | Rejected():
                self._explain(event, unasked=False)
                self.phase, self.ended_s, self.held = ENDS[event.name], event.time, None
                self.attempt.exit_code = 0 if isinstance(event, Finished) else event.exit_code
                self.attempt.timed_out = bool(event.timed_out)
            case _:
                assert_never(event)

    def _explain(self, event: Placed | Preempted | Requeued | Ended, *, unasked: bool) -> None:
        self.reason = event.reason or ""
        if event.gpus is not None:
            self.retry.trouble = self.reason if unasked else ""

    def _report(self, event: Trained) -> None:
        """What workers reported; what the service alone notes of them counts for no attempt."""
        if isinstance(event, Progressed):
            self.use.judge(event)
            if (event.idle, event.straggler, event.lost_workers) != (None, None, None):
                return
        self.attempt.report(event)

    def _begin_again(self, *, from_start: bool) -> None:
        """It waits as if it had never failed, also after its end."""
        if self.ended:
            self.ended_s, self.attempt.timed_out, self.use.ran_s = None, False, 0.0
        if self.started_s is None:
            self.phase = "waiting"
        self.retry.begin_again(from_start=from_start)
        if from_start:
            self.samples_done, self.loss = 0.0, None

    def _stop(self, event: Preempted | Requeued) -> None:
        if event.order is not None:
            self._begin_again(from_start=bool(event.from_start))
        attempt = event.attempt
        over = (event.over or 0) if attempt is None else attempt
        self.attempt.over_attempt = max(self.attempt.over_attempt, over)
        if event.displacements is not None:
            self.retry.displace(event, event.displacements)
        if attempt is not None:
            next_row = self.next_failure(event.time).failures if event.failures is None else event.failures
            self.retry.fail(event, attempt, next_row)
            self.attempt.exit_code = event.exit_code


@dataclass(frozen=True, slots=True)
class Drain:
    """A node that gets no work."""

    user: str
    since_s: float
    reason: str = ""
    now: bool = False
    """Whether its jobs leave it at once; else they finish there."""
    until_s: float | None = None
    """By when nothing may run there; None if that has time."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A slot that no job gets for a while."""

    until_s: float
    reason: str = ""
    since_s: float = 0.0

    @property
    def is_sick(self) -> bool:
        """Whether only an operator gives it back."""
        return self.until_s - self.since_s >= UNTIL_RESUMED_S


def _entitled(teams: Iterable[Mapping[str, Any]]) -> Counter[str]:
    entitled = Counter[str]()
    for each in teams:
        entitled[str(each["team"])] += int(each["entitled"])
    return entitled


@dataclass(slots=True)
class RunLog:
    """The whole log, folded."""

    __pydantic_config__ = AS_JSON

    info: RunInfo | None = None
    origin_s: float | None = None
    """UTC seconds at which the clock of the schedules shows 0; None until a decision took effect."""
    policy_error: str = ""
    """Why the last decision failed; empty if it did not."""
    last_s: float = 0.0
    jobs: MutableMapping[str, JobLog] = field(default_factory=dict)
    active: dict[str, JobLog] = field(default_factory=dict)
    """Jobs that were submitted and have not ended."""
    ends: dict[str, int] = field(default_factory=dict)
    """How many jobs have ended, by phase."""
    broken_off: dict[str, JobPhase] = field(default_factory=dict)
    """Jobs that have ended, and of which something may still run."""
    down: dict[str, str] = field(default_factory=dict)
    """Nodes that jobs cannot run on, and why."""
    drained: dict[str, Drain] = field(default_factory=dict)
    """Nodes that get no work."""
    reloads: int = 0
    """How often the cluster was changed; ``info`` states the present one."""
    reload_error: str = ""
    """Why the last cluster file was refused; empty if it was not."""
    next_cluster: Cluster | None = None
    """The cluster of the last file, while nodes are in use that are not in it, or differ."""
    leaving: tuple[str, ...] = ()
    """These nodes."""
    executed: tuple[int, ...] = ()
    """Numbers of the orders executed last, all at one time; the files of earlier ones are gone."""
    executed_s: float = 0.0
    once: bool = False
    """Whether the last decision was written by a call that does not stay."""
    slot_faults: SlotFaults = field(default_factory=SlotFaults)
    """Slots on which new workers died."""
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    """Slots that no job gets, or got for a while: see :meth:`out_of_service`."""
    counts: RunTotals = field(default_factory=RunTotals)
    entitled: dict[str, int] = field(default_factory=dict)
    """GPUs that teams were entitled to at the last decision; empty where the cluster is one pool."""
    archives: dict[str, int] = field(default_factory=dict)
    """Archives of jobs that ended long ago, and by how many bytes each has made the log shorter."""
    archived: dict[str, tuple[End, str | None]] = field(default_factory=dict)
    """How jobs of archives ended, and their arrays, where jobs of this log were to start after them."""
    newest: dict[str, Progress] = field(default_factory=dict, compare=False)
    """What workers reported last, which is not in the log: see ``worker_reports.py``."""

    def add(self, row: Event) -> None:
        event = checked(row)
        self.last_s = max(self.last_s, event.time)
        if isinstance(event, _Executed) and event.order is not None:
            before = self.executed if event.time == self.executed_s else ()
            self.executed, self.executed_s = (*before, event.order), event.time
        match event:
            case (
                Progressed() | Checkpointed() | EpochEnded() | Started() | Resized() | Moved() | Preempted()
                | Requeued() | Finished() | Failed() | Cancelled() | Rejected()
                | Held() | Unheld() | Prioritized() | Updated()
            ):  # fmt: skip
                self._of_job(event)
            case RunBegan():
                self.info = self.info or event.info()
            case Decided():
                self._decided(event)
            case Submitted():
                self._submit(event)
            case NodeDown() | NodeUp():
                self.down.pop(event.node, None)  # the newest stands last
                if isinstance(event, NodeDown):
                    self.down[event.node] = event.reason or ""
            case SlotQuarantined() | SlotCleared():
                self.slot_faults.add(event)
                self._slot(event)
            case Drained() | Undrained():
                self._drain(event)
            case Reloaded():
                self._reload(event)
            case Released():
                self.broken_off.pop(event.job, None)
            case _:
                assert_never(event)

    def _drain(self, event: Drained | Undrained) -> None:
        if isinstance(event, Undrained):
            self._resume(event.node)
            return
        said = (event.user or "", event.time, event.reason or "")
        self.drained[event.node] = Drain(*said, now=bool(event.now), until_s=event.until)

    def _submit(self, event: Submitted) -> None:
        stated = event.submission()
        job = JobLog(stated.job, event.time, total_samples=stated.samples, uid=stated.uid)
        if stated.job.hold:
            job.held = first_holder(stated.job), event.time
        self.jobs[event.job] = self.active[event.job] = job
        self.counts.happened(event, 0.0, 0.0)

    def _of_job(self, event: JobEvent) -> None:
        job_id = event.job
        if job_id not in self.jobs:
            return
        job = self.jobs[job_id]
        before, repeated, began_s = job.phase, job.repeated_by(event), job.started_s
        job.add(event)
        if began_s is None and job.started_s is not None:
            self.counts.first_starts += 1
            self.counts.wait_seconds += max(0.0, job.started_s - job.submitted_s)
        if event.gpus is not None:
            self._pair(job, event)
        self.counts.happened(event, job.counted_gpus, repeated)
        if job_id not in self.active:
            self.ends[before] -= 1  # it had ended already, in that phase
        if isinstance(event, Requeued) and event.order is not None:
            self.active[job_id] = job
            self.broken_off.pop(job_id, None)
            self.newest.pop(job_id, None)
        if job.ended:
            self.ends[job.phase] = self.ends.get(job.phase, 0) + 1
            self.active.pop(job_id, None)
            self.newest.pop(job_id, None)
            if isinstance(event, Ended) and _breaks_off(event, job):
                self.broken_off[job_id] = job.phase
            self.slot_faults.forget(job_id)

    def _pair(self, job: JobLog, event: JobEvent) -> None:
        """Update which jobs have the same GPUs."""
        before, job.beside = job.beside, None
        if before is not None:
            self.jobs[before].beside = None
        named = event.beside if isinstance(event, _Changed) and event.gpus else None
        other = None if named is None else self.active.get(named)
        if other is not None and other.beside is None and other.placement == job.placement:
            job.beside, other.beside = other.job.id, job.job.id

    def _resume(self, node: str) -> None:
        """A node gets work again, also on slots that an operator has to give back."""
        self.drained.pop(node, None)
        for slot in [slot for slot, left in self.left_out.items() if node_of(slot) == node and left.is_sick]:
            del self.left_out[slot]
            self.slot_faults.slots.pop(slot, None)

    def _reload(self, event: Reloaded) -> None:
        self.reload_error = event.error or ""
        if self.reload_error or self.info is None:
            return
        before = {node.name: node.gpus for node in self.info.cluster.expanded()}
        cluster, self.next_cluster = event.clusters()
        self.info = self.info.model_copy(update={"cluster": cluster})
        self.reloads += 1
        self.leaving = tuple(map(str, event.leaving or ()))
        for name in event.back or ():
            self.drained.pop(name, None)
        drain = Drain(event.user or "", event.time, LEAVES, now=bool(event.now))
        for name in self.leaving:
            if name not in self.drained or (drain.now and not self.drained[name].now):
                self.drained[name] = drain
        there = {node.name: node.gpus for node in cluster.expanded()}
        self.drained = {name: each for name, each in self.drained.items() if name in there}
        self.down = {name: why for name, why in self.down.items() if name in there}
        same = {name for name, gpus in there.items() if before.get(name) == gpus}
        self.left_out = {slot: left for slot, left in self.left_out.items() if node_of(slot) in same}

    def may_be_there(self) -> Iterable[str]:
        """Jobs of which something may be left."""
        return (*self.active, *self.broken_off)

    @property
    def over(self) -> set[str]:
        return self.jobs.keys() - set(self.may_be_there())

    def out_of_service(self, now_s: float) -> dict[str, LeftOut]:
        """Slots (``node/index``) that no job gets at this time."""
        return {slot: left for slot, left in self.left_out.items() if left.until_s > now_s}

    def _slot(self, event: SlotQuarantined | SlotCleared) -> None:
        if isinstance(event, SlotCleared):
            self.left_out.pop(event.slot, None)
        elif event.job is None:
            self.left_out = self.out_of_service(event.time)
            until_s, known = event.time + event.seconds, self.left_out.get(event.slot)
            if known is None or known.until_s <= until_s:
                self.left_out[event.slot] = LeftOut(until_s, event.reason or "", event.time)

    def _decided(self, event: Decided) -> None:
        if event.restored is not None:
            self._restore(event.restored)
            return
        if self.info is None:  # the first event does not name the run
            self.info = RunBegan(event.time, stated=detail_of(event)).info()
            return
        self.origin_s = self.origin_s if event.origin_s is None else event.origin_s
        self.policy_error = event.error or ""
        self.once = bool(event.once)
        self.counts.decided(event)
        self.entitled = dict(_entitled(event.teams or ()))

    def _restore(self, kept: Mapping[str, Any]) -> None:
        """Take over what a snapshot knew, as far as this version has its fields."""
        kept = {RENAMED.get(name, name): value for name, value in kept.items()}
        own = {name: value for name, value in kept.items() if name in RESTORED}
        _set(self, RUN_RECORD.validate_json(json.dumps(own)), own)
        for job_id, values in kept.get("jobs", {}).items():
            job = self.jobs[job_id]
            known = {"job": job.job.model_dump(mode="json"), "submitted_s": job.submitted_s}
            parts = {part: _known(values, kind) for part, kind in PARTS.items()}
            own = _known(values, JobLog)
            restored = JOB_RECORD.validate_json(json.dumps({**own, **parts, **known}))
            _set(job, restored, own.keys() - known.keys())
            for part, stated in parts.items():
                _set(getattr(job, part), getattr(restored, part), stated)


JOB_RECORD: Final = TypeAdapter(JobLog)
RUN_RECORD: Final = TypeAdapter(RunLog)
RESTORED: Final = frozenset(each.name for each in fields(RunLog) if each.compare) - {"info", "jobs", "active"}
"""Fields of a run's record that a snapshot can give back."""
RENAMED: Final = {"suspects": "slot_faults"}
"""Names of these fields in logs that earlier versions repaired."""


def _known(values: Mapping[str, Any], kind: type[DataclassInstance]) -> dict[str, Any]:
    """The values of fields of a record."""
    return {each.name: values[each.name] for each in fields(kind) if each.name in values}


def _set(record: object, values: object, names: Iterable[str]) -> None:
    for name in names:
        setattr(record, name, getattr(values, name))


def _breaks_off(event: Ended, job: JobLog) -> bool:
    """Whether something of a job may still run when this event ends it."""
    return not isinstance(event, Finished) and event.attempt is None and job.started_s is not None


def fold(events: Iterable[Event]) -> RunLog:
    log = RunLog()
    for event in events:
        log.add(event)
    return log


def allocation_of(job_id: str, placement: NodeGpus, cut: Cut, beside: str | None = None) -> Allocation:
    """What a job holds, as a schedule's record; not validated."""
    gpus, (size, accum, lr_scale) = gpus_of(placement), cut
    batch = None
    if size is not None and gpus:
        share = -(-size // gpus)
        batch = BatchPlan.model_construct(global_=size, local=-(-share // accum), accum=accum)
    return Allocation.model_construct(
        job=job_id,
        gpus=gpus,
        placement=placement,
        batch=batch,
        lr_scale=lr_scale,
        action="keep",
        beside=beside,
    )


_ENDS: Final[dict[JobPhase, End]] = {end: end for end in get_args(End)}


def awaited(job: Job, log: RunLog) -> Wait | None:
    """What an active job waits for. Returns None if it waits for no other job."""
    if not job.after:
        return None
    return wait_of(job, lambda other: _outcome(other, log), lambda other: _array_of(other, log))


def _array_of(job_id: str, log: RunLog) -> str | None:
    job = log.jobs.get(job_id)
    if job is None:
        return log.archived[job_id][1] if job_id in log.archived else None
    return None if job.job.array is None else job.job.array.name


def unsatisfiable_jobs(log: RunLog) -> dict[str, str]:
    """Active jobs that were to start after jobs which have not finished, and the reason of each."""
    waits = ((job_id, awaited(job.job, log)) for job_id, job in log.active.items() if not job.gpus)
    return {job_id: wait.words for job_id, wait in waits if wait is not None and wait.is_unsatisfiable}


def jobs_of_spent_arrays(log: RunLog) -> dict[str, str]:
    """Active jobs of arrays of which more jobs have failed than they allow, and the reason of each."""
    limited = {
        (job.array.name, job.submit_time): job.array.max_failures
        for job in (each.job for each in log.active.values())
        if job.array is not None and job.array.max_failures is not None
    }
    if not limited:
        return {}
    places = {
        job_id: (each.job.array.name, each.job.submit_time)
        for job_id, each in log.jobs.items()
        if each.job.array is not None
    }
    failed = Counter(place for job_id, place in places.items() if log.jobs[job_id].phase == "failed")
    spent = {place for place, most in limited.items() if failed[place] > most}
    return {
        job_id: f"{counted(failed[place], 'job')} of array {place[0]} failed, {limited[place]} are allowed"
        for job_id, place in places.items()
        if place in spent and job_id in log.active
    }


def _outcome(job_id: str, log: RunLog) -> End | None:
    job = log.jobs.get(job_id)
    if job is None:
        return log.archived[job_id][0] if job_id in log.archived else None
    return _ENDS.get(job.phase)
