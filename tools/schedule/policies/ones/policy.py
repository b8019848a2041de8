"""ONES: online evolutionary search for batch sizes and GPUs.

"Online Evolutionary Batch Size Orchestration for Scheduling Deep Learning Workloads in GPU Clusters" (SC
'21), sections 3.2 and 3.3.2. :mod:`search` has the evolutionary operators, :mod:`population` what is carried
from decision to decision, :mod:`limits` the limit R of each batch.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import numpy as np

from pliant.schemas.errors import UsageError
from pliant.schemas.text import in_gpus
from pliant.tools.schedule.forecast import WorkForecast
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import minimum_alone, pools, reject_impossible
from pliant.tools.schedule.policies.ones.limits import (
    ArrivalRate,
    BatchLimit,
    BatchLimits,
    EpochRule,
    SizeTables,
)
from pliant.tools.schedule.policies.ones.population import Effort, JobFacts, SearchedJobs, Searches
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Target, Traits
from pliant.tools.schedule.snapshot import Snapshot

_QUIET_UPDATES: Final = 16
"""Updates in a row in which nothing came from outside and no job waits, after which there are no more."""


class Ones(Policy):
    """Smallest remaining utilization first, by evolution: GPUs and batches that end most work soonest.

    ONES (SC '21), sections 3.2 and 3.3.2. A population of genomes, which say for each GPU which job it
    works for, evolves by refresh, uniform crossover, uniform mutation and reorder towards the least sum
    of remaining time times GPUs over the running jobs. Unstated work is drawn from predicted progress,
    one draw for all genomes. No running job changes before it has done an epoch since its last change. A
    job begins on its smallest size with a batch that fits it, doubles its batch after a few steps until
    it has that with which it was submitted, then after each epoch, up to its largest. It gives way to
    waiting jobs if it holds much of the cluster and has run longer than jobs take to arrive; if it lost
    its GPUs, it asks for half as much after each update that leaves it waiting. Its learning rate
    follows its batch.

    Departures from the paper, the first three by defaults of parameters: the best genome takes effect
    for each job that has done an epoch, not once all have (``update``); below its submitted batch a job
    doubles after 10 steps (``below_submitted``); only long jobs that hold half of their type while
    others wait are scaled down (``convoy``). A decision makes 2 generations; the paper prints no number.
    Half of the mutated and crossed genomes fill idle GPUs at random. The predicted Beta distribution is
    widened as far as ended jobs show it to be too narrow. After 16 quiet updates with no waiting job
    there are none until something happens. Idle GPUs go to waiting jobs between updates. No job gets
    more GPUs than those on which it is fastest. Fewer idle GPUs count before the score. Each GPU type is
    searched by itself; of a long queue only the first take part, as many as the type has GPUs.

    population: genomes kept; fewer where the cluster has fewer GPUs, down to 16.
    generations: made for each decision; 32 for the first one, less if the best genome stays.
    time_budget_s: seconds in which each decision makes as many generations as it can, instead of a
    number of them; what is decided then depends on the machine.
    theta: rate at which a mutation takes a job's GPUs.
    sigma: how fast long jobs are scaled down, per second; none: the mean rate of arrivals.
    convoy: part of the GPUs of its type that a job holds if others wait behind it: only such jobs are
    scaled down; 0: all are.
    update: "each": the best genome takes effect at every decision, for the jobs that have done an epoch
    since their last change; "all": once all running jobs have.
    warmup_steps: optimizer steps before the first growth, and before each one below the submitted batch.
    below_submitted: what a job waits for before it changes while its batch is smaller than submitted:
    "steps", those of its warm-up, if no job waits for GPUs; "epochs", one, as above that batch.
    idle_gpus: "start": GPUs that no job holds go to waiting jobs at once; "hold": with the next update.
    unknown_epoch_s: seconds that stand for an epoch of a job whose epochs are not known.
    longest_epoch_s: seconds after which an epoch counts as done; none: no limit, and updates wait for
    the slowest job.
    """

    name: ClassVar[str] = "ones"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        elasticity="size+batch",
        priority_means="jobs of higher priority that are new get their first GPUs first",
        uses_forecast=True,
        decides_at_epochs=True,
        rebuilds_state=False,
        clock_parameters=frozenset({"time_budget_s"}),
    )

    def __init__(
        self,
        *,
        population: int = 64,
        generations: int = 2,
        time_budget_s: float | None = None,
        theta: float = 0.3,
        sigma: float | None = None,
        convoy: float = 0.5,
        update: Literal["each", "all"] = "each",
        warmup_steps: int = 10,
        below_submitted: Literal["steps", "epochs"] = "steps",
        idle_gpus: Literal["start", "hold"] = "start",
        unknown_epoch_s: float = 60.0,
        longest_epoch_s: float | None = None,
    ) -> None:
        self.population = population
        self.generations = generations
        self.time_budget_s = time_budget_s
        self.theta = theta
        self.sigma = sigma
        self.convoy = convoy
        self.update = update
        self.warmup_steps = warmup_steps
        self.below_submitted = below_submitted
        self.idle_gpus = idle_gpus
        self.unknown_epoch_s = unknown_epoch_s
        self.longest_epoch_s = longest_epoch_s
        self._check()
        # Drawn once; every decision then has a stream of its own, whatever came before.
        self._seed: int | None = None
        self._decisions = 0
        # Decisions in a row in which nothing came from outside.
        self._quiet = 0
        self._rate = ArrivalRate()
        epochs = EpochRule(unknown_epoch_s, longest_epoch_s)
        self._limits = BatchLimits(epochs, warmup_steps, by_epochs=below_submitted == "epochs")
        self._searches = Searches(Effort(population, generations, time_budget_s, theta))
        self._tables: SizeTables | None = None
        self._reasons = Reasons()

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        if self._seed is None:
            self._seed = int(rng.integers(2**53))
        self._decisions += 1
        self._quiet = 0 if snapshot.changes else self._quiet + 1
        stream = np.random.default_rng([self._seed, self._decisions])
        self._follow(snapshot)
        decision = Decision(rejected=reject_impossible(snapshot, minimum_alone))
        late = self._holding_back(snapshot)
        groups = self._members(snapshot, decision.rejected)
        self._searches.generations = 0
        for members in groups:
            if not late:
                part = members.without(self._not_yet(snapshot))
                if part is not None and not part.settled:
                    decision.targets |= part.targets(self._searches.best(part, stream, len(groups)))
                continue
            self._searches.best(members, stream, len(groups))
            part = members.without({job.id for job in members.jobs if job.gpus})
            if part is not None and self.idle_gpus == "start":
                decision.targets |= part.targets(self._searches.alone(part, stream))
        settle_s = self._take_effect(snapshot, decision, groups, late)
        decision.ask_again_s = self._next_s(snapshot, decision, settle_s)
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        self._reasons.generations = None if self.time_budget_s is None else self._searches.generations
        if any(job.id not in self._limits for job in snapshot.jobs.values()):
            return {}  # it has not decided since they came
        explanations: dict[str, Explanation] = {}
        for members in self._members(snapshot, ()):
            explanations |= self._reasons.of(members, self._limits, _bands(members, snapshot))
        return explanations

    def look_ahead(self) -> None:
        self._searches.ahead = True

    def dump_state(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "decisions": self._decisions,
            "quiet": self._quiet,
            "generations": self._searches.generations,
            "arrivals": self._rate.dump(),
            "limits": self._limits.dump(),
            "populations": self._searches.dump(),
        }

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._seed, self._decisions, self._quiet = state["seed"], state["decisions"], state["quiet"]
        self._searches.generations = state["generations"]
        self._rate.load(state["arrivals"])
        self._limits.load(state["limits"])
        self._searches.load(state["populations"])
        self._tables = None

    # What is known.

    def _follow(self, snapshot: Snapshot) -> None:
        tables = self._tables_for(snapshot)
        for change in snapshot.changes:
            if change.kind == "arrived":
                self._rate.count(change.time_s)
            if change.ended_job is not None:
                self._limits.forget(change.ended_job.id)
                tables.forget(change.ended_job.id)
                self._reasons.forget(change.ended_job.id)
        rate = self._rate.per_second if self.sigma is None else self.sigma
        in_the_way = self._in_the_way(snapshot)
        self._limits.follow(snapshot.jobs, snapshot.speeds, snapshot.time_s, rate, in_the_way)

    def _in_the_way(self, snapshot: Snapshot) -> set[str]:
        """Jobs that others wait behind: they hold much of the cluster while some hold nothing."""
        jobs = snapshot.jobs.values()
        if all(job.gpus for job in jobs):
            return set()
        least = {kind: self.convoy * gpus for kind, gpus in snapshot.gpus_by_type().items()}
        return {job.id for job in jobs if job.gpus and job.gpus >= least.get(job.gpu_type or "", 0.0)}

    def _not_yet(self, snapshot: Snapshot) -> set[str]:
        """Jobs that run and have not done an epoch since their last change: they keep what they have."""
        now_s = snapshot.time_s
        running = (job for job in snapshot.jobs.values() if job.gpus)
        return {job.id for job in running if self._limits.may_change_s(job, now_s) > now_s}

    def _holding_back(self, snapshot: Snapshot) -> list[str]:
        """Those of them for which the next update waits: all that the last one left as it would find them."""
        if self.update == "each":
            return []
        return [job_id for job_id in sorted(self._not_yet(snapshot)) if not self._limits[job_id].between]

    def _tables_for(self, snapshot: Snapshot) -> SizeTables:
        if self._tables is None or self._tables.speeds is not snapshot.speeds:
            self._tables = SizeTables(snapshot.speeds)
        return self._tables

    def _members(self, snapshot: Snapshot, without: Container[str]) -> list[SearchedJobs]:
        forecast = WorkForecast() if snapshot.forecast is None else snapshot.forecast
        known = JobFacts(self._tables_for(snapshot), self._limits, forecast)
        return [SearchedJobs.of(pool, jobs, snapshot, known) for pool, jobs in pools(snapshot, without)]

    # What follows.

    def _take_effect(
        self, snapshot: Snapshot, decision: Decision, groups: Sequence[SearchedJobs], late: Sequence[str]
    ) -> dict[str, float]:
        """Write down what changes; returns in how many seconds each changing job may change again.

        That is 0 for jobs that lose their GPUs.
        """
        self._reasons.late = late
        self._limits.queue = any(_waits(job, decision) for job in snapshot.jobs.values())
        settle_s: dict[str, float] = {}
        for members in groups:
            for row, job in enumerate(members.jobs):
                target = decision.targets.get(job.id)
                if target is not None:
                    self._reasons.changed(job, target, self._limits[job.id])
                    settle_s[job.id] = 0.0
                    if target.gpus:
                        batch, rate = target.global_batch or job.global_batch, members.rate(row, target.gpus)
                        settle_s[job.id] = self._limits.settles_s(job, batch, rate)
                        self._limits.changed(job, snapshot.time_s, between=bool(late))
                    else:
                        self._limits.preempted(job, snapshot.time_s)
                elif not (job.gpus or late or job.first_start_s is None):
                    self._limits.refused(job, snapshot.time_s)
        return settle_s

    def _next_s(self, snapshot: Snapshot, decision: Decision, settle_s: Mapping[str, float]) -> float | None:
        """When the next update may be: jobs that then run have done an epoch since their last change."""
        now_s, limits = snapshot.time_s, self._limits
        jobs = [job for job in snapshot.jobs.values() if job.id not in decision.rejected]
        running = [job for job in jobs if settle_s.get(job.id, float(job.gpus))]
        if not running or (self._quiet >= _QUIET_UPDATES and len(running) == len(jobs)):
            return None
        ends = {
            job.id: now_s + settle_s[job.id] if job.id in settle_s else limits.may_change_s(job, now_s)
            for job in running
        }
        ahead = [end_s for job_id, end_s in ends.items() if end_s > now_s and not limits[job_id].between]
        if self.update == "each" or not ahead:
            epochs = (
                end_s if end_s > now_s else limits.next_epoch_s(snapshot.jobs[job_id], now_s)
                for job_id, end_s in ends.items()
            )
            next_s = min((end_s for end_s in epochs if end_s > now_s), default=math.inf)
        else:
            next_s = max(ahead)
        return next_s if next_s < math.inf else None

    def _check(self) -> None:
        positive = {"time_budget_s": 0.0, "sigma": 0.0, "unknown_epoch_s": 1e-3, "longest_epoch_s": 1e-3}
        least = {"population": 1, "generations": 1, "theta": 0.0, "convoy": 0.0, **positive}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise UsageError(f'policy "{self.name}": {name} {value:g} is below {low:g}')
        for name in ("theta", "convoy"):
            if getattr(self, name) > 1:
                raise UsageError(f'policy "{self.name}": {name} {getattr(self, name):g} is above 1')


def _waits(job: JobState, decision: Decision) -> bool:
    """Whether the job holds nothing once the decision is carried out, though it could."""
    target = decision.targets.get(job.id)
    return job.id not in decision.rejected and not (job.gpus if target is None else target.gpus)


def _bands(members: SearchedJobs, snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    """The 90 % interval of the progress of jobs that state no work."""
    jobs = [job for job in members.jobs if job.remaining_samples(snapshot.time_s) is None]
    if not jobs or snapshot.forecast is None:
        return {}
    low, high = snapshot.forecast.band(jobs, snapshot.time_s)
    bands = zip(low.tolist(), high.tolist(), strict=True)
    return {job.id: band for job, band in zip(jobs, bands, strict=True)}


_LESS: Final = "jobs with less remaining utilization, or new ones, have the GPUs"


class Reasons:
    """What was decided of each job, in words."""

    def __init__(self) -> None:
        # How many the last decision took, where that is worth saying.
        self.generations: int | None = None
        # Jobs that hold the next update back.
        self.late: Sequence[str] = ()
        self._last: dict[str, str] = {}

    def forget(self, job_id: str) -> None:
        self._last.pop(job_id, None)

    def changed(self, job: JobState, target: Target, limit: BatchLimit) -> None:
        """A job gets a target; it still holds what it held before."""
        self._last[job.id] = _of_change(job, target, limit)

    def of(
        self, members: SearchedJobs, limits: BatchLimits, bands: Mapping[str, tuple[float, float]]
    ) -> dict[str, Explanation]:
        """:param bands: 90 % intervals of predicted progress."""
        explanations: dict[str, Explanation] = {}
        remaining = members.problem.work.expected().tolist()
        for row, job in enumerate(members.jobs):
            said = [self._clause(job, limits[job.id])]
            gpus = job.gpus or int(members.problem.sizes.most[row])
            if gpus < len(members.rows[row].utilization) and not job.is_speed_guessed:
                score = remaining[row] * members.rows[row].utilization[gpus]
                at = "" if job.gpus else f" on {in_gpus(gpus)}"
                said += [f"score {score:.0f} GPU-s{at}"] if math.isfinite(score) else []
            said.append(_progress(members, row, remaining[row], bands.get(job.id)))
            if self.generations is not None:
                said.append(f"best after {self.generations} generations")
            explanations[job.id] = Explanation("; ".join(said), None if job.gpus else job.min_gpus)
        return explanations

    def _clause(self, job: JobState, limit: BatchLimit) -> str:
        if job.gpus:
            return self._last.get(job.id, f"keeps {in_gpus(job.gpus)}")
        if self.late:
            more = len(self.late) - 1
            others = f" and {more} more have" if more else " has"
            return f'waits for an update, once "{self.late[0]}"{others} done an epoch'
        if limit.rule == "start":
            return f"waits: {_LESS}"
        halved = ", halved while it waits" if limit.rule == "refused" else ""
        return f"waits to resume with a limit of {limit.samples}{halved}: {_LESS}"


def _of_change(job: JobState, target: Target, limit: BatchLimit) -> str:
    if not target.gpus:
        return f"gave up {in_gpus(job.gpus)}: {_LESS}"
    batch = target.global_batch or job.global_batch
    now = f"{in_gpus(target.gpus)}, batch {batch}"
    if not job.gpus:
        verb = "started" if job.first_start_s is None else "resumed"
        return f"{verb} on {now} within its limit of {limit.samples}"
    if target.gpus > job.gpus:
        return f"grew from {job.gpus} to {now}: its limit after an epoch is {limit.samples}"
    if target.gpus == job.gpus:
        return f"batch {job.global_batch} to {batch} on {in_gpus(job.gpus)}: its limit is {limit.samples}"
    if limit.rule == "scale-down":
        why = f"it has run {limit.executed_s:.0f} s, longer than jobs take to arrive, and others wait"
    else:
        why = "others have less remaining utilization"
    return f"shrank from {job.gpus} to {now}: {why}"


def _progress(members: SearchedJobs, row: int, remaining: float, band: tuple[float, float] | None) -> str:
    work, total = members.problem.work, members.jobs[row].total_samples
    if band is None:
        return f"{1 - remaining / total:.0%} done" if total else "its work is not known"
    mean = work.alpha[row] / (work.alpha[row] + work.beta[row])
    return f"predicted to be {mean:.0%} done (90%: {band[0]:.0%} to {band[1]:.0%})"
