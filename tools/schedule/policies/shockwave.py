"""Shockwave: Nash welfare of all jobs over the rounds of a window, by an integer program that looks ahead.

:func:`remaining_s` predicts what is left of a job that changes its batch by itself; :func:`best_rounds`
chooses how many rounds of the window each job trains; :func:`dealt` says which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
from scipy.sparse import coo_array

from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policies.common import (
    Contention,
    GpuBudget,
    Grant,
    decision_from_grants,
    explain_gang,
    reject_impossible,
    samples_to_go,
    trained_s,
)
from pliant.tools.schedule.policies.solver import solved
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Traits

if TYPE_CHECKING:
    from pliant.tools.schedule.rates import Speeds
    from pliant.tools.schedule.snapshot import Snapshot

ROUND_S: Final = 120.0
_LEAST_PROGRESS: Final = 1e-3
"""Progress of a job that has not trained, so that its utility is finite."""
_MOST_WEIGHT: Final = 1e4
_CROWD: Final = 4
"""Jobs that together request this many times the GPUs take part in a window, those of most weight first."""
_GAP: Final = 1e-3
"""Relative gap to the bound at which the search ends, as in the artifact."""
_NODES: Final = 200
"""Nodes of the search tree at most. A limit of time would make decisions depend on the machine."""


class MarketJob(NamedTuple):
    """A job as a window sees it."""

    job_id: str
    gpus: int
    trained_s: float
    """Seconds that its work so far takes on the requested GPUs."""
    remaining_s: float
    """Seconds that the rest is predicted to take there."""
    rho: float
    """Predicted finish-time fairness."""
    holds: bool

    def progress(self, more_s: float) -> float:
        return min(1.0, (self.trained_s + more_s) / (self.trained_s + self.remaining_s))


class Window(NamedTuple):
    """What is planned at once."""

    gpus: int
    rounds: int
    round_s: float


class Shockwave(Policy):
    """Fairness and makespan over a window of rounds: an integer program on predicted batches and speeds.

    Shockwave (NSDI '23): a volatile Fisher market, whose equilibrium maximises the Nash welfare over
    time. A window of ``rounds`` rounds of 120 s is planned whenever a job has arrived, ended or changed
    its batch, and where a window ends. Its program chooses the rounds of each job. It maximises the mean
    of ρ^``power`` times the logarithm of the job's progress at the end of the window, less ``restraint``
    times the seconds that the rest then needs at least. ρ is the predicted finish-time fairness against
    the mean share of the GPUs, at least 1. In each round, jobs that need all rounds left of the window
    come first, then those of largest ρ. Idle GPUs go to other jobs by ρ. Preemptive; jobs get what they
    requested.

    Of a job that changes its batch by itself, the policy knows which batches it may take and not when.
    Their parts of the work have a Dirichlet prior with equal parameters. By the restatement rule,
    batches that the job left count as it trained on them, and the rest is parted evenly among the
    present batch and those to come.

    Departures from the paper: the program has an integer for the rounds of each job instead of a binary
    for each round, and gangs are dealt to rounds afterwards; one that finds no place loses the round.
    The logarithm is exact at whole rounds. Progress counts in predicted time. The search ends at a gap
    of 0.1% or after 200 nodes, not after a time. ρ^power is at most 10,000. Of more jobs than request
    four times the GPUs, those of most weight take part. GPU types count with their mean speed. A job of
    unknown work is expected to be half done.

    round_s: seconds between decisions; change it together with ``--interval``.
    rounds: of a window. This, ``power`` and ``restraint`` are those of the artifact's configuration for
    32 GPUs.
    """

    name: ClassVar[str] = "shockwave"
    traits: ClassVar[Traits] = Traits(
        knows="profile",
        priority_means="",
        default_interval_s=ROUND_S,
        rebuilds_state=False,
    )

    def __init__(
        self, round_s: float = ROUND_S, rounds: int = 20, power: float = 12.0, restraint: float = 1e-3
    ) -> None:
        if round_s <= 0:
            raise ValueError("parameter round_s: expected a number above 0")
        if not 1 <= rounds <= 1000:
            raise ValueError("parameter rounds: expected 1 to 1000")
        if not 0 <= power <= 100:
            raise ValueError("parameter power: expected 0 to 100")
        if restraint < 0:
            raise ValueError("parameter restraint: expected 0 or more")
        self.round_s = round_s
        self.rounds = rounds
        self.power = power
        self.restraint = restraint
        self._contention = Contention()
        self._planned_s = -math.inf
        # Rounds of the window in which each job trains.
        self._plan: dict[str, list[int]] = {}

    def decide(self, snapshot: Snapshot, rng: np.random.Generator) -> Decision:
        self._contention.follow(snapshot.changes, snapshot.time_s)
        rejected = reject_impossible(snapshot)
        prospects = self._prospects(snapshot, rejected)
        if snapshot.changes or self._round(snapshot.time_s) >= self.rounds:
            self._plan = self._planned(prospects, snapshot.total_gpus)
            self._planned_s = snapshot.time_s
        now = self._round(snapshot.time_s)
        planned = [each for each in prospects if now in self._plan.get(each.job_id, ())]
        others = [each for each in prospects if now not in self._plan.get(each.job_id, ())]
        budget, grants = GpuBudget(snapshot.gpus_by_type()), dict[str, Grant]()
        for each in (*planned, *sorted(others, key=lambda each: not each.holds)):
            grant = budget.fit(snapshot.jobs[each.job_id], each.gpus, snapshot.speeds)
            if grant is not None:
                budget.take(grant)
                grants[each.job_id] = grant
        decision = decision_from_grants(snapshot, grants, rejected)
        if len(grants) == len(prospects):
            decision.quiet_until_s = math.inf
        return decision

    def explain(self, snapshot: Snapshot) -> dict[str, Explanation]:
        explanations = {}
        for each in self._prospects(snapshot, {}):
            rounds = len(self._plan.get(each.job_id, ()))
            reason = (
                f"finish-time fairness {each.rho:.2f} as predicted, {rounds} of {self.rounds} rounds planned"
            )
            explanations[each.job_id] = explain_gang(snapshot.jobs[each.job_id], reason)
        return explanations

    def dump_state(self) -> Any:
        planned_s = None if self._planned_s == -math.inf else self._planned_s
        return {"planned_s": planned_s, "plan": self._plan, "contention": self._contention.dump()}

    def load_state(self, state: Any, jobs: Mapping[str, JobState]) -> None:
        self._planned_s = -math.inf if state["planned_s"] is None else state["planned_s"]
        self._plan = {job_id: list(rounds) for job_id, rounds in state["plan"].items()}
        self._contention = Contention.load(state["contention"])

    def _round(self, time_s: float) -> float:
        """The round of the window that begins at that time; infinite before the first window."""
        passed = (time_s - self._planned_s) / self.round_s
        return passed if passed == math.inf else math.floor(passed + 1e-9)

    def _prospects(self, snapshot: Snapshot, rejected: Mapping[str, str]) -> list[MarketJob]:
        """The jobs that may train, those of largest ρ first."""
        prospects = []
        for job in snapshot.jobs.values():
            each = None if job.id in rejected else self._prospect(job, snapshot)
            if each is not None:
                prospects.append((-each.rho, job.arrival, each))
        return [each for _, _, each in sorted(prospects, key=lambda entry: entry[:2])]

    def _prospect(self, job: JobState, snapshot: Snapshot) -> MarketJob | None:
        stake = self._contention.stake(job, snapshot, self.round_s)
        if stake is None:
            return None
        left_s = remaining_s(
            job, samples_to_go(job, snapshot, self.round_s), snapshot.time_s, snapshot.speeds
        )
        trained = trained_s(job, snapshot.time_s, snapshot.speeds)
        share = min(1.0, snapshot.total_gpus / self._contention.average(job.id)) or 1.0
        rho = (stake.elapsed_s + left_s / share) * share / (trained + left_s)
        return MarketJob(job.id, job.requested, trained, left_s, round(rho, 6), job.gpus > 0)

    def _planned(self, prospects: Sequence[MarketJob], gpus: int) -> dict[str, list[int]]:
        members: list[MarketJob] = []
        taken = 0
        for each in prospects:
            taken += each.gpus
            if each.gpus <= gpus and (taken <= _CROWD * gpus or not members):
                members.append(each)
        weights = [min(_MOST_WEIGHT, max(1.0, each.rho) ** self.power) for each in members]
        window = Window(gpus, self.rounds, self.round_s)
        return dealt(members, best_rounds(members, weights, window, self.restraint), window)


# What a job still needs.


def remaining_s(job: JobState, samples: float, time_s: float, speeds: Speeds) -> float:
    """Seconds that the last ``samples`` of a job are predicted to take on the requested GPUs."""
    gpus = job.requested
    parts = predicted_batches(job, samples, time_s)
    present = speeds.rate(job, gpus)
    return sum(
        part / (speeds.rate(job, gpus, global_batch=batch) or present) for batch, part in parts.items()
    )


def predicted_batches(job: JobState, samples: float, time_s: float) -> dict[int, float]:
    """How many of the last ``samples`` each batch is expected to train, by the restatement rule."""
    left_behind = {job.spec.batch.size, *(change.batch for change in job.batch_changes)}
    coming = sorted({regime.size for regime in job.spec.batch.regimes} - left_behind)
    begun = job.batch_changes[-1].samples_done if job.batch_changes else 0.0
    on_present = max(0.0, job.samples_done(time_s) - begun)
    share = (on_present + samples) / (1 + len(coming))
    here = max(0.0, share - on_present) if coming else samples
    return {job.reference_batch: here} | {batch: (samples - here) / len(coming) for batch in coming}


# The window.


def best_rounds(
    members: Sequence[MarketJob], weights: Sequence[float], window: Window, restraint: float
) -> list[int]:
    """How many rounds of the window each job trains: the integer program.

    Variables are, one job after the other, the parts y of each round that it may use, then the number n of
    its rounds, and last the seconds H that the rest needs at least. Utilities are concave, so parts fill up
    in order, and n is integer.
    """
    if not members:
        return []
    gpus, rounds, round_s = window
    usable = [min(rounds, math.ceil(each.remaining_s / round_s)) for each in members]
    gains = [
        weight * math.log(_utility(each, (k + 1) * round_s) / _utility(each, k * round_s)) / len(members)
        for each, weight, most in zip(members, weights, usable, strict=True)
        for k in range(most)
    ]
    count, parts = len(members), len(gains)
    owner = np.repeat(np.arange(count), usable)
    sizes = np.array([each.gpus for each in members], dtype=float)
    left_s = np.array([each.remaining_s for each in members])
    rest = parts + count
    every = np.arange(count)
    # rows: n = sum of y; GPUs; the rest of each job, and of all
    rows = [owner, every, np.full(count, count), count + 1 + every, count + 1 + every]
    columns = [np.arange(parts), parts + every, parts + every, parts + every, np.full(count, rest)]
    values = [np.ones(parts), -np.ones(count), sizes, np.full(count, round_s), np.ones(count)]
    rows += [np.full(count, 2 * count + 1), np.array([2 * count + 1])]
    columns += [parts + every, np.array([rest])]
    values += [sizes * round_s / gpus, np.ones(1)]
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(2 * count + 2, rest + 1),
    )
    low = np.concatenate([np.zeros(count), [-np.inf], left_s, [float(sizes @ left_s) / gpus]])
    high = np.concatenate([np.zeros(count), [gpus * rounds], np.full(count + 1, np.inf)])
    solution = solved(
        np.concatenate([-np.array(gains), np.zeros(count), [restraint]]),
        *(matrix.tocsc(), low, high),
        whole=np.repeat([0, 1, 0], [parts, count, 1]),
        most=np.concatenate([np.ones(parts), usable, [np.inf]]),
        mip_rel_gap=_GAP,
        node_limit=_NODES,
    )
    if (
        solution.x is None
    ):  # not even a feasible point within the nodes: in order, as many as there is room for
        return usable
    return [round(number) for number in solution.x[parts:rest]]


def _utility(each: MarketJob, more_s: float) -> float:
    return max(_LEAST_PROGRESS, each.progress(more_s))


def dealt(members: Sequence[MarketJob], counts: Sequence[int], window: Window) -> dict[str, list[int]]:
    """The rounds of each job: first jobs that need every round that is left, then those of largest ρ.

    A job that is to train in all rounds would lose the early ones, which are filled first, and a window is
    often planned again before the late ones. Where a gang finds too few rounds with room, it gets those that
    there are.
    """
    rounds_by_job: dict[str, list[int]] = {}
    needs = list(counts)
    for number in range(window.rounds):
        free, left = window.gpus, window.rounds - number
        order = sorted((i for i, need in enumerate(needs) if need), key=lambda i: (needs[i] < left, i))
        for index in order:
            each = members[index]
            if each.gpus <= free:
                free -= each.gpus
                needs[index] -= 1
                rounds_by_job.setdefault(each.job_id, []).append(number)
    return rounds_by_job
