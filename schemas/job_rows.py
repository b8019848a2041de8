"""Jobs in Arrow columns, whose forms are found without looking at each job.

Rows that differ only in what jobs of one :class:`~pliant.schemas.job_table.JobForm` differ in have the same
kind; one row of each kind is read, and the others go into a table as columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from pliant.schemas.file_io.parquet import cast, compute, join_texts, match_pattern, numbers_of
from pliant.schemas.file_io.record import IDENTIFIER, MOST
from pliant.schemas.job_table import AMOUNTS, BETWEEN, UNLIKE_JSON

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Booleans = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Numbers = NDArray[np.int32]

LABEL: Final = "labels."
WORKS: Final = tuple(f"work.{name}" for name in AMOUNTS)
_VARY: Final = ("id", "submit_time", *WORKS)
"""Columns of what differs between jobs of one form, beside labels."""
_EXACT: Final = 2**53
"""The integer up to which a float holds all exactly."""


def varies(path: str) -> bool:
    """Whether jobs of one form differ in what it says."""
    return path in _VARY or path.startswith(LABEL)


class JobRows:
    """Some jobs, by column. A column is named by the path of its field, as ``gpus.requested``."""

    def __init__(self, jobs: pa.StructArray) -> None:
        """:param jobs: fields may be structures themselves, or already be named by their paths."""
        self._jobs = jobs
        self._columns = dict(_leaves(jobs))
        self._labels = [name for name in self._columns if name.startswith(LABEL)]
        self.times_s = floats(self._columns.get("submit_time"), len(jobs))
        self._works = [floats(self._columns[name], len(jobs)) for name in WORKS if name in self._columns]
        self.amounts = np.nansum([np.zeros(len(jobs)), *self._works], axis=0)

    def are_plain(self) -> Booleans:
        """Whether id, time, amount of work and labels are right, and labels as a table holds them."""
        ids = self._columns.get("id")
        if ids is None or ids.type != pa.string():
            return np.zeros(len(self._jobs), bool)
        plain = _are_true(match_pattern(ids, IDENTIFIER.replace("$", r"\z")))
        plain &= (self.times_s >= 0) & (self.times_s <= MOST)
        for amounts in self._works:
            plain &= is_amount(amounts)
        for name in self._labels:
            texts = self._columns[name]
            is_plain_name = texts.type == pa.string() and not re.search(UNLIKE_JSON, name)
            plain &= ~_are_true(
                match_pattern(texts, UNLIKE_JSON) if is_plain_name else compute("is_valid", texts)
            )
        return plain

    def kinds(self) -> Numbers:
        """Equal for rows that differ only in what jobs of one form differ in."""
        return numbered(self._jobs)

    def texts(self, first: int, count: int) -> pa.Array:
        """The id of each of some jobs and what its labels say."""
        columns = [self._columns[name] for name in ("id", *self._labels)]
        texts = [column.slice(first, count) for column in columns if column.type == pa.string()]
        return join_texts(texts, BETWEEN)

    def fields(self, row: int) -> dict[str, Any]:
        """What a row states, by column."""
        values = {name: column[row].as_py() for name, column in self._columns.items()}
        return {name: value for name, value in values.items() if value is not None}

    def labels(self, row: int) -> list[str]:
        """Names of the labels of a job, in the order in which :meth:`texts` has what they say."""
        return [name.removeprefix(LABEL) for name in self._labels if self._columns[name][row].is_valid]


def _leaves(values: pa.StructArray, prefix: str = "") -> Iterator[tuple[str, pa.Array]]:
    for field, column in zip(values.type, values.flatten(), strict=True):
        path = prefix + field.name
        if pt.is_struct(field.type):
            yield from _leaves(column, f"{path}.")
        else:
            yield path, column


def floats(column: pa.Array | None, count: int) -> Floats:
    """The numbers of a column; NaN where it says nothing, infinite where it says something else."""
    if column is None:
        return np.full(count, np.nan)
    if column.type == pa.float64():
        return numbers_of(column, np.dtype(np.float64), np.nan)
    is_whole = column.type == pa.int64()
    numbers = numbers_of(column, np.dtype(np.int64), 0).astype(np.float64) if is_whole else np.inf
    return np.where(_are_true(compute("is_valid", column)), numbers, np.nan)


def is_amount(numbers: Floats) -> Booleans:
    """Whether each is an amount of work, or not stated."""
    are_amounts: Booleans = np.isnan(numbers) | ((numbers > 0) & (numbers <= MOST))
    return are_amounts


def _are_true(values: pa.Array) -> Booleans:
    are_true: Booleans = numbers_of(cast(values, pa.int8()), np.dtype(np.int8), 0) != 0
    return are_true


def numbered(values: pa.Array, path: str = "") -> Numbers:
    """A number from 0 on for each value, the same for equal ones, -1 for null.

    :param path: of the column in a job; of what varies only whether it is stated counts.
    """
    if varies(path):
        return _numbered_once(compute("is_valid", values))
    if pt.is_struct(values.type):
        prefix = f"{path}." if path else ""
        columns = zip(values.type, values.flatten(), strict=True)
        parts = [numbered(column, prefix + field.name) for field, column in columns]
        return numbered_rows([_numbered_once(compute("is_valid", values)), *parts])
    if pt.is_list(values.type):
        return _numbered_once(_as_bytes(values))
    if pt.is_null(values.type):
        return np.full(len(values), -1, np.int32)
    numbers = _numbered_once(values)
    if values.type == pa.float64():  # larger integers that differ may be the same number here
        inexact = np.flatnonzero(np.abs(floats(values, len(values))) > _EXACT)
        if len(inexact):
            numbers = numbers.copy()
            numbers[inexact] = numbers.max() + 1 + np.arange(len(inexact))
    return numbers


def _numbered_once(values: pa.Array) -> Numbers:
    return numbers_of(compute("dictionary_encode", values).indices, np.dtype(np.int32), -1)


def numbered_rows(columns: Sequence[Numbers]) -> Numbers:
    """As :func:`numbered`, of rows of numbers."""
    rows = np.stack(columns, axis=1)
    width = rows.shape[1] * rows.itemsize
    return _numbered_once(pa.Array.from_buffers(pa.binary(width), len(rows), [None, pa.py_buffer(rows)]))


def _as_bytes(lists: pa.ListArray) -> pa.Array:
    """Lists as the bytes of their items."""
    items, width = _item_bytes(compute("list_flatten", lists))
    ends = np.concatenate([[0], np.cumsum(_lengths(lists))]).astype(np.int32) * np.int32(width)
    packed = pa.Array.from_buffers(pa.binary(), len(lists), [None, pa.py_buffer(ends), pa.py_buffer(items)])
    return compute("if_else", compute("is_valid", lists), packed, pa.nulls(len(lists), pa.binary()))


def _item_bytes(items: pa.Array) -> tuple[NDArray[Any], int]:
    """What stands for each item, the same for equal ones, and its bytes."""
    if items.type == pa.float64() and not items.null_count:
        return numbers_of(items, np.dtype(np.float64), np.nan), 8
    lengths = _lengths(items) if pt.is_list(items.type) else np.zeros(1, np.int32)
    if lengths.min(initial=1) == lengths.max(initial=0) > 0:
        inner, width = _item_bytes(compute("list_flatten", items))
        return inner, width * int(lengths[0])
    numbers = numbered(items, "[]")
    return numbers, numbers.itemsize


def _lengths(lists: pa.ListArray) -> Numbers:
    return numbers_of(compute("list_value_length", lists), np.dtype(np.int32), 0)
