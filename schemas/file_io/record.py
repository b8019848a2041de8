"""JSON records, what is wrong with them in words, and the versions of their schemas.

Each validation error becomes one line: where it is, what is wrong, what was expected. A schema is named
``pliant.job/1`` or, from a newer minor version, ``pliant.job/1.2``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.text import did_you_mean, shortened

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema, ErrorDetails, ValidationError


IDENTIFIER: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NODE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._{}-]{0,127}$"
TEAM_NAME: Final = IDENTIFIER + r"|^\*$"
FORM: Final = "form:"
"""Prefix of the tags of a tagged union: they stand in pydantic's locations but not in the file."""
Identifier = Annotated[str, Field(pattern=IDENTIFIER)]
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
MOST_GPUS: Final = 10_000_000
"""Most GPUs of a cluster or a job, so that a typing error does not fill memory."""
GpuCount = Annotated[int, Field(gt=0, le=MOST_GPUS)]
MOST_SAMPLES: Final = 2**53
"""The largest integer up to which a float holds all exactly."""
SampleCount = Annotated[int, Field(gt=0, le=MOST_SAMPLES)]
LARGEST_BATCH: Final = 2**31
BatchSize = Annotated[int, Field(gt=0, le=LARGEST_BATCH)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
MOST: Final = 1e18
"""Maximum of work, times and weights; sums and products of them stay finite."""
WorkAmount = Annotated[float, Field(gt=0, le=MOST)]
BoundedFloat = Annotated[float, Field(ge=-MOST, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
"""What torch and numpy accept."""
PLAIN_TEXT: Final = r"^[^\x00]*$"
VARIABLE: Final = r"^[^=\x00]+$"
PlainText = Annotated[str, Field(pattern=PLAIN_TEXT)]
"""Arguments of system calls have no NUL."""
VariableName = Annotated[str, Field(pattern=VARIABLE)]
Location = tuple[str | int, ...]
NOT_FINITE: Final = "NaN and infinities are not allowed, expected a finite number"
MAYBE_NOT_FINITE: Final = r"NaN|Infinity|[:,\[\s-][0-9.]*[eE]\+?[0-9]{3}"
"""Matches JSON text with a number that is not finite, and rarely other text: digests, in quotes, do not."""
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
    TEAM_NAME: _NAME + "; or * for who is in no team",
    PLAIN_TEXT: "text without NUL characters",
    VARIABLE: "a name, not empty, without '=' and NUL characters",
}
_BOUNDS: Final = {
    "greater_than": ("not above {gt}", "more than {gt}"),
    "greater_than_equal": ("below {ge}", "{ge} or more"),
    "less_than": ("not below {lt}", "less than {lt}"),
    "less_than_equal": ("above {le}", "{le} or less"),
}
KINDS: Final = ("job", "cluster", "profile", "convergence", "schedule", "event", "metrics", "predictor")
MAJOR: Final = 1
MINORS: Final = {"event": 1, "job": 8, "cluster": 6, "schedule": 10, "metrics": 2}
"""The newest minor version of each kind that this version knows, 0 where none is named.

event: 1, lines may end in a checksum (:mod:`pliant.schemas.file_io.json_lines`); another name of an event is
no new version, as it is no field that an older version could leave out. job: 1, it refuses to share its GPUs;
2, epochs of a data set of unknown size; 3, replicas of several GPUs, or resized by a relaunch; 4, it names
its team, has a weight, waits for other jobs, belongs to an array, or is held from the start; 5, it has
certain sizes only; 6, it changes its batch by itself; 7, it may run on some GPUs only, or says whether it may
be preempted; 8, it starts only if another job does not finish, its array ends by failures, it has limits,
says when it is retried, names its launcher, tasks, Python, container or output, has a name, says on which
nodes it may run, or needs no GPU. cluster: 1, nodes name their devices and the cluster says how Slurm is
asked; 2, nodes state further capacities; 3, teams share it, Slurm gives notice, idle jobs or stragglers have
a rule, its network has levels; 4, it says whose GPUs policies may take; 5, GPUs have prices, or it says who
is notified; 6, it has reservations, or its leases follow the jobs. schedule: 1, as cluster 1, which it holds;
2, the work of jobs may be predicted; 3, as cluster 2, and jobs hold parameter servers and future time slots,
or share GPUs; 4, as job 2; 5, as job 3; 6, as job 4 and cluster 3; 7, as job 5; 8, as job 6; 9, as job 7; 10,
as cluster 4 and job 8. metrics: 1, runs have steps; 2, they have teams.
"""
_SCHEMA_ID: Final = re.compile(r"pliant\.([a-z]+)/([0-9]{1,9})(?:\.([0-9]{1,9}))?")


class Record(BaseModel):  # noqa: PLW1641 - frozen: pydantic makes the hash
    """Base of every JSON record: strict types, finite numbers, no unknown fields, immutable."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        defer_build=True,
    )

    @property
    def minor(self) -> int:
        """The minor version of its kind that first had all that it holds."""
        return 0

    def __eq__(self, other: object) -> bool:
        """Fast for the same object, such as a shared default."""
        return self is other or super().__eq__(other)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON Schema, each field described by the docstring below it."""
        described = handler(core_schema)
        properties = handler.resolve_ref_schema(described).get("properties", {})
        for name, text in _field_docs(cls).items():
            properties[cls.model_fields[name].alias or name]["description"] = text
        return described


def broken_rule(problem: str, pointer: str) -> PydanticCustomError:
    """What a validator raises where values contradict each other."""
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "pointer": pointer})


