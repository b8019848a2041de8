"""Many jobs in columns: an id, a submission time, an amount of work and labels each, and a form they share.

Traces repeat themselves: a job file holds a million jobs and a few hundred kinds of them. A :class:`JobForm`
is all that jobs of one kind have in common, and makes a job, or the text of one, of the values that differ.
What labels say is one of these, for they tell of each job where it comes from. A :class:`JobTable` takes some
30 bytes a job beside its id and labels, where a :class:`~pliant.schemas.job.Job` takes 2,000.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress, groupby, islice
from operator import ge
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard, TypeVar, overload

from pydantic import BaseModel
from pydantic_core import from_json, to_json

from pliant.schemas.file_io.record import IDENTIFIER, MOST, Record
from pliant.schemas.job import Job, Work, canonical_parts

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

R = TypeVar("R", bound=Record)
T = TypeVar("T")
N = TypeVar("N", float, str)
AMOUNTS: Final = ("samples", "epochs", "iterations", "gpu_seconds")
"""Names of the amounts of work, of which a job states one."""
_is_id: Final = re.compile(IDENTIFIER.replace("$", r"\Z")).match
_LEAST: Final = 1e-4
_MOST: Final = 1e16
"""In this range Python and pydantic write numbers alike, without an exponent."""
_FEW: Final = 4096
"""From this number of forms on, a file that has a new one for each second job is not looked at for more."""
_BLOCK: Final = 1 << 10
"""Jobs whose texts are decoded at a time."""
_ROW_BYTES: Final = 100
_FORM_BYTES: Final = 3000
UNLIKE_JSON: Final = r"[^ !#-\[\]-~]"
"""Matches a character that is written otherwise in JSON: what labels of a form say has none."""
_unlike_json: Final = re.compile(UNLIKE_JSON).search
BETWEEN: Final = "\n"
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

    def job(self, job_id: str, submit_time_s: float, amount: float, label_values: Sequence[str] = ()) -> Job:
        """:param amount: of work; of no meaning where the template states none.
        :param label_values: by the labels, in the order of their names.
        """
        values = self._values.copy()
        values["id"], values["submit_time"] = job_id, submit_time_s
        if self._work is not None:
            work = self._work_values.copy()
            work[self._amount_name] = amount
            values["work"] = _record(self._work, work, self._work_names)
        if self.labels:
            values["labels"] = dict(zip(self.labels, label_values, strict=True))
        return _record(Job, values, self._names)

    def amount(self, job: Job) -> float:
        """Of the work of a job of this form, which states some."""
        amount: float = job.__dict__["work"].__dict__[self._amount_name]
        return amount

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
        label_values = values["labels"].values() if self.labels else ()
        return self.template_json % (values["id"], repr(submit_s), *amounts, *label_values)

    @cached_property
    def template_json(self) -> str:
        """What :meth:`json` makes, with ``%s`` for each value that differs."""
        fields = self.template.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return self._template(_json_texts(fields), _json_texts(fields.get("work", {})), self.labels)

    def _template(self, parts: dict[str, str], work: dict[str, str], labels: Iterable[str]) -> str:
        """The JSON text of a job with ``%s`` for each value that differs.

        :param parts: JSON texts of its fields, ``work`` those of its work.
        :param labels: their names, in the order in which they are written.
        """
        parts |= {"id": '"%s"', "submit_time": "%s"}
        if self._work is not None:
            parts["work"] = _object({**work, self._amount_name: "%s"})
        if self.labels:
            parts["labels"] = _object(dict.fromkeys(labels, '"%s"'))
        return _object(parts)

    def canonical(self, job_id: str, submit_time: str, amount: str, label_values: Sequence[str] = ()) -> str:
        """:func:`~pliant.schemas.job.canonical_json` of a job of this form.

        :param submit_time: its text, as is that of ``amount``.
        """
        text, order = self._canonical
        if not order and self._work is not None:  # as most are
            return text % (job_id, submit_time, amount)
        amounts = () if self._work is None else (amount,)
        return text % (job_id, *[label_values[number] for number in order], submit_time, *amounts)

    @cached_property
    def _canonical(self) -> tuple[str, Sequence[int]]:
        """With ``%s`` for each value that differs, and the labels in their order there, by number."""
        order = sorted(range(len(self.labels)), key=self.labels.__getitem__)
        work = {} if self.template.work is None else _canonical_texts(self.template.work)
        labels = [self.labels[number] for number in order]
        return self._template(_canonical_texts(self.template), work, labels), order


def _json_texts(fields: Mapping[str, Any]) -> dict[str, str]:
    """The JSON texts of fields, to stand in a template."""
    return {name: to_json(value).decode().replace("%", "%%") for name, value in fields.items()}


def _canonical_texts(record: Record) -> dict[str, str]:
    return {name: text.partition(":")[2].replace("%", "%%") for name, text in canonical_parts(record)}


def _object(parts: Mapping[str, str]) -> str:
    """The JSON text of an object of JSON texts, by names without what JSON escapes."""
    fields = [f'"{name}":'.replace("%", "%%") + text for name, text in parts.items()]
    return f"{{{','.join(fields)}}}"


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
    return next(name for name in AMOUNTS if name in type(work).model_fields)


def amount_of(job: Job) -> float:
    """The amount of a job's work, in whatever it is stated; 0 if none is."""
    work = job.work
    if work is None:
        return 0.0
    amount: float = work.__dict__[amount_name(work)]
    return amount


