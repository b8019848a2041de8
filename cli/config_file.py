"""Reading ``pliant.toml``: its settings, and one line for each that is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.file_io.files import read_bytes
from pliant.schemas.file_io.record import Record, problems_of
from pliant.schemas.job import Job


class Settings(Record):
    """What pliant.toml may say."""

    state: str | None = None
    """The state directory."""
    cluster: str | None = None
    """The cluster file."""
    policy: str | None = None
    parameters: dict[str, str | int | float | bool] = Field(default_factory=dict)
    """Parameters of the policy."""
    job: dict[str, Any] = Field(default_factory=dict)
    """Fields of jobs that do not state them."""


def read_settings(file: Path, source: str) -> Settings:
    """:param source: what messages call the file.
    :raises BadInputError: with every problem of the file.
    """
    try:
        text = read_bytes(file).decode()
        settings = Settings.model_validate(tomllib.loads(text))
        _check_defaults(settings.job, source)
    except UnicodeDecodeError:
        raise BadInputError.one(source, "not valid UTF-8, expected TOML in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInputError.one(source, f"not readable TOML: {error}") from None
    except ValidationError as error:
        where = "/job" if error.title == Job.__name__ else ""
        raise BadInputError(
            [_placed(each, text) for each in problems_of(error, source, where=where)]
        ) from None
    if settings.parameters and settings.policy is None:
        raise BadInputError.one(source, "there is no policy that they are for", pointer="/parameters")
    return settings


def _check_defaults(fields: Mapping[str, Any], source: str) -> None:
    """Refuse defaults that no job could have."""
    if "id" in fields:
        raise BadInputError.one(source, "each job has its own, expected no default", pointer="/job/id")
    if fields:
        Job.model_validate_json(json.dumps({"id": "a", "model": "m", **fields}, default=str))


def _placed(problem: Problem, text: str) -> Problem:
    """The problem with the line of its key, if it is found."""
    for key in filter(None, reversed(problem.pointer.split("/"))):
        match = re.search(rf"^\s*\[?(?:\w+\.)*{re.escape(key)}\s*[]=.]", text, re.MULTILINE)
        if match is not None:
            line = text.count("\n", 0, match.end()) + 1
            return Problem(problem.source, line, problem.pointer, problem.message)
    return problem
