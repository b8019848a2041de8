"""The policy's part of a run: when it is asked, and what follows from its answer.

Times are on the clock of the schedule. A policy that fails ends no service: what runs stays as it is, and
the policy is asked again later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pliant.schemas.errors import InfeasibleError, PliantError, ServiceMissingError
from pliant.schemas.schedule import Allocation, Schedule
from pliant.tools.schedule.decide import schedule_of
from pliant.tools.schedule.policy import PolicyError, in_words
from pliant.tools.schedule.session.holdings import Holding, Transition
from pliant.tools.schedule.session.session import ForecastLog, IdleLimit, Session, why_left

T = TypeVar("T")
_NOT_ITS_FAULT: Final = (MemoryError, ServiceMissingError)
_LEFT_OUT: Final = "the schedule does without what it would have said"
_GOES_ON: Final = "what runs goes on as it is; the policy is asked again when something happens"
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Decided:
    """An answer of the policy."""

    schedule: Schedule
    seconds: float
    """How long the policy took."""
    wanted: Mapping[str, Allocation]
    """What each job shall hold, by id, unchanged jobs included."""
    rejected: tuple[tuple[str, str], ...]
    """Jobs that are turned away, with the reasons."""


class Decisions:
    """A session and its policy.

    :param asked_s: when the policy was asked last.
    :param forgiving: report an error of the policy and let what runs go on; otherwise raise it.
    """

    def __init__(self, session: Session, asked_s: float, *, forgiving: bool) -> None:
        self.session = session
        self.asked_s = asked_s
        self._forgiving = forgiving
        self.idle_limit = IdleLimit()
        """Counts decisions after which jobs are there, none runs and none is to come."""
        self._forecasts = ForecastLog()
        self._reported: set[str] = set()
        """Errors of the policy since its last answer: each is reported once."""

    def ask_at_s(self) -> float:
        """When the policy is asked next if nothing happens."""
        session, interval_s = self.session, self.session.policy.default_interval_s
        next_s = float("inf")
        if interval_s is not None and session.jobs:
            quiet_until_s = float("-inf") if session.changes else session.quiet_until_s
            next_s = max(self.asked_s + interval_s, quiet_until_s)
        wishes = (session.withheld.next_s, session.ask_again_s)
        return min([next_s, *(wish for wish in wishes if wish is not None and wish > self.asked_s)])

    def decide(
        self, now_s: float, held: Mapping[str, Allocation], prepare: Callable[[Decided], T]
    ) -> T | str:
        """Ask the policy; returns what follows from its answer, or why that cannot be used.

        :param held: what jobs hold now, and keep if it fails.
        :param prepare: turns an answer into what is to be recorded and done, or fails if it cannot be used.
        """
        self.asked_s = now_s
        done: Sequence[Transition] = ()
        try:
            began = time.perf_counter()
            done = self.session.decide(now_s)
            seconds = time.perf_counter() - began
            found = prepare(self._decided(done, seconds, now_s, held))
        except Exception as error:
            if not self._forgiving:
                raise
            reason = self._report(error, _GOES_ON)
            self._put_back(held, now_s)
            self.session.turned_away.update(_rejected(done))
            return reason
        self._reported.clear()
        return found

    def _decided(
        self, done: Sequence[Transition], seconds: float, now_s: float, held: Mapping[str, Allocation]
    ) -> Decided:
        schedule = self.schedule_of(done, now_s)
        given = {allocation.job: allocation for allocation in schedule.given()}
        changed = {transition.job.id for transition in done}
        wanted = {
            job_id: _beside(given[job_id].beside, allocation) if job_id in given else allocation
            for job_id, allocation in held.items()
            if job_id not in changed
        }
        wanted |= {job_id: allocation for job_id, allocation in given.items() if job_id in changed}
        return Decided(schedule, seconds, wanted, _rejected(done))

    def forecasts(self, now_s: float) -> dict[str, Any]:
        """The predictions that are due to be logged, by job id."""
        return {job.id: detail["progress"] for job, detail in self._forecasts.due(self.session, now_s)}

    def admissions(self, origin_s: float) -> dict[str, dict[str, Any]]:
        """What the policy said of jobs that it admitted or rejected, by id; times on the log's clock."""
        return {
            job_id: {name: value + origin_s if name == "end_s" else value for name, value in said.items()}
            for job_id, said in self.session.admissions.items()
        }

    def schedule_of(self, done: Iterable[Transition], now_s: float) -> Schedule:
        return schedule_of(self.session, done, now_s, forgive=lambda error: self._report(error, _LEFT_OUT))

    def check_hope(self) -> None:
        """:raises InfeasibleError: jobs wait, none runs or is to come, and the policy leaves them waiting."""
        if self.idle_limit.is_reached or self.ask_at_s() == float("inf"):
            left = sorted(self.session.in_play.values(), key=lambda job: job.arrival)
            name = self.session.policy.name
            raise InfeasibleError("; ".join(f'job "{job.id}" is left: {why_left(name, job)}' for job in left))

    def _report(self, error: Exception, what_follows: str) -> str:
        """Report an error of the policy, once until its next answer; returns it in one line.

        :raises Exception: the error itself, if memory, the disk or another service is at fault.
        """
        if isinstance(error, _NOT_ITS_FAULT):
            raise error
        text = str(error).partition("\n")[0] if isinstance(error, PliantError) else in_words(error)
        reason = text if isinstance(error, PolicyError) else f'policy "{self.session.policy.name}": {text}'
        if reason not in self._reported:
            _log.warning("%s; %s", reason, what_follows)
            _log.debug("%s", reason, exc_info=error)
        self._reported.add(reason)
        return reason

    def _put_back(self, held: Mapping[str, Allocation], now_s: float) -> None:
        """Undo a decision that came to nothing: jobs hold what they held."""
        changed: list[Holding] = []
        for job in self.session.jobs.values():
            before = held.get(job.id)
            place, batch, beside = (
                ((), None, None) if before is None else (before.placement, before.cut[0], before.beside)
            )
            wanted = (place, batch or job.global_batch, beside)
            if (job.placement, job.global_batch, job.beside) != wanted:
                changed.append(Holding(job.id, place, batch, job.servers, beside))
        self.session.put_back(changed, now_s)


def _rejected(done: Iterable[Transition]) -> tuple[tuple[str, str], ...]:
    return tuple((one.job.id, one.reason) for one in done if one.step == "reject")


def _beside(other: str | None, held: Allocation) -> Allocation:
    return held if held.beside == other else held.model_copy(update={"beside": other})
