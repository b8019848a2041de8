"""What once was wrong and is to stay right: jobs left behind, times moved, senseless figures.

Instances are drawn from seeds that are numbers from 0 on, so that each failure can be drawn again. Deadlines
are those of ElasticFlow's testbed, 195 jobs on 128 A100. The growth is CPU time of an event under fifo with
EASY backfill, 4,000 jobs waiting over 1,000.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from benchmarks.parts import (
    parted,
    regressions_backfill,
    regressions_oasis,
    regressions_programs,
    regressions_report,
    regressions_speeds,
)
from benchmarks.parts.figure import Figure, need_data
from benchmarks.parts.parted import Part
from experiments.harness.data import data_folder

MEASURES: Final = ("tools", "schemas", "tests")
NAME: Final = "regressions"
INSTANCES: Final = 100
TRACES: Final = 50
MOVED_JOBS: Final = 10
"""Of each trace whose times are moved."""
RUNS: Final = 40
PROGRAMS: Final = 300
"""Of each policy that solves integer programs."""
GROWTH_LIMIT: Final = 2.0


def left_behind(instances: int = INSTANCES) -> list[Figure]:
    """Elastic jobs that fit the empty cluster and that a policy neither finishes nor rejects."""
    return [_none("jobs_left_behind", regressions_speeds.jobs_left_behind(instances), "jobs")]


def slower_sizes(instances: int = INSTANCES) -> list[Figure]:
    """Allocations that are slower than a smaller one of the same job."""
    return [_none("slower_sizes_given", regressions_speeds.slower_sizes_given(instances), "allocations")]


def translation(traces: int = TRACES) -> list[Figure]:
    """Replays that decide otherwise once all times are moved."""
    changed = regressions_oasis.decisions_changed_by_translation(traces, jobs=MOVED_JOBS)
    return [_none("decisions_changed_by_translation", changed, "replays")]


def deadlines(jobs_limit: int | None = None) -> list[Figure]:
    """Jobs of the testbed that end in time under oasis; at least as many as under fifo."""
    need_data("elasticflow")
    met = regressions_oasis.oasis_deadlines_met(data_folder(), jobs_limit)
    name, least = "oasis_deadlines_met_of_195", float(met["fifo"])
    return [Figure(name, float(met["oasis"]), "jobs", least, at_least=True)]


def senseless(runs: int = RUNS) -> list[Figure]:
    """Values of reports that lie outside their possible range."""
    return [_none("senseless_figures", regressions_report.senseless_figures(runs), "values")]


def backfill() -> list[Figure]:
    """How the cost of an event grows with the queue."""
    growth = regressions_backfill.easy_backfill_growth()
    return [Figure("easy_backfill_us_per_event_growth", round(growth, 2), "ratio", GROWTH_LIMIT)]


def programs(count: int = PROGRAMS) -> list[Figure]:
    """Integer programs of each policy that solves some whose result a second solver refutes."""
    wrong = sum(
        regressions_programs.wrong_programs(policy, count) for policy in regressions_programs.POLICIES
    )
    return [_none("milp_programs_wrong", wrong, "programs")]


PARTS: Final[dict[str, Part]] = {
    "left-behind": left_behind,
    "slower-sizes": slower_sizes,
    "translation": translation,
    "deadlines": deadlines,
    "senseless": senseless,
    "backfill": backfill,
    "programs": programs,
}


def smallest() -> list[Figure]:
    """Parts that need no published data, on one instance each; the conformance suite moves times."""
    once = {"left-behind": left_behind, "slower-sizes": slower_sizes, "senseless": senseless}
    return parted.measured(NAME, {name: partial(part, 1) for name, part in once.items()})


def _none(name: str, value: float, unit: str) -> Figure:
    return Figure(name, float(value), unit, 0.0)
