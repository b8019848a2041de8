"""Requests to a state directory, of ``pliant submit`` and of the orders: checked, then written durably."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from pliant.schemas.checks import check_after
from pliant.schemas.cluster import Shares
from pliant.schemas.errors import BadInputError, PliantError, Problem, ServiceMissingError, UsageError
from pliant.schemas.file_io.archives import archived_ids
from pliant.schemas.file_io.files import make_folder
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.io import read_cluster, read_profile, read_schedule
from pliant.schemas.job import Changes, Job, arriving_at, updated
from pliant.schemas.text import EPOCH_LIKE_S, counted
from pliant.tools.run.backends.supervisor import SECRETS
from pliant.tools.run.service import containers
from pliant.tools.run.service.launching import at_home, job_problems, script_obstacle
from pliant.tools.run.service.starters import is_a_name, program_obstacle, python_obstacle, settled
from pliant.tools.run.service.submitter import output_obstacle
from pliant.tools.run.statedir.directory import Account, StateDir, account_name
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.log.snapshot import LogView
from pliant.tools.run.statedir.requests import JobAction, NodeAction, Order, Spool
from pliant.tools.run.statedir.state import is_of, newest_by_name, no_such_job
from pliant.tools.schedule.registry import policy_class

_ACCOUNTS_S: Final = 5.0
"""Response timeout of Slurm's database for the accounts of a user."""


class SubmissionResult(NamedTuple):
    """Submitted jobs, and what the policy of the run ignores of what they state."""

    ids: list[str]
    ignores_priority: str | None = None
    """Name of the policy, if jobs state priorities and it ignores them."""
    overlooked_deadlines: str | None = None
    """Clause that says which deadlines of these jobs the policy ignores."""
    ignores_weight: str | None = None
    """Name of the policy, if jobs state weights and it ignores them."""

    @classmethod
    def of(cls, state: Path, jobs: Iterable[Job], ids: list[str]) -> SubmissionResult:
        listed = list(jobs)
        states, weighs = any(job.priority for job in listed), any(job.weight != 1.0 for job in listed)
        return cls(
            ids,
            policy_ignoring_priority(state) if states else None,
            _overlooked_deadlines(state, (job for job in listed if job.utility.shape != "constant")),
            _policy_ignoring_weight(state) if weighs else None,
        )


def submit(
    state: Path,
    jobs: Sequence[Job],
    source: str,
    *,
    folder: Path,
    now_s: float,
    check_scripts: bool = True,
    by: Account | None = None,
    view: LogView | None = None,
    hidden: Mapping[str, str] | None = None,
) -> list[str]:
    """Ask for jobs to be run, all of them or none; durable when this returns. Returns their ids.

    A ``submit_time`` counts from now unless it is UTC already, as it counts from the start of a run. A job
    without one arrives now.

    :param source: what messages call the jobs.
    :param folder: where a job starts that names no folder.
    :param check_scripts: refuse jobs whose script is not there or is not a Python script.
    :param by: the account that asks, if it is not this one: then its own process has looked at its folders
        and scripts, and this one does not.
    :param view: of the log; None reads it.
    :param hidden: variables of all jobs whose values nothing else may hold.
    :raises BadInputError: an id is in use, a job waits for one that is not there, the run of the directory
        could not serve a job, or its log is damaged.
    :raises UsageError: jobs of several accounts run there, and there are such variables.
    """
    listed = [at_home(job, folder) for job in arriving_at(jobs, 0.0)]
    _check_unnamed(listed, source)
    if by is None:
        listed = [settled(job)[0] for job in listed]
        check_runnable(listed, source, check_scripts=check_scripts)
    elif problems := [problem for job in listed for problem in job_problems(job, source, looks=False)]:
        raise BadInputError(problems)
    dirs = StateDir(state.resolve())
    if dirs.cluster.exists() and (shares := read_cluster(dirs.cluster).shares) is not None:
        listed = in_teams(listed, shares, source)
    spool = Spool(dirs)
    with spool.locked():
        listed = _named_again(dirs, spool, listed, _user(dirs, by), view)
        _check_new(state, spool, listed, source, view)
        spool.take_back({job.id for job in listed})
        try:
            if hidden:
                _hide(dirs, listed, hidden)
            spool.request_run((in_utc(job, now_s) for job in listed), _uid(dirs, by))
        except BaseException:
            for job in listed if hidden else ():
                forget_secrets(dirs, job.id)
            raise
    return [job.id for job in listed]


