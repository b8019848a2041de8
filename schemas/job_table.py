"""Many jobs in columns: an id, a submission time and an amount of work each, and a form that jobs share.

Traces repeat themselves: a job file holds a million jobs and a few hundred kinds of them. A :class:`JobForm`
is all that jobs of one kind have in common, and makes a job, or the text of one, of the three values that
differ. A :class:`JobTable` takes some 90 bytes a job where a :class:`~pliant.schemas.job.Job` takes 2,000.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, pairwise
from typing import Any, Final, TypeVar, overload

from pydantic import BaseModel

from pliant.schemas.file_io.record import Record
from pliant.schemas.job import Job, Work, canonical_parts

R = TypeVar("R", bound=Record)
_START: Final = re.compile(
    rb'\{"id":"([A-Za-z0-9][A-Za-z0-9._-]{0,127})","submit_time":((?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?),'
)
_WORK: Final = re.compile(
    rb'"work":\{"(?:samples|epochs|iterations|gpu_seconds)":((?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?)[,}]'
)
"""What is inside a string cannot match: its quotes are escaped there."""
_MARK: Final = 1234.5
"""Stands for a value in the text of a form."""
_LEAST: Final = 1e-4
_MOST: Final = 1e16
"""In this range Python and pydantic write numbers alike, without an exponent."""
_FEW: Final = 4096
"""From this number of forms on, a file that has a new one for each second job is not looked at for more."""


class JobForm:
    """All that jobs have in common but their ids, submission times and amounts of work."""

    def __init__(self, template: Job) -> None:
        """:param template: any of the jobs."""
        self.template = template
        self._names = template.model_fields_set
        self._values = {**template.__dict__, "form": self}
        work = template.work
        self._work: type[Work] | None = None if work is None else type(work)
        self._work_names: set[str] = set() if work is None else work.model_fields_set
        self._work_values: dict[str, Any] = {} if work is None else work.__dict__
        self._amount_name = "" if work is None else amount_name(work)

    def job(self, job_id: str, submit_time_s: float, amount: float) -> Job:
        """:param amount: of work; of no meaning where the template states none."""
        values = self._values.copy()
        values["id"], values["submit_time"] = job_id, submit_time_s
        if self._work is not None:
            work = self._work_values.copy()
            work[self._amount_name] = amount
            values["work"] = _record(self._work, work, self._work_names)
        return _record(Job, values, self._names)

    def json(self, job: Job) -> str:
        """``job.model_dump_json(by_alias=True, exclude_defaults=True)`` for a job of this form."""
        values = job.__dict__
        submit_s: float = values["submit_time"]
        if _LEAST <= submit_s < _MOST or not submit_s:
            middle, end = self._json
            if self._work is None:
                return f'{{"id":"{values["id"]}","submit_time":{submit_s!r}{middle}'
            amount: float = values["work"].__dict__[self._amount_name]
            if _LEAST <= amount < _MOST:
                return f'{{"id":"{values["id"]}","submit_time":{submit_s!r}{middle}{amount!r}{end}'
        return job.model_dump_json(by_alias=True, exclude_defaults=True)

    @cached_property
    def _json(self) -> tuple[str, str]:
        text = self.job("", _MARK, _MARK).model_dump_json(by_alias=True, exclude_defaults=True)
        rest = text.removeprefix(f'{{"id":"","submit_time":{_MARK}')
        middle, mark, end = rest.partition(f'"work":{{"{self._amount_name}":{_MARK}')
        return f"{middle}{mark.removesuffix(str(_MARK))}", end

    def canonical(self, job_id: str, submit_time_s: float, amount: float) -> str:
        """:func:`~pliant.schemas.job.canonical_json` of a job of this form."""
        before, between, after, end = self._canonical
        work = repr(amount) if self._work is not None else ""
        return f"{before}{job_id}{between}{submit_time_s!r}{after}{work}{end}"

    @cached_property
    def _canonical(self) -> tuple[str, str, str, str]:
        parts = [""]
        for name, text in canonical_parts(self.template):
            if name == "id":
                parts[-1] += ',"id":"'
                parts.append('"')
            elif name == "submit_time":
                parts[-1] += ',"submit_time":'
                parts.append("")
            elif name == "work" and self.template.work is not None:
                inner = [
                    (f'"{key}":', "" if key == self._amount_name else value)
                    for key, value in _unnamed(canonical_parts(self.template.work))
                ]
                at = next(number for number, (_, value) in enumerate(inner) if not value)
                ahead = ",".join(key + value for key, value in inner[: at + 1])
                behind = "".join(f",{key}{value}" for key, value in inner[at + 1 :])
                parts[-1] += f',"work":{{{ahead}'
                parts.append(f"{behind}}}")
            else:
                parts[-1] += f",{text}"
        parts[0], parts[-1] = "{" + parts[0].removeprefix(","), parts[-1] + "}"
        before, between, after, *end = parts
        return before, between, after, "".join(end)


def _unnamed(parts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(name, text of the value) of fields."""
    return ((name, text.removeprefix(f'"{name}":')) for name, text in parts)


