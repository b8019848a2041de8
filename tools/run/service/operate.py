"""What the owner of a state directory orders about jobs that are there: checked, then written durably."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path

from pliant.schemas.errors import PliantError, UsageError
from pliant.schemas.io import read_cluster, read_schedule
from pliant.schemas.text.wording import counted
from pliant.tools.run.service.submit import known_ids
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.view import LogView
from pliant.tools.run.statedir.orders import JobAction, NodeAction, Order
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.schedule.registry import policy_class


def order_jobs(
    state: Path, action: JobAction, job_ids: Sequence[str], *, priority: float | None = None
) -> list[str]:
    """Order the same of several jobs, of all or of none; durable when this returns.

    Returns those of them that have ended, of which nothing was ordered.

    :param priority: of ``priority``: the new one.
    :raises UsageError: there is no such state directory or job, or it is not this user's.
    """
    dirs, spool = _spool(state)
    with spool.locked():
        known = known_ids(dirs, spool)
        unknown = [job_id for job_id in job_ids if job_id not in known]
        if unknown:
            nothing = f"nothing was ordered for {counted(len(job_ids), 'job')}"
            raise UsageError(f"{state} has no job {', '.join(unknown)}: {nothing}")
        log = LogView(dirs).refresh()
        ended = [job_id for job_id in job_ids if job_id in log.jobs and job_id not in log.active]
        left = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in ended]
        user, now_s = user_name(), time.time()
        spool.give(
            Order(action=action, job=job_id, user=user, asked_s=now_s, priority=priority) for job_id in left
        )
    return ended


def order_nodes(
    state: Path, action: NodeAction, names: Sequence[str], *, reason: str = "", now: bool = False
) -> None:
    """Order the same of several nodes, of all or of none; durable when this returns.

    :param reason: why a node is drained.
    :param now: jobs leave a node that is drained at the next decision.
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
        user, now_s = user_name(), time.time()
        spool.give(
            Order(action=action, node=name, user=user, asked_s=now_s, reason=reason, now=now)
            for name in dict.fromkeys(names)
        )


def deaf_to_priorities(state: Path) -> str | None:
    """The policy that decided last there, where it says that it does not look at priorities; else None."""
    try:
        name = read_schedule(StateDir(state.resolve()).schedule).policy.name
        return name if policy_class(name).priority_means == "" else None
    except PliantError:
        return None


def _spool(state: Path) -> tuple[StateDir, Spool]:
    dirs = StateDir(state.resolve())
    if not dirs.path.is_dir():
        raise UsageError(f"{state}: no state directory")
    return dirs, Spool(dirs)


def _few(names: Sequence[str], shown: int = 8) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return f"{', '.join(names[:shown])}{more}"


def user_name() -> str:
    """Who gives orders: the user that this process runs as."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
