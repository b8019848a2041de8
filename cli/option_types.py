"""How values and options are spelled: times, sizes, dates, and forms of output."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from inspect import Parameter, Signature
from itertools import pairwise
from math import inf
from typing import Annotated, Any, Final, TypeVar, get_origin, get_type_hints

import typer

from pliant.cli.console import out_text
from pliant.schemas.errors import UsageError
from pliant.schemas.quantities import (
    SIZE,
    TIME,
    Unit,
    duration_words,
    read_duration,
    read_size,
    read_time,
)

R = TypeVar("R")
DURATION_SHOWN: Final = "DURATION"
TIME_SHOWN: Final = "TIME"
SIZE_SHOWN: Final = "SIZE"
_SHOWN: Final = {
    DURATION_SHOWN: "30s, 5m, 2h or 1d; a plain number is seconds, unless the option says hours",
    TIME_SHOWN: TIME,
    SIZE_SHOWN: SIZE,
}


def gpu_types(text: str) -> list[str]:
    """GPU types with commas between them."""
    types = [kind.strip() for kind in text.split(",")]
    if not all(types):
        raise UsageError(f'--gpu-type "{text}": expected GPU types, as a100 or a100,h100')
    return types


def duration(*, least: float = 0.0, most: float = inf, unit: Unit = "s") -> Callable[[Any], float]:
    """The parser of an option that takes a length of time.

    :param unit: of a plain number, of the bounds and of the result.
    """

    def read(value: Any) -> float:
        amount = read_duration(value, unit) if isinstance(value, str) else float(value)
        if not least <= amount <= most:
            range_text = f"{least:g} {unit}" + (" or more" if most == inf else f" to {most:g} {unit}")
            raise ValueError(f"expected {range_text}: {duration_words(unit)}")
        return amount

    return read


def size(*, least: int = 0) -> Callable[[Any], int]:
    """The parser of an option that takes a number of bytes."""

    def read(value: Any) -> int:
        amount = read_size(value) if isinstance(value, str) else int(value)
        if amount < least:
            raise ValueError(f"expected {least} bytes or more, or a size like 64MB or 64MiB")
        return amount

    return read


_GPUS: Final = re.compile(r"(\d+)(?:-(\d+))?")
_LIST: Final = re.compile(r"\d{1,9}(?:,\d{1,9})+")


def sizes_of(gpus: str) -> dict[str, Any]:
    """What ``--gpus`` says of a job's ``gpus``; its smallest and largest size in any case.

    :raises UsageError: it is neither a number nor two of them, nor a list of rising ones.
    """
    match = _GPUS.fullmatch(gpus)
    listed = [int(size) for size in gpus.split(",")] if _LIST.fullmatch(gpus) else []
    if match is not None:
        least, most = int(match[1]), int(match[2] or match[1])
    else:
        rises = all(size > before for before, size in pairwise([0, *listed]))
        least, most = (listed[0], listed[-1]) if listed and rises else (0, 0)
    if not 0 < least <= most:
        text = "expected a number of GPUs, as 2, the least and the most, as 1-4, or all sizes, as 1,2,4"
        raise UsageError(f"--gpus {gpus}: {text}")
    return {"requested": most, "min": least, "max": most, "sizes": listed or None}


def where_of(
    constraint: Sequence[str] | None, only: str | None, exclude: str | None, needs: Mapping[str, float | None]
) -> dict[str, Any]:
    """What the options say of the nodes that a job may run on; None: nothing.

    :param needs: amounts by resource, for each of its workers.
    :raises UsageError: an expression or a list of nodes is not one.
    """
    from pliant.schemas.node_labels import condition, names_in

    stated = {name: float(amount) for name, amount in needs.items() if amount is not None}
    fields: dict[str, Any] = {
        "nodes": constraint or None,
        "resources": {"worker": stated} if stated else None,
    }
    for text in constraint or ():
        try:
            condition(text)
        except ValueError as error:
            raise UsageError(f"--constraint {error}") from error
    for name, nodes in (("only", only), ("exclude", exclude)):
        try:
            fields[name] = None if nodes is None else names_in(nodes)
        except ValueError as error:
            raise UsageError(f"--{name} {nodes}: {error}") from error
    return fields


def moment(value: Any) -> float:
    """The parser of an option that takes a time."""
    return read_time(value) if isinstance(value, str) else float(value)


def epilog(parameters: Iterable[Any]) -> str | None:
    """What DURATION, TIME and SIZE stand for, as far as the help of a command uses them."""
    texts = [f"{each.metavar or ''} {getattr(each, 'help', '') or ''}" for each in parameters]
    used = [name for name in _SHOWN if any(name in text for text in texts)]
    return " ".join(f"{name}: {_SHOWN[name]}." for name in used) or None


class Form(StrEnum):
    """For whom it is written."""

    table = "table"
    json = "json"


FORM = Annotated[Form, typer.Option("--format", "-f", help="For people, or for programs.")]
TO_FILE = Annotated[str, typer.Option("--output", "-o", help="File to write; - is stdout.")]


def out_or_file(text: str, output: str, paint: Callable[[str], str] = str) -> None:
    """Write the product to stdout or to a file.

    :param paint: see :func:`out_text`.
    :raises UsageError: the file has the name of a form, as if that was meant.
    """
    from pliant.schemas.file_io.files import write_bytes

    if output in Form.__members__:
        raise UsageError(f"-o names a file, and -f {output} chooses the form; for that file: -o ./{output}")
    if output == "-":
        out_text(text, paint)
    else:
        write_bytes(output, text.encode())


def with_options_of(
    record: type[R], *, without: Collection[str] = (), **instead: object
) -> Callable[[Callable[[R], None]], Callable[..., None]]:
    """Make a command of a function that takes ``record``, with an option for each field that is annotated so.

    :param without: fields that keep their default, with no option.
    :param instead: annotations in place of those of fields.
    """
    hints = {**get_type_hints(record, include_extras=True), **instead}
    parameters = [
        Parameter(each.name, Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(record)  # type: ignore[arg-type]
        if each.name not in without and get_origin(hints[each.name]) is Annotated
    ]

    def command_of(function: Callable[[R], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**given: object) -> None:
            function(record(**given))

        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return command_of
