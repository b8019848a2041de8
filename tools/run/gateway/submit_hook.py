"""A program of the operators' that sees each submission to a shared run, and changes or refuses jobs.

It gets a line of JSON for each job on stdin, ``{"user": …, "job": {…}}``, and answers with a line for each:
``{}`` for a job as it is, ``{"job": {…}, "note": …}`` for a changed one, ``{"refuse": "reason"}``. It runs as
an account of its own, which is not root, and is ended when its time is over; then nothing is submitted.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError

from pliant.schemas.errors import ServiceMissingError, UsageError
from pliant.schemas.file_io.documents import job_fields
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.job import Job
from pliant.schemas.text import one_line
from pliant.tools.run.backends.protocol import PATH
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.permissions import SubmitHook
from pliant.tools.run.statedir.directory import ROOT

LABEL: Final = "submit_hook"
"""Label of a changed job: the note of the hook, or the fields that it changed."""
MAX_NOTE: Final = 200
_log = logging.getLogger("pliant")


def through_hook(jobs: Sequence[Job], hook: SubmitHook | None, who: Caller) -> list[Job]:
    """The jobs as the hook leaves them; the same without a hook.

    :raises UsageError: it refuses one of them: none is submitted.
    :raises ServiceMissingError: it does not answer as it should.
    """
    if hook is None or not jobs:
        return list(jobs)
    asked = b"".join(_line({"user": who.name, "job": job_fields(job)}) for job in jobs)
    try:
        answers = _answers(_output(hook, asked), len(jobs))
        return [_as_answered(job, answer) for job, answer in zip(jobs, answers, strict=True)]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        _log.warning("gateway: the submit hook failed for %s: %s", who.account, one_line(str(error)))
        text = "the submit hook of this run failed, and nothing was submitted: tell its operator"
        raise ServiceMissingError(text) from error


def _answers(output: bytes, count: int) -> list[dict[str, Any]]:
    answers = [json.loads(line) for line in output.splitlines()]
    if len(answers) != count or not all(isinstance(each, dict) for each in answers):
        raise ValueError(f"{len(answers)} answers to {count} jobs")
    return answers


def _as_answered(job: Job, answer: dict[str, Any]) -> Job:
    if (reason := answer.get("refuse")) is not None:
        raise UsageError(f"job {job.id} is refused: {one_line(str(reason))[:MAX_NOTE]}")
    if (fields := answer.get("job")) is None:
        return job
    try:
        changed = Job.model_validate_json(json.dumps(fields))
    except ValidationError as error:
        raise ValueError(str(problems_of(error, f"job {job.id}")[0])) from error
    if (changed.id, changed.user, changed.workdir) != (job.id, job.user, job.workdir):
        raise ValueError(f"job {job.id}: its id, user and folder are not the hook's to change")
    before, after = job_fields(job), job_fields(changed)
    names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    if not names:
        return job
    note = one_line(str(answer.get("note") or f"changed {', '.join(sorted(names))}"))[:MAX_NOTE]
    return changed.model_copy(update={"labels": {**changed.labels, LABEL: note}})


def _output(hook: SubmitHook, asked: bytes) -> bytes:
    account = pwd.getpwnam(hook.user)
    if not account.pw_uid:
        raise ValueError("it is to run as an account of its own, not as root")
    becomes = os.geteuid() == ROOT
    with subprocess.Popen(
        hook.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        start_new_session=True,
        user=account.pw_uid if becomes else None,
        group=account.pw_gid if becomes else None,
        extra_groups=[] if becomes else None,
    ) as process:
        try:
            output, errors = process.communicate(asked, timeout=hook.timeout_seconds)
        finally:
            with suppress(ProcessLookupError):  # and whatever it has started
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"exit code {process.returncode}: {last}")
    return output


def _line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
