"""A block of rows as columns: what a format reads of them, and what becomes of each row.

The usual values of a column are read at once. All others are read one by one, as :class:`InputRow` reads
them, so that both ways mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta, timezone, tzinfo
from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from pliant.schemas.errors import Problem
from pliant.schemas.file_io.parquet import cast, compute, kernels, text_array
from pliant.tools.replay.importers.conversion import (
    FIELD_END,
    NOTHING,
    REPEATED,
    Conversion,
    InputRow,
    MalformedRowError,
    Reason,
    are_plain,
    hashes,
    parse_timestamp,
    text_bytes,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]
    Marks = NDArray[np.bool_]
    Rows = NDArray[np.intp]

T = TypeVar("T")
U = TypeVar("U")
_NUMBER: Final = r"^[0-9]+(\.[0-9]+)?$"
_DIGITS: Final = r"^[0-9]+\.?[0-9]*$"
_DATE: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_ZONE: Final = r"(Z|[+-][0-9]{2}:[0-9]{2})$"
_YEAR_1_US: Final = -62_135_596_800_000_000
"""The earliest date that Python has; Arrow has earlier ones."""
_EXACT: Final = 2**53


@dataclass(frozen=True, slots=True)
class WordColumn:
    """A column of texts that repeat."""

    texts: Sequence[str]
    """The distinct ones; an empty one stands for nothing."""
    places: NDArray[np.integer[Any]]
    """Which of them each row has."""

    @classmethod
    def of(cls, column: Sequence[str]) -> WordColumn:
        places: dict[str, int] = {}
        rows = [places.setdefault(text, len(places)) for text in column]
        return cls(list(places), np.array(rows, dtype=np.int32))

    @classmethod
    def same(cls, text: str, rows: int) -> WordColumn:
        return cls([text], np.zeros(rows, dtype=np.int32))

    def __getitem__(self, row: int) -> str:
        return self.texts[int(self.places[row])]

    def map(self, change: Callable[[str], str]) -> WordColumn:
        return WordColumn(list(map(change, self.texts)), self.places)

    def take(self, rows: Rows | slice) -> WordColumn:
        return WordColumn(self.texts, self.places[rows])

    def array(self) -> pa.Array:
        """As an Arrow dictionary."""
        import pyarrow as pa

        places = (
            self.places
            if self.places.dtype in (np.int8, np.int32)
            else self.places.astype(np.int64, copy=False)
        )
        at = arrow_array(places, pa.from_numpy_dtype(places.dtype))
        return pa.DictionaryArray.from_arrays(at, text_array(self.texts), safe=False)

    def listed(self) -> list[str]:
        """The text of each row."""
        return [self.texts[place] for place in self.places.tolist()]

    def marks(self, test: Callable[[str], bool]) -> Marks:
        """The rows whose text passes."""
        marks: Marks = np.array([bool(test(text)) for text in self.texts], dtype=bool)[self.places]
        return marks

    def stated(self) -> Marks:
        return self.marks(bool)


class RowBlock:
    """Rows of one file. A row is live until it is dropped or refused; what comes first stands.

    Columns of numbers and times hold NaN where nothing is stated, and for rows that are not live.
    """

    def __init__(
        self,
        conversion: Conversion,
        source: str,
        lines: NDArray[np.int64],
        columns: Mapping[str, pa.Array],
        others: Sequence[tuple[int, str]] = (),
    ) -> None:
        """:param columns: Arrow arrays of text, without null.
        :param others: line and fault of rows that have other columns.
        """
        self.conversion = conversion
        self.source = source
        self.lines = lines
        self.columns = dict(columns)
        self.others = others
        self.live: Marks = np.ones(len(lines), dtype=bool)
        # By row.
        self.problems: dict[int, list[Problem]] = {}
        # Reason and number of rows.
        self.dropped: list[tuple[str, int]] = []
        # Rows that were there before.
        self.repeated = 0
        # First row of those that a sentence holds for, the sentence, how many they are, and the place of the
        # first if it is named.
        self.assumed: list[tuple[int, str, int, str]] = []
        # By column, of which some have several names.
        self._words: dict[int, WordColumn] = {}

    def __len__(self) -> int:
        return len(self.lines)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def renamed(self, columns: Mapping[str, str]) -> None:
        """:param columns: the column by its new name; others are left out."""
        self.columns = {name: self.columns[column] for name, column in columns.items()}

    def take(self, rows: Rows, names: Collection[str] | None = None) -> RowBlock:
        """Some of the rows, without the others.

        :param names: the columns that are wanted, as far as there are. Default: all.
        """
        import pyarrow as pa

        at = arrow_array(rows.astype(np.int64, copy=False), pa.int64())
        columns = {
            name: compute("take", texts, at)
            for name, texts in self.columns.items()
            if names is None or name in names
        }
        return RowBlock(self.conversion, self.source, self.lines[rows], columns)

    def rows(self) -> Iterator[InputRow]:
        """The rows one by one, as of a fresh block; others are refused where they stand."""
        texts = zip(*(column.to_pylist() for column in self.columns.values()), strict=True)
        others = iter([*self.others, (math.inf, "")])
        next_other, fault = next(others)
        for line, fields in zip(self.lines.tolist(), texts, strict=True):
            while next_other < line:
                self.conversion.refuse_row(self.source, int(next_other), fault)
                next_other, fault = next(others)
            yield InputRow(self.source, line, dict(zip(self.columns, fields, strict=True)))
        while next_other < math.inf:
            self.conversion.refuse_row(self.source, int(next_other), fault)
            next_other, fault = next(others)

    def drop(self, rows: Marks, reason: str) -> None:
        """By the format's own meaning the rows are no GPU training jobs."""
        dropped = rows & self.live
        if count := int(dropped.sum()):
            self.dropped.append((str(reason), count))
            self.live &= ~dropped

    def drop_without_gpus(self, gpus: Numbers, nodes: Numbers | None = None) -> None:
        """Drop jobs that used no GPU, or keep those that used one node where the import asks for them.

        :param nodes: that each used. Default: one.
        """
        if not self.conversion.cpu_jobs:
            self.drop(gpus == 0, Reason.NO_GPU)
        elif nodes is not None:
            self.drop((gpus == 0) & (nodes > 1), Reason.SEVERAL_NODES)

    def refuse(self, rows: Marks, field: str, message: str | Callable[[int], str]) -> None:
        """The rows do not say what the format asks for."""
        for row in np.flatnonzero(rows & self.live).tolist():
            self.refuse_row(row, field, message if isinstance(message, str) else message(row))

    def refuse_row(self, row: int, field: str, message: str) -> None:
        self.fail(row, [Problem(self.source, self.line(row), f"/{field}", message)])

    def fail(self, row: int, problems: list[Problem]) -> None:
        self.live[row] = False
        self.problems[row] = problems

    def assume(self, rows: Marks, sentence: str, *, named: bool = False) -> None:
        """State what holds for these rows; ``named``: with the line of the first."""
        if count := int((rows & self.live).sum()):
            first = int(np.argmax(rows & self.live))
            self.assumed.append(
                (first, sentence, count, f"{self.source}:{self.line(first)}" if named else "")
            )

    def assume_row(self, row: int, sentence: str, rows: int = 1, place: str = "") -> None:
        self.assumed.append((row, sentence, rows, place))

    def line(self, row: int) -> int:
        return int(self.lines[row])

    def keys(self) -> NDArray[np.uint64]:
        """A number for each row, the same where :attr:`~.InputRow.whole` is, and very seldom elsewhere."""
        columns = (self.columns[name] for name in sorted(self.columns))
        return hashes(compute("binary_join_element_wise", *columns, text_array((FIELD_END,))[0]))

    def optional_text(self, name: str) -> WordColumn:
        if name not in self.columns:
            return WordColumn.same("", len(self))
        column = self.columns[name]
        if id(column) not in self._words:
            encoded = compute("dictionary_encode", column)
            texts = [_stated(text) for text in encoded.dictionary.to_pylist()]
            self._words[id(column)] = WordColumn(texts, _numpy(encoded.indices, np.int32))
        return self._words[id(column)]

    def text(self, name: str) -> WordColumn:
        words = self.optional_text(name)
        self.refuse(~words.stated(), name, "is empty, expected some text")
        return words

    def optional_number(self, name: str) -> Numbers:
        return self._read(name, lambda row: row.optional_number(name))

    def number(self, name: str) -> Numbers:
        numbers = self.optional_number(name)
        self.refuse(np.isnan(numbers), name, "is empty, expected a number")
        return numbers

    def count(self, name: str) -> Numbers:
        numbers = self.number(name)
        wrong = numbers != np.floor(numbers)
        self.refuse(wrong, name, lambda row: f"{self._raw(name, row)!r} is not a whole number")
        return numbers

    def count_text(self, name: str) -> WordColumn:
        """The numbers of :meth:`count` as texts."""
        return words_of(self.count(name), lambda value: str(int(value)))

    def positive_count(self, name: str) -> Numbers:
        counts = self.count(name)
        self.refuse(counts == 0, name, "is 0, expected 1 or more")
        return counts

    def optional_timestamp(self, name: str, zone: tzinfo | None = None, unit_s: float = 1.0) -> Numbers:
        """Parameters as those of :func:`~.conversion.parse_timestamp`; the zone is by default that of the
        conversion.
        """
        zone = zone or self.conversion.zone

        def read_one(row: InputRow) -> float | None:
            return parse_timestamp(row.values[name], name, zone, unit_s)

        return self._read(name, read_one, zone, unit_s)

    def timestamp(self, name: str) -> Numbers:
        times_s = self.optional_timestamp(name)
        self.refuse(np.isnan(times_s), name, "is empty, expected a time")
        return times_s

    def read_words(self, name: str, read_one: Callable[[InputRow], float]) -> Numbers:
        """A number for each text of a column; without the column for an empty one."""
        words = self.optional_text(name)
        values = np.full(len(words.texts), np.nan)
        for place in np.unique(words.places[self.live]).tolist():
            try:
                values[place] = read_one(InputRow(self.source, None, {name: words.texts[place]}))
            except MalformedRowError as error:
                self.refuse(words.places == place, error.field, error.message)
        numbers: Numbers = values[words.places]
        return numbers

    def _read(
        self,
        name: str,
        read_one: Callable[[InputRow], float | None],
        zone: tzinfo | None = None,
        unit_s: float = 1.0,
    ) -> Numbers:
        """Numbers, or with a ``zone`` times, of which those with another form than usual are read one by one.

        Without the column nothing is stated.
        """
        if name not in self.columns:
            return np.full(len(self), np.nan)
        texts = self.columns[name]
        values, known = _usual(texts, np.ones(len(self), dtype=bool), zone, unit_s)
        if known.all():
            return values
        stated = ~is_in(texts, _unstated_texts())
        values, known = _usual(texts, stated, zone, unit_s)
        values[~known] = np.nan
        self._read_one_by_one(name, np.flatnonzero(stated & ~known & self.live), values, read_one)
        return values

    def _read_one_by_one(
        self, name: str, rows: Rows, values: Numbers, read_one: Callable[[InputRow], float | None]
    ) -> None:
        value_by_text: dict[str, float | MalformedRowError | None] = {}
        for row in rows.tolist():
            text = self._raw(name, row)
            if text not in value_by_text:
                try:
                    value_by_text[text] = read_one(InputRow(self.source, None, {name: text}))
                except MalformedRowError as error:
                    value_by_text[text] = error
            value = value_by_text[text]
            if isinstance(value, MalformedRowError):
                self.refuse_row(row, value.field, value.message)
            elif value is not None:
                values[row] = value

    def _raw(self, name: str, row: int) -> str:
        text: str = self.columns[name][row].as_py()
        return text

    def executed_seconds(self, start_s: Numbers, end_s: Numbers) -> Numbers:
        """Seconds from start to end. A job that did not start, did not end or took no time is dropped."""
        self.drop(np.isnan(start_s), Reason.NEVER_STARTED)
        self.drop(np.isnan(end_s), Reason.NOT_FINISHED)
        self.drop(end_s < start_s, Reason.BACKWARDS)
        self.drop(end_s == start_s, Reason.NO_DURATION)
        return end_s - start_s


