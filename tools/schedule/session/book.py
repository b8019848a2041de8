"""The jobs of a session: active and ended ones, and how each record is made from its specification."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.event import End
from pliant.schemas.job import Job
from pliant.schemas.job_table import JobForm
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.jobs import JobKind, JobState
from pliant.tools.schedule.session.cluster import ClusterNodes
from pliant.tools.schedule.session.part import SessionPart

_MOST_FORMS: Final = 4096
"""Forms of jobs of which a job is kept."""


@dataclass(slots=True)
class BookState:
    """What the records of jobs do not say."""

    outcomes: dict[str, End] = field(default_factory=dict)
    """Jobs that have ended without having finished, and how."""
    rejections: dict[str, str] = field(default_factory=dict)
    """Jobs rejected without a decision of the policy, and why, until the log has them."""
    archived: dict[str, tuple[End, str | None]] = field(default_factory=dict)
    """How jobs that the log has no longer ended, and their arrays, where others start after them."""


class JobBook(SessionPart[BookState]):
    """Active jobs in order of submission, and ended ones."""

    def __init__(self, cluster: ClusterNodes) -> None:
        self.state = BookState()
        self.active: dict[str, JobState] = {}
        self.ended: MutableMapping[str, JobState] = {}
        self._cluster = cluster
        # By form the first job that arrived, of forms whose jobs keep their batch and nothing limits.
        self._alike: dict[JobForm, JobState] = {}

    @property
    def outcomes(self) -> dict[str, End]:
        """Jobs that have ended without having finished, and how."""
        return self.state.outcomes

    @property
    def rejections(self) -> dict[str, str]:
        """Jobs rejected without a decision of the policy, and why, until the log has them."""
        return self.state.rejections

    def outcome(self, job_id: str) -> End | None:
        """How a job has ended. Returns None if it has not, or is to come."""
        if job_id in self.ended:
            return self.state.outcomes.get(job_id, "finished")
        return self.state.archived[job_id][0] if job_id in self.state.archived else None

    def array_of(self, job_id: str) -> str | None:
        """The array of a job. Returns None if it is of none, or no longer known."""
        if job_id in self.state.archived:
            return self.state.archived[job_id][1]
        with suppress(LookupError):
            array = (self.active.get(job_id) or self.ended[job_id]).spec.array
            return None if array is None else array.name
        return None

    def forget(self, job_ids: Iterable[str], archived: Mapping[str, tuple[End, str | None]]) -> None:
        """Jobs that ended long ago are known no more, except for what others were to wait for."""
        for job_id in job_ids:
            self.ended.pop(job_id, None)
            self.state.outcomes.pop(job_id, None)
        self.state.archived = dict(archived)

    def alike(self, job: Job) -> JobState | None:
        """An earlier job of the same form, which waited for nothing."""
        form: JobForm | None = job.__dict__.get("form")
        alike = None if form is None or self._cluster.spec.reservations else self._alike.get(form)
        if alike is not None and self._cluster.capacities.constraint_of(job) is not None:  # by its label
            return None
        return alike

    def remember(self, state: JobState) -> None:
        """Later jobs of the same form may take over what was computed for this one."""
        form: JobForm | None = state.spec.__dict__.get("form")
        if form is None or len(self._alike) >= _MOST_FORMS:
            return
        if state.room is None and state.requested and not state.spec.batch.regimes:
            self._alike[form] = state

    def renew_kinds(self, models: Container[str]) -> None:
        """The speeds of these models have changed: what was derived from them is derived again."""
        JobKind.renew(models)
        for state in (*self.active.values(), *self._alike.values()):
            if state.spec.model in models:
                state.kind = None

    def state_of(self, job: Job, alike: JobState | None = None) -> JobState:
        """The record of a job that arrives.

        :raises BadInputError: the model is not profiled and its work cannot be known without.
        """
        state = job_state(job, self._cluster.training_speeds, alike)
        if self._cluster.training_speeds is not self._cluster.speeds and not job.on_cpus:
            state.is_speed_guessed = self._cluster.speeds.is_guess(job.model)
        if alike is None:
            self._limit_room(state, job)
        return state

    def confine(self, state: JobState, names: frozenset[str]) -> None:
        """Keep a job from nodes, and from no others any more."""
        self._cluster.confined.pop(state.id, None)
        if names:
            self._cluster.confined[state.id] = names
        spec = self._cluster.where(state)
        if not state.requested:
            return
        state.types = self._cluster.speeds.types_of(spec)
        state.limit_room(None)
        state.room_now = state.room_by_node = None
        state.barred, state.any_node = (), True
        self._limit_room(state, spec)

    def _limit_room(self, state: JobState, spec: Job) -> None:
        if not state.requested or not (state.takes_room or state.types is not None):
            return
        room = self._cluster.capacities.room_for(spec)
        state.limit_room(room.by_type)
        state.barred = room.barred
        if state.barred or state.takes_room:
            state.any_node, state.room_by_node = False, room.by_node
        self._cluster.update_room([state])

    def state_as(self, spec: Job) -> JobState | None:
        """What a job becomes that asks for something else; None: it makes no sense on this cluster."""
        try:
            return self.state_of(self._cluster.capacities.without_what_never_fits(spec))
        except (BadInputError, ArithmeticError):  # it was checked when it was ordered, on the cluster then
            return None


class DepartedJobs(MutableMapping[str, JobState]):
    """Jobs that have ended, in a replay that needs no more of them than this: their states are forgotten."""

    def __init__(self, awaited: Collection[str] = ()) -> None:
        """:param awaited: jobs that others start after; of the rest not even their end is kept."""
        self._awaited = awaited
        self._ids: set[str] = set()
        # Of all these jobs together.
        self.moves = 0

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._ids

    def __setitem__(self, job_id: str, job: JobState) -> None:
        if job_id in self._awaited:
            self._ids.add(job_id)
        self.moves += job.moves

    def __getitem__(self, job_id: str) -> JobState:
        """:raises LookupError: always."""
        raise LookupError(job_id)

    def __delitem__(self, job_id: str) -> None:
        self._ids.remove(job_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
