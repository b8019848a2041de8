"""Clusters that run for months: changes, reservations, leases on demand, notices, bills of millions of jobs.

Changes are made under load: the real loop on simulated nodes, jobs that come and train meanwhile, and
launchers that are killed now and then. A job is lost that does not finish in the end.
"""

from __future__ import annotations

import json
import random
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from benchmarks.parts import shell_sessions, state_growth
from benchmarks.parts.chaos.world import MEMORY, World
from benchmarks.parts.dashboard import queries_without_data
from benchmarks.parts.fault_sequences import silent
from benchmarks.parts.figure import Figure
from benchmarks.parts.parted import Part
from benchmarks.parts.slurm_leases import leases_idle_over_limit, leases_left
from benchmarks.parts.trackers import tracked
from benchmarks.parts.windows import window_overruns
from pliant.schemas.cluster import Notify
from pliant.schemas.event import Event
from pliant.schemas.file_io.events import EventWriter
from pliant.tools.report.usage import UsageFold, take_lines
from pliant.tools.run.service.notices import Notices
from pliant.tools.run.statedir.directory import StateDir

MEASURES: Final = (
    "tools/run/service",
    "tools/run/backends/slurm/backend.py",
    "tools/run/statedir",
    "tools/schedule/session",
    "tools/report/usage.py",
    "examples/monitoring",
    "tools/run/elastic/trackers.py",
)

CHANGES: Final = 100
WINDOWS: Final = 500
LEASES: Final = 50
KILLS: Final = 20
JOBS: Final = 3_000_000
NOTICES: Final = 1000
TURNS: Final = 400
_BLOCK: Final = 20_000
_PATIENCE_S: Final = 120.0
_LIMIT_S: Final = 60.0
_DELAY_LIMIT_MS: Final = 5.0
_ELASTIC: Final = 20 * 7 + 1
"""Deed of a submission: two GPUs, elastic, some minutes."""


def reloads(changes: int = CHANGES) -> list[Figure]:
    with silent(), tempfile.TemporaryDirectory(prefix="pliant-clusters-", dir=MEMORY) as folder:
        lost, made = _lost(Path(folder).resolve(), changes)
    return [
        Figure("reload_jobs_lost", float(lost), "jobs", 0.0),
        Figure("reloads_made", float(made), "changes", float(changes), at_least=True),
    ]


def windows(count: int = WINDOWS) -> list[Figure]:
    """Jobs on reserved nodes that are not theirs, and jobs that never end, in so many replays."""
    return [Figure("window_overruns", float(window_overruns(count)), "of 500 replays", 0.0)]


def leases(count: int = LEASES, kills: int = KILLS) -> list[Figure]:
    """Stories with a lease that idles for too long, and leases that kills of the launcher leave behind."""
    return [
        Figure("leases_idle_over_limit", float(leases_idle_over_limit(count)), "of 50 stories", 0.0),
        Figure("leases_left", float(leases_left(kills)), "after 20 stories with kills", 0.0),
    ]


def notices(count: int = NOTICES) -> list[Figure]:
    return [Figure("notices_lost", float(_notices_lost(count)), "notices", 0.0)]


def delays(turns: int = TURNS) -> list[Figure]:
    """What a target that never answers costs a turn of the loop: the medians, without it and with it."""
    without_ms, with_ms = _turn_ms((), turns), _turn_ms(("http",), turns)
    return [Figure("notices_delay_loop_ms", max(0.0, with_ms - without_ms), "ms", _DELAY_LIMIT_MS)]


def bills(jobs: int = JOBS) -> list[Figure]:
    """Seconds of the processor for a bill."""
    return [Figure("usage_3m_jobs_s", _bill_s(jobs) * JOBS / jobs, "s", _LIMIT_S)]


def dashboards() -> list[Figure]:
    """What Prometheus has no number of.

    :raises NotMeasurableError: it is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-dashboard-") as folder:
        missing = queries_without_data(Path(folder))
    return [Figure("dashboard_queries_without_data", float(len(missing)), "queries", 0.0)]


def tracker_steps() -> list[Figure]:
    """Values that trackers have twice after changes, a kill and resumes.

    :raises NotMeasurableError: they are not installed.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-trackers-") as folder:
        twice = sum(each.twice for each in tracked(Path(folder)).values())
    return [Figure("tracker_steps_twice", float(twice), "values", 0.0)]


PARTS: Final[dict[str, Part]] = {
    "reloads": reloads,
    "windows": windows,
    "leases": leases,
    "notices": notices,
    "delays": delays,
    "bills": bills,
    "dashboard": dashboards,
    "growth": state_growth.figures,
    "shells": shell_sessions.figures,
    "trackers": tracker_steps,
}


def smallest() -> list[Figure]:
    """Those without a test of their own that needs services."""
    return [
        *reloads(3),
        *windows(10),
        *leases(2, 2),
        *notices(5),
        *delays(3),
        *bills(1000),
        *state_growth.figures(4, 50, 1),
    ]