class _Values(NamedTuple):
    """What differs between jobs of one form, and the form."""

    key: Hashable
    job_id: str
    submit_time_s: float
    amount: float
    label_values: Sequence[str]
    """By the labels."""


def _line_values(line: bytes) -> _Values | None:
    """The values of a line. Returns None if it is not written as most are.

    The key is the rest of the line; it counts the line's keys, as the parser does not see one given twice.
    """
    if b'" ' in line or b'"\t' in line or b'"\r' in line:
        return None
    try:
        fields = from_json(line, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        return None
    if not isinstance(fields, dict):
        return None
    return _values(fields, line.count(b'":'))


def _values(fields: dict[str, Any], keys: int) -> _Values | None:
    """Takes them out of the fields, which are then those of the form."""
    amount: Any = 0.0
    job_id: Any = fields.get("id")
    submit_time: Any = fields.get("submit_time")
    work, labels, label_values = fields.get("work"), fields.get("labels"), ()
    if type(job_id) is not str or _is_id(job_id) is None or not _is_number(submit_time):
        return None
    fields["id"] = fields["submit_time"] = None
    if type(work) is dict:
        name = next((name for name in AMOUNTS if name in work), "")
        amount, work[name] = work.get(name, 0.0), None
        if not amount or not _is_number(amount):
            return None
    if type(labels) is dict and labels:
        fields["labels"], label_values = [*labels], (*labels.values(),)
        if not _are_plain([*labels, *label_values]):
            return None
    return _Values((to_json(fields), keys), job_id, float(submit_time), float(amount), label_values)


def _is_number(value: object) -> TypeGuard[float]:
    return (type(value) is float or type(value) is int) and 0 <= value <= MOST


def _are_plain(texts: list[Any]) -> bool:
    """Whether they are texts of characters that are written alike inside and outside of JSON."""
    return all(type(text) is str for text in texts) and _unlike_json("".join(texts)) is None


class JobTable(Sequence[Job]):
    """Jobs in columns; each is made when it is asked for."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self.submit_time = array("d")
        self.amount = array("d")
        # Number of each job's form.
        self.kind = array("i")
        self.forms: list[JobForm] = []
        # Of each job its id and, where its form leaves them open, what its labels say: all of it ASCII.
        self._texts = bytearray()
        # Where the text of each job ends; it begins where that of the job before ends.
        self._ends = array("q", [0])
        # Forms by all that their jobs have in common.
        self._known: dict[Hashable, int] = {}
        for job in jobs:
            self.append(job)

    def __len__(self) -> int:
        return len(self.kind)

    @overload
    def __getitem__(self, row: int) -> Job: ...
    @overload
    def __getitem__(self, row: slice) -> JobTable: ...
    def __getitem__(self, row: int | slice) -> Job | JobTable:
        if isinstance(row, slice):
            rows = range(len(self))[row]
            return self if rows == range(len(self)) else self._of(rows)
        row = range(len(self))[row]
        job_id, *label_values = self._text(row).split(BETWEEN)
        return self.forms[self.kind[row]].job(job_id, self.submit_time[row], self.amount[row], label_values)

    def __iter__(self) -> Iterator[Job]:
        return self._each(JobForm.job, _as_they_are)

    @property
    def memory_bytes(self) -> int:
        """What it takes, roughly."""
        return len(self) * _ROW_BYTES + len(self.forms) * _FORM_BYTES

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
                job_id, between, label_values = text.partition(BETWEEN)
                yield make(
                    forms[kind], job_id, submit_time, amount, label_values.split(BETWEEN) if between else ()
                )

    def _blocks(self, since: int = 0) -> Iterator[tuple[slice, Iterator[str]]]:
        """Rows and their texts, a block at a time."""
        rows, ends = len(self), self._ends
        for first in range(since, rows, _BLOCK):
            end = min(first + _BLOCK, rows)
            begin = ends[first]
            text = str(self._texts[begin : ends[end]], "ascii")
            places = [place - begin for place in ends[first : end + 1]]
            yield slice(first, end), map(text.__getitem__, map(slice, places, islice(places, 1, None)))

    def ids(self, since: int = 0) -> Iterator[str]:
        """Of all jobs from a row on."""
        for _, texts in self._blocks(since):
            for text in texts:
                yield text.partition(BETWEEN)[0]

    def may_repeat_ids(self) -> bool:
        """False: all ids differ."""
        import numpy as np  # of those who read job tables, all have it

        hashes = np.fromiter(map(hash, self.ids()), np.int64, len(self))
        hashes.sort()
        return bool((hashes[1:] == hashes[:-1]).any())  # numpy.unique would import numpy.ma

    def label(self, name: str) -> Iterator[str | None]:
        """What a label says of each job; None where a job does not have it."""
        at = [form.labels.index(name) if name in form.labels else -1 for form in self.forms]
        stated = [form.template.labels.get(name) for form in self.forms]
        for block, texts in self._blocks():
            for kind, text in zip(self.kind[block], texts, strict=True):
                place = at[kind]
                yield stated[kind] if place < 0 else text.split(BETWEEN)[place + 1]

    def job_id(self, row: int) -> str:
        return self._text(row).partition(BETWEEN)[0]

    def append(self, job: Job, line: bytes = b"") -> int:
        """Returns the row of the job.

        :param line: the JSON text that the job was read from.
        """
        worth_a_look = len(self.forms) < _FEW or 2 * len(self.forms) < len(self)
        values = _line_values(line) if worth_a_look and not job.after else None  # it may not wait for itself
        labels = tuple(job.labels) if values is not None and values.label_values else ()
        kind = self.add_form(job, labels)
        if values is not None:
            self._known.setdefault(values.key, kind)
        self._add(job.id, job.submit_time, amount_of(job), kind, [job.labels[name] for name in labels])
        return len(self) - 1

    def add_form(self, template: Job, labels: Sequence[str]) -> int:
        """Returns its number. The parameters are those of :class:`JobForm`."""
        self.forms.append(JobForm(template, labels))
        return len(self.forms) - 1

    def take(self, line: bytes) -> bool:
        """Add the job of a line, if the line is of a form that is known."""
        values = _line_values(line)
        kind = None if values is None else self._known.get(values.key)
        if values is None or kind is None:
            return False
        self._add(values.job_id, values.submit_time_s, values.amount, kind, values.label_values)
        return True

    def extend(
        self,
        texts: pa.Array,
        submit_times_s: NDArray[np.float64],
        amounts: NDArray[np.float64],
        kinds: NDArray[np.int32],
    ) -> None:
        """Add jobs of forms that are there.

        :param texts: of each the id and what the labels of its form say, with :data:`BETWEEN` between them.
        """
        import numpy as np

        _, ends, data = texts.buffers()
        bounds = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
        self._ends.frombytes((bounds[1:] - bounds[0] + len(self._texts)).tobytes())
        self._texts += memoryview(data or b"")[bounds[0] : bounds[-1]]
        self.submit_time.frombytes(submit_times_s.tobytes())
        self.amount.frombytes(amounts.tobytes())
        self.kind.frombytes(kinds.tobytes())

    def _add(
        self, job_id: str, submit_time_s: float, amount: float, kind: int, label_values: Sequence[str]
    ) -> None:
        self._texts += (BETWEEN.join((job_id, *label_values)) if label_values else job_id).encode()
        self._ends.append(len(self._texts))
        self.submit_time.append(submit_time_s)
        self.amount.append(amount)
        self.kind.append(kind)

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
        chosen = JobTable()
        chosen.forms = self.forms
        for row in rows:
            chosen._texts += self._texts[self._ends[row] : self._ends[row + 1]]
            chosen._ends.append(len(chosen._texts))
            chosen.submit_time.append(self.submit_time[row])
            chosen.amount.append(self.amount[row])
            chosen.kind.append(self.kind[row])
        return chosen

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
