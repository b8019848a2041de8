"""What all JSON records of pliant share: strict types, no unknown fields, no NaN, immutable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

IDENTIFIER: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
NODE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._{}-]{0,127}$"
FORM: Final = "form:"
"""Tags of the members of a tagged union start so: they stand in pydantic's locations but not in the file."""

Identifier = Annotated[str, Field(pattern=IDENTIFIER)]
PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
MOST_GPUS: Final = 10_000_000
"""Of one cluster, and so of one job: no machine is near it, and a slip of the pen does not fill memory."""
GpuCount = Annotated[int, Field(gt=0, le=MOST_GPUS)]
SampleCount = Annotated[int, Field(gt=0, le=2**53)]
"""Up to the largest integer that a float holds exactly."""
LARGEST_BATCH: Final = 2**31
BatchSize = Annotated[int, Field(gt=0, le=LARGEST_BATCH)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
MOST: Final = 1e18
"""Of work, times and weights: beyond any use, and sums and products of them stay finite."""
WorkAmount = Annotated[float, Field(gt=0, le=MOST)]
BoundedFloat = Annotated[float, Field(ge=-MOST, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**64)]
"""What torch and numpy take."""

PLAIN_TEXT: Final = r"^[^\x00]*$"
VARIABLE: Final = r"^[^=\x00]+$"
PlainText = Annotated[str, Field(pattern=PLAIN_TEXT)]
"""What a system call takes as an argument: no NUL."""
VariableName = Annotated[str, Field(pattern=VARIABLE)]
"""Name of an environment variable."""


class Record(BaseModel):  # noqa: PLW1641 - frozen: pydantic makes the hash
    """Base of every JSON record: what the schema does not name is an error, and values never change."""

    # Fields that former versions wrote and that say nothing any more: files of pliant are read without them.
    former_fields: ClassVar[frozenset[str]] = frozenset()
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
        """As values; one and the same object, such as a shared default, without looking at them."""
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
    """What a validator raises where values that are each right do not go together."""
    return PydanticCustomError("rule", "{problem}", {"problem": problem, "pointer": pointer})


def _field_docs(record: type) -> dict[str, str]:
    """The text below each field that has one, by the field's name, those of its bases included.

    Read from the source when a schema is made: having pydantic do it for every record takes a fifth of the
    time in which a command starts.
    """
    import ast
    import inspect
    from itertools import pairwise
    from textwrap import dedent

    found = {} if record.__base__ in (None, object) else _field_docs(record.__base__)
    if not record.__module__.startswith("pliant."):
        return found
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
            found[field.target.id] = inspect.cleandoc(below.value.value)
    return found
