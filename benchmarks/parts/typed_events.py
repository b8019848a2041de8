"""Whether typed events give back the rows of logs byte for byte: of random replays and of random live runs.

``python -m benchmarks.parts.typed_events FILE…`` asks the same of any event files.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.parts.chaos.world import MEMORY, live_through
from benchmarks.parts.fault_sequences import sequence, silent
from benchmarks.parts.figure import Figure
from pliant.schemas.event import Event
from pliant.schemas.events import row_of, typed
from pliant.schemas.file_io.events import event_lines
from pliant.schemas.io import read_events
from tests.tools.replay.any_world import EVENT_DRIVEN, world


def figures(replays: int = 200, lives: int = 20) -> list[Figure]:
    """How many logs do not come back as they were."""
    logs = [*map(_replayed, range(replays)), *map(_lived, range(lives))]
    return [Figure("typed_events_changed_logs", float(sum(map(changes, logs))), "logs", 0.0)]


def changes(rows: Sequence[Event]) -> bool:
    """Whether a log is another one after it was typed."""
    return event_lines([row_of(typed(row)) for row in rows]) != event_lines(rows)


def _replayed(seed: int) -> Sequence[Event]:
    return [*world(seed).play(EVENT_DRIVEN[seed % len(EVENT_DRIVEN)]).log.events()]


def _lived(seed: int) -> Sequence[Event]:
    with tempfile.TemporaryDirectory(prefix="pliant-events-", dir=MEMORY) as folder, silent():
        found = live_through(Path(folder).resolve(), *sequence(seed))
        return read_events(found.dirs.events)


def _main(paths: Iterable[str]) -> int:
    changed = [path for path in paths if changes(read_events(path))]
    print(*changed, sep="\n", end="\n" if changed else "")
    return min(len(changed), 1)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