def _hide(dirs: StateDir, jobs: Iterable[Job], values: Mapping[str, str]) -> None:
    """Write values where the supervisors of these jobs find them, and nobody else."""
    if dirs.is_shared:
        raise UsageError(f"{dirs.path}: jobs of several accounts run there, which have no secrets")
    for job in jobs:
        folder = dirs.job(job.id).path
        make_folder(folder, mode=0o700)
        descriptor = os.open(folder / SECRETS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(dict(values), file)
            file.flush()
            os.fsync(descriptor)


def forget_secrets(dirs: StateDir, job_id: str) -> None:
    """Remove what :func:`_hide` wrote for a job that will not run, and its folder, so that its id is free."""
    if not dirs.is_shared:
        folder = dirs.job(job_id).path
        with contextlib.suppress(OSError):
            (folder / SECRETS).unlink()
            folder.rmdir()


def check_new(state: Path, jobs: Iterable[Job], source: str, now_s: float) -> list[Job]:
    """The jobs as the run of a state directory would take them up, if they were submitted.

    :raises BadInputError: they would be refused.
    """
    dirs, listed = StateDir(state.resolve()), [in_utc(job, now_s) for job in jobs]
    _check_unnamed(listed, source)
    if dirs.cluster.exists() and (shares := read_cluster(dirs.cluster).shares) is not None:
        listed = in_teams(listed, shares, source)
    spool = Spool(dirs)
    listed = _named_again(dirs, spool, listed, _user(dirs, None))
    _check_new(state, spool, listed, source)
    return listed


def _check_unnamed(jobs: Iterable[Job], source: str) -> None:
    """:raises BadInputError: a job states a name, which is to mean another job."""
    text = "is given by pliant where an id is used again, expected the id alone"
    if named := [job for job in jobs if job.name is not None]:
        raise BadInputError([Problem(source, None, "/name", f'of job "{job.id}" {text}') for job in named])


def _named_again(
    dirs: StateDir, spool: Spool, jobs: Sequence[Job], user: str | None, view: LogView | None = None
) -> list[Job]:
    """The jobs, with other ids where jobs of theirs have ended, and ids in place of the names that they wait
    for. Of an array all jobs get another id or none does.

    :param user: whose jobs names mean; None: all.
    """
    known, old = known_ids(dirs, spool, view), archived_ids(dirs.events)
    log = (view or LogView(dirs)).refresh()
    used = [job.id for job in jobs if job.id in known or job.id in old]
    if not used and not any(job.after for job in jobs):
        return list(jobs)
    asked = [job for request in spool.requests() for job in request.jobs]
    ids = newest_by_name([*(each.job for each in log.jobs.values()), *asked], _living(known, log), user)
    before = [log.jobs.get(ids.get(job_id, job_id)) for job_id in used if job_id in ids or job_id not in old]
    if any(each is None or not each.ended for each in before):
        return list(jobs)
    known |= old
    taken = known | {path.name for path in dirs.jobs.glob("*")} | {job.id for job in jobs}
    arrays = {job.array.name for job in jobs if job.array is not None and job.id in known}
    free = {name: free_id(name, taken, _endings(name, jobs)) for name in sorted(arrays)}
    made = []
    for job in jobs:
        own: dict[str, Any] = {}
        if job.array is not None and job.array.name in free:
            array = free[job.array.name]
            own = {"id": f"{array}-{job.array.index}", "array": job.array.model_copy(update={"name": array})}
        elif job.id in known:
            own = {"id": free_id(job.id, taken)}
            taken.add(own["id"])
        if own:
            own["name"], ids[job.id] = job.id, own["id"]
        made.append(job.model_copy(update=own))
    return [
        job.model_copy(update={"after": {ids.get(other, other): how for other, how in job.after.items()}})
        if job.after.keys() & ids.keys()
        else job
        for job in made
    ]


def _living(known: set[str], log: RunLog) -> set[str]:
    """The ids of jobs that have not ended."""
    return known - (log.jobs.keys() - log.active.keys())


def _endings(array: str, jobs: Iterable[Job]) -> list[str]:
    return [f"-{job.array.index}" for job in jobs if job.array is not None and job.array.name == array]


def _check_new(
    state: Path, spool: Spool, jobs: Sequence[Job], source: str, view: LogView | None = None
) -> None:
    """:raises BadInputError: an id is in use, a job waits for one that is not there, or the run could not
    serve a job.
    """
    dirs = StateDir(state.resolve())
    # a log that was repaired may have lost the lines of a job that was started
    old = archived_ids(dirs.events)
    known = known_ids(dirs, spool, view) | old | {path.name for path in dirs.jobs.glob("*")}
    text = f"was submitted to {state} before and has not ended, expected new ids"
    check_after(jobs, known, source)
    used = [Problem(source, None, "", f'job "{job.id}" {text}') for job in jobs if job.id in known]
    used += [
        Problem(source, None, "/after", f'of job "{job.id}": {other} ended long ago: leave it out')
        for job in jobs
        for other in sorted(job.after.keys() & old)
    ]
    if used:
        raise BadInputError(used)
    if dirs.cluster.exists():
        check_against(dirs, jobs, source)


def check_runnable(jobs: Iterable[Job], source: str, *, check_scripts: bool = True) -> None:
    """:raises BadInputError: a job could not be started from here, or its script is not one."""
    if problems := [
        problem for job in jobs for problem in _problems(job, source, check_script=check_scripts)
    ]:
        raise BadInputError(problems)


def _uid(dirs: StateDir, by: Account | None) -> int | None:
    """Of the account that asks. Returns None where only one account asks."""
    if by is None:
        return os.geteuid() if dirs.is_shared else None
    return by.uid


def _user(dirs: StateDir, by: Account | None) -> str | None:
    """Whose jobs names mean. Returns None where only one account asks."""
    if by is None:
        return user_name() if dirs.is_shared else None
    return by.name


def _problems(job: Job, source: str, *, check_script: bool) -> list[Problem]:
    problems = job_problems(job, source)
    if not problems and (obstacle := output_obstacle(job)) is not None:
        problems = [Problem(source, None, "/output", f'job "{job.id}": {obstacle}')]
    return problems if problems or not check_script else _script_problems(job, source)


def check_scripts(jobs: Iterable[Job], source: str, *, folder: Path) -> None:
    """Look at the scripts of jobs that are still to be scheduled; of a trace, jobs have none.

    :param folder: where a job starts that names no folder.
    :raises BadInputError: one is not there, or is not a Python script.
    """
    listed = (at_home(job, folder) for job in jobs if job.command)
    if problems := [problem for job in listed for problem in _script_problems(job, source)]:
        raise BadInputError(problems)


def _script_problems(job: Job, source: str) -> list[Problem]:
    job = settled(job)[0]
    if (lack := containers.obstacle(job)) is not None:
        text = f'job "{job.id}": {lack} (--no-check skips this check)'
        return [Problem(source, None, "/container", text)]
    is_program = job.launcher == "program"
    if is_program:  # in a container it may be in the image
        obstacle = program_obstacle(job) if job.container is None else None
    else:
        obstacle = python_obstacle(job)
    unseen = is_program or (job.own_python is not None and job.script[:1] == ("-m",))
    unseen |= job.container is not None and job.script[0].startswith("/")  # it may be in the image
    if obstacle is None and not unseen:
        obstacle = script_obstacle(job.script, Path(job.workdir or ""))  # modules are those of this Python
        if obstacle is not None and obstacle.startswith("no such script") and is_a_name(job.script[0]):
            obstacle += ", and no program of that name is on PATH"
    text = f'job "{job.id}": {obstacle} (--no-check skips this check)'
    return [] if obstacle is None else [Problem(source, None, "/command", text)]


def cancel(
    state: Path, job_ids: Sequence[str], *, by: Account | None = None, view: LogView | None = None
) -> None:
    """Ask for jobs to be ended; durable when this returns. Harmless for one that has ended.

    :param by: the account that asks, if it is not this one.
    :param view: of the log; None reads it.
    :raises UsageError: the state directory has no such job; then nothing is asked for.
    """
    dirs = StateDir(state.resolve())
    if not dirs.path.is_dir():
        raise UsageError(f"{state}: no state directory")
    spool = Spool(dirs)
    with spool.locked():
        is_asked = dict[str, bool]()  # by the last request about a job: a requeue may follow a cancellation
        for request in spool.requests():
            others = *(job.id for job in request.jobs), *([request.order.job] if request.order else ())
            is_asked |= dict.fromkeys(filter(None, others), False) | dict.fromkeys(request.cancelled, True)
        known = known_ids(dirs, spool, view) | is_asked.keys()
        unknown = [job_id for job_id in job_ids if job_id not in known]
        if unknown and (old := archived_ids(dirs.events)):
            job_ids = [job_id for job_id in job_ids if job_id not in old]
            unknown = [job_id for job_id in unknown if job_id not in old]
        if unknown:
            raise no_such_job(state, unknown, known, "nothing was cancelled")
        if not dirs.cluster.exists():
            for job_id in spool.withdraw(job_ids):
                forget_secrets(dirs, job_id)
        if job_ids and not all(is_asked.get(job_id) for job_id in job_ids):
            spool.request_cancel(job_ids, _uid(dirs, by))


def known_ids(dirs: StateDir, spool: Spool, view: LogView | None = None) -> set[str]:
    """Ids of all jobs that were ever submitted, or are to come.

    The spool is read first and the log last: a job moves only that way, so none is missed on its way.

    :raises BadInputError: the log is damaged.
    """
    asked = {job.id for request in spool.requests() for job in request.jobs}
    ahead = {job.id for job in read_schedule(dirs.schedule).jobs} if dirs.schedule.exists() else set()
    return asked | ahead | (view or LogView(dirs)).refresh().jobs.keys()


def free_id(base: str, known: Collection[str], endings: Iterable[str] = ("",)) -> str:
    """A name, with a number if there is a job of that name, and of one of these endings, already."""
    endings, number = tuple(endings), 1
    while True:
        free = base if number == 1 else f"{base}-{number}"
        if not any(f"{free}{ending}" in known for ending in endings):
            return free
        number += 1


def in_teams(jobs: Iterable[Job], shares: Shares, source: str) -> list[Job]:
    """The jobs with this account's name where they state no user, and with the team of its groups or its
    Slurm accounts, which are asked for only where they matter.

    :raises BadInputError: a job names a team that is not there, or that its user is not in.
    :raises ServiceMissingError: Slurm does not say what accounts a user has.
    """
    account = user_name()
    own = [job if job.user else job.model_copy(update={"user": account}) for job in jobs]
    groups = {job.user: _groups_of(job.user) for job in own}
    asked = {job.user for job in own if shares.hangs_on_accounts(job, groups[job.user])}
    minute = int(time.monotonic() // 60)
    members = {
        user: (groups[user], _known_accounts_of(user, minute) if user in asked else []) for user in groups
    }
    wrong = [(job, why) for job in own if (why := shares.why_not(job, *members[job.user])) is not None]
    if wrong:
        raise BadInputError([Problem(source, None, "/team", f'job "{job.id}" {why}') for job, why in wrong])
    return [shares.joined(job, *members[job.user]) for job in own]


def _known_accounts_of(user: str, minute: int) -> list[str]:
    """:raises ServiceMissingError: Slurm's database does not answer."""
    accounts = _accounts_of(user, minute)
    if isinstance(accounts, str):
        raise ServiceMissingError(f"which team {user} is in hangs on Slurm's accounts: {accounts}")
    return accounts


@lru_cache(maxsize=1024)
def _accounts_of(user: str, _minute: int) -> list[str] | str:
    """Slurm's accounts of an account of this host, or why they are not known. A shared run asks once a
    minute, also where the database does not answer: no one else is served meanwhile.
    """
    from pliant.tools.run.backends.slurm import parsing
    from pliant.tools.run.backends.slurm.commands import ask, show_accounts

    try:
        pwd.getpwnam(user)
    except KeyError:
        return []
    try:
        return parsing.accounts(ask(show_accounts(user), timeout_s=_ACCOUNTS_S))
    except ServiceMissingError as error:
        return str(error)


def _groups_of(account: str) -> list[str]:
    """Names of the UNIX groups of an account; none of one that is not known here."""
    try:
        entry = pwd.getpwnam(account)
    except KeyError:
        return []
    names = []
    for group in os.getgrouplist(account, entry.pw_gid):
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(group).gr_name)
    return names


class Names(NamedTuple):
    """What jobs of a state directory are called."""

    ids: set[str]
    arrays: dict[str, list[str]]
    """The ids of the jobs of each array, by its name."""
    newest: dict[str, str]
    """The ids that names mean which were used again."""

    @classmethod
    def of(cls, ids: Iterable[str], log: RunLog, asked: Iterable[Job], user: str | None) -> Names:
        """:param asked: jobs that were submitted since.
        :param user: whose jobs are meant by a name that was used again; None: all.
        """
        known = {*ids}
        jobs = {job_id: found.job for job_id, found in log.jobs.items()} | {job.id: job for job in asked}
        listed, living = list(jobs.values()), _living(known, log)
        return cls(known, by_array(listed, living, user), newest_by_name(listed, living, user))


def known_names(dirs: StateDir, spool: Spool) -> Names:
    """:raises BadInputError: the log is damaged."""
    ids = known_ids(dirs, spool)
    asked = [job for request in spool.requests() for job in request.jobs]
    return Names.of(ids, LogView(dirs).refresh(), asked, _user(dirs, None))


def by_array(
    jobs: Iterable[Job], living: Collection[str] = (), user: str | None = None
) -> dict[str, list[str]]:
    """The ids of the jobs of each array; a name that was used again means the newest one.

    Parameters as of :func:`~pliant.tools.run.statedir.state.newest_by_name`.
    """
    by_name: dict[str, list[str]] = {}
    again: dict[str, str] = {}
    for job in jobs:
        if job.array is not None:
            by_name.setdefault(job.array.name, []).append(job.id)
            if job.name is not None and is_of(job, user):
                again[job.name.removesuffix(f"-{job.array.index}")] = job.array.name
    ended = {name for name in again if not any(job_id in living for job_id in by_name.get(name, ()))}
    return by_name | {name: by_name[array] for name, array in again.items() if name in ended}


def check_against(dirs: StateDir, jobs: Iterable[Job], source: str = "jobs") -> None:
    """:raises BadInputError: the run of a state directory could not serve one of the jobs."""
    from pliant.tools.schedule.demand import JobCheck
    from pliant.tools.schedule.jobs import node_states
    from pliant.tools.schedule.rates import Speeds, throughput_for
    from pliant.tools.schedule.registry import make_policy

    jobs, cluster = tuple(jobs), Spool(dirs).ordered_cluster() or read_cluster(dirs.cluster)
    profile = read_profile(dirs.profile) if dirs.profile.exists() else None
    decided = read_schedule(dirs.schedule) if dirs.schedule.exists() else None
    policy = None if decided is None else make_policy(decided.policy.name, decided.policy.parameters)
    speeds = Speeds(throughput_for(profile, cluster), node_states(cluster))
    JobCheck(cluster, speeds, policy, "stated" if decided is None else decided.demand).check(jobs, source)


def in_utc(job: Job, now_s: float) -> Job:
    """A job whose ``submit_time`` is UTC; one that counts from now becomes so."""
    if job.submit_time >= EPOCH_LIKE_S:
        return job
    return job.model_copy(update={"submit_time": now_s + job.submit_time})


def order_jobs(
    state: Path,
    action: JobAction,
    job_ids: Sequence[str],
    *,
    priority: float | None = None,
    changes: Changes | None = None,
    from_start: bool = False,
    by: Account | None = None,
    view: LogView | None = None,
) -> list[str]:
    """Order the same for several jobs, for all or none; durable when this returns.

    Returns the ids of those that have ended, for which nothing was ordered.

    :param changes: fields of the jobs with their new values, of ``update``.
    :param from_start: the jobs forget their checkpoints, of ``requeue``.
    :param by: the account that orders it, if it is not this one.
    :param view: of the log; None reads it.
    :raises UsageError: there is no such state directory or job, or it is not this user's.
    """
    dirs, spool = _spool(state)
    with spool.locked():
        known = known_ids(dirs, spool, view)
        unknown = [job_id for job_id in job_ids if job_id not in known]
        if unknown:
            nothing = f"nothing was ordered for {counted(len(job_ids), 'job')}"
            if old := archived_ids(dirs.events).intersection(unknown):
                text = f"job {min(old)} ended long ago and is archived: submit it again"
                raise UsageError(f"{text}; {nothing}")
            raise no_such_job(state, unknown, known, nothing)
        log = (view or LogView(dirs)).refresh()
        ended = [job_id for job_id in job_ids if job_id in log.jobs and job_id not in log.active]
        done = set[str]()
        if action == "requeue":
            done, ended = {each for each in ended if log.jobs[each].phase == "finished"}, []
            _check_taken_up(dirs, job_ids, log)
        left = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in ended]
        if changes is not None:
            _check_update(dirs, spool, log, left, changes)
        user, uid, now_s = by.name if by else user_name(), _uid(dirs, by), time.time()
        spool.give(
            Order(
                action=action,
                job=job_id,
                user=user,
                uid=uid,
                asked_s=now_s,
                priority=priority,
                changes=changes,
                from_start=from_start or job_id in done,
            )
            for job_id in left
        )
    return ended