class RowIds:
    """Makes the job ids of the live rows of a block."""

    def __init__(self, block: RowBlock) -> None:
        self._block = block

    def of(self, name: str, keys: NDArray[np.uint64] | None = None) -> pa.Array:
        """A new job id for each live row, made of the text in a column.

        :param keys: a row of an id that had the same key before is the same job: it counts once.
        """
        texts = self._block.columns[name]
        if not are_plain(texts) or (_may_be_unstated(texts) and is_in(texts, _unstated_texts()).any()):
            return self._one_by_one(self._block.text(name).listed(), keys)
        return self._plain(texts, keys)

    def new(self, texts: pa.Array, keys: NDArray[np.uint64]) -> pa.Array:
        """A new job id for each live row, made of its text, whatever it says; keys as in :meth:`of`."""
        if are_plain(texts):
            return self._plain(texts, keys)
        return self._one_by_one(texts.to_pylist(), keys)

    def _plain(self, texts: pa.Array, keys: NDArray[np.uint64] | None) -> pa.Array:
        every = bool(self._block.live.all())
        wanted = texts if every else _taken(texts, np.flatnonzero(self._block.live))
        if self._block.conversion.ids.take(wanted, keys if keys is None or every else keys[self._block.live]):
            return texts
        return self._one_by_one(texts.to_pylist(), keys)

    def numbered(self, prefix: str) -> pa.Array:
        """A new job id for each live row, made of its number."""
        return self._one_by_one([f"{prefix}-{line - 1}" for line in self._block.lines.tolist()])

    def _one_by_one(self, texts: list[str], keys: NDArray[np.uint64] | None = None) -> pa.Array:
        for row in np.flatnonzero(self._block.live).tolist():
            if keys is not None and self._block.conversion.ids.is_repeated(texts[row], int(keys[row])):
                self._block.live[row] = False
                self._block.repeated += 1
                continue
            place = f"{self._block.source}:{self._block.line(row)}"
            assume = partial(self._block.assume_row, row, place=place)
            texts[row] = self._block.conversion.ids.new(texts[row], assume)
        return text_array(texts)


