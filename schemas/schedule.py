"""The ``schedule`` kind: one decision, complete enough to be executed from this file alone (JSON)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pliant.schemas.cluster import Cluster
from pliant.schemas.file_io.record import (
    MOST_GPUS,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Record,
    broken_rule,
)
from pliant.schemas.job import Gpus, Job
from pliant.schemas.predictor import Predictor
from pliant.schemas.text import counted, in_gpus

Action = Literal["start", "keep", "grow", "shrink", "move", "preempt", "resume"]
Cut = tuple[int | None, int, float]
"""How workers divide a step: (global batch, None if the script says; micro-steps; learning-rate scale)."""


class BatchPlan(Record):
    """How a global batch is cut up: ``global = Σ over workers of local × accum``, exactly.

    Where the division leaves a rest, ``local`` is the largest share; other workers have one sample less.
    """

    global_: PositiveInt = Field(alias="global")
    local: PositiveInt
    accum: PositiveInt = 1


class Reservation(Record):
    """What a job is to hold in a span of time to come."""

    from_: NonNegativeFloat = Field(alias="from")
    """Seconds, on the clock of the schedule."""
    until: NonNegativeFloat
    gpus: PositiveInt
    placement: tuple[tuple[str, PositiveInt], ...] = ()
    servers: tuple[tuple[str, PositiveInt], ...] = ()
    """(node name, parameter servers on it)."""


class Allocation(Record):
    """What one job holds from now on. ``gpus`` 0 (action preempt): it holds nothing."""

    job: str
    gpus: Annotated[int, Field(ge=0, le=MOST_GPUS)]
    placement: tuple[tuple[str, PositiveInt], ...] = ()
    """(node name, GPUs on it), in the order of the nodes."""
    servers: tuple[tuple[str, PositiveInt], ...] = ()
    """(node name, parameter servers on it)."""
    batch: BatchPlan | None = None
    lr_scale: PositiveFloat = 1.0
    action: Action
    reason: str = ""
    beside: str | None = None
    """The job that trains on the same GPUs at the same time; both have one placement. Null: it is alone."""
    predicted_end: NonNegativeFloat | None = None
    """When it ends at this size and its speed, seconds (with --explain)."""
    reserved: tuple[Reservation, ...] = ()
    """What it is to hold later, where the policy plans that."""

    @property
    def cut(self) -> Cut:
        batch = self.batch
        return (None, 1, self.lr_scale) if batch is None else (batch.global_, batch.accum, self.lr_scale)

    @model_validator(mode="after")
    def _placement_adds_up(self) -> Self:
        placed = sum(count for _, count in self.placement)
        if self.placement and placed != self.gpus:
            text = f"places {placed} GPUs, expected {self.gpus} as in gpus"
            raise broken_rule(text, "/placement")
        return self

    @model_validator(mode="after")
    def _preempted_holds_nothing(self) -> Self:
        if self.action == "preempt" and self.gpus:
            text = f"is {self.gpus:,} in a preemption, expected 0"
            raise broken_rule(text, "/gpus")
        return self

    def size_problem(self, job: Gpus) -> tuple[str, str] | None:
        """Why this is no size of its job, or the batch is not that of its workers, and where; or None.

        :param job: the sizes of its job.
        """
        per_replica = job.per_replica
        if self.gpus % per_replica:
            text = f"is {self.gpus:,}, expected a multiple of gpus.per_replica {per_replica} of its job"
            return text, "/gpus"
        if self.gpus and not job.allows(self.gpus):
            return f"is {self.gpus:,}, expected one of gpus.sizes of its job", "/gpus"
        workers = job.replicas(self.gpus)
        of = in_gpus(workers) if per_replica == 1 else counted(workers, "replica")
        return None if self.batch is None else _batch_problem(self.batch, workers, of)


def _batch_problem(batch: BatchPlan, workers: int, of: str) -> tuple[str, str] | None:
    """Why the shares of the workers do not add up to the global batch, and its pointer."""
    if batch.global_ < workers or not workers:
        return f"is {batch.global_:,} for {of}, expected a sample for each", "/batch/global"
    share = -(-batch.global_ // workers)
    local = -(-share // batch.accum)
    if batch.accum > share or batch.local != local:
        cut = f"{batch.local:,} samples in each of {counted(batch.accum, 'micro-step')} on {of}"
        return f"{cut} do not add up to the global batch of {batch.global_:,}", "/batch"
    return None


class Verdict(Record):
    """Why a job waits or was rejected."""

    job: str
    reason: str
    needs_gpus: PositiveInt | None = None
    """The fewest GPUs it would start with (with --explain)."""
    predicted_start: NonNegativeFloat | None = None
    """When it would start if nothing else arrived, seconds (with --explain)."""
    reserved: tuple[Reservation, ...] = ()
    """What it is to hold, where the policy plans that."""


class PolicyUse(Record):
    """Which policy decided, and with what."""

    name: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    seed: NonNegativeInt = 0


class PolicyState(Record):
    """What a policy carries from one call to the next; opaque to all others."""

    policy: str
    version: PositiveInt = 1
    changes_seen: NonNegativeInt = 0
    """How many changes of the log (arrivals, completions, node changes) this state has absorbed."""
    state: Any = None


class TeamStanding(Record):
    """How one team, or one user of a team that weighs its users, stands right after a decision."""

    team: str
    user: str = ""
    """Empty: all of the team."""
    own: NonNegativeFloat
    """GPUs that are its part if every team could use all: what it holds beyond them is borrowed."""
    entitled: NonNegativeInt
    """GPUs that it was entitled to, as jobs and usage were."""
    held: NonNegativeInt
    borrowed: NonNegativeInt = 0
    lent: NonNegativeFloat = 0.0
    """GPUs of its own that others hold."""
    waiting_jobs: NonNegativeInt = 0
    waiting_gpus: NonNegativeInt = 0
    """GPUs that these jobs need at least."""
    usage_gpu_hours: NonNegativeFloat = 0.0
    """Used so far; halves with the half-life of the cluster's ``shares``."""


