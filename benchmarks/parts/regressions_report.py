"""Reports of runs of which nothing was stated: how many of their figures have a value that they cannot have.

The runs are live ones and replays without profile or costs, under all policies in turn: jobs that are
elastic and rigid, of known and of unknown work; failures, preemptions, cancelled and unfinished jobs, lost
nodes, mixed GPU types; one job, and none. Live ones are those of the real loop on simulated nodes, whose
workers train ten times as fast as a scheduler takes them to that has no profile, and logs of random
happenings.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.chaos.world import MEMORY, live_through
from benchmarks.parts.fault_sequences import sequence, silent
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import PliantError
from pliant.schemas.job import Job
from pliant.schemas.metrics import JOB_METRICS, RUN_METRICS, TEST_METRICS
from pliant.tools.replay.engine.failures import Mtbf
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import MetricOptions, impossible, run_metrics
from pliant.tools.report.read_run import fold, read_run
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, render
from pliant.tools.report.report import make_report
from pliant.tools.schedule.registry import policy_names
from tests.builders import cluster, job, mixed_cluster
from tests.tools.run.stories import Story

RUNS: Final = 40
WANTED: Final = MetricOptions(bound=True, completed_at_s=(60.0, 3600.0))
STEPS: Final = 120
"""Happenings of a log of random ones."""
_ODD: Final = re.compile(r"\b(nan|NaN|inf|Infinity|None)\b|(?<![\w.–-])-0(\.0+)?(?![\w.])")
"""Words that no report has: not a number, or a zero with a sign."""
_SIZES: Final = (0, 1, 2, 12, 30)
"""Jobs of the replays, in turn."""
_CLUSTERS: Final = (cluster(4), cluster(2, 2, 2), mixed_cluster(t4=(4, 2), a100=(4,)))
_UNCHANGING: Final = ("submit", "submit", "train", "train", "finish", "requeue", "fail", "cancel", "wait")
"""What happens where the nodes are not those of the stories."""


def senseless_figures(runs: int = RUNS) -> float:
    """Values outside their possible range, over the reports of this number of runs.

    Each run is reported beside the one before it, which is the baseline.
    """
    found = 0
    before: RunRecord | None = None
    with silent():
        for record in records(runs):
            found += senseless(record, before)
            before = record
    return float(found)


def records(runs: int = RUNS) -> Iterator[RunRecord]:
    """The runs, a third of each kind; a number names the same run always."""
    kinds: tuple[Callable[[int], RunRecord], ...] = (replayed, lived, happened)
    for number in range(runs):
        yield kinds[number % len(kinds)](number // len(kinds))


def senseless(run: RunRecord, baseline: RunRecord | None = None) -> int:
    """Values of one run's report that cannot be: those that the report withholds, and those that it shows."""
    computed = len(impossible(dict(run_metrics(run, wanted=WANTED)), RUN_METRICS))
    runs = [run] if baseline is None else [run, baseline]
    report = make_report(runs, wanted=WANTED)
    if baseline is not None:
        report = make_report(runs, wanted=WANTED, baseline=report.runs[1].label)
    shown = _in_document(json.loads(render(report, "json", Extras(jobs=True))))
    texts = (render(report, kind, Extras(jobs=True), width=80) for kind in ("table", "md", "csv"))
    return computed + shown + sum(len(_ODD.findall(text)) for text in texts)


def _in_document(found: dict[str, Any]) -> int:
    odd = 0
    for each in found["runs"]:
        odd += len(impossible(each, RUN_METRICS)) + len(impossible(each["paired"] or {}, TEST_METRICS))
        odd += sum(len(impossible(row, JOB_METRICS)) for row in each["jobs"])
        odd += sum(not isfinite(ratio) for ratio in (each["ratios"] or {}).values())
    return odd


def replayed(number: int) -> RunRecord:
    """A replay of jobs whose work is stated, as it must be, and nothing else; some with node failures."""
    chance = random.Random(number)  # noqa: S311 - no secret
    jobs = [_job(index, chance) for index in range(_SIZES[number % len(_SIZES)])]
    simulated = SimulatedCluster(mtbf=Mtbf(0.5, 0.1) if number % 2 else None)
    names = policy_names()
    for offset in range(len(names)):  # some policies need what is not stated here, and say so
        name = names[(number * 7 + offset) % len(names)]
        try:
            done = replay(inputs(jobs, _CLUSTERS[number % len(_CLUSTERS)]), Run(name, simulated=simulated))
        except PliantError:
            continue
        return fold(done.log.events(), f"replayed {number}")
    raise AssertionError("no policy takes these jobs")


def _job(index: int, chance: random.Random) -> Job:
    gpus = chance.choice([1, 1, 2, 3, 4])
    limits = {"low": 1, "high": 4} if chance.random() < 0.6 else {}
    work = chance.choice(
        [
            {"samples": chance.uniform(1, 5e3)},
            {"gpu_seconds": chance.uniform(1, 5e3)},
            {"iterations": chance.randint(1, 5)},
        ]
    )
    at = chance.choice([0.0, chance.uniform(0, 1e3)])
    batch = chance.choice([None, 32])
    more: dict[str, Any] = {} if batch is None or "iterations" in work else {"batch": batch}
    return job(f"j{index}", at=at, gpus=gpus, work=work, **limits, **more)


def lived(number: int) -> RunRecord:
    """A run of the real loop, and all that happened to it."""
    policy, deeds = sequence(number)
    wanted = [("submit", 20 * number), *deeds] if number else [("wait", 1)]
    with tempfile.TemporaryDirectory(prefix="pliant-report-", dir=MEMORY) as folder:
        return read_run(live_through(Path(folder).resolve(), policy, wanted).dirs.events)


def happened(number: int) -> RunRecord:
    """A log in which anything that is possible happens, at any time."""
    names = policy_names()
    nodes: Cluster = mixed_cluster(t4=(4, 4), a100=(4,))
    more: dict[str, Any] = {"nodes": nodes, "happenings": _UNCHANGING} if number % 2 else {}
    for offset in range(len(names)):
        try:
            story = Story(number, names[(number * 5 + offset) % len(names)], **more)
            return fold(story.go_on(STEPS, last=False), f"happened {number}")
        except PliantError:
            continue
    raise AssertionError("no policy takes these jobs")
