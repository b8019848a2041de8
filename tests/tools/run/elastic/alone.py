"""A job of one worker in this process: attempts that begin and end as those of a script would."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.run import elastic
from pliant.tools.run.elastic import ElasticJob
from pliant.tools.run.service.commands import write_plan
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import ENV_JOB_DIR, ENV_SLOT, Plan, WorkerOutcome

Script = Callable[[ElasticJob], None]
SLOT = "n0/0"


class Alone:
    """Run a script as one attempt after the other; what it registers for its exit is called at its end."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.dir = JobDir(folder / "job")
        self.dir.path.mkdir()
        self.attempt = self.generation = 0
        self.begin: Callable[[], ElasticJob] = partial(elastic.init, batch_size=10, seed=5)
        self._leaving: list[Callable[[], None]] = []
        patch.setattr(atexit, "register", self._leaving.append)
        patch.setattr(sys, "excepthook", lambda *_: None)
        patch.setattr(signal, "signal", lambda *_: None)
        patch.setenv(ENV_JOB_DIR, str(self.dir.path))
        patch.setenv(ENV_SLOT, SLOT)
        patch.setenv("OMP_NUM_THREADS", "1")

    def publish(self, **fields: Any) -> None:
        self.generation += 1
        members = ({"slot": SLOT, "node": "n0", "address": "127.0.0.1"},)
        record = {"job": "a", "generation": self.generation, "attempt": self.attempt, "members": members}
        self.dir.attempt(self.attempt).path.mkdir(parents=True, exist_ok=True)
        write_plan(self.dir, Plan.model_validate(record | fields))

    def run(self, script: Script, **fields: Any) -> WorkerOutcome:
        self.attempt += 1
        self.publish(**fields)
        try:
            script(self.begin())
        except SystemExit:
            pass
        except Exception as error:  # noqa: BLE001 as the interpreter does at its end
            sys.excepthook(type(error), error, error.__traceback__)
        while self._leaving:
            self._leaving.pop()()
        result = WorkerOutcome.read(self.dir.attempt(self.attempt).outcome(0))
        assert result is not None
        return result

    def events(self, name: str) -> list[Event]:
        paths = [self.dir.attempt(number).progress for number in range(1, self.attempt + 1)]
        result = [event for path in paths if path.exists() for event in read_events(path)]
        return [event for event in result if event.event == name]


class Clock:
    """What a module uses as its ``time``: one host's time since its boot."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def monotonic(self) -> float:
        return self.now_s


class Author:
    """A script of three epochs over 47 samples."""

    def __init__(self, *, drop_last: bool = False) -> None:
        self.passes = 0
        self.epochs_ended: list[int] = []
        self.in_pass: Callable[[], None] = lambda: None
        self.at_epoch_end: Callable[[], None] = lambda: None
        self.drop_last = drop_last
        self.registered: dict[str, Any] = {}
        self.samples: list[int] = []
        self.net = nn.Linear(1, 1)

    def __call__(self, job: ElasticJob) -> None:
        self.net = net = nn.Linear(1, 1)
        samples = torch.utils.data.TensorDataset(torch.linspace(0, 1, 47).unsqueeze(1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model, optimizer, loader = job.prepare(net, optimizer, samples, drop_last=self.drop_last)
        job.register(**self.registered)
        for epoch in job.epochs(3):
            for (x,) in loader:
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                job.log(loss=loss)
                self.samples += (x.flatten() * 46).round().int().tolist()
                self.passes += 1
                self.in_pass()
            assert loss.isfinite()
            self.epochs_ended.append(epoch)
            self.at_epoch_end()
            del loss  # what an epoch leaves behind must not hide that the next one trained nothing
