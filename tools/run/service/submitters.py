"""Whose the jobs of a run are that several accounts share."""

from __future__ import annotations

from pliant.schemas.errors import BadInputError
from pliant.tools.run.backends.credentials import Credentials, ProcessLimits
from pliant.tools.run.statedir.log.fold import RunLog


class Submitters:
    """The accounts that jobs run as: those that the log says.

    :param root: whether jobs of root run, too; such a job can do anything to the others.
    """

    def __init__(self, limits: ProcessLimits, *, root: bool = False) -> None:
        self.log = RunLog()
        self._limits, self._root = limits, root

    def of(self, job_id: str) -> Credentials:
        """The account of a job; one without is root's.

        :raises BadInputError: it is root's, and such jobs are refused.
        """
        job = self.log.jobs.get(job_id)
        uid = 0 if job is None or job.uid is None else job.uid
        if uid == 0 and not self._root:
            raise BadInputError("root's jobs do not run here: submit it as its user (--allow-root-jobs)")
        return Credentials.of(uid, self._limits)
