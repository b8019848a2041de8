"""The jobs that hold GPUs: what each has paid for, how it trains, and when that ends."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.failures import last_checkpoint_s
from pliant.tools.replay.engine.log import EventLog
from pliant.tools.replay.engine.simulated_cluster import Interference, SimulatedCluster, exact_end
from pliant.tools.replay.progress import SampleProgress, Segment, regime
from pliant.tools.schedule.jobs import EpochEnd, JobState, Observation, Trajectory, with_end
from pliant.tools.schedule.rates import shape_of
from pliant.tools.schedule.session.allocations import Transition
from pliant.tools.schedule.session.session import Session

FINISH: Final = 0
SEGMENT_END: Final = 1
NODE_DOWN: Final = 2
NODE_UP: Final = 3
LATE_FINISH: Final = 4
LATE_SEGMENT_END: Final = 5
"""Kinds, in the order in which things of one moment happen; arrivals come after them all, and what is late
after the decision of that moment."""
ONE_MOMENT: Final = 1 + 2.0**-40
"""Completions up to this multiple of a time happen at one moment with it: they differ by rounding alone."""


class RunningJobs:
    """The allocations of all jobs that hold GPUs; the end of each segment goes into the agenda."""

    def __init__(
        self,
        session: Session,
        simulated: SimulatedCluster,
        agenda: Agenda,
        log: EventLog,
        interval_s: float | None,
        *,
        reveals_work: bool = False,
    ) -> None:
        self._session = session
        self._simulated = simulated
        self._agenda = agenda
        self._log = log
        self._interval_s = interval_s
        self._start_cost = simulated.start_cost or FREE
        self._rescale_cost = simulated.rescale_cost or FREE
        self._resume_cost = simulated.resume_cost or self._rescale_cost
        self._progress = simulated.progress()
        self._segment_end = simulated.quirks.segment_end
        self._interference = Interference(simulated.interference) if simulated.interference else None
        # Whether jobs slow each other down across nodes.
        self.interfere = self._interference is not None
        self._reveals_work = reveals_work
        # Whether nothing but its GPUs and its batch says how a job advances.
        self._is_plain = (
            type(self._progress) is SampleProgress
            and self._segment_end is exact_end
            and not (self.interfere or reveals_work or simulated.measured)
        )
        self._held: dict[str, RunningJob] = {}
        # Jobs that have paid what a start costs and trained since.
        self._trained: set[str] = set()

    def arrive(self, job: JobState) -> None:
        """A job has arrived. Its work is hidden from policies as far as they may not see it."""
        if self._session.policy_host.demand == "predicted" or self._reveals_work or job.total_samples is None:
            job.hide_work(self._progress.all_samples(job))
            self._end_samples(job, 0.0)

    def cost_s(self, transition: Transition, left: RunningJob | None, now_s: float) -> float:
        """Seconds without training that a change costs; ``left``: what the job held before."""
        if left is not None and self._is_free(transition):
            return max(0.0, left.paid_s - now_s)
        job, step, _, _ = transition
        if job.id not in self._trained:
            cost = self._start_cost
        else:
            cost = self._resume_cost if step == "resume" else self._rescale_cost
        model = job.spec.model
        cost_s, resume = cost.of(model), self._resume_cost
        if cost is self._rescale_cost and cost is not resume and job.spec.resize == "relaunch":
            return max(cost_s, resume.of(model))  # what was measured in place may be less
        return cost_s

    def _is_free(self, transition: Transition) -> bool:
        quirks, job = self._simulated.quirks, transition.job
        if transition.step == "rebatch":
            return quirks.free_rebatch
        if transition.step != "move" or not quirks.free_moves:
            return False
        same_type = self._session.cluster.speeds.gpu_type_of(transition.before) == job.gpu_type
        return same_type and shape_of(transition.before) == shape_of(job.placement)

    def began_since(self, time_s: float) -> bool:
        return all(held.held_since_s > time_s for held in self._held.values() if held.rate)

    def begin(self, job: JobState, row: int, cost_s: float, done: float, now_s: float) -> None:
        """The job has new GPUs or a new batch, as ``row`` of the log says; it trains once it has paid.

        :param cost_s: NaN: it is paid for already.
        :param done: samples that it has done.
        """
        if self._interference is not None:
            self._interference.place(job.id, job.placement)
        if not self._is_plain and job.initial_loss is None:
            job.initial_loss = self._progress.initial_loss(job)
        paid_s = now_s if math.isnan(cost_s) else now_s + cost_s
        held = RunningJob(row, now_s, job.samples_per_second, paid_s, done, cost_s)
        self._held[job.id] = held
        self._train(job, held, done, paid_s)

    def take_over(self, job: JobState, row: int, now_s: float) -> None:
        """The job was there before the replay began; what it holds is paid for."""
        if job.samples_done(now_s) > 0:
            self._trained.add(job.id)
            self.follow_regimes(job, now_s)
        if job.gpus:
            self.begin(job, row, math.nan, job.samples_done(now_s), now_s)

    def leave(self, job_id: str, now_s: float) -> RunningJob | None:
        """The job's allocation ends; if it was still being paid for, only that much was paid.

        Returns None if it held nothing.
        """
        if job_id not in self._held:
            return None
        self._agenda.unplan(job_id)
        held = self._drop(job_id)
        if held.paid_s > now_s:
            self._log.set_overhead_s(held.row, now_s - held.held_since_s)
            return held
        if held.paid_s < now_s:
            self._trained.add(job_id)
        if held.trains_since_s > now_s:  # it stood still, and leaves before that is over
            self._log.set_overhead_s(held.row, held.overhead_s - (held.trains_since_s - now_s))
        return held

    def stop_all(self, seconds: float, now_s: float, but: Container[str]) -> None:
        """All jobs but these stand still for that long from now on, which counts as overhead."""
        for job_id, held in self._held.items():
            if job_id in but:
                continue
            job = self._session.jobs[job_id]
            since_s, until_s = max(now_s, held.trains_since_s), now_s + seconds
            if since_s >= until_s:
                continue
            held.saved_samples = self._saved_samples(job, held, now_s)
            job.settle(now_s)
            held.overhead_s += until_s - since_s
            self._log.set_overhead_s(held.row, held.overhead_s)
            self._train(job, held, job.samples_done(now_s), until_s)

    def finish(self, job_id: str) -> float:
        """Forget a job that has done its work; returns the samples that it trained."""
        self._trained.discard(job_id)
        return self._drop(job_id).goal

    def next_segment(self, job_id: str, now_s: float) -> None:
        """A segment has ended: what it led to is reached, and the next begins."""
        job, held = self._session.jobs[job_id], self._held[job_id]
        held.saved_samples = self._saved_samples(job, held, now_s)
        job.settle(now_s)
        job.report_progress(now_s, held.goal)
        if held.epoch_end is not None:
            job.epochs = with_end(job.epochs, held.epoch_end)
        if self.follow_regimes(job, now_s):
            held.speed = job.samples_per_second
            self._session.allocator.slowed.pop(job_id, None)
        job.train_from(now_s, held.speed)
        self._train(job, held, job.samples_done(now_s), now_s)

    def follow_regimes(self, job: JobState, now_s: float) -> bool:
        """Give a job that changes its batch by itself that of its progress; returns whether it changed."""
        if not job.spec.batch.regimes:
            return False
        done = job.samples_done(now_s)
        batch, _ = regime(job, done)
        if batch in (None, job.reference_batch):
            return False
        self._session.take_batch(job.id, batch, done, now_s)
        self._log.add(now_s, "progress", job.id, gpus=job.log_gpus, global_batch=batch, samples_done=done)
        return True

    def saved_samples(self, now_s: float) -> dict[str, float]:
        jobs = self._session.jobs
        return {job_id: self._saved_samples(jobs[job_id], held, now_s) for job_id, held in self._held.items()}

    def apply_interference(self, now_s: float) -> None:
        """Change the speed of jobs that gained or lost a neighbour on their GPUs or their network link."""
        slowed = self._session.allocator.slowed
        for job_id, rate in slowed.items():
            if (held := self._held.get(job_id)) is not None:
                held.speed = rate
        changed = self._interference.changed() if self._interference is not None else ()
        for job_id in sorted({*changed, *slowed} & self._held.keys()) if slowed else changed:
            job, held = self._session.jobs[job_id], self._held[job_id]
            held.saved_samples = self._saved_samples(job, held, now_s)
            job.settle(now_s)
            job.train_from(now_s, held.speed)
            self._train(job, held, job.samples_done(now_s), max(now_s, held.paid_s))
        slowed.clear()

    def _drop(self, job_id: str) -> RunningJob:
        if self._interference is not None:
            self._interference.place(job_id, ())
        return self._held.pop(job_id)

    def _train(self, job: JobState, held: RunningJob, done: float, from_s: float) -> None:
        """The job, which has done so many samples, trains from ``from_s`` on; plan the end of that."""
        if self._is_plain and not job.spec.batch.regimes:  # it trains at one rate to its end
            held.rate = rate = job.samples_per_second
            held.trains_since_s, held.done, end = from_s, done, job.work_samples
            held.goal = goal = math.inf if end is None else end
            job.train_from(from_s, rate)
            if rate > 0 and (end_s := from_s + (goal - done) / rate) < math.inf:
                self._agenda.plan(end_s, FINISH, job.id)
            return
        factor = 1.0 if self._interference is None else self._interference.speed_factor(job.id)
        segment = self._progress.segment(job, done, factor)
        rate, until, trajectory, _, _, epoch_end = segment
        held.rate, held.trains_since_s, held.done = rate, from_s, done
        held.trajectory, held.epoch_end = trajectory, epoch_end
        if self._simulated.measured:
            self._measure(job, segment, factor, from_s)
        goal = end = self._end_samples(job, done)
        if until is not None and until < goal:
            goal = until
        if job.spec.batch.regimes and (until := regime(job, done)[1]) is not None:
            goal = min(goal, until)
        held.goal = goal
        if trajectory is not None:
            job.train_from(from_s, rate, trajectory)
            end_s = from_s + trajectory.seconds
            late = trajectory.is_late(end_s)
        else:
            job.train_from(from_s, rate)
            if rate <= 0:
                return
            end_s, late = self._segment_end(from_s, (goal - done) / rate, self._interval_s)
        if end_s < math.inf:
            kind = FINISH if goal == end else SEGMENT_END
            self._agenda.plan(end_s, kind + LATE_FINISH if late else kind, job.id)

    def _end_samples(self, job: JobState, done: float) -> float:
        """Progress at which the job ends if it goes on like this; policies with an oracle see it."""
        end = self._progress.end_samples(job, done)
        if self._reveals_work:
            job.reveal_work(end)
        return math.inf if end is None else end

    def _measure(self, job: JobState, segment: Segment, speed_factor: float, time_s: float) -> None:
        """Let the job learn from the segment what a real job would learn from its own steps."""
        if segment.noise_scale is not None:
            job.noise_scale = segment.noise_scale
        observation = segment.observation or self._observation(job, job.samples_per_second * speed_factor)
        if observation is not None:
            self._session.observe(job, observation, time_s)

    def _observation(self, job: JobState, speed: float) -> Observation | None:
        """The step that the throughput model gives. None if the job does not train, or states no batch."""
        plan = self._session.cluster.training_speeds.batch_plan(job)
        if plan is None or speed <= 0:
            return None
        shape = tuple(sorted((count for _, count in job.placement), reverse=True))
        return Observation(shape, plan.local, plan.accum, job.global_batch / speed, None, job.gpu_type)

    def _saved_samples(self, job: JobState, held: RunningJob, now_s: float) -> float:
        """Progress at the job's last checkpoint; a job saves itself before its GPUs change, too."""
        saved_s = last_checkpoint_s(job.spec, held.paid_s, now_s)
        if saved_s < held.trains_since_s:
            return held.saved_samples
        if held.trajectory is not None:
            return held.trajectory.samples_done(held.trains_since_s, saved_s)
        done = held.done + (saved_s - held.trains_since_s) * held.rate
        return done if job.work_samples is None else min(done, job.work_samples)


