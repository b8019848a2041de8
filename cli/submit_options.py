"""The jobs that the options of ``pliant submit`` state: of a script, of an array, and what all jobs share."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pliant.cli.config import configuration
from pliant.cli.option_types import sizes_of
from pliant.cli.script import utf8
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.quantities import read_ahead
from pliant.schemas.text import EPOCH_LIKE_S, similar

if TYPE_CHECKING:
    from pliant.schemas.job import Awaited, Job

COMMAND_LINE: Final = "the command line"


def of_script(
    command: Sequence[str],
    stated: dict[str, Any],
    state: Path | None,
    array: ArrayNumbers | None = None,
    *,
    dry_run: bool = False,
) -> tuple[Job, ...]:
    """The job of a script, or its array, as if it had been written into a file.

    :param stated: its fields so far.
    :param state: where its id must be new; None if it is not submitted.
    :param dry_run: a run of another account does not name it.
    """
    from pliant.tools.run.gateway.connect import client_for
    from pliant.tools.run.service.submit import free_id
    from pliant.tools.run.statedir.requests import submitted_jobs

    known: Collection[str] = ()
    if "id" not in stated and state is not None and state.is_dir():
        client = client_for(state)
        known = client.used_ids() if dry_run or not client.numbers_jobs else ()
    endings = [""] if array is None else [f"-{number}" for number in array.numbers]
    named = command[1] if command[0] == "-m" and len(command) > 1 else Path(command[0]).stem
    base = re.sub(r"[^A-Za-z0-9._-]", "-", named)
    fields = {"id": free_id(base, known, endings), "command": command, **stated}
    listed = [fields] if array is None else array.jobs(fields)
    text = "\n".join(map(json.dumps, listed))
    return submitted_jobs(text, COMMAND_LINE, configuration().job)


def job_fields(
    gpus: str | None,
    kind: Mapping[str, Any],
    starts: Mapping[str, Any],
    batch: int | None,
    name: str | None,
    *,
    relaunch: bool,
) -> dict[str, Any]:
    """What the options say of a job.

    :param kind: fields of its GPUs that say which they may be; None: any.
    :param starts: fields that say what starts and ends it; None: the default.
    """
    fields: dict[str, Any] = {} if gpus is None else _sizes(gpus)
    fields |= {field: value for field, value in starts.items() if value is not None}
    if stated := {field: value for field, value in kind.items() if value is not None}:
        fields["gpus"] = {**(fields.get("gpus") or configuration().job.get("gpus") or {}), **stated}
    if batch is not None:
        fields["batch"] = {"size": batch}
    if name is not None:
        fields["id"] = name
    if relaunch:
        fields["resize"] = "relaunch"
    return fields


def container_field(
    image: str | None, runtime: str | None, mounts: list[str] | None, options: list[str] | None
) -> dict[str, Any] | None:
    """The container of a script, with what the configuration says of one. Returns None without options.

    :raises UsageError: no image is named.
    """
    stated = {"image": image, "runtime": runtime, "mounts": mounts, "options": options}
    if not (given := {field: value for field, value in stated.items() if value}):
        return None
    container = {**(configuration().job.get("container") or {}), **given}
    if "image" not in container:
        raise UsageError("options --container-… need an image: name it with --container")
    return container


def _sizes(gpus: str) -> dict[str, Any]:
    """:raises UsageError: it is neither a number nor two of them, nor a list of rising ones."""
    if gpus == "0":
        return {"gpus": {"requested": 0}}
    sizes = {name: value for name, value in sizes_of(gpus).items() if value is not None}
    if gpus.isdecimal():
        return {"gpus": {"requested": sizes["requested"]}}
    return {"gpus": sizes, "elastic": "size"}


_MOST_IN_ARRAY: Final = 10_000
_ARRAY_LINE: Final = "PLIANT_ARRAY_LINE"
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_AWAITED: Final[dict[str, Awaited]] = {"": "ok", "ok": "ok", "any": "any", "failed": "failed"}


@dataclass(frozen=True, slots=True)
class ArrayNumbers:
    """What ``--array`` says."""

    numbers: Sequence[int]
    limit: int | None
    """Maximum jobs of the array that hold GPUs at a time; None for all."""
    lines: Mapping[int, str] = field(default_factory=dict)
    """Values of ``PLIANT_ARRAY_LINE`` by number."""
    max_failures: int | None = None

    def jobs(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """The fields of all jobs of the array, from those that they share."""
        name = fields["id"]
        shared = {"name": name, "limit": self.limit, "max_failures": self.max_failures}
        own = {field: value for field, value in shared.items() if value is not None}
        return [
            {
                **fields,
                **({"env": {_ARRAY_LINE: self.lines[number]}} if self.lines else {}),
                "id": f"{name}-{number}",
                "array": {**own, "index": number},
            }
            for number in self.numbers
        ]


def numbers_of(text: str, max_failures: int | None = None) -> ArrayNumbers:
    """``0-9``, ``1,3,7-9``, ``0-90:10``, or ``@FILE`` for its lines, each with ``%LIMIT`` behind it.

    :raises UsageError: it is something else, or too long.
    """
    listed, limited, most = text.rpartition("%") if "%" in text else (text, "", "")
    numbers: dict[int, None] = {}
    lines: dict[int, str] = {}
    good = not limited or (most.isascii() and most.isdigit() and len(most) < 9 and int(most) > 0)
    if listed.startswith("@"):
        lines = _lines_of(listed[1:])
        numbers |= dict.fromkeys(lines)
    else:
        for part in listed.split(","):
            match = _RANGE.fullmatch(part)
            span = range(0) if match is None else _span(match)
            good &= bool(span)
            numbers |= dict.fromkeys(span[: _MOST_IN_ARRAY + 1])
    if not good:
        expected = "expected numbers, as 0-9, 1,3,5 or 0-90:10, or the lines of a file, as @FILE, and a limit"
        raise UsageError(f"--array {text}: {expected}, as 0-9%4")
    if len(numbers) > _MOST_IN_ARRAY:
        raise UsageError(f"--array {text}: has more than {_MOST_IN_ARRAY:,} jobs")
    return ArrayNumbers(tuple(numbers), int(most) if limited else None, lines, max_failures)


def _lines_of(path: str) -> dict[int, str]:
    """The lines of a file that are not blank, by number from 1 on.

    :raises BadInputError: there is none, or it is not UTF-8.
    """
    from pliant.schemas.file_io.files import read_bytes
    from pliant.schemas.file_io.limits import ROWS_BYTES

    text = utf8(read_bytes(path, most=ROWS_BYTES), path)
    lines = {number: line for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    if not lines:
        raise BadInputError.one(path, "has no lines, expected one for each job of the array")
    return lines


def _span(found: re.Match[str]) -> range:
    """The numbers of a range; none if it is empty or has no step."""
    step = int(found[3] or 1)
    return range(int(found[1]), int(found[2] or found[1]) + 1, step) if step else range(0)


def with_options(
    jobs: Iterable[Job],
    after: Sequence[str],
    begin: str | None,
    deadline: str | None,
    state: Path | None,
    *,
    now_s: float,
    hold: bool,
) -> tuple[Job, ...]:
    """Jobs that start when the options say.

    :param state: the state directory whose jobs and arrays ``after`` may name; None if there is none.
    :raises UsageError: a time or a job is not one.
    """
    shared: dict[str, Any] = {"hold": True} if hold else {}
    if begin is not None:
        shared["submit_time"] = moment_ahead("--begin", begin, now_s)
    if after:
        shared["after"] = _awaited(after, state)
    until_s = None if deadline is None else moment_ahead("--deadline", deadline, now_s)
    return tuple(_changed(job, shared, until_s, now_s) for job in jobs)


def _changed(job: Job, shared: dict[str, Any], until_s: float | None, now_s: float) -> Job:
    own = dict(shared)
    if "after" in own:
        own["after"] = {**job.after, **own["after"]}
        if job.id in own["after"]:
            raise UsageError(f'--after: job "{job.id}" would wait for itself')
    if until_s is not None:
        stated_s = own.get("submit_time", job.submit_time)
        begins_s = stated_s if stated_s >= EPOCH_LIKE_S else now_s + stated_s
        if until_s <= begins_s:
            raise UsageError(f'--deadline: job "{job.id}" arrives only then or later')
        from pliant.schemas.job import Utility

        own["utility"] = Utility(shape="step", value=job.utility.value, target=until_s - begins_s)
    if not own:
        return job
    stated = job.model_fields_set | own.keys()
    changed = job.model_copy(update=own)
    changed.model_fields_set.update(stated)
    return changed


def moment_ahead(option: str, text: str, now_s: float) -> float:
    try:
        return read_ahead(text, now_s)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error


def _awaited(given: Sequence[str], state: Path | None) -> dict[str, Awaited]:
    """The jobs to wait for, arrays resolved.

    :raises UsageError: a condition is not known.
    """
    pairs = [each.partition(":")[::2] for each in given]
    for text, (name, when) in zip(given, pairs, strict=True):
        if not name or when not in _AWAITED:
            raise UsageError(f"--after {text}: expected JOB, JOB:ok, JOB:failed or JOB:any")
    if state is None or not state.is_dir():
        return {name: _AWAITED[when] for name, when in pairs}
    from pliant.tools.run.gateway.connect import client_for

    ids, arrays, newest = client_for(state).names()
    known = {*ids, *newest}
    for name, _ in pairs:
        if name not in known and name not in arrays:
            near = similar(name, sorted({*known, *arrays}), 1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise BadInputError.one("--after", f'{state} has no job and no array "{name}"{hint}')
    return {
        job_id: _AWAITED[when]
        for name, when in pairs
        for job_id in ([newest.get(name, name)] if name in known else arrays[name])
    }
