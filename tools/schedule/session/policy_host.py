"""The policy as a session asks it: what it sees, its answers, its state and what it predicts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pliant.tools.schedule.forecast import Demand, WorkForecast
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.policy import Decision, Explanation, Policy, Reserved, blame, blaming
from pliant.tools.schedule.session.admission import Admission
from pliant.tools.schedule.session.changes import SessionChanges, make
from pliant.tools.schedule.session.cluster import ClusterNodes
from pliant.tools.schedule.session.rules import RuleBook
from pliant.tools.schedule.snapshot import Change, Snapshot

if TYPE_CHECKING:
    import numpy as np

    from pliant.schemas.job import Job
    from pliant.schemas.schedule import ForecastState, PolicyState, TeamStanding
    from pliant.tools.schedule.session.team_quota import TeamQuota
    from pliant.tools.schedule.snapshot import Oracle


class PolicyHost:
    """One policy, or one for each owner where teams share the cluster; they are asked as one."""

    def __init__(
        self,
        policy: Policy,
        cluster: ClusterNodes,
        admission: Admission,
        changes: SessionChanges,
        *,
        quota: TeamQuota | None,
        rng: np.random.Generator,
        oracle: Oracle | None,
        forecast: WorkForecast,
        demand: Demand,
        trace: Sequence[Job],
    ) -> None:
        self.policy = policy
        # The policy's only source of randomness.
        self.rng = rng
        self.oracle = oracle if policy.traits.uses_oracle else None
        self.forecast = forecast
        self.demand = demand
        self.rules = RuleBook(policy, cluster.nodes, cluster.speeds)
        # Jobs of the trace that have not arrived.
        self.future = {job.id: job for job in trace if not job.on_cpus} if policy.traits.needs_future else {}
        self._cluster = cluster
        self._admission = admission
        self._changes = changes
        self._quota = quota
        self._asked: Policy | TeamQuota = policy if quota is None else quota
        # Changes that `forecast` has learned from.
        self._learned = 0

    # What it sees and answers.

    def snapshot(self, time_s: float) -> Snapshot:
        """What the policy would see now."""
        cluster, free, future = self._cluster, self._cluster.free, self.future
        return make(
            Snapshot,
            (
                time_s,
                cluster.nodes,
                self._admission.visible_jobs,
                cluster.speeds,
                tuple(self._changes.entries),
                cluster.up_gpus,
                free.by_type,
                free,
                self.oracle,
                self.forecast,
                tuple(future.values()) if future else (),
            ),
        )

    def decide(self, seen: Snapshot, asked: Policy | TeamQuota | None = None) -> Decision:
        """Ask the policy, or a copy of it.

        :raises PolicyError: it does not answer with a decision.
        """
        try:
            decision = (asked or self._asked).decide(seen, self.rng)
        except (Exception, SystemExit) as error:
            blame(type(self.policy), error)
            raise
        self.rules.check_form(decision)
        return decision

    def copied(self, shared: Sequence[object]) -> Policy | TeamQuota:
        """The policy as it is now; it shares these objects, and what belongs to the session."""
        cluster = self._cluster
        parts = (cluster.spec, cluster.speeds, cluster.capacities, cluster.free, self.forecast, self.oracle)
        kept = (*parts, cluster.nodes, *cluster.nodes, *self.future.values(), *shared)
        return copy.deepcopy(self._asked, {id(thing): thing for thing in kept})

    def explain(self, time_s: float) -> Mapping[str, Explanation]:
        """Why each active job holds what it holds; ask after ``decide``.

        :raises PolicyError: the policy of another package raised an exception, or returned something else.
        """
        seen = self.snapshot(self._cluster.at(time_s))
        with blaming(type(self.policy)):
            explanations = self._asked.explain(seen)
        self.rules.check_explained(explanations)
        return explanations

    def reserved(self, time_s: float) -> Mapping[str, Sequence[Reserved]]:
        """What jobs are to hold later, as the policy has planned it; ask after ``decide``."""
        seen = self.snapshot(self._cluster.at(time_s))
        with blaming(type(self.policy)):
            return self._asked.reserved(seen)

    def standings(self, time_s: float) -> tuple[TeamStanding, ...]:
        """How teams stand after a decision; none where the cluster is one pool."""
        if self._quota is None:
            return ()
        return self._quota.standings(self._admission.visible_jobs.values(), time_s)

    def look_ahead(self) -> None:
        """The policy of this copy may decide with less effort."""
        self._asked.look_ahead()

    # Predictions.

    @property
    def learns(self) -> bool:
        """Whether the forecast is used, and so learns from jobs that finish."""
        return self.demand == "predicted" or self.policy.traits.uses_forecast

    def foresee(self, time_s: float) -> None:
        """Learn from what has changed, and predict the work of jobs that do not state it."""
        self._learn_from(self._changes.entries, self._changes.seen)
        if self.demand == "predicted" and not self.policy.traits.uses_forecast:
            self.forecast.foresee(self._admission.visible_jobs.values(), time_s)

    def _learn_from(self, changes: Sequence[Change], first: int) -> None:
        """Learn from jobs that finished; ``first`` is the number of changes before these."""
        new = changes[max(0, self._learned - first) :]
        finished = [change.job for change in new if change.kind == "finished" and change.job is not None]
        self._learned = max(self._learned, first + len(changes))
        self.forecast.learn(finished)

    def predict(self, demand: Demand, state: ForecastState | None) -> None:
        """Set how the work of jobs is predicted; call it before :meth:`restore_state`."""
        self.demand = demand
        if state is not None:
            self.forecast, self._learned = WorkForecast(state.predictor), state.changes_seen

    def forecast_state(self) -> ForecastState | None:
        """The predictor for the next call in another process; None if none is used."""
        if not self.learns:
            return None
        from pliant.schemas.schedule import ForecastState

        return ForecastState(changes_seen=self._learned, predictor=self.forecast.document())

    # State.

    def policy_state(self) -> PolicyState:
        """What the policy needs at its next call in another process."""
        from pliant.schemas.schedule import PolicyState

        with blaming(type(self.policy)):
            state = self._asked.dump_state()
        return PolicyState(
            policy=self.policy.name,
            version=self._state_version,
            changes_seen=self._changes.seen,
            state=state,
        )

    @property
    def _state_version(self) -> int:
        """Parts keep their states in another form."""
        return self.policy.state_version + (0 if self._quota is None else self._quota.state_version)

    def restore_state(self, saved: PolicyState | None, jobs: Mapping[str, JobState]) -> bool:
        """Let a fresh policy resume from a saved state: it then sees only later changes.

        Returns False, and shows the policy all of the history, if the state is empty, another policy's,
        of another version, or newer than this session.
        """
        log = self._changes
        past, entries, before = log.past, log.entries, log.state.before
        fits = (
            saved is not None
            and saved.state is not None
            and (saved.policy, saved.version) == (self.policy.name, self._state_version)
            and saved.changes_seen <= before + len(past) + len(entries)
        )
        if self.learns:
            self._learn_from([*past, *entries], before)
        seen = max(0, saved.changes_seen - before) if fits and saved is not None else 0
        if self._quota is not None and fits and saved is not None and not self._quota.has_states(saved.state):
            seen = 0  # its policies rebuild what they need from the whole history
        log.entries = [*past[seen:], *entries[max(0, seen - len(past)) :]]
        log.past, log.seen = (), before
        if fits and saved is not None:
            with blaming(type(self.policy)):
                self._asked.load_state(saved.state, jobs)
            log.seen = before + seen
        return fits


def lazy_rng(seed: int) -> np.random.Generator:
    """``np.random.default_rng(seed)``, made when the first number is drawn.

    Most policies draw none, and importing NumPy takes longer than their decisions.
    """
    return cast("np.random.Generator", _LazyRng(seed))


class _LazyRng:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: np.random.Generator | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copying and pickling ask for such
            raise AttributeError(name)
        if self._made is None:
            import numpy as np

            self._made = np.random.default_rng(self._seed)
        return getattr(self._made, name)