def _field_docs(record: type) -> dict[str, str]:
    """The text below each field, by the field's name, bases included.

    Read from the source when a schema is made: pydantic would need a fifth of the start-up time of a command.
    """
    import ast
    import inspect
    from itertools import pairwise
    from textwrap import dedent

    docs = {} if record.__base__ in (None, object) else _field_docs(record.__base__)
    if not record.__module__.startswith("pliant."):
        return docs
    body = ast.parse(dedent(inspect.getsource(record))).body[0]
    lines = body.body if isinstance(body, ast.ClassDef) else []
    for field, below in pairwise(lines):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(below.value.value)
    return docs


def problems_of(
    error: ValidationError, source: str, line: int | None = None, where: str = ""
) -> list[Problem]:
    """``where`` is put before the pointer (the row of a table)."""
    return [
        Problem(source, line, where + pointer(detail), message(detail, error.title))
        for detail in details(error)
    ]


def details(error: ValidationError) -> list[ErrorDetails]:
    """Pydantic's errors, except lists that only seem too short because their items are wrong."""
    errors = error.errors(include_url=False)
    inside = {each["loc"][:end] for each in errors for end in range(len(each["loc"]))}
    return [each for each in errors if each["type"] != "too_short" or each["loc"] not in inside]


def location(found: ErrorDetails) -> Location:
    """The keys and indices that lead to the value in the file."""
    loc = found["loc"]
    kept = [part for part in loc[:-1] if not str(part).startswith(FORM)]
    return tuple(part for part in (*kept, *loc[-1:]) if part != "[key]")


def pointer(found: ErrorDetails) -> str:
    """The JSON pointer of an error (RFC 6901)."""
    return as_pointer(location(found)) + str(found.get("ctx", {}).get("pointer", ""))