def _check_taken_up(dirs: StateDir, job_ids: Iterable[str], log: RunLog) -> None:
    """:raises UsageError: a job was rejected, or its code is gone: it cannot be requeued."""
    code = f"{dirs.code}/"
    for each in filter(log.jobs.__contains__, job_ids):
        folder, text = log.jobs[each].job.workdir or "", ""
        if log.jobs[each].phase == "rejected":
            text = "was rejected and has never been in the queue"
        elif folder.startswith(code) and not os.path.isdir(folder):
            text = "ran from a snapshot of its code, which went when it had ended"
        if text:
            raise UsageError(f"job {each} {text}: submit it again; nothing was ordered")


def _check_update(
    dirs: StateDir, spool: Spool, log: RunLog, job_ids: Sequence[str], changes: Changes
) -> None:
    """:raises BadInputError: a job would make no sense after it, or could not be served."""
    requests = spool.requests()
    known = {job.id: job for job in read_schedule(dirs.schedule).jobs} if dirs.schedule.exists() else {}
    known |= {job.id: job for request in requests for job in request.jobs}
    known |= {job_id: log.jobs[job_id].job for job_id in job_ids if job_id in log.jobs}
    earlier = [(each.order.job, each.order.changes) for each in requests if each.order is not None]
    updated_jobs, problems = list[Job](), list[Problem]()
    for job_id in job_ids:
        job, source = known[job_id], f"job {job_id}"
        own = [made for whose, made in earlier if whose == job_id and made is not None]
        gpus = changes.get("gpus")
        several = isinstance(gpus, Mapping) and gpus.get("min") != gpus.get("max")
        if job.elastic == "none" and several:
            problems.append(Problem(source, None, "", "it is not elastic, so it has one number of GPUs"))
            continue
        try:
            for each in (*own, changes):
                job = updated(job, each)
        except ValidationError as error:
            problems += problems_of(error, source)
        else:
            updated_jobs.append(job)
            problems += job_problems(job, source, looks=False)
    if problems:
        raise BadInputError(problems)
    if dirs.cluster.exists():
        check_against(dirs, updated_jobs, "update")


