"""How long workers take to meet and form a group, over files and over a TCP store.

Two to four workers on the loopback interface, in process groups of gloo, from the moment when all are there
to their connected group. Over a TCP store the first worker hosts it, and a file says where. ``_memory``: each
worker remembers for 3 s that a file was not there, as a host does whose folder is on an NFS server, unless it
asks the server. ``_unasked``: and never asks.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from benchmarks.parts.figure import Figure

MEASURES: Final = ("tools/run/elastic",)

ROUNDS: Final = 15
UNASKED_ROUNDS: Final = 3
WORKERS: Final = (2, 3, 4)
MEMORY_S: Final = 3.0
ADDRESS: Final = "127.0.0.1"
LIMIT: Final = timedelta(seconds=60)
WAYS: Final = ("files", "tcp")


def figures(
    rounds: int = ROUNDS, unasked_rounds: int = UNASKED_ROUNDS, workers: Sequence[int] = WORKERS
) -> list[Figure]:
    """Median seconds by way, number of workers, and memory of the hosts."""
    found = []
    for memory, times in (("", rounds), ("_memory", rounds), ("_unasked", unasked_rounds)):
        for way in WAYS:
            for count in workers:
                seconds = meet(way, count, times, memory)
                found.append(Figure(f"meet_{way}{memory}_{count}_s", seconds, "s"))
    return found


def smallest() -> list[Figure]:
    """All of it, small."""
    return figures(rounds=1, unasked_rounds=1, workers=(2,))


def meet(way: str, workers: int, rounds: int, memory: str = "") -> float:
    """The median time of a meeting: that of the worker which takes longest."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "pliant.tools.run.elastic"])
    with tempfile.TemporaryDirectory() as folder, context.Manager() as manager:
        taken, all_here = manager.list(), context.Barrier(workers)
        made = [
            context.Process(
                target=_work, args=(way + memory, Path(folder), (rank, workers, rounds), all_here, taken)
            )
            for rank in range(workers)
        ]
        for process in made:
            process.start()
        for process in made:
            process.join()
        by_round = zip(*[iter(sorted(taken))] * workers, strict=True)
        return statistics.median(max(seconds for _, seconds in one) for one in by_round)


def _work(way: str, folder: Path, place: tuple[int, int, int], all_here: Barrier, taken: Any) -> None:
    from pliant.tools.run.elastic.membership.process_group import use_interface

    rank, workers, rounds = place
    way, _, memory = way.partition("_")
    if memory:
        _remember(asks=memory == "memory")
    use_interface(ADDRESS)
    join = _by_files if way == "files" else _by_tcp
    for number in range(rounds + 1):
        here = folder / str(number)
        here.mkdir(exist_ok=True)
        all_here.wait()
        began_s = time.monotonic()
        leave = join(here, rank, workers)
        if number:  # the first one loads what all use
            taken.append((number, time.monotonic() - began_s))
        all_here.wait()
        leave()


def _by_files(folder: Path, rank: int, workers: int) -> Callable[[], None]:
    from pliant.tools.run.elastic.context import WorkerContext
    from pliant.tools.run.elastic.membership.process_group import ProcessGroup, pause
    from pliant.tools.run.elastic.membership.rendezvous import Round
    from pliant.tools.run.statedir.contract.folders import JobDir
    from pliant.tools.run.statedir.contract.plan import Member, Plan

    members = tuple(Member(slot=f"n/{i}", node="n", address=ADDRESS, worker=i) for i in range(workers))
    context = WorkerContext(JobDir(folder), Plan(job="a", generation=1, attempt=1, members=members), rank)
    met, group = Round(context, 0, lambda: bool(pause())), ProcessGroup(context, "gloo")
    met.attend(None)
    group.form(met.folder, lambda: False, LIMIT)
    return group.leave


def _by_tcp(folder: Path, rank: int, workers: int) -> Callable[[], None]:
    import torch.distributed as dist

    from pliant.tools.run.elastic.membership.process_group import FolderStore, leave

    files = FolderStore(folder, lambda: False)
    if rank == 0:
        store = dist.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
        files.set("port", str(store.port))
    else:
        store = dist.TCPStore(ADDRESS, int(files.get("port")), is_master=False, timeout=LIMIT)
    store.set(f"here/{rank}", "-")
    store.wait([f"here/{one}" for one in range(workers)])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=LIMIT)
    return leave


def _remember(*, asks: bool) -> None:
    """Let this process be a host that remembers what was not there."""
    from pliant.tools.run.elastic.membership import process_group, rendezvous

    until_s: dict[Path, float] = {}
    listed: dict[tuple[Path, str], tuple[float, list[Path]]] = {}
    glob = Path.glob

    def is_there(path: Path) -> bool:
        if time.monotonic() < until_s.get(path, 0.0):
            return False
        if found := path.exists():
            return found
        until_s[path] = time.monotonic() + MEMORY_S
        return False

    def names(folder: Path, pattern: str) -> Any:
        known_until_s, found = listed.get((folder, pattern), (0.0, []))
        if time.monotonic() >= known_until_s:
            found = list(glob(folder, pattern))
            listed[folder, pattern] = time.monotonic() + MEMORY_S, found
        return iter(found)

    def ask(folder: Path) -> None:
        if asks:
            for path in [one for one in until_s if one.parent == folder]:
                del until_s[path]
            for place in [one for one in listed if one[0] == folder]:
                del listed[place]

    process_group.is_there = is_there
    process_group.refresh_folder = rendezvous.refresh_folder = ask
    Path.glob = names  # type: ignore[method-assign,assignment]