@dataclass(slots=True)
class RunningJob:
    """What one job holds, and the segment of progress in which it is."""

    row: int
    held_since_s: float
    speed: float
    """Samples per second that the throughput model gives, which every segment begins from."""
    paid_s: float
    """When its start or change is paid for and it begins to train; checkpoints count from then."""
    saved_samples: float
    """Progress at the last checkpoint before the present segment."""
    overhead_s: float
    """What ``row`` says; NaN: nothing."""
    trains_since_s: float = math.inf
    done: float = 0.0
    """Progress there, in samples."""
    trajectory: Trajectory | None = None
    """The line of progress in it; None: straight."""
    rate: float = 0.0
    goal: float = math.inf
    """Progress at which this segment ends, in samples."""
    epoch_end: EpochEnd | None = None


AgendaEntry = tuple[float, int, str, int]
"""One thing to come: its time in seconds, its kind, the id of its job or the name of its node, and the number
of the plan that it belongs to; 0: of none. An entry whose plan no longer holds is void. Plain tuples, for
they are compared and taken apart more than anything else."""


class Agenda:
    """Entries in order. Void ones are dropped when they come up, so that a change of plan costs one push."""

    def __init__(self) -> None:
        self._heap: list[AgendaEntry] = []
        # When the first entry is, void or not: nothing is due before.
        self.first_s = math.inf
        self._plans: dict[str, int] = {}
        self._version = 0

    def add(self, time_s: float, kind: int, subject: str) -> None:
        heappush(self._heap, (time_s, kind, subject, 0))
        self.first_s = self._heap[0][0]

    def plan(self, time_s: float, kind: int, job_id: str) -> None:
        """Replace what was planned for the job by its next event."""
        self._version = self._plans[job_id] = version = self._version + 1
        heappush(self._heap, (time_s, kind, job_id, version))
        self.first_s = min(self.first_s, time_s)

    def unplan(self, job_id: str) -> None:
        self._plans.pop(job_id, None)

    def next_s(self) -> float:
        heap, plans = self._heap, self._plans
        while heap:
            time_s, _, subject, version = heap[0]
            if not version or plans.get(subject) == version:
                self.first_s = time_s
                return time_s
            heappop(heap)
        self.first_s = math.inf
        return math.inf

    def pop(self, time_s: float, last_kind: int = NODE_UP) -> AgendaEntry | None:
        """Take the next entry if it is due at ``time_s`` and of a kind up to ``last_kind``.

        Completions may be early by a rounding error.
        """
        due_s = self.next_s()
        if due_s > time_s * ONE_MOMENT:
            return None
        heap = self._heap
        kind = heap[0][1]
        if kind > last_kind or (due_s > time_s and kind > SEGMENT_END):
            return None
        entry = heappop(heap)
        self.first_s = heap[0][0] if heap else math.inf
        if entry[3]:
            del self._plans[entry[2]]
        return entry


class RoundTimes:
    """Multiples of an interval, counted from time 0 so that no rounding error adds up."""

    def __init__(self, interval_s: float, first: int = 0) -> None:
        self._interval_s = interval_s
        self._next = first

    def next_s(self, now_s: float) -> float:
        """The first round that is not before ``now_s`` and comes after the last that was held."""
        return self._number(now_s) * self._interval_s

    def hold(self, now_s: float) -> None:
        self._next = self._number(now_s) + 1

    def _number(self, now_s: float) -> int:
        number = math.floor(now_s / self._interval_s)
        while number * self._interval_s < now_s:
            number += 1
        return max(self._next, number)
