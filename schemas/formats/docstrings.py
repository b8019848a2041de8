"""What the docstrings below the fields of a record say, for the schemas that describe it."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from textwrap import dedent


def field_docs(record: type) -> dict[str, str]:
    """The text below each field that has one, by the field's name, those of its bases included.

    Read from the source when somebody asks: having pydantic do it for every record takes a fifth of the time
    in which a command starts.
    """
    found = {} if record.__base__ in (None, object) else field_docs(record.__base__)
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
