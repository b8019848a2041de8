"""``python -m benchmarks NAME…`` runs benchmarks and writes benchmarks/results/; NAME ``all`` runs all.

Without a name it lists what there is, and which figures are older than the code that they measure.
``python -m benchmarks NAME PART…`` measures parts of one benchmark and renews their rows alone.

A benchmark is a module with ``figures()``, which raises :class:`NotMeasurableError` where data or means are
not there: its record then stays as it is; or with ``PARTS``, whose figures are its own, and ``MORE_PARTS``,
which are measured where they are named. ``smallest()`` is the same work in its smallest form, which the
tests run. ``MEASURES`` names the paths whose commits make its figures old.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

from benchmarks.parts import figure, parted
from benchmarks.parts.figure import Figure, NotMeasurableError
from benchmarks.parts.parted import Part

NOT_MEASURED: Final = 66
"""Exit code where the data or the machine that a benchmark needs are not there."""
_SHOWN: Final = 3
"""Newer commits that are named for each benchmark."""


def benchmarks() -> dict[str, str]:
    """What each benchmark measures, by module name."""
    files = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("__"))
    pages = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in files}
    return {name: page.partition("\n")[0] for name, page in pages.items()}


def main(wanted: list[str]) -> int:
    """Run them; 2 for a name that does not exist, 66 where one could not be measured."""
    known = benchmarks()
    if wanted and wanted[0] in known and (parts := _parts_of(wanted[0], wanted[1:])):
        parted.renew(wanted[0], parts)
        return 0
    unknown = [name for name in wanted if name not in (*known, "all")]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    if not wanted:
        print("make bench NAME=…, or NAME=all:")
        print("\n".join(f"  {name:16s} {measures}" for name, measures in known.items()))
        _list_old(known)
    ended = 0
    for name in known if "all" in wanted else wanted:
        try:
            _run(name, _load(name))
        except NotMeasurableError as error:
            print(f"{name}: {error}; benchmarks/results/{name}.json stays as it is", file=sys.stderr)
            ended = NOT_MEASURED
    return ended


def _load(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.{name}")


def _parts_of(name: str, words: Sequence[str]) -> Mapping[str, Part]:
    """The parts of a benchmark that are named; none if a word is not that of one."""
    module = _load(name)
    known = getattr(module, "PARTS", {}) | getattr(module, "MORE_PARTS", {})
    return {word: known[word] for word in words} if known.keys() >= {*words} else {}


def _run(name: str, module: ModuleType) -> None:
    in_parts = hasattr(module, "PARTS")
    own = getattr(module, "figures", None)
    measured: Sequence[Figure] = parted.measured(name, module.PARTS) if own is None else own()
    path = (figure.renew if in_parts else figure.write)(name, measured)
    for row in measured:
        limit = "" if row.limit is None else f"  (limit {row.limit:g})"
        value = "-" if row.value is None else f"{row.value:.6g}"
        print(f"{row.name:40s} {value:>12s} {row.unit}{limit}")
    print(f"written to {path.relative_to(Path.cwd())}", file=sys.stderr)


def _list_old(names: Sequence[str] | dict[str, str]) -> None:
    """Say which records are older than the code that they measure."""
    try:
        old = {name: found for name in names if (found := figure.newer_commits(name, _load(name).MEASURES))}
    except NotMeasurableError as error:
        print(f"\nWhich figures are older than their code is not known: {error}.")
        return
    if old:
        print("\nFigures older than the code that they measure:")
    for name, commits in old.items():
        print(f"  {name:16s} {len(commits)} commits since, to {', '.join(_load(name).MEASURES)}")
        print("\n".join(f"  {'':16s}   {line[:90]}" for line in commits[:_SHOWN]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
