"""Carry out the matrix: ``python -m experiments.shadow_price.measure [GROUP…]`` renews some groups alone.

What was found before of other groups stays; the results say which replays there are.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from experiments.bounds.covers import BoundJob
from experiments.bounds.flow import flow_bound
from experiments.bounds.fluid import Parts, fluid_jct_s
from experiments.bounds.pollux import PolluxCovers
from experiments.harness.spec import Findings, Tell
from experiments.shadow_price.elsewhere import ELSEWHERE, elsewhere
from experiments.shadow_price.matrix import GROUPS, LOADS, LONG, SHORT, TWO, matrix
from experiments.shadow_price.runs import START_S, Replay
from pliant import __version__
from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.files import atomic_write

RESULTS: Final = Path(__file__).with_name("results.json")
BOUNDS: Final = "bounds"
FLUID: Final = "fluid"
ALL: Final = (*GROUPS, BOUNDS, FLUID, *ELSEWHERE)
Row = dict[str, Any]


def measure(folder: Path, workers: int, tell: Tell) -> Findings:
    """All of it."""
    return measured(ALL, folder, workers, tell)


def measured(
    groups: Sequence[str], folder: Path, workers: int, tell: Tell, only: str = "*"
) -> dict[str, Any]:
    """Rows by name.

    :param only: a pattern of the names of rows.

    :raises BadInputError: the published data are not there.
    """
    rows: dict[str, Row] = {}
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for group in groups:
            before = time.perf_counter()
            chosen = [each for each in _tasks(group, folder) if fnmatchcase(each[0], only)]
            if not chosen:
                continue
            found = list(pool.map(_call, [task for _, task in chosen]))
            for each in found:
                rows |= each
            tell(f"{group}: {sum(map(len, found))} rows in {time.perf_counter() - before:.0f} s")
    return {"rows": dict(sorted(rows.items()))}


def _call(task: Callable[[], dict[str, Row]]) -> dict[str, Row]:
    return task()


def _one(name: str, made: Callable[[], Row]) -> dict[str, Row]:
    return {name: made()}


def _tasks(group: str, folder: Path) -> Iterator[tuple[str, Callable[[], dict[str, Row]]]]:
    """What makes rows, by the name of the row or of their recipe."""
    if group in GROUPS:
        yield from ((each.name, partial(_one, each.name, each.row)) for each in matrix(group))
    elif group == BOUNDS:
        yield from ((each.name, partial(_one, each.name, each)) for each in bounds())
    elif group == FLUID:
        yield from ((each.name, partial(_one, each.name, each)) for each in fluids())
    else:
        yield from elsewhere(group, folder)


@lru_cache(maxsize=2)
def _covered(trace: str, batch: str) -> tuple[int, list[BoundJob]]:
    """GPUs, and the jobs of a trace as published."""
    found = Replay(BOUNDS, trace).inputs()
    gpus = sum(node.gpus for node in found.cluster.expanded())
    return gpus, PolluxCovers(found, START_S, free_batch=batch == "free").jobs()


@lru_cache(maxsize=4)
def _known_parts(batch: str, places: str) -> dict[object, Parts]:
    """The work of jobs that were seen, by kind: traces share their kinds."""
    del batch, places
    return {}


class Fluid:
    """What prices come to on one trace where nothing that they decide costs time."""

    def __init__(self, trace: str, batch: str, places: str) -> None:
        """
        :param places: "any": jobs are where they are fastest, as in the bound; "compact": on as few nodes as
            possible.
        """
        self.trace, self.batch, self.places = trace, batch, places

    @property
    def name(self) -> str:
        """Of its row."""
        return f"{FLUID}/{self.trace}/{self.batch}/{self.places}"

    def __call__(self) -> Row:
        """Replay it."""
        found = Replay(FLUID, self.trace).inputs()
        free, compact = self.batch == "free", self.places == "compact"
        known = _known_parts(self.batch, self.places)
        works = PolluxCovers(found, START_S, free_batch=free, compact=compact, parts=known).works()
        gpus = sum(node.gpus for node in found.cluster.expanded())
        return {
            "group": FLUID,
            "trace": self.trace,
            "variant": self.batch,
            "places": self.places,
            "mean_jct_s": round(fluid_jct_s([job.submit_time for job in found.jobs], works, gpus), 2),
        }


def fluids() -> Iterator[Fluid]:
    """All fluid schedules that the page shows."""
    for batch in ("free", "fixed"):
        for places in ("any", "compact"):
            yield from (Fluid(trace, batch, places) for trace in SHORT)


class Bound:
    """The lower bound of one trace."""

    def __init__(self, trace: str, batch: str, load: float = 1.0) -> None:
        self.trace, self.batch, self.load = trace, batch, load

    @property
    def name(self) -> str:
        """Of its row."""
        return f"{BOUNDS}/{self.trace}/{self.batch}/{self.load:g}"

    def __call__(self) -> Row:
        """Compute it."""
        gpus, at_once = _covered(self.trace, self.batch)
        jobs = [BoundJob(job.release_s / self.load, job.covers) for job in at_once]
        alone_s = sum(max(c.work / float(c.rates.max()) for c in job.covers) for job in jobs) / len(jobs)
        return {
            "group": BOUNDS,
            "trace": self.trace,
            "variant": self.batch,
            "load": self.load,
            "bound_s": round(flow_bound(jobs, gpus), 2),
            "alone_s": round(alone_s, 2),
        }


def bounds() -> Iterator[Bound]:
    """All bounds that the page shows."""
    for trace in (*SHORT, LONG):
        loads = LOADS if trace in TWO else (1.0,)
        yield from (Bound(trace, "free", load) for load in loads)
        yield Bound(trace, "fixed")


def main(arguments: Sequence[str]) -> int:
    """Renew some groups of the results."""
    parser = argparse.ArgumentParser("python -m experiments.shadow_price.measure", description=__doc__)
    parser.add_argument("groups", nargs="+", choices=ALL, metavar="GROUP", help=f"of {', '.join(ALL)}")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows of such names alone")
    parser.add_argument("--out", type=Path, default=Path("build/experiments/shadow-price"))
    wanted = parser.parse_args(arguments)
    wanted.out.mkdir(parents=True, exist_ok=True)
    try:
        found = measured(wanted.groups, wanted.out, wanted.workers, _tell, wanted.only)
    except BadInputError as error:
        _tell(str(error))
        return error.exit_code
    before = json.loads(RESULTS.read_bytes()) if RESULTS.exists() else {}
    merged = {
        "experiment": "shadow-price",
        "command": "make experiment NAME=shadow-price",
        "pliant": __version__,
        "rows": dict(sorted((before.get("rows", {}) | found["rows"]).items())),
    }
    atomic_write(RESULTS, (json.dumps(merged, indent=1, ensure_ascii=False) + "\n").encode())
    return 0


def _tell(text: str) -> None:
    print(f"shadow-price: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
