"""Schema names and versions: ``pliant.job/1`` or, from a newer minor version, ``pliant.job/1.2``."""

from __future__ import annotations

import re
from typing import Final

from pliant.schemas.errors import BadInputError
from pliant.schemas.text.wording import shortened

KINDS: Final = ("job", "cluster", "profile", "convergence", "schedule", "event", "metrics", "predictor")
MAJOR: Final = 1
MINORS: Final = {"event": 1, "job": 1, "cluster": 2, "schedule": 3}
"""The newest minor version of each kind that this version knows, 0 where none is named. 1 of ``event``: lines
may end in a checksum (:mod:`pliant.schemas.file_io.seals`); of ``cluster``, and of ``schedule``, which holds
one: nodes may name their devices, and the cluster says how Slurm is asked; 2 of ``schedule``: the work of
jobs may be predicted; 2 of ``cluster`` and 3 of ``schedule``: nodes may state further capacities, and jobs
hold parameter servers and future time slots, or share GPUs; 1 of ``job``: it refuses to share its GPUs."""
_FORM: Final = re.compile(r"pliant\.([a-z]+)/([0-9]{1,9})(?:\.([0-9]{1,9}))?")


def schema_id(kind: str, minor: int = 0) -> str:
    """The identifier of one of :data:`KINDS`; ``minor``: the version that first had all that a file holds."""
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
    """Compare an identifier read from a file with what this version knows.

    Returns ``(problem, newer_minor)``: the problem's text or None, and whether unknown fields are to be
    ignored with a warning because the file comes from a newer minor version.
    """
    match = _FORM.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        return f"{shortened(repr(found))} is not a schema identifier, expected {schema_id(kind)!r}", False
    name, major, minor = shortened(match[1]), int(match[2]), int(match[3] or 0)
    if name != kind:
        return f"this is {a_file(name)}, expected {a_file(kind)} ({schema_id(kind)!r})", False
    if major != MAJOR:
        return f"major version {major} of {kind!r} is unknown, this pliant reads version {MAJOR}", False
    return None, minor > MINORS.get(kind, 0)