def _record(kind: type[R], values: dict[str, Any], names: set[str]) -> R:
    """A record of values that are known to be right."""
    made = _new(kind)
    _set_values(made, values)
    _set_names(made, names)
    _set_extra(made, None)
    _set_private(made, None)
    return made


_new: Final = object.__new__
_set_values, _set_names, _set_extra, _set_private = (
    BaseModel.__dict__[name].__set__
    for name in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


def amount_name(work: Work) -> str:
    """The field of the amount of work: samples, epochs, iterations or gpu_seconds."""
    return next(iter(type(work).model_fields))


def amount_of(job: Job) -> float:
    """The amount of a job's work, in whatever it is stated; 0 if none is."""
    work = job.work
    if work is None:
        return 0.0
    found: float = work.__dict__[amount_name(work)]
    return found


class JobTable(Sequence[Job]):
    """Jobs in columns; each is made when it is asked for."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self.ids: list[str] = []
        self.submit_time = array("d")
        self.amount = array("d")
        self.kind = array("q")
        """Number of each job's form."""
        self.forms: list[JobForm] = []
        self._known: dict[tuple[bytes, ...], int] = {}
        """Forms by the text of a line around the three values; -1: that does not say which form it is."""
        self._unproved: set[int] = set()
        """Forms of which no second line was seen."""
        for job in jobs:
            self.append(job)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, row: int) -> Job: ...
    @overload
    def __getitem__(self, row: slice) -> JobTable: ...
    def __getitem__(self, row: int | slice) -> Job | JobTable:
        if isinstance(row, slice):
            return self._of(range(len(self))[row])
        return self.forms[self.kind[row]].job(self.ids[row], self.submit_time[row], self.amount[row])

    def __iter__(self) -> Iterator[Job]:
        forms = self.forms
        for job_id, kind, submit_s, amount in zip(
            self.ids, self.kind, self.submit_time, self.amount, strict=True
        ):
            yield forms[kind].job(job_id, submit_s, amount)

    def append(self, job: Job, line: bytes = b"") -> int:
        """Returns the row of the job.

        :param line: the JSON text that the job was read from.
        """
        key = _around(line) if len(self.forms) < _FEW or 2 * len(self.forms) < len(self) else None
        kind = len(self.forms)
        self.forms.append(JobForm(job))
        self._add(job.id, job.submit_time, amount_of(job), kind)
        if key is not None and key not in self._known and not job.after:  # a job may not wait for itself
            self._known[key] = kind
            self._unproved.add(kind)
        return len(self) - 1

    def _prove(self, key: tuple[bytes, ...], kind: int) -> bool:
        self._unproved.remove(kind)
        if not self._is_form(key, self.forms[kind].template):
            self._known[key] = -1
        return self._known[key] == kind

    def _is_form(self, key: tuple[bytes, ...], job: Job) -> bool:
        """Whether the three values are where they seem to be: a job with others differs in nothing else."""
        start, *rest = key
        values = [b"a-mark", str(_MARK).encode(), str(_MARK).encode()]
        text = b'{"id":"%b","submit_time":%b,' % (values[0], values[1]) + values[2].join([start, *rest])
        other = Job.model_validate_json(text)
        expected = JobForm(job).job("a-mark", _MARK, _MARK)
        return bool(other == expected and other.model_fields_set == job.model_fields_set)

    def take(self, line: bytes) -> bool:
        """Add the job of a line, if the line is of a form that is known."""
        start = _START.match(line)
        if start is None:
            return False
        at = start.end()
        work = _WORK.search(line, at)
        key = (line[at:],) if work is None else (line[at : work.start(1)], line[work.end(1) :])
        kind, amount = self._known.get(key, -1), 0.0 if work is None else float(work[1])
        if kind < 0 or (work is not None and not amount):
            return False
        if kind in self._unproved and not self._prove(key, kind):
            return False
        self._add(start[1].decode(), float(start[2]), amount, kind)
        return True

    def _add(self, job_id: str, submit_time_s: float, amount: float, kind: int) -> None:
        self.ids.append(job_id)
        self.submit_time.append(submit_time_s)
        self.amount.append(amount)
        self.kind.append(kind)

    def in_order(self) -> JobTable:
        """The jobs in order of (submit_time, id)."""
        keys = zip(self.submit_time, self.ids, strict=True)
        if all(earlier <= later for earlier, later in pairwise(keys)):
            return self
        return self._of(sorted(range(len(self)), key=lambda row: (self.submit_time[row], self.ids[row])))

    def _of(self, rows: Sequence[int]) -> JobTable:
        found = JobTable()
        found.forms = self.forms
        found.ids = [self.ids[row] for row in rows]
        for name in ("submit_time", "amount", "kind"):
            column = getattr(self, name)
            setattr(found, name, array(column.typecode, (column[row] for row in rows)))
        return found

    def complete_times(self) -> None:
        """Jobs that state no time arrive with the first that does, else at 0."""
        stating = ["submit_time" in form.template.model_fields_set for form in self.forms]
        if all(stating) or not any(stating):
            return
        first_s = min(compress(self.submit_time, (stating[kind] for kind in self.kind)))
        for row, kind in enumerate(self.kind):
            if not stating[kind]:
                self.submit_time[row] = first_s

    def canonical(self) -> Iterator[str]:
        """:func:`~pliant.schemas.job.canonical_json` of each job."""
        forms = self.forms
        for job_id, kind, submit_s, amount in zip(
            self.ids, self.kind, self.submit_time, self.amount, strict=True
        ):
            yield forms[kind].canonical(job_id, submit_s, amount)


