"""Options of ``pliant submit`` that say when jobs start: arrays, other jobs, times, a hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.job import Awaited, Job, Utility
from pliant.schemas.quantities import read_ahead
from pliant.schemas.text import EPOCH_LIKE_S, similar
from pliant.tools.run.door.asking import known_names

MOST_IN_ARRAY: Final = 10_000
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")
_AWAITED: Final[dict[str, Awaited]] = {"": "ok", "ok": "ok", "any": "any"}


@dataclass(frozen=True, slots=True)
class ArrayNumbers:
    """What ``--array`` says."""

    numbers: Sequence[int]
    limit: int | None
    """How many of its jobs hold GPUs at a time; None: all of them."""

    def jobs(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        """The fields of all jobs of the array, from those that they share."""
        name = fields["id"]
        own = {"name": name} if self.limit is None else {"name": name, "limit": self.limit}
        return [
            {**fields, "id": f"{name}-{number}", "array": {**own, "index": number}} for number in self.numbers
        ]


def numbers_of(text: str) -> ArrayNumbers:
    """``0-9``, ``1,3,7-9``, ``0-90:10``, each with ``%LIMIT`` behind it.

    :raises UsageError: it is something else, or too long.
    """
    listed, limited, most = text.partition("%")
    numbers: dict[int, None] = {}
    good = not limited or (most.isascii() and most.isdigit() and len(most) < 9 and int(most) > 0)
    for part in listed.split(","):
        found = _RANGE.fullmatch(part)
        span = range(0) if found is None else _span(found)
        good &= bool(span)
        numbers |= dict.fromkeys(span[: MOST_IN_ARRAY + 1])
    if not good:
        raise UsageError(f"--array {text}: expected numbers, as 0-9, 1,3,5 or 0-90:10, and a limit, as 0-9%4")
    if len(numbers) > MOST_IN_ARRAY:
        raise UsageError(f"--array {text}: has more than {MOST_IN_ARRAY:,} jobs")
    return ArrayNumbers(tuple(numbers), int(most) if limited else None)


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
        shared["submit_time"] = _moment("--begin", begin, now_s)
    if after:
        shared["after"] = _awaited(after, state)
    until_s = None if deadline is None else _moment("--deadline", deadline, now_s)
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
        own["utility"] = Utility(shape="step", value=job.utility.value, target=until_s - begins_s)
    if not own:
        return job
    stated = job.model_fields_set | own.keys()
    found = job.model_copy(update=own)
    found.model_fields_set.update(stated)
    return found


def _moment(option: str, text: str, now_s: float) -> float:
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
            raise UsageError(f"--after {text}: expected JOB, JOB:ok or JOB:any")
    if state is None or not state.is_dir():
        return {name: _AWAITED[when] for name, when in pairs}
    known, arrays = known_names(state)
    for name, _ in pairs:
        if name not in known and name not in arrays:
            near = similar(name, sorted({*known, *arrays}), 1)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            raise BadInputError.one("--after", f'{state} has no job and no array "{name}"{hint}')
    return {
        job_id: _AWAITED[when]
        for name, when in pairs
        for job_id in ([name] if name in known else arrays[name])
    }
