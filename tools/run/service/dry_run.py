"""``--dry-run``: the steps and the exact commands, as text."""

from __future__ import annotations

from pliant.tools.run.service.allocation.change_steps import Step, Target
from pliant.tools.run.service.allocation.startable import startable
from pliant.tools.run.service.attempt.commands import units
from pliant.tools.run.service.attempt.launching import next_handle
from pliant.tools.run.service.attempt.plan_file import read_plan, target_of
from pliant.tools.run.service.executor import Executor
from pliant.tools.run.service.inputs import Prepared
from pliant.tools.run.statedir.directory import read_log
from pliant.tools.run.statedir.layout import StateDir
from pliant.tools.run.statedir.log.fold import RunLog

PORT = 29500
"""Stands for the free port that is looked for when a job starts on several nodes."""


def first_steps(prepared: Prepared, *, resume: bool) -> str:
    """The steps that a run would begin with, as text; nothing is touched.

    :param resume: as for :meth:`Prepared.read`.
    """
    name = prepared.schedule.policy.name
    if prepared.resumed and resume:
        return f'policy "{name}" decides first, from what the log then says: there are no steps before that\n'
    log = read_log(prepared.dirs.path) if prepared.dirs.events.is_file() else RunLog()
    executor = prepared.executor
    executor.targets = _held(log, prepared.dirs)
    shares = startable(log, prepared.schedule, prepared.clock())
    steps = executor.steps_to(shares, log)
    return "".join(f"{line}\n" for step in steps for line in _lines(step, prepared.dirs, executor))


def _lines(step: Step, dirs: StateDir, executor: Executor) -> list[str]:
    """What happens to which slots, then each command on a line of its own."""
    head = f"{step.event} {step.job_id}: {_slots(step.before)} -> {_slots(step.after)}"
    if step.after is None:
        return [head]
    attempt = next_handle(dirs, step.job_id)
    commands = units(step.after, dirs.job(step.job_id).path, attempt.files, executor.nodes, PORT)
    shown = (f"  {line}" for line in executor.shown(attempt, commands))
    return [f"{head} (attempt {attempt.attempt})", _plan(step.after), *shown]


def _plan(target: Target) -> str:
    share = target.share
    batch = "as the script says" if share.global_batch is None else str(share.global_batch)
    return f"  plan: global batch {batch}, {share.accum} micro-steps, learning rate x {share.lr_scale:g}"


def _slots(target: Target | None) -> str:
    return "nothing" if target is None else " ".join(map(str, target.slots))


def _held(log: RunLog, dirs: StateDir) -> dict[str, Target]:
    """What the log and the plans of a state directory say that jobs hold."""
    active = {job_id: job for job_id, job in log.active.items() if job.gpus}
    plans = {job_id: read_plan(dirs.job(job_id)) for job_id in active}
    return {job_id: target_of(plan, active[job_id].share) for job_id, plan in plans.items() if plan}