def _around(line: bytes) -> tuple[bytes, ...] | None:
    """The text of a line around the three values. Returns None if it is not as such lines are written."""
    start = _START.match(line)
    if start is None:
        return None
    work = _WORK.search(line, start.end())
    if work is None:
        return (line[start.end() :],)
    return line[start.end() : work.start(1)], line[work.end(1) :]


def in_order(jobs: Sequence[Job]) -> Sequence[Job]:
    """Jobs in order of (submit_time, id)."""
    if isinstance(jobs, JobTable):
        return jobs.in_order()
    return tuple(sorted(jobs, key=lambda job: (job.submit_time, job.id)))


def one_of_each(jobs: Sequence[Job]) -> Iterable[Job]:
    """Jobs among which is one of each form, to look at what does not depend on the three values."""
    if not isinstance(jobs, JobTable):
        return jobs
    return [jobs.forms[kind].template for kind in sorted(set(jobs.kind))]


def jobs_that(applies: Callable[[Job], object], jobs: Sequence[Job]) -> Iterator[Job]:
    """The jobs of which something applies that does not depend on the three values."""
    if not isinstance(jobs, JobTable):
        return (job for job in jobs if applies(job))
    chosen = {kind for kind in set(jobs.kind) if applies(jobs.forms[kind].template)}
    if not chosen:
        return iter(())
    rows = compress(range(len(jobs)), (kind in chosen for kind in jobs.kind))
    return (jobs[row] for row in rows)