def _lost(folder: Path, changes: int) -> tuple[int, int]:
    """Jobs that did not finish, and changes that the log has."""
    chance, world = random.Random(1), World(folder)  # noqa: S311 - no secret
    try:
        world.turn()
        for _ in range(changes):
            world.submit(_ELASTIC + 7 * chance.randrange(20))
            world.reload(chance.randrange(1000))
            if chance.random() < 0.2:
                world.kill_loop(chance.randrange(60))
            for _ in range(3):
                world.turn()
            world.hazard.call_off()
        world.settle()
        world.check()
        log = world.loop.state.log if world.loop is not None else None
        ends = [] if log is None else [log.jobs[job_id].phase for job_id in world.accepted]
        made = 0 if log is None else log.reloads
    finally:
        world.close()
    return sum(phase != "finished" for phase in ends), made


def _notices_lost(count: int) -> int:
    """Notices that never came to a server that refuses every second one, over two runs."""
    taken, seen = set[str](), 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal seen
            seen += 1
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if seen % 2:
                taken.add(body["job"])
            self.send_response(200 if seen % 2 else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    target = Notify(on=("failed",), url=f"http://127.0.0.1:{server.server_port}/")
    with silent(), tempfile.TemporaryDirectory(prefix="pliant-notices-", dir=MEMORY) as folder:
        dirs = StateDir(Path(folder))
        writer = EventWriter(dirs.events)
        for first in range(0, count, 1 + count // 2):
            with Notices(dirs, [target], (0.001, 0.01)):
                time.sleep(0.1)  # until it knows where the log ends
                numbers = range(first, min(count, first + 1 + count // 2))
                writer.append([Event(1.0, "fail", f"j{number}", 0, ()) for number in numbers])
        until_s = time.monotonic() + _PATIENCE_S
        with Notices(dirs, [target], (0.001, 0.01)):
            while len(taken) < count and time.monotonic() < until_s:
                time.sleep(0.05)
        writer.close()
    server.shutdown()
    server.server_close()
    return count - len(taken)


def _turn_ms(targets: Sequence[str], turns: int) -> float:
    """Median milliseconds of a turn in which a job comes, while notices of all ends go to a hung server."""
    took_s: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as hung, tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        url = f"http://127.0.0.1:{hung.getsockname()[1]}/"
        notify = [Notify(on=("finished", "failed", "cancelled", "waiting"), url=url) for _ in targets]
        world = World(Path(folder).resolve())
        try:
            with silent():
                world.turn()
                notices = Notices(world.dirs, notify)
                for number in range(turns):
                    world.submit(_ELASTIC + 7 * (number % 20))
                    began_s = time.perf_counter()
                    world.turn()
                    took_s.append(time.perf_counter() - began_s)
                notices.go_on_with(())
        finally:
            world.close()
    return 1000.0 * statistics.median(took_s)


def _bill_s(jobs: int) -> float:
    """Seconds of the processor for the lines of these jobs, parsed and summed up by user and project."""
    fold, spent_s, first = UsageFold(("user", "project")), 0.0, 0
    take_lines([_BEGAN], fold, "log")
    while first < jobs:
        lines = [line for number in range(first, min(first + _BLOCK, jobs)) for line in _lines(number)]
        began_s = time.process_time()
        take_lines(lines, fold, "log")
        spent_s += time.process_time() - began_s
        first += _BLOCK
    fold.finish()
    return spent_s


_BEGAN: Final = (
    b'{"time":0,"event":"decision","detail":{"policy":"fifo","cluster":{"price":{"a":2.5},"nodes":'
    b'[{"name":"n0","gpus":8,"gpu_type":"a"},{"name":"n1","gpus":8,"gpu_type":"b"}]}}}\n'
)


def _lines(number: int) -> list[bytes]:
    """What the log has of one job: it is submitted, starts, says that it trains, and finishes."""
    at, user, project = float(number), number % 90, number % 9
    head = f'{{"time":%s,"job":"j{number}","event":'
    spec = (
        f'{{"id":"j{number}","submit_time":{at},"model":"m","gpus":{{"requested":2}},"user":"u{user}",'
        f'"command":["train.py","--seed","7"],"workdir":"/home/u","labels":{{"project":"p{project}"}}}}'
    )
    lines = (
        (0, f'"submit","detail":{{"job":{spec},"curve":[[1,1.0],[2,1.9]]}}}}'),
        (1, f'"start","gpus":2,"placement":[["n{number % 2}",2]],"detail":{{"accum":1}}}}'),
        (2, '"progress","samples_done":64.0,"overhead_seconds":1.5}'),
        (9, '"finish","gpus":0,"placement":[],"detail":{"attempt":1}}'),
    )
    return [f"{head % (at + after)}{rest}\n".encode() for after, rest in lines]
