"""Which modules and functions of the product a piece of work passes, as a reader would have to follow it.

``recording`` covers a whole process, its threads included. As a script, ``python -m
benchmarks.parts.visits FILE UNTIL MODULE ARGUMENT…`` runs another module and writes to FILE what it
passed until the file UNTIL was there; the processes that it starts are not recorded.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from benchmarks.parts.figure import ROOT

PRODUCT: Final = tuple(f"{ROOT}/{folder}/" for folder in ("cli", "schemas", "tools"))


@dataclass(slots=True)
class Visits:
    """What was passed, in the order of first visits."""

    functions: dict[str, str] = field(default_factory=dict)
    """The module of each function, by its qualified name."""

    @property
    def modules(self) -> set[str]:
        """Paths below the repository root."""
        return set(self.functions.values())

    def add(self, functions: dict[str, str]) -> None:
        """Count what another process passed as well."""
        self.functions.update(functions)

    def see(self, frame: FrameType) -> bool:
        """Note a call; whether it is the first one of a function of the product."""
        code = frame.f_code
        file = code.co_filename
        if not file.startswith(PRODUCT) or code.co_name == "<module>":
            return False
        module = file.removeprefix(f"{ROOT}/")
        name = f"{module}:{code.co_qualname}"
        new = name not in self.functions
        self.functions[name] = module
        return new


@dataclass(slots=True)
class Stays:
    """Where a value is handed to: the modules of the functions that get it, each function once."""

    visits: list[str] = field(default_factory=list)

    @property
    def stays(self) -> list[str]:
        """The modules one after the other, without repeats in a row."""
        return [m for m, before in zip(self.visits, [None, *self.visits], strict=False) if m != before]

    @property
    def returns(self) -> int:
        """Stays in a module that had been left."""
        return len(self.stays) - len(set(self.stays))


@contextmanager
def recording(until: Path | None = None) -> Iterator[Visits]:
    """The calls of this process meanwhile, or until a file is there."""
    found = Visits()
    over = False

    def call(frame: FrameType, event: str, _: Any) -> None:
        nonlocal over
        if event == "call" and not over and found.see(frame) and until is not None:
            over = os.path.exists(until)

    threading.setprofile(call)
    sys.setprofile(call)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


@contextmanager
def following(value: Any) -> Iterator[Stays]:
    """The functions that get a record, or a part of it, as an argument meanwhile."""
    parts = {id(part) for part in _parts(value)}
    seen, found = Visits(), Stays()

    def call(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PRODUCT):
            return
        code = frame.f_code
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(id(frame.f_locals.get(name)) in parts for name in given) and seen.see(frame):
            found.visits.append(code.co_filename.removeprefix(f"{ROOT}/"))

    sys.setprofile(call)
    try:
        yield found
    finally:
        sys.setprofile(None)


def _parts(value: Any) -> Iterator[Any]:
    """A record, and the records that it holds."""
    yield value
    for each in fields(value):
        part = getattr(value, each.name)
        if is_dataclass(part):
            yield from _parts(part)


def main(arguments: list[str]) -> int:
    """Run a module and write what it passed."""
    file, until, module, *rest = arguments
    sys.argv = [module, *rest]
    with recording(Path(until)) as found, suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    Path(file).write_text(json.dumps(found.functions))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