def convert_blocks(blocks: Iterable[RowBlock], make: Callable[[RowBlock], T]) -> Iterator[T]:
    """What ``make`` makes of the rows of each block that are neither dropped nor malformed."""
    for block in blocks:
        if len(block):
            with np.errstate(all="ignore"):  # rows that are not live hold anything
                made = make(block)
            settle(block)
            yield made
        else:
            settle(block)


def convert_usual(
    blocks: Iterable[RowBlock],
    make: Callable[[RowBlock], T | None],
    make_each: Callable[[Iterator[InputRow]], Iterator[U]],
) -> Iterator[T | U]:
    """What ``make`` makes of each block, and where it makes nothing, what ``make_each`` does of its rows.

    :param make: returns None for a block that holds anything unusual; then it has used no id.
    :param make_each: counts the rows.
    """
    for block in blocks:
        made = None
        if len(block):
            with np.errstate(all="ignore"):
                made = make(block)
        if made is not None:
            settle(block)
            yield made
        else:
            yield from make_each(block.rows())


def settle(block: RowBlock) -> None:
    """Count the rows of a block, and tell of them in their order."""
    conversion = block.conversion
    conversion.count_rows(len(block) + len(block.others))
    for reason, count in block.dropped:
        conversion.summary.dropped[reason] += count
    if block.repeated:
        conversion.summary.joined[REPEATED] += block.repeated
    for _, sentence, count, place in sorted(block.assumed, key=lambda found: found[0]):
        conversion.summary.assume_here(sentence, count, place)
    refused = [(block.line(row), problems) for row, problems in block.problems.items()]
    refused += [(line, [Problem(block.source, line, "", text)]) for line, text in block.others]
    for _, problems in sorted(refused, key=lambda found: found[0]):
        conversion.refuse(problems)


