"""What people tripped over: their files, their answers, their clusters.

``imports`` counts the nasty traces, as many of each format, of which a lenient import wrote something that
validate, describe or replay refuses.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.parts import (
    nasty_traces,
    people_attempts,
    people_batch,
    people_fair_share,
    people_flood,
    people_moves,
)
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part

MEASURES: Final = ("tools/replay", "schemas")
FILES: Final = 1500
"""Of each format."""
FORMATS: Final = (
    *("philly", "helios", "acme", "pai", "alibaba-v2023", "alibaba-spot", "slurm", "swf", "csv", "tiresias"),
)


def imports(files: int = FILES) -> list[Figure]:
    """Files of which a lenient import wrote what another command refuses; the first are shown on stderr."""
    refused = 0
    with tempfile.TemporaryDirectory() as name:
        for kind in FORMATS:
            for trace in nasty_traces.traces(Path(name), range(files), nasty_traces.FORMATS[kind]):
                if problems := nasty_traces.refusals(trace, Path(name)):
                    refused += 1
                    print(f"{trace.path.name}: {problems[0][:200]}", file=sys.stderr)
                trace.remove()
    return [Figure("import_refused_later", float(refused), "files", 0.0)]


PARTS: Final[dict[str, Part]] = {
    "imports": imports,
    "moves": people_moves.figures,
    "flood": people_flood.figures,
    "fair-share": people_fair_share.figures,
    "attempts": people_attempts.figures,
    "batch": people_batch.figures,
}


def smallest() -> list[Figure]:
    """Two files of each format."""
    return imports(2)
