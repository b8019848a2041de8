"""Leases that follow the jobs, on a Slurm that is made up: how long they idle, and what kills leave behind.

Time is made up, too. Slurm takes its time to begin and to end a lease, other people's jobs hold nodes now and
then, and a launcher may be killed between any two commands; those that it has sent go on.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from pliant.schemas.cluster import Cluster
from pliant.tools.run.backends.slurm import backend
from pliant.tools.run.backends.slurm.backend import Leases
from pliant.tools.run.backends.slurm.commands import ControllerView
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmNode

NODES: Final = ("n0", "n1", "n2", "n3", "n4")
_SLACK_S: Final = 5
"""Seconds for a look at Slurm, and for Slurm to end a job."""
_STEPS: Final = 600


class MadeUpSlurm:
    """Leases wait, run and end; a node has one of them at a time."""

    def __init__(self, chance: random.Random) -> None:
        self.now_s = 1000.0
        # Whether a cancelled lease runs on for some seconds.
        self.lag = 1
        self.chance = chance
        # Name, node, when it begins to run at the earliest, and when it is gone.
        self.jobs: dict[str, dict[str, Any]] = {}
        self.taken_until_s = dict.fromkeys(NODES, 0.0)
        self._ids = 0

    def later(self, argv: Sequence[str], _base: object = None) -> SimpleNamespace:
        """A command that has reached Slurm: it is carried out whatever becomes of the launcher."""
        if argv[0] == "sbatch":
            self._ids += 1
            named = dict(
                word.removeprefix("--").partition("=")[::2] for word in argv if word.startswith("--")
            )
            begins_s = self.now_s + self.chance.choice((0, 1, 2, 40))
            job = {"name": named["job-name"], "node": named["nodelist"], "begins_s": begins_s}
            self.jobs[str(self._ids)] = job | {"ends_s": math.inf, "deaf": self.chance.random() < 0.1}
        elif argv[0] == "scancel":
            for job in [self.jobs[job_id] for job_id in argv[2:] if job_id in self.jobs]:
                if not job["deaf"]:
                    job["ends_s"] = min(job["ends_s"], self.now_s + self.chance.choice((0, 1, 3)) * self.lag)
                job["deaf"] = False  # the next command reaches Slurm
        return SimpleNamespace(done=True, failure="", text="", wait=lambda: None)

    def step(self) -> None:
        self.now_s += 1.0
        if self.chance.random() < 0.02:
            self.taken_until_s[self.chance.choice(NODES)] = self.now_s + self.chance.randrange(200)
        for job_id in [job_id for job_id, job in self.jobs.items() if job["ends_s"] < self.now_s - 2]:
            del self.jobs[job_id]

    def view(self) -> ControllerView:
        held, jobs = set[str](), list[SlurmJob]()
        for job_id, job in self.jobs.items():
            starts = self.now_s >= max(job["begins_s"], self.taken_until_s[job["node"]]) or job.get("runs")
            runs = starts and job["node"] not in held
            if runs:
                held.add(job["node"])
                job["begins_s"] = job["begins_s"] if job.get("runs") else self.now_s
                job["runs"] = True
            state, reason = ("RUNNING", "None") if runs else ("PENDING", "Resources")
            state = state if job["ends_s"] > self.now_s else "COMPLETING"
            jobs.append(SlurmJob(job_id, state, job["node"] if runs else "", reason, 0, job["name"]))
        nodes = {
            name: SlurmNode(name, name, name, frozenset({"IDLE"}), 8, 0, (), ("main",)) for name in NODES
        }
        return ControllerView(self.now_s, tuple(jobs), {}, nodes)


class LeaseStory:
    """Units come and go on the nodes that are offered; launchers come and go, too."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - no secret
        self.slurm = MadeUpSlurm(self.chance)
        self.idle_s = float(self.chance.choice((0, 20, 60)))
        limits = {"min_nodes": self.chance.choice((0, 0, 1)), "max_nodes": self.chance.choice((None, 2, 5))}
        self.least, self.most = limits["min_nodes"], limits["max_nodes"] or len(NODES)
        leases = {"idle_seconds": self.idle_s, **limits}
        nodes = tuple({"name": name, "gpus": 4} for name in NODES)
        self.cluster = Cluster.model_validate(
            {"nodes": nodes, "backend": "slurm", "slurm": {"leases": leases}}
        )
        self.folder = folder
        # Units by node: the lease that they are in, once they are, and their seconds left.
        self.units: dict[str, tuple[str | None, int]] = {}
        self.used_s: dict[str, float] = {}
        self.over_limit = self.lost = self.too_many = 0
        self.leases = self._launcher()

    def _launcher(self) -> Leases:
        def clock() -> float:
            return self.slurm.now_s

        return Leases(self.cluster, self.folder, clock, clock)

    def kill(self) -> None:
        self.leases = self._launcher()

    def step(self, *, units: bool = True) -> None:
        self.slurm.step()
        if self.chance.random() < 0.9:  # else Slurm does not answer
            self.leases.look(self.slurm.view(), busy=lambda: set(self.units), jobs_wait=units)
        offered = [name for name in NODES if self.leases.offers(name) and name not in self.units]
        if units and offered and self.chance.random() < 0.05:
            self.units[self.chance.choice(offered)] = None, self.chance.randrange(1, 90)
        for node, (lease, left_s) in list(self.units.items()):
            self.used_s[node] = self.slurm.now_s
            if lease is None:
                self.units[node] = self.leases.id_of(node), left_s
            elif lease not in self.slurm.jobs or self.slurm.jobs[lease]["ends_s"] <= self.slurm.now_s:
                self.lost += 1
                del self.units[node]
            elif left_s == 0:
                del self.units[node]
            else:
                self.units[node] = lease, left_s - 1
        self._check()

    def _check(self) -> None:
        runs = [job for job in self.slurm.jobs.values() if job.get("runs") and job["ends_s"] == math.inf]
        late_s = self.slurm.now_s - self.idle_s - _SLACK_S - backend.ENDS_S
        idle = [job for job in runs if job["node"] not in self.units]
        late = [job for job in idle if max(self.used_s.get(job["node"], 0.0), job["begins_s"]) < late_s]
        self.over_limit += len(late) > self.least
        self.too_many += len(runs) > self.most


