"""The rules that every decision of every policy is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from pliant.schemas.checks import servers_for
from pliant.schemas.file_io.json_lines import encode
from pliant.schemas.text import shortened
from pliant.tools.schedule.jobs import JobState, NodeGpus, NodeState, gpus_of
from pliant.tools.schedule.policy import Decision, Explanation, Policy, PolicyError, Target
from pliant.tools.schedule.rates import Speeds


class RuleBook:
    """Checks the decisions of one policy on one cluster."""

    def __init__(self, policy: Policy, nodes: Sequence[NodeState], speeds: Speeds) -> None:
        self._policy = policy
        self._speeds = speeds
        self._nodes = {node.name: node for node in nodes}
        self._servers = {node.name for node in nodes if node.for_servers}

    def check(
        self, decision: Decision, jobs: Mapping[str, JobState], free: Mapping[str, int], up_gpus: int
    ) -> None:
        """Refuse a decision that breaks a rule, before any of it takes effect.

        :param free: free GPUs by type.
        :param up_gpus: all GPUs of the nodes that are up.
        :raises PolicyError: for the first rule broken.
        """
        rejected, targets = decision.rejected, decision.targets
        if not (rejected.keys() <= jobs.keys() and targets.keys() <= jobs.keys()):
            job_id = next(job_id for job_id in (*rejected, *targets) if job_id not in jobs)
            raise self._error(f'names "{job_id}", which is not an active job')
        needed = 0
        for job_id, target in targets.items():
            gpus, _, _, _, _, beside = target  # one look-up by name takes as long as all six this way
            if job_id in rejected:
                raise self._error(f'both rejects "{job_id}" and gives it GPUs')
            if gpus:
                needed += gpus
                self._check_target(jobs[job_id], target, free, up_gpus)
            if beside is not None:
                self._check_beside(jobs[job_id], target, decision, jobs)
        if needed > min(free.values(), default=0):  # else they are there, whatever their types
            self._check_totals(decision, jobs, free)

    def check_form(self, decision: Any) -> None:
        """Refuse what is not a decision at all, or is not made of targets, reasons and times.

        :raises PolicyError: for the first thing found.
        """
        if not isinstance(decision, Decision):
            raise self._error(f"returned {_brief(decision)} from decide, expected a Decision")
        for job_id, target in decision.targets.items():
            if type(target) is Target and type(target[0]) is int:
                continue
            if not isinstance(target, Target) or not _is(Integral, target.gpus):
                raise self._error(f'gives "{job_id}" {_brief(target)}, expected a Target with whole GPUs')
        again_s, quiet_s, admissions = decision.ask_again_s, decision.quiet_until_s, decision.admissions
        if again_s is not None or quiet_s is not None:
            self._check_times(again_s, quiet_s)
        for job_id, reason in decision.rejected.items():
            if not isinstance(reason, str) or not _is_storable(reason):
                raise self._error(f'rejects "{job_id}" with {_brief(reason)}, expected a reason in words')
        if type(admissions) is not dict and not _is(Mapping, admissions):
            raise self._error(f"returned {_brief(admissions)} as admissions, expected them by job")
        for job_id, statement in admissions.items():
            self._check_said(job_id, statement)

    def _check_times(self, *times_s: float | None) -> None:
        for time_s in times_s:
            if time_s is not None and type(time_s) is not float and not _is(Real, time_s):
                raise self._error(f"asks to be asked again at {_brief(time_s)}, expected seconds or None")

    def _check_said(self, job_id: Any, said: Any) -> None:
        what = f"says {_brief(said)} of {_brief(job_id)}"
        if not isinstance(job_id, str) or not isinstance(said, Mapping) or not _is_storable(dict(said)):
            raise self._error(f"{what}, expected JSON values by name")
        if not _is(Real, said.get("end_s", 0.0)):
            raise self._error(f"{what}, expected end_s in seconds")

    def check_explained(self, explanations: object) -> None:
        """Refuse what is not an explanation.

        :raises PolicyError: for the first thing found.
        """
        if not isinstance(explanations, Mapping):
            raise self._error(f"returned {_brief(explanations)} from explain, expected explanations by job")
        for job_id, why in explanations.items():
            if not isinstance(why, Explanation):
                raise self._error(f'explains "{job_id}" by {_brief(why)}, expected an Explanation')

    def _check_target(self, job: JobState, target: Target, free: Mapping[str, int], up_gpus: int) -> None:
        gpus, gpu_type, batch, placement, servers, _ = target
        as_requested = gpus == job.requested
        unlimited = job.most is None and job.room is None and job.any_number
        if not (
            unlimited
            and gpus <= up_gpus
            and (as_requested or (job.is_elastic and job.spec.gpus.max is None and gpus >= job.min_gpus))
        ):
            low, high = job.min_gpus, job.max_gpus(up_gpus)
            if not low <= gpus <= high:
                raise self._error(f'gives "{job.id}" {gpus} GPUs, its limits are {low} to {high}')
        if not (as_requested or (job.is_elastic and self._policy.traits.elasticity != "none")):
            whose = "the policy declares no elasticity" if job.is_elastic else "the job is not elastic"
            raise self._error(f'resizes "{job.id}" to {gpus} GPUs, but {whose}')
        if gpu_type is not None and gpu_type not in free:
            raise self._error(f'sends "{job.id}" to GPUs of type "{gpu_type}", which the cluster lacks')
        if batch is not None and batch != job.reference_batch:
            self._check_batch(job, batch)
        if placement is not None:
            self._check_placement(job, target, placement)
        if servers is not None:
            self._check_servers(job, gpus, servers)

    def _check_batch(self, job: JobState, batch: int) -> None:
        if self._policy.traits.elasticity != "size+batch" or job.spec.elastic != "size+batch":
            raise self._error(
                f'changes the batch of "{job.id}" to {batch}, which its elasticity does not allow'
            )
        low = job.spec.batch.min or job.reference_batch
        high = job.spec.batch.max or job.reference_batch
        if not low <= batch <= high:
            raise self._error(f'sets the batch of "{job.id}" to {batch}, its limits are {low} to {high}')

    def _check_placement(self, job: JobState, target: Target, placement: NodeGpus) -> None:
        names = [name for name, _ in placement]
        unknown = [name for name in names if name not in self._nodes]
        if unknown or len(set(names)) < len(names):
            raise self._error(f'places "{job.id}" on nodes {names}: expected different nodes of the cluster')
        if gpus_of(placement) != target.gpus or any(count < 1 for _, count in placement):
            raise self._error(f'gives "{job.id}" {target.gpus} GPUs but places it on {placement}')
        types = {self._nodes[name].gpu_type for name in names} | ({target.gpu_type} - {None})
        if len(types) > 1:
            raise self._error(f'places "{job.id}" on several GPU types: {", ".join(sorted(map(str, types)))}')

    def _check_servers(self, job: JobState, gpus: int, servers: NodeGpus) -> None:
        needed, given = servers_for(job.spec, gpus), gpus_of(servers)
        if given != needed:
            raise self._error(f'gives "{job.id}" {given} parameter servers, it needs {needed}')
        names = [name for name, _ in servers]
        wrong = [name for name in names if name not in self._servers]
        if wrong or len(set(names)) < len(names):
            what = f'places parameter servers of "{job.id}" on {names}'
            raise self._error(f"{what}: expected different nodes without GPUs")

    def _check_beside(
        self, job: JobState, target: Target, decision: Decision, jobs: Mapping[str, JobState]
    ) -> None:
        """Two jobs share GPUs only as a whole set, without a third, and if both agree."""
        what = f'puts "{job.id}" beside "{target.beside}"'
        if not self._policy.traits.packs:
            raise self._error(f"{what}, but the policy declares not to pack jobs")
        other = jobs.get(target.beside or "")
        if other is None or other is job or other.id in decision.rejected:
            raise self._error(f"{what}, expected another active job")
        of_other = decision.targets.get(other.id)
        held = other.gpus if of_other is None else of_other.gpus
        if held != target.gpus or target.placement is not None:
            raise self._error(
                f"{what} on {target.gpus} GPUs, expected all {held} of that job, and no placement"
            )
        if (of_other is not None and of_other.beside) or self._is_taken(job, other, decision, of_other):
            raise self._error(f"{what}, which shares its GPUs with another job")
        if not (job.spec.shares_gpus and other.spec.shares_gpus):
            raise self._error(f"{what}, but one of them shares no GPUs")
        if of_other is None and not self._speeds.parts(job, other, other.gpu_type or "", other.placement):
            raise self._error(f"{what}, but the two do not fit one GPU together, as far as is known")

    def _is_taken(self, job: JobState, other: JobState, decision: Decision, of_other: Target | None) -> bool:
        """Whether a third job shares the other's GPUs, or comes to."""
        if any(each.beside == other.id for name, each in decision.targets.items() if name != job.id):
            return True
        stays = other.beside not in (None, job.id) and of_other is None
        third = decision.targets.get(other.beside or "")
        leaves = other.beside in decision.rejected or (third is not None and third.beside != other.id)
        return stays and not leaves

    def _check_totals(
        self, decision: Decision, jobs: Mapping[str, JobState], free: Mapping[str, int]
    ) -> None:
        freed: dict[str | None, int] = {}
        by_type: dict[str | None, int] = {}
        named = {*decision.rejected, *decision.targets}
        for job_id in named:
            job = jobs[job_id]
            if job.gpus and job.frees_gpus(named):
                freed[job.gpu_type] = freed.get(job.gpu_type, 0) + job.gpus
        for target in decision.targets.values():
            if target.gpus and target.beside is None:
                by_type[target.gpu_type] = by_type.get(target.gpu_type, 0) + target.gpus
        for gpu_type, gpus in by_type.items():
            if gpu_type is not None and gpus > (free_then := free[gpu_type] + freed.get(gpu_type, 0)):
                raise self._error(f'gives away {gpus} GPUs of type "{gpu_type}", {free_then} are free')
        available, given = sum(free.values()) + sum(freed.values()), sum(by_type.values())
        if given > available:
            raise self._error(f"gives away {given} GPUs, {available} are free")

    def _error(self, what: str) -> PolicyError:
        return PolicyError.broke_rule(self._policy.name, what)


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _is_storable(value: object) -> bool:
    """Whether event files can hold a value: JSON without infinities, encodable text."""
    try:
        encode(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _brief(value: object) -> str:
    return shortened(repr(value), 80)