def words_of(values: Numbers, write: Callable[[float], str]) -> WordColumn:
    """Numbers that repeat as texts; NaN gives none."""
    distinct, places = np.unique(values, return_inverse=True)
    return WordColumn(["" if math.isnan(value) else write(value) for value in distinct.tolist()], places)


def is_in(texts: pa.Array, words: pa.Array) -> Marks:
    return truths(compute("is_in", texts, options=kernels().SetLookupOptions(value_set=words)))


def matches(texts: pa.Array, pattern: str) -> Marks:
    matched = compute("match_substring_regex", texts, options=kernels().MatchSubstringOptions(pattern))
    return truths(matched)


def truths(truth_values: pa.Array) -> Marks:
    """Of an Arrow array of truth values without null."""
    import pyarrow as pa

    return _numpy(cast(truth_values, pa.uint8()), np.uint8).view(np.bool_)


def numbers_of(numbers: pa.Array) -> Numbers:
    """Of an Arrow array of floats without null."""
    return _numpy(numbers, np.float64)


def _numpy(values: pa.Array, kind: Any) -> NDArray[Any]:
    """The values of an Arrow array, those of nulls undefined; it may not be written to."""
    return _numpy_of(values.buffers()[1], kind, values.offset, len(values))


def _numpy_of(buffer: pa.Buffer, kind: Any, start: int, count: int) -> NDArray[Any]:
    return np.frombuffer(buffer, dtype=kind, count=start + count)[start:]


