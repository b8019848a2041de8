"""A day of a small Slurm cluster in some minutes: real jobs under a live loop, while daemons are killed.

A real Slurm of one host has four nodes of four GPUs that compute nothing; the jobs train on its CPU slots. A
step of theirs sleeps as long as its share of the batch asks for, a tenth of a second and more, so that
sixteen of them leave two cores free and their speed is that of a cluster. They are submitted one by one to
``pliant run --follow --policy ares``.
Meanwhile a node's daemon is killed twice and the controller once, and each comes back after some seconds.

Then every job must have finished with all its samples. The same jobs are replayed with the profile that was
measured before and with what starts and changes cost in the run; both average JCTs are compared.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.parts.figure import Figure, NotMeasurableError
from benchmarks.parts.first_step import PATIENCE_S
from benchmarks.parts.slurm_cluster import NoSlurmError, SlurmCluster, slurm_cluster
from pliant.schemas.cluster import Cluster
from pliant.schemas.io import write_cluster, write_jobs
from pliant.schemas.job import Job
from pliant.tools.report.metrics import run_metrics
from pliant.tools.report.read_run import read_run
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.state import read_log
from tests.builders import job

JOBS: Final = 30
SLOTS: Final = 4
GPUS: Final = (SLOTS,) * 4
"""Of each node."""
POLICY: Final = "ares"
MODEL: Final = "sleeper"
BATCH: Final = 32
DATASET: Final = 320
EPOCHS: Final = (15, 38)
"""Fewest and most: with one worker an epoch takes about four seconds."""
GAP_S: Final = 18.0
"""Mean time between arrivals."""
COOLDOWN_S: Final = 30.0
"""Between two changes of a job, in the run and in the replay: to start a worker takes a core for seconds."""
SEED: Final = 4
AWAY_S: Final = 4.0
"""A daemon that was killed comes back after this time; Slurm takes a node for lost after ten seconds."""
KILLS: Final = {0.25: "n1", 0.5: "slurmctld", 0.75: "n2"}
"""What is killed once that part of the jobs is submitted."""
ENDS_S: Final = 1800.0
CLOSE: Final = 0.1
SCRIPT: Final = """
import sys, time
import torch
from pliant.tools.run import elastic

job = elastic.init(batch_size=32)
x = torch.randn(320, 4, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
model = torch.nn.Linear(4, 1)
model, optimizer, loader = job.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), data)
for epoch in job.epochs(int(sys.argv[1])):
    for inputs, wanted in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        time.sleep(0.012 * len(inputs))
        loss.backward()
        optimizer.step()
        job.log(loss=loss)