def order_nodes(
    state: Path,
    action: NodeAction,
    names: Sequence[str],
    *,
    reason: str = "",
    now: bool = False,
    within_s: float | None = None,
    by: Account | None = None,
) -> None:
    """Order the same for several nodes, for all or none; durable when this returns.

    :param reason: why a node is drained.
    :param now: jobs leave a drained node at the next decision.
    :param within_s: nothing may run there after this time; it goes with ``now``.
    :param by: the account that orders it, if it is not this one.
    :raises UsageError: there is no such state directory or node, or it is not this user's.
    """
    dirs, spool = _spool(state)
    if not dirs.cluster.exists():
        raise UsageError(f"{state}: no run has begun there, so its nodes are not known")
    with spool.locked():
        known = [node.name for node in read_cluster(dirs.cluster).expanded()]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise UsageError(f"{state} has no node {', '.join(unknown)}; it has: {_few(known)}")
        user, uid, now_s = by.name if by else user_name(), _uid(dirs, by), time.time()
        spool.give(
            Order(
                action=action,
                node=name,
                user=user,
                uid=uid,
                asked_s=now_s,
                reason=reason,
                now=now,
                within_s=within_s,
            )
            for name in dict.fromkeys(names)
        )


def policy_ignoring_priority(state: Path) -> str | None:
    """The policy that decided last there if it ignores priorities, else None."""
    name = _deciding(state)
    return name if name is not None and policy_class(name).traits.priority_means == "" else None


