"""A policy that fails ends no service: what runs stays as it is, and the policy is asked again later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from pliant.schemas.errors import PliantError, ServiceMissingError
from pliant.tools.run.statedir.share import Share
from pliant.tools.schedule.policy_error import PolicyError, in_words
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.session.transitions import Holding

_NOT_ITS_FAULT: Final = (MemoryError, ServiceMissingError)
_log = logging.getLogger("pliant")


class PolicyFaults:
    """The errors of one policy; each is said once, until the policy has answered again."""

    def __init__(self, policy: str) -> None:
        self._policy = policy
        self._said: set[str] = set()

    def of(self, error: Exception, what_follows: str) -> str:
        """Say an error and what follows from it; returns it in one line that names the policy.

        :raises Exception: the error itself, where memory, the disk or another service is at fault.
        """
        if isinstance(error, _NOT_ITS_FAULT):
            raise error
        text = str(error).partition("\n")[0] if isinstance(error, PliantError) else in_words(error)
        told = text if isinstance(error, PolicyError) else f'policy "{self._policy}": {text}'
        if told not in self._said:
            _log.warning("%s; %s", told, what_follows)
            _log.debug("%s", told, exc_info=error)
        self._said.add(told)
        return told

    def answered(self) -> None:
        """The policy has decided: a further error is said again."""
        self._said.clear()


def put_back(session: Session, shares: Mapping[str, Share], time_s: float) -> None:
    """Undo what a decision that came to nothing has changed: jobs hold what they held."""
    changed: list[Holding] = []
    for job in session.jobs.values():
        share = shares.get(job.id)
        place, batch = (share.placement, share.global_batch) if share is not None else ((), None)
        if (job.placement, job.global_batch) != (place, batch or job.global_batch):
            changed.append(Holding(job.id, place, batch))
    session.put_back(changed, time_s)
