"""``python -m benchmarks [NAME…]``: run the named benchmarks, or all, and write benchmarks/results/."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from benchmarks import figure

SUPPORT = {"__init__", "__main__", "figure", "library_cpu", "published", "service_tick", "site"}


def names() -> list[str]:
    """Every benchmark, by module name."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in SUPPORT)


def main(wanted: list[str]) -> int:
    """Run them; 2 for a name that does not exist."""
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    for name in wanted or names():
        measured = importlib.import_module(f"benchmarks.{name}").figures()
        path = figure.write(name, measured)
        for row in measured:
            limit = "" if row.limit is None else f"  (limit {row.limit:g})"
            value = "-" if row.value is None else f"{row.value:.6g}"
            print(f"{row.name:40s} {value:>12s} {row.unit}{limit}")
        print(f"written to {path.relative_to(Path.cwd())}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