def _overlooked_deadlines(state: Path, jobs: Iterable[Job]) -> str | None:
    """Which deadlines the policy that decided last there overlooks, those of these jobs among them."""
    name = _deciding(state)
    if name is None:
        return None
    cluster = read_schedule(StateDir(state.resolve()).schedule).cluster
    clauses = (policy_class(name).overlooks_deadline(job, cluster) for job in jobs)
    clause = next(filter(None, clauses), None)
    return None if clause is None else f'policy "{name}" ignores {clause}'


def _policy_ignoring_weight(state: Path) -> str | None:
    name = _deciding(state)
    return name if name is not None and not policy_class(name).traits.weight_means else None


def _deciding(state: Path) -> str | None:
    """The policy that decided last there. Returns None if none has, or it is not here."""
    try:
        name = read_schedule(StateDir(state.resolve()).schedule).policy.name
        policy_class(name)
    except PliantError:
        return None
    return name


def _spool(state: Path) -> tuple[StateDir, Spool]:
    dirs = StateDir(state.resolve())
    if not dirs.path.is_dir():
        raise UsageError(f"{state}: no state directory")
    return dirs, Spool(dirs)


def _few(names: Sequence[str], shown: int = 8) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}"


def user_name() -> str:
    return account_name(os.geteuid())
