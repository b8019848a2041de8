"""Tables and pages of ``pliant status`` that do not fit a terminal of 80 columns, or are broken.

The states are those of live runs: of the real loop on simulated nodes to which random things happen, looked
at in mid-life, and of random logs, whose jobs have short and long names. A table is broken where it lacks the
line of a job, or where a cell does not begin below its header.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.cells import cell_len

from benchmarks.parts.chaos.world import DEEDS, MEMORY, World
from benchmarks.parts.fault_sequences import sequence, silent
from benchmarks.parts.figure import Figure
from pliant.schemas.errors import PliantError
from pliant.schemas.text import GAP
from pliant.tools.run.watch.job_page import error_lines, history, job_page
from pliant.tools.run.watch.job_status import statuses
from pliant.tools.run.watch.screen import CELLS, status_text
from pliant.tools.run.watch.status import Watcher
from pliant.tools.schedule.registry import policy_names
from tests.tools.run.stories import Story

STATES: Final = 60
WIDTH: Final = 80
STEPS: Final = 40
"""Happenings of a random log."""
LOOKS_EVERY: Final = 5
"""Deeds of a life between two looks."""
PAGES: Final = 4
"""Jobs of a state that are described one by one."""
_NAMES: Final = ("{}", "a-rather-long-name-that-was-made-up-of-all-its-hyperparameters-{}", "j" * 124 + "{}")


def figures(states: int = STATES) -> list[Figure]:
    """How many lines are too wide, and how many tables are broken."""
    with silent():
        found = sum(broken(state) for state in live_states(states))
    return [Figure("status_width_80_broken", float(found), "lines", 0.0)]


def live_states(count: int) -> Iterator[Path]:
    """State directories, each there until the next one is asked for; a number names the same one always."""
    made = 0
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="pliant-status-", dir=MEMORY) as name:
            folder = Path(name).resolve()
            for state in (_told, _lived)[number % 2](number // 2, folder):
                yield state
                made += 1
        if made >= count:
            return


def _told(number: int, folder: Path) -> Iterator[Path]:
    """A random log under one of the policies that take these jobs."""
    names = policy_names()
    name = _NAMES[number % len(_NAMES)]
    for offset in range(len(names)):
        try:
            story = Story(number, names[(number * 7 + offset) % len(names)], name=name.format)
            story.go_on(STEPS)
        except PliantError:
            continue
        yield story.write(folder / "state").path
        return
    raise AssertionError("no policy takes these jobs")


def _lived(number: int, folder: Path) -> Iterator[Path]:
    """A life of the real loop, looked at now and then."""
    policy, deeds = sequence(number)
    world = World(folder, policy)
    try:
        for at, (name, how) in enumerate([("submit", 3), ("submit", number), *deeds], 1):
            DEEDS[name](world, how)
            world.turn(0.5 + how % 5)
            if at % LOOKS_EVERY == 0:
                yield world.dirs.path
    finally:
        world.close()


def broken(state: Path, width: int = WIDTH) -> int:
    """Lines that are too wide and tables that are broken, of the table and of some jobs' pages."""
    watcher, now_s = Watcher(state), time.time()
    seen = watcher.look(ahead=True)
    jobs = list(statuses(seen, now_s))
    found = 0
    for columns in (None, tuple(CELLS)):
        for explain in (False, True):
            text = status_text(seen, now_s, width, explain=explain, columns=columns)
            found += _too_wide(text, width) + (not _is_whole(text, [job.id for job in jobs]))
    for job in jobs[:PAGES]:
        happened, errors = history(watcher.dirs, job.id), error_lines(watcher.dirs, job)
        for explain in (False, True):
            page = job_page(job, seen, happened, errors, now_s, state=state, width=width, explain=explain)
            found += _too_wide(page, width)
    return found


def _too_wide(text: str, width: int) -> int:
    return sum(cell_len(line) > width for line in text.splitlines())


def _is_whole(table: str, ids: Sequence[str]) -> bool:
    """Whether each job has a line, in order, whose cells begin where their headers do."""
    header, *lines = table.splitlines()
    rows = [line for line in lines if not line.startswith(" ")]  # the others go on with a reason
    if len(rows) != len(ids):
        return False
    starts = [
        at for at in range(len(GAP), len(header)) if header[at] != " " and header[at - len(GAP) : at] == GAP
    ]
    for row, job_id in zip(rows, ids, strict=True):
        first = _columns(row)[: starts[0] if starts else None]
        named = "".join(first).strip().removesuffix("…")
        if not named or not job_id.startswith(named):
            return False
        if any(_columns(row)[at - len(GAP) : at] not in ([], list(GAP)) for at in starts):
            return False
    return True


def _columns(row: str) -> list[str]:
    """A character a column of the terminal; the second half of a wide one is empty."""
    return [part for each in row for part in (each, "")[: cell_len(each)]]