@contextmanager
def stories(count: int) -> Iterator[Callable[[int], LeaseStory]]:
    """Makes stories by their numbers."""
    with tempfile.TemporaryDirectory(prefix="pliant-leases-") as folder:

        def story(number: int) -> LeaseStory:
            made = LeaseStory(Path(folder) / str(number), number)
            made.folder.mkdir()
            return made

        del count
        yield story


def told(story: LeaseStory, *, kills: bool) -> LeaseStory:
    """A story to its end, at which no unit is left; a launcher looks on until all leases may be gone."""
    story.slurm.lag = 0 if kills else 1  # the next launcher cannot know what the last one cancelled
    with patch.object(backend, "Later", story.slurm.later):
        for _ in range(_STEPS):
            story.step()
            if kills and story.chance.random() < 0.02:
                story.kill()
        for _ in range(400):
            story.step(units=False)
    return story


def leases_idle_over_limit(count: int) -> int:
    """Stories in which a lease idles for too long, or a unit loses its lease."""
    with stories(count) as story:
        told_ones = [told(story(number), kills=False) for number in range(count)]
    return sum(bool(each.over_limit or each.lost or each.too_many) for each in told_ones)


def leases_left(count: int) -> int:
    """Leases beyond the least that are left, or units that lost theirs, after launchers were killed."""
    with stories(count) as story:
        told_ones = [told(story(number), kills=True) for number in range(count)]
    return sum(max(0, len(each.slurm.jobs) - each.least) + each.lost for each in told_ones)
