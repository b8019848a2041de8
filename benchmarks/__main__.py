"""``python -m benchmarks NAME…`` runs benchmarks and writes benchmarks/results/; NAME ``all`` runs all.

Without a name it lists what there is.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

from benchmarks.parts import figure


def benchmarks() -> dict[str, str]:
    """What each benchmark measures, by module name."""
    files = sorted(path for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("__"))
    pages = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in files}
    return {name: page.partition("\n")[0] for name, page in pages.items()}


def main(wanted: list[str]) -> int:
    """Run them; 2 for a name that does not exist."""
    known = benchmarks()
    unknown = [name for name in wanted if name not in (*known, "all")]
    if unknown:
        print(f"no benchmark {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    if not wanted:
        print("make bench NAME=…, or NAME=all:")
        print("\n".join(f"  {name:16s} {measures}" for name, measures in known.items()))
    for name in known if "all" in wanted else wanted:
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
