"""A worker that is gone without closing its connections, as on a machine that has lost its power."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import rendezvous
from pliant.tools.run.elastic.membership.agreement import PlanWatch
from pliant.tools.run.elastic.membership.process_group import ProcessGroup
from pliant.tools.run.elastic.membership.rendezvous import Lookout
from pliant.tools.run.service.commands import write_plan
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.presence import Presence
from tests.leftovers import PATIENCE_S
from tests.tools.run.elastic.gang import plan, put
from tests.tools.run.elastic.membership.test_process_group import in_processes
from tests.tools.run.elastic.nursery import CONTEXT
from tests.tools.run.site import until

pytestmark = pytest.mark.torch


def site(folder: Path) -> JobDir:
    """Two workers train; the second one was there, and is gone."""
    job = put(folder, plan())
    job.attempt(1).presence(1).touch()
    return job


def looking(job: JobDir, worker: int = 0, group: ProcessGroup | None = None, **more: Any) -> Lookout:
    context = WorkerContext(job, plan(1), worker)
    return Lookout(context, PlanWatch(context), group or ProcessGroup(context, None), **more)


def test_a_missing_worker_that_no_plan_has_is_lost(tmp_path: Path) -> None:
    job = site(tmp_path)
    at_the_first, at_the_gone = looking(job), looking(job, worker=1)
    assert at_the_first.lost() == [], "there is no plan without it yet"
    write_plan(job, plan(2, (0,)))
    assert at_the_first.lost() == ["n0/1"]
    assert at_the_gone.lost() == [], "none looks at its own file"
    write_plan(job, plan(3))
    assert at_the_first.lost() == [], "a plan that counts on it is not for those that do without it"


def falls_silent(rank: int, count: int, folder: Path) -> list[str]:
    """Worker 1 lives, then stands still, or its host is dead and the file server has not noticed."""
    job = JobDir(folder)
    if rank == 1:
        own = Presence(job.attempt(1).presence(1))
        own.begin()
        (folder / "here").touch()
        until((folder / "seen").exists)
        own.end()
        (folder / "silent").touch()
        until((folder / "over").exists)
        return []
    until((folder / "here").exists)
    assert looking(job).lost() == [], "it lives, and has yet to leave"
    (folder / "seen").touch()
    until((folder / "silent").exists)
    watching = looking(job)
    assert watching.lost() == [], "not at the first look"
    result: list[str] = []
    until(lambda: result.extend(watching.lost()) or result)  # type: ignore[func-returns-value]
    (folder / "over").touch()
    return result


def test_a_locked_but_silent_worker_is_lost(tmp_path: Path) -> None:
    job = site(tmp_path)
    write_plan(job, plan(2, (0,)))
    assert in_processes(falls_silent, 2, tmp_path) == [["n0/1"], []]


def test_one_look_is_not_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that leaves in good order may be gone before the others have read its last words."""
    looks = iter([["n0/1"], [], ["n0/1"], ["n0/2"], ["n0/1"], [], []])
    broken_off: list[None] = []
    watching = looking(site(tmp_path), look_s=0.001)

    def look(self: Lookout) -> list[str]:
        result = next(looks, None)
        if result is None:
            watching.end()
        return result or []

    monkeypatch.setattr(Lookout, "lost", look)
    monkeypatch.setattr(ProcessGroup, "break_off", lambda self: broken_off.append(None))
    watching.begin()
    assert watching._thread is not None
    watching._thread.join(60)
    assert broken_off == []


def never_ends(folder: Path) -> None:
    """Worker 1 is lost; what worker 0 waits for was forgotten, so to break it off changes nothing."""
    sys.stderr = (folder / "errors").open("w", buffering=1)
    rendezvous.FORGOTTEN_S = 0.1  # type: ignore[misc]
    ProcessGroup.break_off = lambda self: None  # type: ignore[method-assign]
    job = JobDir(folder)
    watching = looking(job, look_s=0.01)
    write_plan(job, plan(2, (0,)))
    watching.begin()
    time.sleep(1.0)  # no exchange: a step that takes long is none of its business
    (folder / "waits").touch()
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), 2), rank=0, world_size=2)


def test_only_a_worker_in_a_forgotten_exchange_ends(tmp_path: Path) -> None:
    site(tmp_path)
    worker = CONTEXT.Process(target=never_ends, args=(tmp_path,))
    worker.start()
    worker.join(PATIENCE_S)
    assert worker.exitcode == -signal.SIGKILL
    assert "does not end: this worker ends" in (tmp_path / "errors").read_text()
    assert (tmp_path / "waits").exists()
