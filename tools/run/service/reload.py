"""Changes of a living cluster: what a new file means for the nodes and the jobs of a run.

:func:`reload_plan` is a function of the two clusters and the log. ``pliant reload`` shows it, and the loop
carries it out: a ``reload`` event is the whole change, and everything else follows from it. Nodes that jobs
hold and that are not in the file, or differ there, stay as they are and get no work until they are left; then
the loop makes another such change by itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pliant.schemas.checks import constraint_of
from pliant.schemas.cluster import OF_SLURM, Cluster, Node, NodeReservation
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.events import Held, Reloaded, Unheld, row_of
from pliant.schemas.io import read_profile, read_schedule
from pliant.schemas.job import Job
from pliant.schemas.profile import Profile
from pliant.schemas.schedule import Schedule
from pliant.schemas.text import clock_text, counted, did_you_mean, in_gpu_hours
from pliant.tools.run.backends.protocol import Backend
from pliant.tools.run.statedir.directory import ROOT, Account, StateDir, account_name
from pliant.tools.run.statedir.kept_inputs import cluster_changes
from pliant.tools.run.statedir.log.fold import LEAVES, RunLog
from pliant.tools.run.statedir.requests import ClusterAction, Numbered, Order, Spool
from pliant.tools.run.statedir.state import read_log
from pliant.tools.schedule.demand import JobCheck
from pliant.tools.schedule.jobs import node_states
from pliant.tools.schedule.rates import Speeds, throughput_for
from pliant.tools.schedule.registry import make_policy

HOLDER: Final = "pliant reload"
"""Holder of jobs for which a new cluster has no place; a later one releases them."""
_FIXED: Final = ("backend", "slots")
"""Fields that cannot change while a run goes on."""
_OF_ROOT: Final = ("notify", "slurm", "isolation", "retention")
"""Fields that name commands and files of the run's account, or free jobs from limits: not for operators."""
_SHOWN: Final = 3
"""Jobs that a line names."""


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster that a run is to go on with."""

    cluster: Cluster
    source: str
    text: str = ""
    """Text of the file, for the numbers of lines; empty if it is not at hand."""
    user: str = ""
    uid: int | None = None
    order: int | None = None
    """Number of the order; None: the loop reads the file itself."""
    now: bool = False
    """Jobs leave nodes that are not in it at the next decision; else they may end there."""
    lines: tuple[str, ...] = ()
    """What it changes, in words, where that is known."""


def cluster_without_left_nodes(log: RunLog, following: Cluster, busy: Set[str]) -> ClusterFile | None:
    """The next cluster once nothing is left on a node that it does not have, or not as it is.

    :param busy: nodes on which something runs.
    """
    held = {name for job in log.active.values() for name, _ in job.placement}
    if (held | busy).issuperset(log.leaving):
        return None
    drains = [log.drained[name] for name in log.leaving if name in log.drained]
    user, now = next((drain.user for drain in drains), ""), any(drain.now for drain in drains)
    return ClusterFile(following, "the new cluster", user=user, now=now)


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """What a new file leads to."""

    cluster: Cluster
    """The cluster from now on."""
    next_cluster: Cluster | None
    """The one of the file, while nodes in use differ from it."""
    leaving: tuple[str, ...]
    back: tuple[str, ...]
    """Nodes that were to leave, and stay."""
    held: Mapping[str, str]
    """Waiting jobs for which it has no place, and why."""
    freed: tuple[str, ...]
    """Jobs that an earlier change has held, and for which there is a place again."""
    changes: tuple[str, ...]
    """A line for each difference to the cluster before; empty: there is none."""
    effects: tuple[str, ...]
    """What follows for nodes and jobs."""

    def events(self, file: ClusterFile, cluster: Cluster, time_s: float) -> list[Event]:
        """:param cluster: as the options of the run leave it."""
        reload = Reloaded(
            time_s,
            cluster=_plain(cluster),
            next_cluster=None if self.next_cluster is None else _plain(self.next_cluster),
            leaving=list(self.leaving) or None,
            back=list(self.back) or None,
            now=file.now or None,
            lines=[*self.changes, *self.effects] or None,
            order=file.order,
            user=file.user,
            uid=file.uid,
        )
        held = [row_of(Held(time_s, job_id, user=HOLDER, reason=why)) for job_id, why in self.held.items()]
        freed = [row_of(Unheld(time_s, job_id, user=HOLDER)) for job_id in self.freed]
        return [row_of(reload), *held, *freed]


def refusal_event(file: ClusterFile, time_s: float, error: str) -> Event:
    """A file that is not taken changes nothing."""
    return row_of(Reloaded(time_s, error=error, user=file.user, uid=file.uid, order=file.order))


def reload_plan(
    file: ClusterFile, log: RunLog, refusal: Callable[[Cluster, Job], str | None], busy: Iterable[str] = ()
) -> ReloadPlan:
    """:param refusal: why a cluster has no place for a job; None: it has one.
    :param busy: nodes on which something runs of which the log does not know.
    :raises UsageError: the file changes what cannot change while a run goes on.
    """
    if log.info is None:
        raise UsageError("no run has begun there: pliant run takes any cluster file")
    own, next_cluster = log.next_cluster or log.info.cluster, file.cluster
    for name in _FIXED:
        before, after = getattr(own, name), getattr(next_cluster, name)
        if before != after:
            text = f'/{name}: "{after}", and the run has "{before}", which cannot change while it goes on'
            raise UsageError(f"{file.source}: {text}: begin another state directory")
    cluster, leaving = _in_use(log.info.cluster, next_cluster, log, {*busy})
    changes = file.lines or tuple(cluster_changes(own, next_cluster, file.source, file.text))
    by_hand = {name for name, drain in log.drained.items() if drain.reason != LEAVES}
    back = tuple(name for name in log.leaving if name in {*_named(cluster)} - {*leaving} - by_hand)
    held = {
        job_id: why
        for job_id, job in log.active.items()
        if not job.gpus and job.held is None and (why := refusal(next_cluster, job.job)) is not None
    }
    freed = tuple(
        job_id
        for job_id, job in log.active.items()
        if job.held is not None and job.held[0] == HOLDER and refusal(next_cluster, job.job) is None
    )
    effects = (
        *_of_nodes(leaving, next_cluster, log, now=file.now),
        *(f"node {name} gets work again" for name in back),
        *(f"job {job_id} is held until a cluster has a place for it: {why}" for job_id, why in held.items()),
        *(f"job {job_id} is no longer held: the cluster has a place for it" for job_id in freed),
        *_of_teams(own, next_cluster, log),
        *_of_limits(next_cluster, log),
        *_of_reservations(own, next_cluster, log),
    )
    return ReloadPlan(
        cluster, next_cluster if leaving else None, tuple(leaving), back, held, freed, changes, effects
    )


def order_reload(
    state: Path, file: ClusterFile, *, dry_run: bool = False, by: Account | None = None
) -> list[str]:
    """Order that a run goes on with another cluster; durable when this returns.

    Returns a line for each change and for what it leads to; no line, and no order: nothing changes.

    :param dry_run: order nothing.
    :param by: the account that orders it, if it is not this one.
    :raises UsageError: the cluster cannot be that of the run, there is none, or only root may change it so.
    """
    dirs = StateDir(state.resolve())
    log = read_log(state)
    if not dirs.schedule.exists():
        raise UsageError(f"{state}: no run has begun there: pliant run takes any cluster file")
    schedule = read_schedule(dirs.schedule)
    profile = Profile(read_profile(dirs.profile).rows) if dirs.profile.exists() else None
    own = log.next_cluster or (schedule.cluster if log.info is None else log.info.cluster)
    file = replace(file, cluster=file.cluster.keeping_reservations(own, time.time()))
    plan = reload_plan(file, log, refusals(schedule, profile))
    for name in _OF_ROOT if by is not None and by.uid != ROOT else ():
        if getattr(own, name) != getattr(file.cluster, name):
            raise UsageError(f"{file.source}: /{name}: differs from the run's, and only root changes it")
    if not plan.changes and plan.leaving == log.leaving and not file.now:
        return []
    if not dry_run:
        order = _order("reload", dirs, by, cluster=file.cluster, source=file.source, now=file.now)
        spool = Spool(dirs)
        with spool.locked():
            spool.give([order])
    return [*plan.changes, *plan.effects]


def order_reservation(
    state: Path, change: NodeReservation | str, *, dry_run: bool = False, by: Account | None = None
) -> list[str]:
    """Order that nodes are reserved, or that the reservation of this name ends; as :func:`order_reload`.

    :param change: one without a name of its own ("new") gets one.
    :raises UsageError: it names nodes that are not there, or a reservation that is not, or is there already.
    """
    dirs = StateDir(state.resolve())
    if not dirs.schedule.exists():
        raise _no_run_reserves(state)
    schedule, spool = read_schedule(dirs.schedule), Spool(dirs)
    with spool.locked():
        requests, log = spool.requests(), read_log(state)  # the log has what is no request any more
        if log.info is None:
            raise _no_run_reserves(state)
        own = log.next_cluster or log.info.cluster
        for request in requests:
            if request.order is not None and request.order.changes_cluster:
                own = changed_cluster(request.order, own)
        if isinstance(change, str):
            _check_ends(change, own, state)
            order = _order("unreserve", dirs, by, name=change)
        else:
            made_by = by.name if by else account_name(os.geteuid())
            reservation = _named_reservation(change.model_copy(update={"made_by": made_by}), own)
            order = _order("reserve", dirs, by, reservation=reservation)
        file = ordered_file(Numbered(0, order), log.next_cluster or log.info.cluster)
        profile = Profile(read_profile(dirs.profile).rows) if dirs.profile.exists() else None
        plan = reload_plan(file, log, refusals(schedule, profile))
        if not dry_run:
            spool.give([order])
    return [*plan.changes, *plan.effects]


def _no_run_reserves(state: Path) -> UsageError:
    return UsageError(f"{state}: no run has begun there: reservations can be in its cluster file")


NEW: Final = "new"
"""Name of a reservation that is to get one."""


def _named_reservation(made: NodeReservation, own: Cluster) -> NodeReservation:
    """:raises UsageError: its name is taken, or a node is not there."""
    names, there = {each.name for each in own.reservations}, _named(own)
    if unknown := [name for name in made.nodes if name not in there]:
        raise UsageError(f"the cluster has no node {unknown[0]}; pliant nodes lists them")
    if made.name in names:
        raise UsageError(f"reservation {made.name} is there already; end it first: --cancel {made.name}")
    if made.name != NEW:
        return made
    what = "maintenance" if made.is_maintenance else (*made.teams, *made.users)[0]
    free = (f"{what}-{number}" for number in range(1, len(names) + 2))
    return made.model_copy(update={"name": next(name for name in free if name not in names)})


def _check_ends(name: str, own: Cluster, state: Path) -> None:
    """:raises UsageError: no order ends that reservation."""
    found = next((each for each in own.reservations if each.name == name), None)
    if found is None:
        near = did_you_mean(name, [each.name for each in own.reservations])
        raise UsageError(f"{state} has no reservation {name}; {near or 'pliant reserve --list lists them'}")
    if not found.made_by:
        raise UsageError(f"reservation {name} is in the cluster file: take it out there, and pliant reload")
    if found.made_by == OF_SLURM:
        raise UsageError(f"reservation {name} is Slurm's: scontrol delete reservation={name}")


def _order(action: ClusterAction, dirs: StateDir, by: Account | None, **about: Any) -> Order:
    uid = by.uid if by is not None and dirs.is_shared else None
    user = by.name if by else account_name(os.geteuid())
    return Order(action=action, user=user, uid=uid, asked_s=time.time(), **about)


def ordered_file(ordered: Numbered, own: Cluster) -> ClusterFile:
    """The cluster that an order leads to.

    :param own: the one that the run has, or is to have.
    """
    number, order = ordered
    cluster = changed_cluster(order, own)
    lines: tuple[str, ...] = ()
    if order.reservation is not None:
        lines = (reservation_line(order.reservation, order.asked_s),)
    elif order.name is not None:
        lines = (f"reservation {order.name} ends",)
    return ClusterFile(cluster, order.source, "", order.user, order.uid, number, order.now, lines)


def changed_cluster(order: Order, own: Cluster) -> Cluster:
    """What becomes of the cluster of a run; ordered reservations that are over are forgotten."""
    if order.cluster is not None:
        return order.cluster.keeping_reservations(own, order.asked_s)
    gone = order.name if order.reservation is None else order.reservation.name
    kept = [
        each
        for each in own.reservations
        if each.name != gone and (not each.made_by or each.end > order.asked_s)
    ]
    new = () if order.reservation is None else (order.reservation,)
    return own.model_copy(update={"reservations": (*kept, *new)})


def file_with_slurms(backend: Backend, log: RunLog) -> ClusterFile | None:
    """The cluster with the reservations that Slurm has. Returns None if it has these, or none is asked."""
    reservations = getattr(backend, "reservations", None)
    found: Sequence[NodeReservation] | None = None if reservations is None else reservations()
    if found is None or log.info is None:
        return None
    own = log.next_cluster or log.info.cluster
    there, others = _named(own), tuple(each for each in own.reservations if each.made_by != OF_SLURM)
    taken = {each.name for each in others}
    known = [
        each.model_copy(update={"nodes": nodes})
        for each in found
        if each.name not in taken and (nodes := tuple(name for name in each.nodes if name in there))
    ]
    if [each for each in own.reservations if each.made_by == OF_SLURM] == known:
        return None
    cluster = own.model_copy(update={"reservations": (*others, *known)})
    return ClusterFile(cluster, "Slurm's reservations", user=OF_SLURM, lines=_lines_of(known))


def _lines_of(known: Sequence[NodeReservation]) -> tuple[str, ...]:
    return tuple(reservation_line(each, time.time()) for each in known) or ("Slurm has no reservation left",)


def reservation_line(made: NodeReservation, now_s: float) -> str:
    """``reservation maintenance-1: n0, n1 from 08:00 until 12:00, for maintenance``."""
    who = ", ".join((*(f"team {name}" for name in made.teams), *(f"user {name}" for name in made.users)))
    nodes = ", ".join(made.nodes[:_SHOWN]) + (" …" if len(made.nodes) > _SHOWN else "")
    begin, end = clock_text(made.begin, now_s), clock_text(made.end, now_s)
    return f"reservation {made.name}: {nodes} from {begin} until {end}, for {who or 'maintenance'}"


def refusals(schedule: Schedule, profile: Profile | None) -> Callable[[Cluster, Job], str | None]:
    """Why the policy of a run cannot serve a job on a cluster, as on submission."""
    policy = make_policy(schedule.policy.name, schedule.policy.parameters)
    checks: dict[int, JobCheck] = {}

    def refusal(cluster: Cluster, job: Job) -> str | None:
        check = checks.get(id(cluster))
        if check is None:
            speeds = Speeds(throughput_for(profile, cluster), node_states(cluster))
            check = checks[id(cluster)] = JobCheck(cluster, speeds, policy, schedule.demand)
        return check.refusal(job)

    return refusal


def _in_use(own: Cluster, next_cluster: Cluster, log: RunLog, busy: set[str]) -> tuple[Cluster, list[str]]:
    """The next cluster, with those nodes as they are that jobs hold and that change; and their names."""
    after, before = _named(next_cluster), _named(own)
    there: dict[str, list[Job]] = {name: [] for name in busy}
    for job in log.active.values():
        for name, _ in job.placement:
            there.setdefault(name, []).append(job.job)
    types = {node.gpu_type for node in after.values()}
    leaving = [
        name
        for name, node in before.items()
        if name in there and not _may_become(node, after.get(name), there[name], types)
    ]
    if not leaving:
        return next_cluster, []
    kept = {name: before[name] for name in leaving}
    nodes = tuple((after | kept).values())
    return next_cluster.model_copy(update={"nodes": nodes}), leaving


def _may_become(before: Node, after: Node | None, jobs: Iterable[Job], types: set[str]) -> bool:
    """Whether jobs that hold GPUs of a node need not notice its change."""
    if after is None:
        return False
    if after.model_copy(update={"labels": before.labels, "switch": before.switch}) != before:
        return False
    where = (constraint_of(job, types) for job in jobs)
    return all(constraint is None or constraint.allows(after) for constraint in where)


def _of_nodes(leaving: Sequence[str], next_cluster: Cluster, log: RunLog, *, now: bool) -> Iterable[str]:
    after = _named(next_cluster)
    for name in leaving:
        jobs = [job for job in log.active.values() if any(node == name for node, _ in job.placement)]
        then = "changes as the file says" if name in after else "is removed"
        who = _few([job.job.id for job in jobs]) or "what still runs there"
        how = "leave at the next decision" if now else "may end there, and no other job starts"
        yield f"node {name} {then} once it is empty: {who} {how}"
    for job_id, job in log.active.items() if now else ():
        lost_s = job.unsaved_gpu_s(time.time()) if any(name in leaving for name, _ in job.placement) else 0.0
        if lost_s:
            yield f"job {job_id} loses {in_gpu_hours(lost_s)}: it does not say that it can save"


def _of_teams(own: Cluster, next_cluster: Cluster, log: RunLog) -> Iterable[str]:
    if own.shares is None or next_cluster.shares is None:
        return
    moved: dict[tuple[str, str], list[str]] = {}
    for job_id, job in log.active.items():
        pair = own.shares.team_of(job.job), next_cluster.shares.team_of(job.job)
        if pair[0] != pair[1]:
            moved.setdefault(pair, []).append(job_id)
    for (before, after), jobs in sorted(moved.items()):
        yield f'{_few(jobs)} of team "{before}" count for team "{after}" from now on'


def _of_limits(next_cluster: Cluster, log: RunLog) -> Iterable[str]:
    held: dict[str, float] = {}
    for job in log.active.values():
        held[job.job.user] = held.get(job.job.user, 0.0) + job.held_gpus
    for user, gpus in sorted(held.items()):
        limit = next_cluster.limit_of(user)
        if limit is not None and limit.gpus is not None and gpus > limit.gpus:
            who = f"user {user}" if user else "jobs of no user"
            yield f"{who}: {gpus:g} GPUs held, {limit.gpus} allowed: what runs goes on, no other job starts"


def _of_reservations(own: Cluster, next_cluster: Cluster, log: RunLog) -> Iterable[str]:
    """What ends with the teams, and what jobs that run on the nodes of new reservations do."""
    names, now_s = {each.name for each in next_cluster.reservations}, time.time()
    for each in own.reservations if next_cluster.shares is None else ():
        if each.made_by and each.teams and each.name not in names and each.end > now_s:
            text = f"it is for team {each.teams[0]}, and no teams share the cluster"
            yield f"reservation {each.name} ends: {text}"
    all_save = (next_cluster.preemptible or "stated") == "all"
    for each in (each for each in next_cluster.reservations if each not in own.reservations):
        leaving, staying = list[str](), list[str]()
        for job_id, job in log.active.items():
            may_stay = job.job.user in each.users or (
                next_cluster.shares is not None and next_cluster.shares.team_of(job.job) in each.teams
            )
            if not may_stay and any(name in each.nodes for name, _ in job.placement):
                (leaving if all_save or job.job.can_save else staying).append(job_id)
        if leaving:
            at = clock_text(each.begin - each.notice_seconds, time.time())
            yield f"{_few(leaving)} must leave these nodes at {at}"
        if staying:
            at = clock_text(each.begin, time.time())
            yield f"{_few(staying)} must end by {at}: what is not saved then is lost"


def _few(job_ids: list[str]) -> str:
    if len(job_ids) > _SHOWN:
        return f"{counted(len(job_ids), 'job')} ({', '.join(job_ids[:_SHOWN])} …)"
    return f"job{'s' if len(job_ids) > 1 else ''} {', '.join(job_ids)}" if job_ids else ""


def _named(cluster: Cluster) -> dict[str, Node]:
    return {node.name: node for node in cluster.expanded()}


def _plain(cluster: Cluster) -> dict[str, Any]:
    plain: dict[str, Any] = cluster.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return plain