"""


@dataclass(frozen=True, slots=True)
class Day:
    """What became of the jobs."""

    lost: int
    """Acknowledged, and not finished."""
    wrong: int
    """Finished with another number of samples than they should."""
    jct_s: float
    """Their mean time from submission to completion."""
    simulated_jct_s: float
    """The same in the replay."""


def figures(jobs: int = JOBS) -> list[Figure]:
    """The figures.

    :raises NotMeasurableError: no Slurm can be started here.
    """
    try:
        found = live(jobs)
    except NoSlurmError as error:
        raise NotMeasurableError(str(error)) from error
    ratio = found.simulated_jct_s / found.jct_s
    return [
        Figure("slurm_jobs_lost", float(found.lost), "jobs", 0.0),
        Figure("slurm_samples_wrong", float(found.wrong), "jobs", 0.0),
        Figure("slurm_jct_sim_over_measured", ratio, "ratio", 1 + CLOSE, low=1 - CLOSE),
    ]


def live(count: int, gap_s: float = GAP_S, epochs: tuple[int, int] = EPOCHS, *, profiled: bool = True) -> Day:
    """Live through it.

    :param profiled: the speed of the jobs is measured first; else it is taken to grow with the slots.
    :raises NoSlurmError: no Slurm can be started here.
    :raises TimeoutError: jobs do not end.
    """
    with tempfile.TemporaryDirectory(prefix="pliant-slurm-day-") as name, slurm_cluster(GPUS) as slurm:
        site = _Site(Path(name).resolve(), slurm, profiled=profiled)
        asked = site.jobs(count, gap_s, epochs)
        if profiled:
            site.profile(asked[0])
        with site.loop():
            site.submit_all(asked)
            log = site.until_ended(len(asked))
        return site.judge(asked, log)


class _Site:
    """The folder of it all."""

    def __init__(self, folder: Path, slurm: SlurmCluster, *, profiled: bool) -> None:
        self._folder, self._slurm, self._profiled = folder, slurm, profiled
        self._dirs = StateDir(folder / "state")
        self._env = {**os.environ, "SLURM_CONF": slurm.env["SLURM_CONF"]}
        self._script = folder / "train.py"
        self._script.write_text(SCRIPT)
        nodes = tuple({"name": name, "gpus": SLOTS, "gpu_type": "cpu"} for name in slurm.gpus)
        self._write_cluster("cluster", nodes, "slurm")
        self._write_cluster("here", ({"name": "local", "gpus": SLOTS, "gpu_type": "cpu"},), "local")

    def _write_cluster(self, name: str, nodes: Sequence[Mapping[str, object]], backend: str) -> None:
        rare = {"cooldown_seconds": COOLDOWN_S}
        shape = {"slots": "cpu", "backend": backend, "nodes": tuple(nodes), **rare}
        write_cluster(Cluster.model_validate(shape), self._folder / f"{name}.json")

    def jobs(self, count: int, gap_s: float, epochs: tuple[int, int]) -> list[Job]:
        """Jobs of different lengths in random arrivals, from the first one's on."""
        chance, at, made = random.Random(SEED), 0.0, []  # noqa: S311 - no secret
        for number in range(count):
            length = chance.randint(*epochs)
            work = {"epochs": length, "dataset_size": DATASET}
            made.append(
                job(
                    f"job-{number:02}",
                    at=round(at, 3),
                    gpus=chance.choice((1, 1, 2)),
                    low=1,
                    high=SLOTS,
                    model=MODEL,
                    batch=BATCH,
                    command=(str(self._script), str(length)),
                    workdir=str(self._folder),
                    work=work,
                )
            )
            at += chance.expovariate(1 / gap_s)
        return made

    def profile(self, one: Job) -> None:
        """Measure the speed of the jobs on this host, before anything else runs."""
        path = self._folder / "one.jsonl"
        write_jobs([one], path)
        found = self._folder / "profile.parquet"
        self._pliant("profile", path, "--cluster", self._folder / "here.json", "-o", found)

    @contextmanager
    def loop(self) -> Iterator[None]:
        """A live loop; jobs that are left are ended with the Slurm."""
        words = ("run", "--follow", "--state", self._dirs.path, "--policy", POLICY, *self._world())
        with (self._folder / "loop.log").open("wb") as log:
            loop = self._start(*words, log=log.fileno())
            try:
                while loop.poll() is None and not self._dirs.events.exists():
                    time.sleep(0.1)
                yield
            finally:
                loop.terminate()
                loop.wait(PATIENCE_S)

    def submit_all(self, jobs: Sequence[Job]) -> None:
        """Each in its time, and the kills between them."""
        kills = {int(part * len(jobs)): what for part, what in KILLS.items()}
        began_s = time.monotonic()
        for number, one in enumerate(jobs):
            time.sleep(max(0.0, began_s + one.submit_time - time.monotonic()))
            now = one.model_copy(update={"submit_time": 0.0})
            submit(self._dirs.path, [now], "day", folder=self._folder, now_s=time.time())
            if number in kills:
                self._kill(kills[number])

    def _kill(self, what: str) -> None:
        """A daemon dies, and comes back."""
        if what == "slurmctld":
            self._slurm.end_controller(crash=True)
            time.sleep(AWAY_S)
            self._slurm.start_controller()
        else:
            self._slurm.end_node(what)
            time.sleep(AWAY_S)
            self._slurm.start_node(what)

    def until_ended(self, count: int) -> RunLog:
        """The log once all jobs have ended."""
        deadline_s = time.monotonic() + ENDS_S
        while True:
            log = read_log(self._dirs.path)
            if sum(found.ended for found in log.jobs.values()) == count:
                return log
            if time.monotonic() > deadline_s:
                said = (self._folder / "loop.log").read_text(errors="replace")[-2000:]
                raise TimeoutError(f"not all of {count} jobs have ended: {said}")
            time.sleep(1.0)

    def judge(self, jobs: Sequence[Job], log: RunLog) -> Day:
        """Count, replay and compare."""
        finished = [found for found in log.jobs.values() if found.phase == "finished"]
        wanted = {one.id: float(int(one.command[1]) * DATASET) for one in jobs if one.command}
        first_s = min(found.submitted_s for found in log.jobs.values())
        as_they_came = [
            one.model_copy(update={"submit_time": log.jobs[one.id].submitted_s - first_s}) for one in jobs
        ]
        write_jobs(as_they_came, self._folder / "jobs.jsonl")
        events, replayed = self._dirs.events, self._folder / "replay.parquet"
        asked = (self._folder / "jobs.jsonl", *self._world(), "--policy", POLICY)
        self._pliant("replay", *asked, "--start-cost", events, "--rescale-cost", events, "-o", replayed)
        return Day(
            lost=len(jobs) - len(finished),
            wrong=sum(found.samples_done != wanted[found.job.id] for found in finished),
            jct_s=run_metrics(read_run(str(events))).mean_jct_s or 0.0,
            simulated_jct_s=run_metrics(read_run(str(replayed))).mean_jct_s or 0.0,
        )

    def _world(self) -> tuple[str | Path, ...]:
        profile = ("--profile", self._folder / "profile.parquet") if self._profiled else ()
        return "--cluster", self._folder / "cluster.json", *profile

    def _pliant(self, *words: str | Path) -> None:
        if code := self._start(*words).wait():
            raise RuntimeError(f"pliant {words[0]} ended with exit code {code}")

    def _start(self, *words: str | Path, log: int | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "pliant.cli", *map(str, words)],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
