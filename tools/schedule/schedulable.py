"""Whether a job can be taken up: one rule for ``submit``, for the beginning of a run, and for its loop."""

from __future__ import annotations

from collections.abc import Iterable

from pliant.schemas.checks import Room, check_fits, check_profiled
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.jsonlines import encode
from pliant.schemas.job import Job
from pliant.tools.schedule.demand import job_state
from pliant.tools.schedule.forecast import Demand
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.speeds import Speeds
from pliant.tools.schedule.submit_detail import submit_detail


class JobCheck:
    """Says what a policy on a cluster cannot take up, and why.

    :param policy: None: not known yet.
    """

    def __init__(
        self, cluster: Cluster, speeds: Speeds, policy: Policy | None, demand: Demand = "stated"
    ) -> None:
        self._room = Room.of(cluster)
        self._speeds = speeds
        self._policy = policy
        self._demand: Demand = demand

    def check(self, jobs: Iterable[Job], source: str) -> None:
        """Refuse what cannot be taken up.

        :param source: what messages call the jobs.
        :raises BadInputError: every job that is larger than the cluster, whose model is not profiled, that
            lacks what the policy needs, or whose work cannot be computed with.
        """
        problems = [problem for job in jobs for problem in self.problems(job, source)]
        if problems:
            raise BadInputError(problems)

    def problems(self, job: Job, source: str) -> tuple[Problem, ...]:
        """What is wrong with one job; empty: it can be taken up."""
        try:
            check_fits([job], self._room, source)
            if models := self._speeds.throughput.models():
                check_profiled([job], models, source)
            if self._policy is not None:
                check_demand([job], self._policy, source, self._demand)
            encode(submit_detail(job_state(job, self._speeds), self._speeds))
        except BadInputError as error:
            return error.problems or (Problem(source, None, "", str(error)),)
        except (ArithmeticError, ValueError) as error:
            text = f'job "{job.id}": its numbers cannot be computed with: {error}'
            return (Problem(source, None, "", text),)
        return ()

    def refusal(self, job: Job) -> str | None:
        """Why one job cannot be taken up; None: it can."""
        return next((problem.message for problem in self.problems(job, "")), None)


def check_demand(jobs: Iterable[Job], policy: Policy, source: str, demand: Demand = "stated") -> None:
    """Refuse jobs without work where the policy needs it and nothing predicts it.

    :raises BadInputError: one problem a job.
    """
    needed = "demand" in policy.needs and demand == "stated"
    silent = [job.id for job in jobs if job.work is None] if needed else []
    if silent:
        text = f'states no work, which policy "{policy.name}" needs'
        raise BadInputError([Problem(source, None, "", f'job "{job_id}" {text}') for job_id in silent])
