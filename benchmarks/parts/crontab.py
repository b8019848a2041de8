"""Turns of ``pliant schedule --state DIR | pliant run``, as cron makes them, on simulated nodes."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

from benchmarks.parts.chaos.world import PATIENT
from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError
from pliant.schemas.event import ALLOCATION_EVENTS
from pliant.schemas.io import read_events, write_cluster, write_schedule
from pliant.schemas.job import Job
from pliant.tools.run.backends.simulated.clock import SimulatedClock
from pliant.tools.run.backends.simulated.nodes import SAMPLES, SimulatedNodes
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.state import Clock
from pliant.tools.run.watch import status
from pliant.tools.schedule.decide import Question

WORK: Final = 1e9
MINUTE_S: Final = 60.0
LOOK_S: Final = 0.5
MOST_LOOKS: Final = 400
POLICIES: Final = ("fifo", "fair-share")
"""Policies that do not go by how far jobs are, so that nothing is news while none comes or ends."""
_CLUSTER: Final = {
    "nodes": [{"name": "n{}", "gpus": 8, "count": 4, "cpus": 64, "memory": 1 << 38, "bandwidth": 1e10}]
}


class Crontab:
    """A state directory whose turns are a minute apart."""

    def __init__(self, folder: Path, policy: str) -> None:
        self.dirs, self.clock = StateDir(folder / "state"), SimulatedClock()
        self._cluster = Cluster.model_validate_json(json.dumps(_CLUSTER))
        self.nodes = SimulatedNodes(self._cluster, self.clock, self.dirs.jobs)
        self._folder, self._policy = folder, policy
        write_cluster(self._cluster, folder / "cluster.json")

    def submit(self, job: Job) -> bool:
        """Whether it was accepted."""
        try:
            submit(
                self.dirs.path,
                [job],
                "jobs",
                folder=self._folder,
                now_s=self.clock.wall(),
                check_scripts=False,
            )
        except BadInputError:
            return False
        return True

    def turn(self) -> None:
        self.nodes.go_on(MINUTE_S)
        clock = Clock(self.clock.wall, self.clock.steady)
        with mock.patch.object(status, "Clock", return_value=clock):
            decided = status.decide_between_runs(
                *(str(self.dirs.path), Question(self._policy)), cluster=str(self._folder / "cluster.json")
            )
        write_schedule(decided, self._folder / "schedule.json")
        options = RunOptions(self.dirs.path, str(self._folder / "schedule.json"), timeouts=PATIENT)
        prepared = PreparedRun.read(options, lambda *_: self.nodes, resume=False, clock=clock)
        with prepared.open() as state:
            loop = prepared.reconciling(state)
            for _ in range(MOST_LOOKS):
                if not loop.unsettled:
                    return
                self.nodes.go_on(LOOK_S)
                loop.step()
        raise TimeoutError(f"not settled: {loop.unsettled}")

    def changes(self) -> list[str]:
        """Every change of what a job holds, in the order of the log."""
        events = read_events(self.dirs.events)
        return [f"{event.event} {event.job}" for event in events if event.event in ALLOCATION_EVENTS]


def moves_without_news(folder: Path, jobs: int, turns: int, seed: int) -> list[str]:
    """What changes in further turns after one that starts random jobs, none of which comes or ends since."""
    random_ = random.Random(seed)  # noqa: S311
    cron = Crontab(folder, POLICIES[seed % len(POLICIES)])
    try:
        drawn = drawn_jobs(random_)
        accepted = 0
        while accepted < jobs:
            accepted += cron.submit(next(drawn))
        cron.turn()
        started = len(cron.changes())
        for _ in range(turns - 1):
            cron.turn()
        return cron.changes()[started:]
    finally:
        cron.nodes.close()


def drawn_jobs(random_: random.Random) -> Iterator[Job]:
    """Jobs that state each optional field or not; they train for longer than anyone looks."""
    number = 0
    while True:
        number += 1
        try:
            yield Job.model_validate_json(json.dumps({"id": f"j{number}", **_fields(random_)}))
        except ValueError:
            continue


def _fields(random_: random.Random) -> dict[str, Any]:
    low, requested, high = sorted(random_.choices((1, 2, 3, 4, 8), k=3))
    elastic = random_.choice(("none", "size", "size", "size+batch"))
    batch = random_.choice((8, 64, 100))
    optional: dict[str, dict[str, Any]] = {
        "batch": {
            "size": batch,
            "min": random_.randint(1, batch),
            "max": random_.randint(batch, 4 * batch),
            "per_gpu_max": random_.randint(1, batch),
            "regimes": [{"after": 0.5, "size": 2 * batch}],
        },
        "gpus": {"requested": requested, "min": low, "max": high, "sizes": sorted({low, requested, high})},
        "utility": {"value": 3.0, "decay": 0.1, "target": 3600.0, "shape": "sigmoid"},
        "resources": {"worker": {"cpus": random_.choice((1, 4, 8)), "memory": 1 << 30}},
    }
    plain: dict[str, Any] = {
        "model": "m",
        "user": "ada",
        "team": "",
        "weight": 2.0,
        "priority": random_.randint(-3, 3),
        "lr": 0.1,
        "resize": random_.choice(("in-place", "relaunch")),
        "hold": random_.random() < 0.2,
        "shares_gpus": False,
        "checkpoint_seconds": 7.0,
        "seed": 7,
        "labels": {"a": "b"},
        "env": {"A": "b"},
        "work": random_.choice(({"samples": WORK}, {"iterations": WORK}, {"gpu_seconds": WORK})),
    }
    some = {name: value for name, value in plain.items() if random_.random() < 0.5}
    parts = {
        name: {each: value for each, value in part.items() if random_.random() < 0.5}
        for name, part in optional.items()
    }
    return {
        "elastic": elastic,
        "command": ["train.py", SAMPLES, str(WORK)],
        "workdir": "/",
        **some,
        **{name: part for name, part in parts.items() if part},
    }
