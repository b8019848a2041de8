"""Many jobs in columns: an id, a submission time, an amount of work and labels each, and a form they share.

Traces repeat themselves: a job file holds a million jobs and a few hundred kinds of them. A :class:`JobForm`
is all that jobs of one kind have in common, and makes a job, or the text of one, of the values that differ.
What labels say is one of these, for they tell of each job where it comes from. A :class:`JobTable` takes some
30 bytes a job beside its id and labels, where a :class:`~pliant.schemas.job.Job` takes 2,000. That of a long
trace is in temporary files, so that the memory of a replay does not grow with its trace.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, groupby, islice
from operator import ge
from typing import Any, Final, NamedTuple, TypeVar, overload

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from pliant.schemas.file_io.record import Record
from pliant.schemas.file_io.stored_columns import StoredColumns
from pliant.schemas.job import Job, Work, canonical_parts

R = TypeVar("R", bound=Record)
T = TypeVar("T")
N = TypeVar("N", float, str)
_START: Final = re.compile(
    rb'\{"id":"([A-Za-z0-9][A-Za-z0-9._-]{0,127})","submit_time":((?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?),'
)
_WORK: Final = re.compile(
    rb'"work":\{"(?:samples|epochs|iterations|gpu_seconds)":((?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?)[,}]'
)
"""What is inside a string cannot match: its quotes are escaped there."""
_LABEL: Final = rb'"[ !#-\[\]-~]+":"[ !#-\[\]-~]+"'
"""Of characters that are written alike inside and outside of JSON."""
_LABELS_START: Final = b',"labels":{'
_LABELS: Final = re.compile(rb"%b(%b(?:,%b)*)\}\}" % (re.escape(_LABELS_START), _LABEL, _LABEL))
"""At the end of a line."""
_MARK: Final = 1234.5
_WORD: Final = "a-mark"
"""They stand for values in the text of a form."""
_QUOTED: Final = '"%s"'
_LEAST: Final = 1e-4
_MOST: Final = 1e16
"""In this range Python and pydantic write numbers alike, without an exponent."""
_FEW: Final = 4096
"""From this number of forms on, a file that has a new one for each second job is not looked at for more."""
_BLOCK: Final = 1 << 10
"""Jobs whose texts are decoded at a time."""
_STORED_BLOCK: Final = 1 << 16
"""Jobs that are stored at a time, where a table is; after as many that were read, they may leave memory."""
_ROW_BYTES: Final = 100
_FORM_BYTES: Final = 3000
_TYPECODES: Final = {"submit_time": "d", "amount": "d", "kind": "i", "_texts": "B", "_ends": "q"}
"""Of the columns of a table, as of :mod:`array`."""
_BETWEEN: Final = "\n"
"""Stands in a table between the id of a job and what its labels say, which cannot hold it."""


class JobForm:
    """All that jobs have in common but their ids, submission times, amounts of work, and what labels say."""

    def __init__(self, template: Job, labels: Sequence[str] = ()) -> None:
        """:param template: any of the jobs.
        :param labels: names of its labels, all of them, if they say something else of each job.
        """
        self.template = template
        self.labels = tuple(labels)
        self._names = template.model_fields_set
        self._values = {**template.__dict__, "form": self}
        work = template.work
        self._work: type[Work] | None = None if work is None else type(work)
        self._work_names: set[str] = set() if work is None else work.model_fields_set
        self._work_values: dict[str, Any] = {} if work is None else work.__dict__
        self._amount_name = "" if work is None else amount_name(work)

    def job(self, job_id: str, submit_time_s: float, amount: float, said: Sequence[str] = ()) -> Job:
        """:param amount: of work; of no meaning where the template states none.
        :param said: by the labels, in the order of their names.
        """
        values = self._values.copy()
        values["id"], values["submit_time"] = job_id, submit_time_s
        if self._work is not None:
            work = self._work_values.copy()
            work[self._amount_name] = amount
            values["work"] = _record(self._work, work, self._work_names)
        if self.labels:
            values["labels"] = dict(zip(self.labels, said, strict=True))
        return _record(Job, values, self._names)

    def amount(self, job: Job) -> float:
        """Of the work of a job of this form, which states some."""
        found: float = job.__dict__["work"].__dict__[self._amount_name]
        return found

    def json(self, job: Job) -> str:
        """``job.model_dump_json(by_alias=True, exclude_defaults=True)`` for a job of this form."""
        values = job.__dict__
        submit_s: float = values["submit_time"]
        amount = 1.0 if self._work is None else self.amount(job)
        if not (_LEAST <= submit_s < _MOST or not submit_s) or not _LEAST <= amount < _MOST:
            return job.model_dump_json(by_alias=True, exclude_defaults=True)
        if self._work is not None and not self.labels:  # as most are
            return self.template_json % (values["id"], repr(submit_s), repr(amount))
        amounts = () if self._work is None else (repr(amount),)
        said = values["labels"].values() if self.labels else ()
        return self.template_json % (values["id"], repr(submit_s), *amounts, *said)

    @cached_property
    def template_json(self) -> str:
        """What :meth:`json` makes, with ``%s`` for each value that differs."""
        job = self.job(_WORD, _MARK, _MARK, [_WORD] * len(self.labels))
        text = job.model_dump_json(by_alias=True, exclude_defaults=True).replace("%", "%%")
        start = '{"id":"%s","submit_time":%s'
        rest = text.removeprefix(start % (_WORD, _MARK))
        if self._work is not None:
            work = f'"work":{{"{self._amount_name}":'
            rest = rest.replace(f"{work}{_MARK}", f"{work}%s", 1)
        if self.labels:  # the last field of a job
            last = f',"labels":{_compact(job.labels)}}}'.replace("%", "%%")
            rest = rest.removesuffix(last) + last.replace(f':"{_WORD}"', ':"%s"')
        return start + rest

    def canonical(self, job_id: str, submit_time: str, amount: str, said: Sequence[str] = ()) -> str:
        """:func:`~pliant.schemas.job.canonical_json` of a job of this form.

        :param submit_time: its text, as is that of ``amount``.
        """
        text, order = self._canonical
        if not order and self._work is not None:  # as most are
            return text % (job_id, submit_time, amount)
        amounts = () if self._work is None else (amount,)
        return text % (job_id, *[said[number] for number in order], submit_time, *amounts)

    @cached_property
    def _canonical(self) -> tuple[str, Sequence[int]]:
        """With ``%s`` for each value that differs, and the labels in their order there, by number."""
        order = sorted(range(len(self.labels)), key=self.labels.__getitem__)
        differ = {"id": '"id":"%s"', "submit_time": '"submit_time":%s'}
        if self.labels:
            names = [_compact(self.labels[number]).replace("%", "%%") for number in order]
            differ["labels"] = f'"labels":{{{",".join(f"{name}:{_QUOTED}" for name in names)}}}'
        if self.template.work is not None:
            inner = [
                f'"{self._amount_name}":%s' if name == self._amount_name else text.replace("%", "%%")
                for name, text in canonical_parts(self.template.work)
            ]
            differ["work"] = f'"work":{{{",".join(inner)}}}'
        parts = [(name, text.replace("%", "%%")) for name, text in canonical_parts(self.template)]
        return f"{{{','.join(differ.get(name, text) for name, text in parts)}}}", order


_compact: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def _record(kind: type[R], values: dict[str, Any], names: set[str]) -> R:
    """A record of values that are known to be right."""
    made = _new(kind)
    _set_values(made, values)
    _set_names(made, names)
    _set_extra(made, None)
    _set_private(made, None)
    return made


_make: Final = tuple.__new__
"""Makes a named tuple in half the time."""
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


class _Around(NamedTuple):
    """The text of a line around the values that differ."""

    before: bytes
    """From the submission time to the amount of work, if there is one, else as ``after``."""
    after: bytes
    """From there to the labels, if such are at the end of the line, else to its end."""
    labels: tuple[bytes, ...]
    """Their names."""

    def line(self) -> bytes:
        """A line with other values."""
        amount = str(_MARK).encode() if self.after else b""
        said = b",".join(b'"%b":"%b"' % (name, _WORD.encode()) for name in self.labels)
        last = _LABELS_START + said + b"}}" if self.labels else b""
        return (
            b'{"id":"%b","submit_time":%f,' % (_WORD.encode(), _MARK)
            + self.before
            + amount
            + self.after
            + last
        )


class _Parts(NamedTuple):
    """What a line says: a form, and values."""

    around: _Around
    job_id: bytes
    submit_time_s: float
    amount: float | None
    said: Sequence[bytes]
    """By the labels."""

    def says(self, job: Job) -> bool:
        """Whether the values are those of a job that was read from the same line."""
        names = self.around.labels
        labels = {name.decode(): text.decode() for name, text in zip(names, self.said, strict=True)}
        return (
            self.job_id.decode() == job.id
            and self.submit_time_s == job.submit_time
            and self.amount == (None if job.work is None else amount_of(job))
            and (not names or (labels == job.labels and len(labels) == len(names)))
        )


def _parts(line: bytes) -> _Parts | None:
    """Returns None for a line that is not as such lines are written."""
    start = _START.match(line)
    if start is None:
        return None
    at, end = start.end(), len(line)
    names: tuple[bytes, ...] = ()
    said: Sequence[bytes] = ()
    last = line.rfind(_LABELS_START)
    if last >= at and (labels := _LABELS.fullmatch(line, last)) is not None:
        words, end = labels[1].split(b'"'), last
        names, said = tuple(words[1::4]), words[3::4]
    work = _WORK.search(line, at, end)
    if work is None:
        before, after, amount = line[at:end], b"", None
    else:
        begin, until = work.span(1)
        before, after, amount = line[at:begin], line[until:end], float(line[begin:until])
    around = _make(_Around, (before, after, names))
    job_id, time_s = start.groups()
    return _make(_Parts, (around, job_id, float(time_s), amount, said))


class JobTable(Sequence[Job]):
    """Jobs in columns; each is made when it is asked for.

    The columns are arrays. A long table that is stored can be read once it is complete: then they are mapped,
    and it can be neither changed nor copied.
    """

    def __init__(self, jobs: Iterable[Job] = (), *, is_stored: bool = False) -> None:
        """:param is_stored: it is read only after :meth:`complete`; if it is long, it is not in memory."""
        self.submit_time = array("d")
        self.amount = array("d")
        # Number of each job's form.
        self.kind = array("i")
        self.forms: list[JobForm] = []
        # Of each job its id and, where its form leaves them open, what its labels say: all of it ASCII.
        self._texts = bytearray()
        # Where the text of each job ends; it begins where that of the job before ends.
        self._ends = array("q", [0])
        # The number of rows in memory at which they are stored; -1: never.
        self._most_rows = _STORED_BLOCK if is_stored else -1
        self._stored = StoredColumns(_TYPECODES)
        # What is not in memory, while the table grows.
        self._stored_rows = self._stored_text = 0
        # Forms by the text of a line around the values; -1: that does not say which form it is.
        self._known: dict[_Around, int] = {}
        # Forms of which no second line was seen.
        self._unproved: set[int] = set()
        for job in jobs:
            self.append(job)

    def __len__(self) -> int:
        return self._stored_rows + len(self.kind)

    @overload
    def __getitem__(self, row: int) -> Job: ...
    @overload
    def __getitem__(self, row: slice) -> JobTable: ...
    def __getitem__(self, row: int | slice) -> Job | JobTable:
        if isinstance(row, slice):
            rows = range(len(self))[row]
            return self if rows == range(len(self)) else self._of(rows)
        row = range(len(self))[row]
        job_id, *said = self._text(row).split(_BETWEEN)
        return self.forms[self.kind[row]].job(job_id, self.submit_time[row], self.amount[row], said)

    def __iter__(self) -> Iterator[Job]:
        return self._each(JobForm.job, _as_they_are)

    @property
    def memory_bytes(self) -> int:
        """What it takes, roughly."""
        rows = 0 if self._stored else len(self)
        return rows * _ROW_BYTES + len(self.forms) * _FORM_BYTES

    def _text(self, row: int) -> str:
        return str(self._texts[self._ends[row] : self._ends[row + 1]], "ascii")

    def _each(
        self,
        make: Callable[[JobForm, str, N, N, Sequence[str]], T],
        numbers: Callable[[array[float]], Sequence[N]],
    ) -> Iterator[T]:
        """What is made of the form of each job and the values that differ.

        :param numbers: the form in which ``make`` takes times and amounts, from those of a block.
        """
        forms = self.forms
        for block, texts in self._blocks():
            columns = self.kind[block], numbers(self.submit_time[block]), numbers(self.amount[block])
            for kind, submit_time, amount, text in zip(*columns, texts, strict=True):
                job_id, between, said = text.partition(_BETWEEN)
                yield make(forms[kind], job_id, submit_time, amount, said.split(_BETWEEN) if between else ())

    def _blocks(self) -> Iterator[tuple[slice, Iterator[str]]]:
        """Rows and their texts, a block at a time; those that were passed need not stay in memory."""
        rows, ends = len(self), self._ends
        for first in range(0, rows, _BLOCK):
            if not first % _STORED_BLOCK:
                self._stored.release()
            end = min(first + _BLOCK, rows)
            begin = ends[first]
            text = str(self._texts[begin : ends[end]], "ascii")
            places = [place - begin for place in ends[first : end + 1]]
            yield slice(first, end), map(text.__getitem__, map(slice, places, islice(places, 1, None)))
        self._stored.release()

    def ids(self) -> Iterator[str]:
        """Of all jobs."""
        for _, texts in self._blocks():
            for text in texts:
                yield text.partition(_BETWEEN)[0]

    def may_repeat_ids(self) -> bool:
        """False: all ids differ."""
        import numpy as np  # of those who read job tables, all have it

        hashes = np.fromiter(map(hash, self.ids()), np.int64, len(self))
        hashes.sort()
        return bool((hashes[1:] == hashes[:-1]).any())  # numpy.unique would import numpy.ma

    def job_id(self, row: int) -> str:
        return self._text(row).partition(_BETWEEN)[0]

    def append(self, job: Job, line: bytes = b"") -> int:
        """Returns the row of the job.

        :param line: the JSON text that the job was read from.
        """
        worth_a_look = len(self.forms) < _FEW or 2 * len(self.forms) < len(self)
        parts = _parts(line) if worth_a_look and not job.after else None  # a job may not wait for itself
        if parts is not None and not parts.says(job):
            parts = None
        labels = () if parts is None or not parts.said else tuple(job.labels)
        kind = len(self.forms)
        self.forms.append(JobForm(job, labels))
        text = _BETWEEN.join([job.id, *(job.labels[name] for name in labels)])
        self._add(text.encode(), job.submit_time, amount_of(job), kind)
        if parts is not None and parts.around not in self._known:
            self._known[parts.around] = kind
            self._unproved.add(kind)
        return len(self) - 1

    def _prove(self, around: _Around, kind: int) -> bool:
        """Whether the values are where they seem to be: a job with others differs in nothing else."""
        self._unproved.remove(kind)
        form = self.forms[kind]
        expected = form.job(_WORD, _MARK, _MARK, [_WORD] * len(form.labels))
        try:
            other = Job.model_validate_json(around.line())
        except ValidationError:
            other = None
        if other != expected or other.model_fields_set != form.template.model_fields_set:
            self._known[around] = -1
        return self._known[around] == kind

    def take(self, line: bytes) -> bool:
        """Add the job of a line, if the line is of a form that is known."""
        parts = _parts(line)
        if parts is None:
            return False
        around, text, submit_time_s, amount, said = parts
        kind = self._known.get(around, -1)
        if kind < 0 or amount == 0:
            return False
        if kind in self._unproved and not self._prove(around, kind):
            return False
        if said:
            text = _BETWEEN.encode().join([text, *said])
        self._add(text, submit_time_s, amount or 0.0, kind)
        return True

    def _add(
        self, text: bytes | bytearray | memoryview, submit_time_s: float, amount: float, kind: int
    ) -> None:
        if len(self.kind) == self._most_rows:
            self._store()
        self._texts += text
        self._ends.append(self._stored_text + len(self._texts))
        self.submit_time.append(submit_time_s)
        self.amount.append(amount)
        self.kind.append(kind)

    def _store(self) -> None:
        """Move what is in memory into temporary files, if there is room; else all of it stays from now on."""
        columns = {name: getattr(self, name) for name in _TYPECODES}
        try:
            self._stored.add(columns)
        except OSError:
            self._stay_in_memory()
        else:
            self._stored_rows, self._stored_text = len(self), self._stored_text + len(self._texts)
            for name, values in columns.items():
                setattr(self, name, values[:0])

    def _stay_in_memory(self) -> None:
        for name, values in self._stored.in_memory().items() if self._stored else ():
            setattr(self, name, values + getattr(self, name))
        self._stored, self._most_rows = StoredColumns(_TYPECODES), -1
        self._stored_rows = self._stored_text = 0

    def complete(self) -> None:
        """All jobs are there."""
        if self._stored:
            self._store()
        if not self._stored:  # it is short, or there was no room
            return
        try:
            columns = self._stored.mapped()
        except OSError:
            self._stay_in_memory()
        else:
            self.__dict__.update(columns)
            self._stored_rows = self._stored_text = 0

    def in_order(self) -> JobTable:
        """The jobs in order of (submit_time, id)."""
        times = self.submit_time
        not_before = compress(range(len(self)), map(ge, times, islice(times, 1, None)))
        if all(
            times[row] == times[row + 1] and self.job_id(row) <= self.job_id(row + 1) for row in not_before
        ):
            return self
        return self._of(self._rows_in_order())

    def _rows_in_order(self) -> Iterator[int]:
        import numpy as np

        by_time = map(int, np.argsort(np.asarray(self.submit_time), kind="stable"))
        for _, rows in groupby(by_time, self.submit_time.__getitem__):
            yield from sorted(rows, key=self.job_id)

    def _of(self, rows: Iterable[int]) -> JobTable:
        found = JobTable(is_stored=True)
        found.forms = self.forms
        for number, row in enumerate(rows):
            if not number % _STORED_BLOCK:
                self._stored.release()
            text = self._texts[self._ends[row] : self._ends[row + 1]]
            found._add(text, self.submit_time[row], self.amount[row], self.kind[row])
        found.complete()
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
        return self._each(JobForm.canonical, _number_texts)


def plain_texts(numbers: Sequence[float]) -> list[str] | None:
    """The text of each number, in a third of the time of ``repr``.

    Returns None if Python and pydantic may not write all of them alike.
    """
    if min(numbers) >= _LEAST and max(numbers) < _MOST:
        return to_json(numbers)[1:-1].decode().split(",")
    return None


def _number_texts(numbers: array[float]) -> list[str]:
    return plain_texts(numbers.tolist()) or [repr(number) for number in numbers]


def _as_they_are(numbers: array[float]) -> array[float]:
    return numbers


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
