"""Turn validation errors into one line each: where it is, what is wrong, what was expected."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, get_args

from pliant.schemas.errors import Problem
from pliant.schemas.file_io.record import FORM, IDENTIFIER, NODE_NAME, PLAIN_TEXT, VARIABLE, Record
from pliant.schemas.text.wording import shortened

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, ValidationError

Location = tuple[str | int, ...]

NOT_FINITE: Final = "NaN and infinities are not allowed, expected a finite number"
_TYPES: Final = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of 64 bits",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "dataclass_exact_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
}
_NAME: Final = "1 to 128 letters, digits, '.', '_' and '-', the first a letter or digit"
_PATTERNS: Final = {
    IDENTIFIER: _NAME,
    NODE_NAME: _NAME + ", {} for the number",
    PLAIN_TEXT: "text without NUL characters",
    VARIABLE: "a name, not empty, without '=' and NUL characters",
}
_BOUNDS: Final = {
    "greater_than": ("not above {gt}", "more than {gt}"),
    "greater_than_equal": ("below {ge}", "{ge} or more"),
    "less_than": ("not below {lt}", "less than {lt}"),
    "less_than_equal": ("above {le}", "{le} or less"),
}


def problems_of(
    error: ValidationError, source: str, line: int | None = None, where: str = ""
) -> list[Problem]:
    """One problem for each error; ``where`` is put before the pointer (the row of a table)."""
    return [
        Problem(source, line, where + pointer(found), message(found, error.title)) for found in details(error)
    ]


def details(error: ValidationError) -> list[ErrorDetails]:
    """The errors as pydantic gives them, but for lists that seem too short as their items are wrong."""
    found = error.errors(include_url=False)
    inside = {each["loc"][:end] for each in found for end in range(len(each["loc"]))}
    return [each for each in found if each["type"] != "too_short" or each["loc"] not in inside]


def location(found: ErrorDetails) -> Location:
    """The keys and indices that lead to the value, as they are in the file."""
    loc = found["loc"]
    kept = [part for part in loc[:-1] if not str(part).startswith(FORM)]
    return tuple(part for part in (*kept, *loc[-1:]) if part != "[key]")


def pointer(found: ErrorDetails) -> str:
    """The JSON pointer of an error (RFC 6901)."""
    return as_pointer(location(found)) + str(found.get("ctx", {}).get("pointer", ""))


def as_pointer(parts: Iterable[str | int]) -> str:
    """A JSON pointer from keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def message(found: ErrorDetails, title: str) -> str:
    """What is wrong and what was expected.

    :param title: the record that was read.
    """
    kind, context = found["type"], found.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"is not a field that this version knows{_hint(found, title)}"
    if kind == "json_invalid":
        return f"not readable JSON: {context['error'].partition(' at line')[0]}"
    if "pointer" in context:
        return found["msg"]
    return f"{_shown(found['input'])} {_expectation(kind, context, found['msg'])}"


def _hint(found: ErrorDetails, title: str) -> str:
    """The field of the record that an unknown one may be meant for."""
    records = {each for each in _kinds_of(Record) if each.__name__ == title}
    for part in found["loc"][:-1]:
        inner = [each.model_fields[part].annotation for each in records if part in each.model_fields]
        records = {record for kind in inner for record in _records_in(kind)} or records
    names = sorted({name for record in records for name in record.model_fields})
    near = difflib.get_close_matches(str(found["loc"][-1]), names, n=1, cutoff=0.75)
    return f'; did you mean "{near[0]}"?' if near else ""


def _kinds_of(record: type[Record]) -> Iterator[type[Record]]:
    for kind in record.__subclasses__():
        yield kind
        yield from _kinds_of(kind)


def _records_in(kind: Any) -> Iterator[type[Record]]:
    """The records that a field's annotation names."""
    if isinstance(kind, type) and issubclass(kind, Record):
        yield kind
    for inner in get_args(kind):
        yield from _records_in(inner)


def nonfinite(value: object, path: Location = ()) -> list[Location]:
    """Where NaN and the infinities are in parsed JSON."""
    if isinstance(value, float):
        return [] if value - value == 0 else [path]
    if isinstance(value, Mapping):
        return [found for key, item in value.items() for found in nonfinite(item, (*path, str(key)))]
    if isinstance(value, list | tuple):
        return [found for at, item in enumerate(value) for found in nonfinite(item, (*path, at))]
    return []


def _expectation(kind: str, context: Mapping[str, Any], text: str) -> str:
    if kind == "finite_number":
        return "is not allowed, expected a finite number"
    if kind in _TYPES:
        return f"has the wrong type, expected {_TYPES[kind]}"
    if kind in _BOUNDS:
        bounds = {name: _number(bound) for name, bound in context.items()}
        wrong, right = (part.format(**bounds) for part in _BOUNDS[kind])
        return f"is {wrong}, expected {right}"
    if kind == "literal_error":
        return f"is unknown, expected {context['expected']}"
    if kind == "string_pattern_mismatch":
        return f"is not allowed, expected {_PATTERNS.get(context['pattern'], context['pattern'])}"
    if kind == "work_form":
        return f"is not a form of work, {text}"
    if kind == "string_too_short":
        return "is too short, expected some text"
    return f"is wrong: {text[:1].lower()}{text[1:]}"


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return shortened(text)
