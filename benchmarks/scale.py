"""Whole months of a large cluster, from its log to the report, and decisions by the size of the cluster.

``months``: 3.3 million jobs in Helios's format, written here, on 802 nodes of 8 GPUs at a load of 0.85. Each
step is a command of its own: import, replays and the report of one replay; CPU time in units of the
calibration loop (:mod:`benchmarks.replay_speed`) and peak memory, no less than what this process holds
itself. The same is done with a tenth of the jobs;
``growth`` is the units of all over ten times those of a tenth, ``mb_growth`` the peak memory of all over
that of a tenth: in proportion is 1 and 10. A step that takes longer than :data:`MOST_CPU_S` is ended and has
no figure.
``shadow-price``: the same replayed under shadow-price, which takes more than an hour.
``other-months``: the same jobs as Acme and ITP write theirs, from the import to the report, under fifo.
``decisions``: see :mod:`benchmarks.parts.decisions_at_scale`; ``sweep``: :mod:`benchmarks.parts.sweep_cost`.
``decisions-POLICY``, measured where it is named, are those of one policy.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.parts import decisions_at_scale, parted, sweep_cost
from benchmarks.parts.figure import Figure
from benchmarks.parts.installed import as_installed
from benchmarks.parts.parted import Part
from benchmarks.parts.used_cpu import PLIANT
from benchmarks.replay_speed import calibration_s
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster
from pliant.tools.schedule.registry import policy_names

MEASURES: Final = ("tools/replay", "tools/schedule", "tools/report", "schemas")
NAME: Final = "scale"
JOBS: Final = 3_300_000
PART: Final = 10
POLICIES: Final = ("fifo", "tiresias", "ares")
SEED: Final = 20261127
MOST_CPU_S: Final = 2400
SLOW: Final = {"shadow-price": 9000}
"""CPU seconds that replays may take under these policies."""
NODES: Final = 802
_NODE_GPUS: Final = 8
_LOAD: Final = 0.85
_SIZES: Final = (1, 2, 4, 8, 16, 32)
_SHARES: Final = (0.6, 0.1, 0.1, 0.14, 0.04, 0.02)
_SIGMA: Final = 1.5
_MEDIAN_S: Final = 600.0
_MEAN_OVER_MEDIAN: Final = 3.0802
"""Of a lognormal with this sigma."""
_START_S: Final = 1_590_000_000
Spent = dict[str, tuple[float, float] | None]
"""CPU seconds and peak MB by step; None where it took too long or what it reads is not there."""


def months(
    jobs: int = JOBS, part: int = PART, policies: Sequence[str] = POLICIES, *, is_reported: bool = True
) -> list[Figure]:
    """Units and MB of each step, and how they grow.

    :param is_reported: a report of the first replay is one of the steps.
    """
    unit_s = calibration_s()
    with tempfile.TemporaryDirectory() as name:
        small = dict(_steps(Path(name), jobs // part, policies, is_reported=is_reported))
        large = dict(_steps(Path(name), jobs, policies, is_reported=is_reported)) if part > 1 else small
    unit_s = min(unit_s, calibration_s())
    return [
        Figure("calibration_s", round(unit_s, 3), "s"),
        Figure("jobs", jobs, "jobs"),
        *_grown(small, large, part, unit_s),
    ]


def under_shadow_price(jobs: int = JOBS, part: int = PART) -> list[Figure]:
    """Of the replays under shadow-price alone."""
    found = months(jobs, part, ("shadow-price",), is_reported=False)
    return [each for each in found if each.name.startswith("shadow_price_")]


def other_months(jobs: int = JOBS, part: int = PART) -> list[Figure]:
    """The same jobs as Acme and ITP write theirs: from the import to the report, under fifo alone."""
    found: list[Figure] = []
    unit_s = calibration_s()
    for log in ("acme", "itp"):
        with tempfile.TemporaryDirectory() as name:
            small = dict(_steps(Path(name), jobs // part, POLICIES[:1], log=log))
            large = dict(_steps(Path(name), jobs, POLICIES[:1], log=log)) if part > 1 else small
        unit_s = min(unit_s, calibration_s())
        found += _grown(small, large, part, unit_s, f"{log}_")
    return found


def _grown(small: Spent, large: Spent, part: int, unit_s: float, log: str = "") -> Iterator[Figure]:
    """Units and MB of each step with all jobs, and how they grow from a ``part`` of them."""
    for step, before in small.items():
        after = large[step]
        yield from _figures(f"{log}{step}", after, unit_s)
        growth = mb_growth = None
        if before is not None and after is not None:
            growth, mb_growth = round(after[0] / (part * before[0]), 2), round(after[1] / before[1], 2)
        yield Figure(f"{log}{step}_growth", growth, "ratio")
        yield Figure(f"{log}{step}_mb_growth", mb_growth, "ratio")


def _figures(step: str, spent: tuple[float, float] | None, unit_s: float) -> list[Figure]:
    units, peak_mb = (None, None) if spent is None else (round(spent[0] / unit_s, 1), round(spent[1]))
    return [Figure(f"{step}_units", units, "units"), Figure(f"{step}_mb", peak_mb, "MB")]


def _steps(
    folder: Path, jobs: int, policies: Sequence[str], *, log: str = "helios", is_reported: bool = True
) -> Iterator[tuple[str, tuple[float, float] | None]]:
    """The steps as they end, as in :data:`Spent`."""
    whose = LOGS[log]
    trace, made, shape = folder / whose.file_name, folder / "jobs.jsonl", folder / "cluster.json"
    _write_log(trace, jobs, whose)
    nodes = ({"name": "n{}", "gpus": _NODE_GPUS, "count": NODES},)
    write_cluster(Cluster.model_validate({"nodes": nodes}), shape)
    yield "import", _spent("trace", "import", whose.importer, str(trace), "-o", str(made))
    trace.unlink()
    events = {policy: folder / f"{policy}.parquet" for policy in policies}
    for policy, path in events.items():
        yield policy.replace("-", "_"), _replayed(made, shape, policy, path)
    first = events[policies[0]]
    if is_reported:
        report = ("report", str(first), "-o", str(folder / "report.txt"))
        yield "report", _spent(*report) if first.exists() else None
    for path in events.values():
        path.unlink(missing_ok=True)


def _replayed(made: Path, shape: Path, policy: str, path: Path) -> tuple[float, float] | None:
    words = ("replay", str(made), "--cluster", str(shape), "--policy", policy, "-o", str(path))
    return _spent(*words, most_cpu_s=SLOW.get(policy, MOST_CPU_S))


def _spent(*words: str, most_cpu_s: int = MOST_CPU_S) -> tuple[float, float] | None:
    """CPU seconds and peak MB of a command, printed to stderr as it ends: a whole run takes hours.

    Returns None if it exceeded its CPU time.

    :raises RuntimeError: it failed.
    """
    process = subprocess.Popen(
        [*PLIANT, *words], env=as_installed(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (most_cpu_s, most_cpu_s + 5))
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode < 0:
        return None
    if process.returncode:
        raise RuntimeError(f"pliant {' '.join(words)} ended with {process.returncode}")
    cpu_s, peak_mb = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    print(f"{' '.join(words[:2])}: {cpu_s:.1f} s of CPU, {peak_mb:.0f} MB", file=sys.stderr, flush=True)
    return cpu_s, peak_mb


class _Row(NamedTuple):
    number: int
    user: int
    group: int
    gpus: int
    submit_s: int
    """On the clock."""
    duration_s: int

    @property
    def nodes(self) -> int:
        return -(-self.gpus // _NODE_GPUS)

    def clocks(self, zone: str = "") -> str:
        """Submission, start and end, separated by commas."""
        start_s = self.submit_s + 60
        times_s = (self.submit_s, start_s, start_s + self.duration_s)
        return ",".join(f"{datetime.fromtimestamp(each, UTC):%Y-%m-%d %H:%M:%S}{zone}" for each in times_s)


class _Log(NamedTuple):
    importer: str
    file_name: str
    columns: str
    line: Callable[[_Row], str]


def _helios(row: _Row) -> str:
    asked = f"{row.gpus},{4 * row.gpus},{row.nodes}"
    return f"{row.number},u{row.user},vc{row.group},{asked},COMPLETED,{row.clocks()},{row.duration_s},60"


def _acme(row: _Row) -> str:
    asked, times = f"{row.nodes},{row.gpus},{4 * row.gpus}", row.clocks("+08:00")
    spent = f"{row.duration_s},60,{row.gpus * row.duration_s}"
    return f"{row.number},u{row.user},{asked},Other,COMPLETED,{times},{spent}"


def _itp(row: _Row) -> str:
    return f"{row.number},{row.submit_s - _START_S},{row.duration_s},{row.gpus}"


_TIMES: Final = "submit_time,start_time,end_time,duration,queue"
LOGS: Final = {
    "helios": _Log(
        "helios", "cluster_log.csv", f"job_id,user,vc,gpu_num,cpu_num,node_num,state,{_TIMES}", _helios
    ),
    "acme": _Log(
        "acme", "trace_seren.csv", f"job_id,user,node_num,gpu_num,cpu_num,type,state,{_TIMES},gpu_time", _acme
    ),
    "itp": _Log("elasticflow", "cluster.csv", "job_id,submission_time,duration,num_gpu", _itp),
}
"""By whose it is."""


def _write_log(path: Path, jobs: int, log: _Log) -> None:
    """Poisson arrivals; lognormal durations that do not depend on the size: the same jobs in every log."""
    rng = random.Random(SEED)  # noqa: S311
    mean_gpus = sum(size * share for size, share in zip(_SIZES, _SHARES, strict=True))
    gap_s = mean_gpus * _MEDIAN_S * _MEAN_OVER_MEDIAN / (_LOAD * NODES * _NODE_GPUS)
    submit_s = float(_START_S)
    with path.open("w") as stream:
        stream.write(f"{log.columns}\n")
        for number in range(jobs):
            submit_s += rng.expovariate(1 / gap_s)
            duration_s = 1 + int(_MEDIAN_S * rng.lognormvariate(0.0, _SIGMA))
            gpus = rng.choices(_SIZES, _SHARES)[0]
            user, group = rng.randrange(300), rng.randrange(15)
            stream.write(f"{log.line(_Row(number, user, group, gpus, int(submit_s), duration_s))}\n")


PARTS: Final[dict[str, Part]] = {
    "months": months,
    "shadow-price": under_shadow_price,
    "other-months": other_months,
    "decisions": lambda: [*decisions_at_scale.figures()],
    "sweep": sweep_cost.figures,
}


MORE_PARTS: Final[dict[str, Part]] = {
    f"decisions-{policy}": partial(lambda policy: [*decisions_at_scale.figures((policy,))], policy)
    for policy in policy_names()
    if policy not in decisions_at_scale.LEFT_OUT
}


def smallest() -> list[Figure]:
    """All of it, small."""
    small: dict[str, Part] = {
        "months": partial(months, jobs=20, part=1, policies=("fifo",)),
        "shadow-price": partial(under_shadow_price, jobs=20, part=1),
        "other-months": partial(other_months, jobs=20, part=1),
        "decisions": lambda: [*decisions_at_scale.figures(("fifo",), (16,), (4,))],
        "sweep": partial(sweep_cost.figures, tasks=2, small=20, large=40, visits=1),
    }
    return parted.measured(NAME, small)
