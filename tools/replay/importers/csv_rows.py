"""The rows of a CSV file, or of one with another delimiter, as a stream of records."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import source_name
from pliant.tools.replay.importers.conversion import Conversion
from pliant.tools.replay.importers.input_row import InputRow
from pliant.tools.replay.importers.text_input import open_text


def csv_rows(
    path: str | Path,
    conversion: Conversion,
    needed: Collection[str],
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    quoted: bool = True,
) -> Iterator[InputRow]:
    """The rows of a CSV file by column name.

    :param names: columns of a file without a header line; else the first line names them.
    :param quoted: whether ``"`` encloses fields.
    :raises BadInputError: a needed column is missing, or the file is not CSV.
    """
    source = source_name(path)
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    with open_text(path) as stream:
        reader = csv.reader(stream, delimiter=delimiter, quoting=quoting)
        try:
            header = next(reader, []) if names is None else list(names)
            _check_header(header, needed, source)
            for fields in reader:
                if len(fields) == len(header):
                    yield InputRow(source, reader.line_num, dict(zip(header, fields, strict=True)))
                elif fields:
                    message = f"has {len(fields)} fields, expected {len(header)}"
                    conversion.refuse_row(source, reader.line_num, message)
        except csv.Error as error:
            raise BadInputError.one(source, f"is not CSV: {error}", line=reader.line_num) from None


def _check_header(header: Sequence[str], needed: Collection[str], source: str) -> None:
    twice = [name for name in needed if header.count(name) > 1]
    if twice:
        raise BadInputError.one(source, f"has more than one column {', '.join(twice)}", line=1)
    missing = [name for name in needed if name not in header]
    if missing:
        found = ", ".join(header) or "nothing"
        text = f"has no column {', '.join(missing)}; it has: {found[:200]}"
        raise BadInputError.one(source, text, line=1)
