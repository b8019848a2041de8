"""Hosts that remember what a folder on a file server held, and what its files were like, until they ask.

Real ones forget after some seconds up to a minute. These never do, so that a wait which counts on that would
not end.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pliant.tools.run.elastic.context import WorkerContext
from pliant.tools.run.elastic.membership import agreement, process_group, rendezvous
from pliant.tools.run.elastic.membership.agreement import PlanWatch
from pliant.tools.run.elastic.membership.process_group import FolderStore, pause
from pliant.tools.run.elastic.membership.rendezvous import Round
from pliant.tools.run.elastic.state.training import Cursor
from pliant.tools.run.statedir.contract.folders import ask_server
from tests.tools.run.elastic.gang import plan, put
from tests.tools.run.elastic.membership.test_round import context, waiting

pytestmark = pytest.mark.torch
HERE = Cursor(1, 7, 1)


class Memories:
    """Each thread is a host: what it has not found, and what folders held, by host and folder."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._absent: dict[tuple[int, Path], set[Path]] = {}
        self._held: dict[tuple[int, Path, str], list[Path]] = {}
        self._glob = Path.glob
        self.missed = threading.Event()
        """A host has looked for a file that was not there."""
        for module in (process_group, agreement):
            patch.setattr(module, "is_there", self._is_there)
        for module in (process_group, agreement, rendezvous):
            patch.setattr(module, "ask_server", self._ask)
        patch.setattr(Path, "glob", lambda folder, pattern: iter(self._list(folder, pattern)))

    def _is_there(self, path: Path) -> bool:
        absent = self._absent.setdefault((threading.get_ident(), path.parent), set())
        if path in absent:
            return False
        if not path.exists():
            absent.add(path)
            self.missed.set()
            return False
        return True

    def _list(self, folder: Path, pattern: str) -> list[Path]:
        place = (threading.get_ident(), folder, pattern)
        if place not in self._held:
            self._held[place] = list(self._glob(folder, pattern))
            self.missed.set()
        return self._held[place]

    def _ask(self, folder: Path) -> None:
        ask_server(folder)
        host = threading.get_ident()
        self._absent.pop((host, folder), None)
        for place in [one for one in self._held if one[:2] == (host, folder)]:
            del self._held[place]


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> Memories:
    return Memories(monkeypatch)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(3) as made:
        yield made


def test_a_key_of_another_host_is_seen(tmp_path: Path, memories: Memories, pool: ThreadPoolExecutor) -> None:
    found: Future[bytes] = pool.submit(FolderStore(tmp_path, lambda: False).get, "later")
    assert memories.missed.wait(60)
    FolderStore(tmp_path, lambda: False).set("later", "here")
    assert found.result(60) == b"here"


def test_workers_on_forgetful_hosts_meet(
    tmp_path: Path, memories: Memories, pool: ThreadPoolExecutor
) -> None:
    second = pool.submit(Round(context(tmp_path, 1), 0, waiting).attend, HERE)
    assert memories.missed.wait(60)
    first = pool.submit(Round(context(tmp_path, 0), 0, waiting).attend, None)
    assert first.result(60) == second.result(60) == [None, HERE]


def test_counting_includes_other_hosts(tmp_path: Path, memories: Memories, pool: ThreadPoolExecutor) -> None:
    def count(first: threading.Event, then: threading.Event) -> int:
        store = FolderStore(tmp_path, lambda: False)
        assert not memories._is_there(store._path("n"))
        then.set()
        assert first.wait(60)
        return store.add("n", 1)

    one, other = threading.Event(), threading.Event()
    both = [pool.submit(count, one, other), pool.submit(count, other, one)]
    assert sorted(found.result(60) for found in both) == [1, 2]


def test_a_plan_that_others_saw_is_seen(tmp_path: Path, memories: Memories, pool: ThreadPoolExecutor) -> None:
    watch = PlanWatch(WorkerContext(put(tmp_path, plan(1)), plan(1), 0))
    found = pool.submit(watch.exactly, 2, 60.0)
    assert memories.missed.wait(60)
    put(tmp_path, plan(2))
    assert found.result(60).generation == 2


def test_a_replaced_plan_is_seen_by_opening_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = put(tmp_path, plan(1))
    before = os.stat(job.plan)
    monkeypatch.setattr(agreement, "_look", lambda path: before)
    watch = PlanWatch(WorkerContext(job, plan(1), 0))
    assert watch.newest().generation == 1
    put(tmp_path, plan(2))
    while watch.newest().generation == 1:
        pause()
    assert watch.newest().generation == 2