def arrow_array(values: NDArray[Any], arrow_type: pa.DataType) -> pa.Array:
    """An Arrow array of the same memory; the types have to agree."""
    import pyarrow as pa

    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _stated(text: str) -> str:
    """As :meth:`InputRow.optional_text`."""
    stripped = text.strip()
    return "" if stripped.lower() in NOTHING else stripped


@cache
def _unstated_texts() -> pa.Array:
    """All ways to write :data:`NOTHING`."""
    cases = ([{letter.lower(), letter.upper()} for letter in word] for word in NOTHING)
    return text_array(sorted("".join(letters) for each in cases for letters in product(*each)))


def _may_be_unstated(texts: pa.Array) -> bool:
    """Whether a text, none of which is empty, begins as one of :data:`NOTHING` does."""
    data, ends = text_bytes(texts)
    begins = np.zeros(256, dtype=bool)
    begins[[ord(letter) for word in NOTHING for letter in (word[:1].lower() + word[:1].upper())]] = True
    return bool(begins[data[ends[:-1]]].any())


def _are_digits(texts: pa.Array) -> bool:
    """Whether there is nothing but decimal digits."""
    data, _ = text_bytes(texts)
    return len(data) > 0 and bool(data.min() >= ord("0")) and bool(data.max() <= ord("9"))


def _usual(texts: pa.Array, stated: Marks, zone: tzinfo | None, unit_s: float) -> tuple[Numbers, Marks]:
    """The values of the usual form, and which they are: numbers, or with a ``zone`` times."""
    import pyarrow as pa

    none = np.zeros(len(texts), dtype=bool)
    if not stated.any():
        return np.full(len(texts), np.nan), none
    first = texts[int(np.argmax(stated))].as_py().strip()
    if zone is None or first.replace(".", "", 1).isdecimal():
        pattern, always = (_DIGITS, not _are_digits(texts)) if zone else (_NUMBER, False)
        values, known = _cast(texts, stated, pa.float64(), pattern, always=always)
        numbers = _numpy(values, np.float64)
        return numbers * unit_s, known & np.isfinite(numbers) & (numbers >= 0)
    zoned = first.endswith("Z") or (len(first) > 16 and first[-6] in "+-")
    if not zoned and not isinstance(zone, timezone):
        return np.full(len(texts), np.nan), none  # its offset changes with the time
    kind, pattern = pa.timestamp("us", "UTC" if zoned else None), _DATE + (_ZONE if zoned else "$")
    values, known = _cast(texts, stated, kind, pattern)
    offset = timedelta() if zoned else zone.utcoffset(None) or timedelta()
    times_us = _numpy(values, np.int64) - offset // timedelta(microseconds=1)
    return times_us / 1e6, known & (times_us >= _YEAR_1_US) & (times_us < _EXACT)


def _cast(
    texts: pa.Array, stated: Marks, kind: pa.DataType, pattern: str, *, always: bool = False
) -> tuple[pa.Array, Marks]:
    """The stated texts as values of another type, and which could be read.

    :param pattern: what alone is read if not all can be; ``always``: in any case.
    """
    import pyarrow as pa

    if not always:
        try:
            return cast(_only(texts, stated), kind), stated
        except pa.ArrowInvalid:
            pass
    known = stated & matches(texts, pattern)
    try:
        return cast(_only(texts, known), kind), known
    except pa.ArrowInvalid:
        none = np.zeros(len(texts), dtype=bool)
        return cast(_only(texts, none), kind), none


def _taken(texts: pa.Array, rows: Rows) -> pa.Array:
    import pyarrow as pa

    return compute("take", texts, arrow_array(rows.astype(np.int64, copy=False), pa.int64()))


def _only(texts: pa.Array, rows: Marks) -> pa.Array:
    """The texts of these rows, null for the others."""
    import pyarrow as pa

    if rows.all():
        return texts
    kept = cast(arrow_array(rows.view(np.uint8), pa.uint8()), pa.bool_())
    return compute("if_else", kept, texts, pa.nulls(1, pa.string())[0])
