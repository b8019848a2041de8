"""What submissions say of jobs, in columns with a row for each job in the order of the log.

A replay submits many jobs that differ in few values. The text of such a job is taken into a table
(:mod:`pliant.schemas.job_table`), its curve is known by its text, and two numbers are read; any other
submission is validated as a whole.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise
from math import nan
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pydantic_core import from_json

from pliant.schemas.file_io.events import Detail
from pliant.schemas.file_io.json_lines import is_json, key_given_twice
from pliant.schemas.job import Job, SharedParts
from pliant.schemas.job_table import JobTable
from pliant.schemas.runinfo import SubmitDetail
from pliant.tools.report.job_arrays import Floats, Integers
from pliant.tools.report.job_record import Curve

if TYPE_CHECKING:
    from numpy.typing import NDArray

_JOB: Final = '{"job":'
_CURVE: Final = ',"curve":'
"""Around the job in a submission."""
_NUMBER: Final = r"((?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,20})?)"
_WORK: Final = re.compile(rf'(?:,"samples":{_NUMBER})?(?:,"demand_gpu_s":{_NUMBER})?')
"""What a submission says behind its curve."""
_RATES: Final = ',"rates":'
_ONLY_CURVES: Final = frozenset({"curve", "rates"})


class StatedColumns(NamedTuple):
    """What submissions state; arrays of shape (jobs,), as :class:`~pliant.tools.report.job_arrays.Jobs` has
    them, but that times are those of the log.
    """

    submit_s: Floats
    samples: Floats
    demand_gpu_s: Floats
    curve: NDArray[np.int32]
    rates: NDArray[np.int32]


class SubmittedJobs:
    """Jobs in the order in which they were submitted."""

    def __init__(self, source: str) -> None:
        self.table = JobTable()
        self.submit_s = array("d")
        # All the work; NaN: not known, as in the next.
        self.samples = array("d")
        self.demand_gpu_s = array("d")
        # Place in `curves`, as the next.
        self.curve = array("i")
        self.rates = array("i")
        # Number of the event.
        self.event = array("q")
        # Their hashes.
        self._ids = array("q")
        # Rows of jobs that their event calls something else.
        self._misnamed: set[int] = set()
        self._curves: dict[Curve, int] = {}
        # Places of both curves by their texts.
        self._known: dict[tuple[str, str], tuple[int, int]] = {}
        self._share = SharedParts().share
        self._source = source
        self._any: Job | None = None

    def __len__(self) -> int:
        return len(self.submit_s)

    @property
    def curves(self) -> list[Curve]:
        return [*self._curves]

    def add(self, time_s: float, job_id: str, detail: Detail, number: int) -> str:
        """Returns the id of the job that is described.

        :param number: of the event.
        :raises ValidationError: the detail is not that of a submission.
        """
        values = self._of_known_form(detail) if isinstance(detail, str) else None
        curve, rates, samples, demand_gpu_s = values or self._validated(detail)
        self.submit_s.append(time_s)
        self.samples.append(nan if samples is None else samples)
        self.demand_gpu_s.append(nan if demand_gpu_s is None else demand_gpu_s)
        self.curve.append(curve)
        self.rates.append(rates)
        self.event.append(number)
        self._ids.append(hash(job_id))
        described = self.table.job_id(len(self.table) - 1)
        if described != job_id:
            self._misnamed.add(len(self) - 1)
        return described

    def repeated(self) -> Iterator[int]:
        """Rows of jobs whose id an earlier one has."""
        hashes = np.array(self._ids)
        order = np.argsort(hashes, kind="stable")
        ranked = hashes[order]
        equal = np.flatnonzero(ranked[1:] == ranked[:-1])
        seen: set[str] = set()
        for row in sorted({*order[equal].tolist(), *order[equal + 1].tolist()} - self._misnamed):
            job_id = self.table.job_id(row)
            if job_id in seen:
                yield row
            seen.add(job_id)

    def columns(self, rows: Integers) -> StatedColumns:
        """What these jobs state, in this order. Only once: none of it is left here."""
        columns = (self.submit_s, self.samples, self.demand_gpu_s, self.curve, self.rates)
        stated = StatedColumns(*(np.array(column)[rows] for column in columns))
        for column in (*columns, self.event, self._ids):
            del column[:]
        return stated

    def order(self) -> Integers | None:
        """The rows in order of (submission, id). Returns None if they are."""
        submit_s = np.array(self.submit_s)
        order = np.argsort(submit_s, kind="stable")
        ranked_s = submit_s[order]
        ties = np.flatnonzero(ranked_s[1:] == ranked_s[:-1])
        moved = bool((order[1:] < order[:-1]).any())
        for _, places in groupby(enumerate(ties.tolist()), lambda pair: pair[1] - pair[0]):
            tied = [place for _, place in places]
            among = slice(tied[0], tied[-1] + 2)
            rows = order[among].tolist()
            ids = [self.table.job_id(row) for row in rows]
            if any(after < before for before, after in pairwise(ids)):
                order[among] = [row for _, row in sorted(zip(ids, rows, strict=True))]
                moved = True
        return order if moved else None

    def _of_known_form(self, detail: str) -> tuple[int, int, float | None, float | None] | None:
        """Of a job that differs from one before in few values. Returns None for others."""
        end = detail.rfind(_CURVE)
        if end < 0 or not (detail.startswith(_JOB) and detail.endswith("}")):
            return None
        stated, _, rates = detail[end + len(_CURVE) : -1].partition(_RATES)
        curve, _, work = stated.rpartition("]")
        numbers = _WORK.fullmatch(work)
        if (
            numbers is None
            or (places := self._known.get((curve, rates)) or self._learned(curve, rates)) is None
        ):
            return None
        samples, demand_gpu_s = (None if text is None else float(text) for text in numbers.groups())
        if samples == 0 or demand_gpu_s == 0 or not self.table.take(detail[len(_JOB) : end].encode()):
            return None
        return (*places, samples, demand_gpu_s)

    def _learned(self, curve: str, rates: str) -> tuple[int, int] | None:
        """Places of curves by texts that are new. Returns None if these are of something else."""
        try:
            stated = from_json(f'{{"curve":{curve}],"rates":{rates or "[]"}}}')
            if self._any is None or not stated.keys() <= _ONLY_CURVES:
                return None
            detail = SubmitDetail.model_validate({**stated, "job": self._any}, strict=False)
        except ValueError:  # which includes what pydantic has to say
            return None
        self._known[curve, rates] = self._places(detail)
        return self._known[curve, rates]

    def _places(self, detail: SubmitDetail) -> tuple[int, int]:
        numbers = self._curves
        return (
            numbers.setdefault(detail.curve, len(numbers)),
            numbers.setdefault(detail.rates, len(numbers)),
        )

    def _validated(self, detail: Detail) -> tuple[int, int, float | None, float | None]:
        if isinstance(detail, str):
            submission = SubmitDetail.model_validate_json(detail, strict=False)
        else:
            submission = SubmitDetail.model_validate(detail, strict=False)
        line = _text_of_job(detail)
        is_plain = is_json(line) and key_given_twice(line, self._source) is None
        # more may stand before the curve
        self.table.append(self._share(submission.job), line if is_plain else b"")
        self._any = submission.job
        return (*self._places(submission), submission.samples, submission.demand_gpu_s)


def _text_of_job(detail: Detail | Mapping[str, Any]) -> bytes:
    """The text of the job in a submission; empty if that is not as a replay writes it."""
    if not isinstance(detail, str) or not detail.startswith(_JOB):
        return b""
    return detail[len(_JOB) :].rpartition(_CURVE)[0].encode()
