"""The policy's part of a run: when it is asked, and what follows from its answer.

Times are on the clock of the schedule. A policy that fails ends no service: what runs stays as it is, and the
policy is asked again later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from pliant.schemas.errors import InfeasibleError, PliantError, ServiceMissingError
from pliant.schemas.schedule import Schedule
from pliant.tools.run.statedir.log.fold import Share, shares_of
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
    """What it took."""
    shares: Mapping[str, Share]
    """What each job shall hold; jobs that the answer does not change keep what they have."""
    rejected: tuple[tuple[str, str], ...]
    """Jobs that are turned away, with the reasons."""


class Decisions:
    """A session and its policy.

    :param asked_s: when the policy was asked last.
    :param forgiving: an error of the policy is said, and what runs goes on; else it is raised.
    """

    def __init__(self, session: Session, asked_s: float, *, forgiving: bool) -> None:
        self.session = session
        self.asked_s = asked_s
        self._forgiving = forgiving
        self.idle_limit = IdleLimit()
        """Counts decisions after which jobs are there, none runs and none is to come."""
        self._forecasts = ForecastLog()
        self._said: set[str] = set()
        """Errors of the policy since it has answered last: each is said once."""

    def ask_at_s(self) -> float:
        """When the policy wants to be asked though nothing happens."""
        session, interval_s = self.session, self.session.policy.default_interval_s
        next_s = float("inf")
        if interval_s is not None and session.jobs:
            quiet_until_s = float("-inf") if session.changes else session.quiet_until_s
            next_s = max(self.asked_s + interval_s, quiet_until_s)
        wishes = (session.withheld.next_s, session.ask_again_s)
        return min([next_s, *(wish for wish in wishes if wish is not None and wish > self.asked_s)])

    def decide(self, now_s: float, held: Mapping[str, Share], prepare: Callable[[Decided], T]) -> T | str:
        """Ask the policy; returns what follows from its answer, or why it had none that can be used.

        :param held: what jobs hold now, and go on to hold where it fails.
        :param prepare: makes of an answer what is to be recorded and done; an answer for which it fails
            cannot be used.
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
            reason = self._say(error, _GOES_ON)
            self._put_back(held, now_s)
            self.session.turned_away.update(_rejected(done))
            return reason
        self._said.clear()
        return found

    def _decided(
        self, done: Sequence[Transition], seconds: float, now_s: float, held: Mapping[str, Share]
    ) -> Decided:
        schedule = self.schedule_of(done, now_s)
        given = shares_of(schedule)
        changed = {transition.job.id for transition in done}
        shares = {
            job_id: _beside(given[job_id].beside, share) if job_id in given else share
            for job_id, share in held.items()
            if job_id not in changed
        }
        shares |= {job_id: share for job_id, share in given.items() if job_id in changed}
        return Decided(schedule, seconds, shares, _rejected(done))

    def forecasts(self, now_s: float) -> dict[str, Any]:
        """What is predicted of jobs whose turn it is to be noted, by id."""
        return {job.id: detail["progress"] for job, detail in self._forecasts.due(self.session, now_s)}

    def admissions(self, origin_s: float) -> dict[str, dict[str, Any]]:
        """What the policy has said of jobs that it admitted or rejected, by id; times on the log's clock."""
        return {
            job_id: {name: value + origin_s if name == "end_s" else value for name, value in said.items()}
            for job_id, said in self.session.admissions.items()
        }

    def schedule_of(self, done: Iterable[Transition], now_s: float) -> Schedule:
        """The session as a schedule; what the policy cannot say of it is left out."""
        return schedule_of(self.session, done, now_s, forgive=lambda error: self._say(error, _LEFT_OUT))

    def check_hope(self) -> None:
        """Call it where jobs are there, none runs and none is to come.

        :raises InfeasibleError: the policy leaves them waiting for good.
        """
        if self.idle_limit.is_reached or self.ask_at_s() == float("inf"):
            left = sorted(self.session.in_play.values(), key=lambda job: job.arrival)
            name = self.session.policy.name
            raise InfeasibleError("; ".join(f'job "{job.id}" is left: {why_left(name, job)}' for job in left))

    def _say(self, error: Exception, what_follows: str) -> str:
        """Say an error of the policy, once until it answers; returns it in one line that names the policy.

        :raises Exception: the error itself, where memory, the disk or another service is at fault.
        """
        if isinstance(error, _NOT_ITS_FAULT):
            raise error
        text = str(error).partition("\n")[0] if isinstance(error, PliantError) else in_words(error)
        reason = text if isinstance(error, PolicyError) else f'policy "{self.session.policy.name}": {text}'
        if reason not in self._said:
            _log.warning("%s; %s", reason, what_follows)
            _log.debug("%s", reason, exc_info=error)
        self._said.add(reason)
        return reason

    def _put_back(self, held: Mapping[str, Share], now_s: float) -> None:
        """Undo what a decision that came to nothing has changed: jobs hold what they held."""
        changed: list[Holding] = []
        for job in self.session.jobs.values():
            share = held.get(job.id)
            place, batch, beside = (
                (share.placement, share.global_batch, share.beside) if share is not None else ((), None, None)
            )
            wanted = (place, batch or job.global_batch, beside)
            if (job.placement, job.global_batch, job.beside) != wanted:
                changed.append(Holding(job.id, place, batch, job.servers, beside))
        self.session.put_back(changed, now_s)


def _rejected(done: Iterable[Transition]) -> tuple[tuple[str, str], ...]:
    return tuple((one.job.id, one.reason) for one in done if one.step == "reject")


def _beside(other: str | None, share: Share) -> Share:
    """What a job keeps, beside this other one."""
    return share if share.beside == other else replace(share, beside=other)