class ForecastState(Record):
    """What predicts the work of jobs, as it goes from one decision to the next."""

    changes_seen: NonNegativeInt = 0
    """How many changes of the log it has learned from."""
    predictor: Predictor


class Schedule(Record):
    """One decision of one policy at one time."""

    schema_: Literal["pliant.schedule/1"] = Field(default="pliant.schedule/1", alias="schema")
    time: NonNegativeFloat
    policy: PolicyUse
    allocations: tuple[Allocation, ...] = ()
    waiting: tuple[Verdict, ...] = ()
    rejected: tuple[Verdict, ...] = ()
    cluster: Cluster
    jobs: tuple[Job, ...] = ()
    """Every job that is not finished, future arrivals and those just rejected included."""
    profile: dict[str, list[Any]] | None = None
    """The profile's rows as columns, so that ``run`` can ask the policy again from this file alone."""
    policy_state: PolicyState | None = None
    demand: Literal["stated", "predicted"] = "stated"
    """What the policy sees of jobs that state no work: nothing, or a prediction."""
    forecast: ForecastState | None = None
    """Null: the policy does not ask for predictions."""
    decision_seconds: NonNegativeFloat | None = None
    teams: tuple[TeamStanding, ...] = ()
    """Where teams share the cluster, how they stand."""

    def given(self) -> list[Allocation]:
        """The allocations that hold something."""
        return [allocation for allocation in self.allocations if allocation.gpus]

    @property
    def minor(self) -> int:
        """10 as cluster 4 and job 8, 9 as job 7, 8 where jobs change their batch, 7 where they have certain
        sizes only, 6 where they have weights or the cluster has what only its newest version has, 5 where
        replicas have several GPUs or jobs are resized by a relaunch, 4 where jobs train on data of unknown
        size, 3 where they have more than GPUs or share them, 2 where work is predicted, else its cluster's.
        """
        newest = max((job.minor for job in self.jobs), default=0)
        if self.cluster.minor > 3:
            return 10
        if self.cluster.minor > 2:
            return max(6, newest + 2)
        if newest > 1:
            return newest + 2
        if self.cluster.minor > 1 or newest:
            return 3
        if any(given.servers or given.reserved or given.beside for given in self.allocations):
            return 3
        if any(verdict.reserved for verdict in self.waiting):
            return 3
        predicts = self.forecast is not None or self.demand != "stated"
        return 2 if predicts else self.cluster.minor

    @model_validator(mode="after")
    def _jobs_are_unique(self) -> Self:
        _refuse_twice("allocations", [allocation.job for allocation in self.allocations], "job")
        _refuse_twice("waiting", [verdict.job for verdict in self.waiting], "job")
        _refuse_twice("rejected", [verdict.job for verdict in self.rejected], "job")
        _refuse_twice("jobs", [job.id for job in self.jobs], "id")
        return self

    @model_validator(mode="after")
    def _sizes_and_batches_add_up(self) -> Self:
        sizes = {job.id: job.gpus for job in self.jobs}
        for index, given in enumerate(self.allocations):
            problem = given.size_problem(sizes.get(given.job, Gpus()))
            if problem is not None:
                raise broken_rule(problem[0], f"/allocations/{index}{problem[1]}")
        return self

    @model_validator(mode="after")
    def _rigid_jobs_get_what_they_asked_for(self) -> Self:
        asked = {job.id: job.gpus.requested for job in self.jobs if job.elastic == "none"}
        for index, given in enumerate(self.allocations):
            requested = asked.get(given.job)
            if requested is not None and given.gpus not in (0, requested or 1):
                text = f'is {given.gpus:,}, but job "{given.job}" is not elastic, expected {requested:,} or 0'
                raise broken_rule(text, f"/allocations/{index}/gpus")
        return self

    @model_validator(mode="after")
    def _pairs_agree(self) -> Self:
        if all(given.beside is None for given in self.allocations):
            return self
        held = {given.job: given for given in self.allocations}
        for index, given in enumerate(self.allocations):
            if given.beside is None:
                continue
            other = held.get(given.beside)
            if other is None or other is given or other.beside != given.job:
                text = f'is "{given.beside}", expected a job that holds the same GPUs beside this one'
                raise broken_rule(text, f"/allocations/{index}/beside")
            if not given.gpus or sorted(other.placement) != sorted(given.placement):
                text = f'differs from that of "{given.beside}", expected the same GPUs'
                raise broken_rule(text, f"/allocations/{index}/placement")
        return self


def _refuse_twice(field: str, ids: list[str], key: str) -> None:
    seen: set[str] = set()
    for index, job_id in enumerate(ids):
        if job_id in seen:
            text = f'"{job_id}" is used twice, expected each job once'
            raise broken_rule(text, f"/{field}/{index}/{key}")
        seen.add(job_id)
