"""The workers of one training as real processes, led by plan files as by ``pliant run``."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing.context import ForkServerProcess
from typing import Final

import torch

from experiments.accuracy.arms import Change
from experiments.accuracy.script import Task, train
from pliant.schemas.errors import JobsFailedError
from pliant.tools.run.service.commands import next_plan, write_plan
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.liveness import life
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_SLOT, ENV_WORKER, Member, Plan

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["experiments.accuracy.script", "torch._dynamo"])
_LOOK_S: Final = 0.02


class Gang:
    """One training from its first plan to its end."""

    def __init__(self, task: Task, device: str) -> None:
        self._task, self._device = task, device
        self._job = JobDir(task.folder)
        self._workers: dict[int, ForkServerProcess] = {}
        self._plan = Plan(
            job="a",
            generation=1,
            attempt=1,
            members=self._members((0,)),
            global_batch=task.scale.batch * task.arm.factor,
            seed=task.seed,
        )

    def run(self) -> JobDir:
        """Train to the end, with every change on the way; returns what the workers left.

        :raises JobsFailedError: a worker failed.
        """
        self._job.attempt(1).path.mkdir(parents=True)
        try:
            write_plan(self._job, self._plan)
            self._start((0,))
            for change in self._task.arm.changes:
                self._until(self._task.waits(change.epoch).exists)
                self._change(change)
                self._task.goes_on(change.epoch).touch()
            self._until(lambda: all(worker.exitcode is not None for worker in self._workers.values()))
        finally:
            for worker in self._workers.values():
                worker.kill()
                worker.join()
        return self._job

    def _change(self, change: Change) -> None:
        cut = (round(self._task.scale.batch * change.factor), change.micro_steps, change.lr_scale)
        self._plan = next_plan(self._plan, self._members(change.workers), cut)
        write_plan(self._job, self._plan)
        fresh = [worker for worker in change.workers if worker not in self._workers]
        self._start(fresh)
        attempt = self._job.attempt(1)
        self._until(lambda: all(life(attempt.presence(worker)) == "alive" for worker in fresh))

    def _members(self, workers: Iterable[int]) -> tuple[Member, ...]:
        place = {"device": "cuda", "gpu": 0} if self._device == "cuda" else {}
        return tuple(
            Member.model_validate(
                {"slot": f"n0/{worker}", "node": "n0", "address": "127.0.0.1", "worker": worker, **place}
            )
            for worker in workers
        )

    def _start(self, workers: Iterable[int]) -> None:
        for worker in workers:
            env = {
                ENV_JOB_DIR: str(self._job.path),
                ENV_SLOT: f"n0/{worker}",
                ENV_WORKER: str(worker),
                "OMP_NUM_THREADS": "1",
            }
            arguments = (self._task, env, str(self._errors(worker)))
            process = _CONTEXT.Process(target=_work, args=arguments)
            process.start()
            self._workers[worker] = process

    def _errors(self, worker: int) -> os.PathLike[str]:
        return self._task.folder / f"worker-{worker}.log"

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._check()
            time.sleep(_LOOK_S)
        self._check()

    def _check(self) -> None:
        for number, worker in self._workers.items():
            if worker.exitcode:
                raise JobsFailedError(f"{self._task.folder}: worker {number} failed, see its log")


def _work(task: Task, env: dict[str, str], errors: str) -> None:
    """A worker; a forked process leaves out what is registered for an interpreter's exit."""
    torch.set_num_threads(1)
    os.environ.update(env)
    sys.stderr = open(errors, "w", buffering=1)  # noqa: SIM115 until the process ends
    try:
        train(task)
    finally:
        atexit._run_exitfuncs()