def as_pointer(parts: Iterable[str | int]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def message(found: ErrorDetails, title: str) -> str:
    """:param title: the record that was read."""
    kind, context = found["type"], found.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"is not a field that this version knows{_hint(found, title)}"
    if kind == "json_invalid":
        return f"not readable JSON: {context['error'].partition(' at line')[0]}"
    if "pointer" in context:
        return found["msg"]
    return f"{_shown(found['input'])} {_expectation(kind, context, found['msg'])}{_like(found, title)}"


def _like(found: ErrorDetails, title: str) -> str:
    """A bare value as a list or as the first field of an object, if it can be read in that form."""
    value, context = found["input"], found.get("ctx", {})
    if found["type"] in ("tuple_type", "list_type") and isinstance(value, str):
        readers = [_reader(record, str(found["loc"][-1])) for record in _records_around(found, title)]
        forms: list[object] = [_words(value)]
    elif "class_name" in context and isinstance(value, int) and not isinstance(value, bool):
        named = [each for each in _kinds_of(Record) if each.__name__ == context["class_name"]]
        readers = [_reader(each) for each in named]
        forms = [{name: value} for each in named for name in list(each.model_fields)[:1]]
    else:
        return ""
    read = (form for form in forms for reader in readers if form and _reads(reader, form))
    return "".join(f", like {_shown(form)}" for form in islice(read, 1))


def _words(text: str) -> list[str]:
    """As a shell splits it; empty where a quotation is left open."""
    import shlex

    try:
        return shlex.split(text)
    except ValueError:
        return []


@cache
def _reader(record: type[Record], field: str | None = None) -> TypeAdapter[Any] | None:
    """Of a record or of one of its fields. Returns None if it has no such field."""
    from pydantic import TypeAdapter

    if field is None:
        return TypeAdapter(record)
    declared = record.model_fields.get(field)
    if declared is None:
        return None
    kind: Any = Annotated[declared.annotation, declared]
    return TypeAdapter(kind)


def _reads(reader: TypeAdapter[Any] | None, value: object) -> bool:
    try:
        return reader is not None and reader.validate_json(json.dumps(value), strict=True) is not None
    except ValueError:
        return False


def _hint(found: ErrorDetails, title: str) -> str:
    """The field that an unknown one may be meant for."""
    names = sorted({name for record in _records_around(found, title) for name in record.model_fields})
    hint = did_you_mean(str(found["loc"][-1]), names, 1)
    return f"; {hint}" if hint else ""


def _records_around(found: ErrorDetails, title: str) -> set[type[Record]]:
    """Those that the field may belong to."""
    records = {each for each in _kinds_of(Record) if each.__name__ == title}
    for part in found["loc"][:-1]:
        inner = [each.model_fields[part].annotation for each in records if part in each.model_fields]
        records = {record for kind in inner for record in _records_in(kind)} or records
    return records


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
    """Places of NaN and infinities in parsed JSON."""
    if isinstance(value, float):
        return [] if value - value == 0 else [path]
    if isinstance(value, Mapping):
        return [place for key, item in value.items() for place in nonfinite(item, (*path, str(key)))]
    if isinstance(value, list | tuple):
        return [place for at, item in enumerate(value) for place in nonfinite(item, (*path, at))]
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
    if kind.endswith("_form"):
        return f"is not a form of {kind.removesuffix('_form')}, {text}"
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


def schema_id(kind: str, minor: int = 0) -> str:
    """:param minor: the version that first had all that a file holds."""
    return f"pliant.{kind}/{MAJOR}.{minor}" if minor else f"pliant.{kind}/{MAJOR}"


def a_file(kind: str) -> str:
    """A file of that kind in words: ``an 'event' file``."""
    return f"{'an' if kind[:1] in 'aeiou' else 'a'} {kind!r} file"


def is_newer(found: object, kind: str, source: str, line: int | None = None) -> bool:
    """Whether an identifier read from a file is of a newer minor version.

    :raises BadInputError: this version cannot read such a file.
    """
    problem, newer = check_schema_id(found, kind)
    if problem is not None:
        raise BadInputError.one(source, problem, line=line, pointer="/schema")
    return newer


def check_schema_id(found: object, kind: str) -> tuple[str | None, bool]:
    """Returns why a file with this identifier cannot be read, or None; and whether it comes from a newer
    minor version, so that unknown fields are ignored with a warning.
    """
    match = _SCHEMA_ID.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        return f"{shortened(repr(found))} is not a schema identifier, expected {schema_id(kind)!r}", False
    name, major, minor = shortened(match[1]), int(match[2]), int(match[3] or 0)
    if name != kind:
        return f"this is {a_file(name)}, expected {a_file(kind)} ({schema_id(kind)!r})", False
    if major != MAJOR:
        return f"major version {major} of {kind!r} is unknown, this pliant reads version {MAJOR}", False
    return None, minor > MINORS.get(kind, 0)
