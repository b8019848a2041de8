"""Benchmarks of several parts, each of which can be measured alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from benchmarks.parts import figure
from benchmarks.parts.figure import Figure, NotMeasurableError

Part = Callable[[], Sequence[Figure]]


def measured(name: str, parts: Mapping[str, Part]) -> list[Figure]:
    """All parts, one after the other; one that cannot be measured on this machine is named on stderr."""
    found: list[Figure] = []
    for part, make in parts.items():
        try:
            found += make()
        except NotMeasurableError as error:
            print(f"{name} {part}: {error}; its rows stay as they are", file=sys.stderr)
    return found


def renew(name: str, parts: Mapping[str, Part]) -> None:
    """Measure parts, and renew their rows alone; each is on disk when the next one begins."""
    for part, make in parts.items():
        rows = measured(name, {part: make})
        figure.renew(name, rows)
        for row in rows:
            print(f"{row.name:40s} {'-' if row.value is None else f'{row.value:.6g}':>10s} {row.unit}")


def main(name: str, parts: Mapping[str, Part], about: str | None, arguments: Sequence[str]) -> int:
    """Measure parts that the command line names, and renew their rows.

    :param about: what its help says.
    """
    options = argparse.ArgumentParser(description=about)
    options.add_argument("parts", nargs="+", choices=parts)
    wanted = options.parse_args(arguments)
    renew(name, {each: parts[each] for each in wanted.parts})
    return 0
