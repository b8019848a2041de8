"""A run that never ends keeps the records of jobs that have ended in memory, and nothing else of them."""

import gc
import sys
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType, ModuleType
from zlib import crc32

from pliant.schemas.file_io.events import LogPlace
from pliant.schemas.io import write_cluster
from pliant.tools.run.service.inputs import PreparedRun
from pliant.tools.run.service.loop import Loop, RunOptions
from pliant.tools.run.service.submit import cancel, order_jobs
from pliant.tools.run.statedir.contract.plan import Progress
from pliant.tools.run.statedir.log.snapshot import renew_snapshot
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.policies.fair_share import FairShare
from pliant.tools.schedule.session.saved import LazyDict
from tests.builders import cluster, job
from tests.tools.run.instant import InstantBackend, opens

JOBS = 40
_NO_STATE = (type, ModuleType, FunctionType, InstantBackend)
"""What is not of the run, or stands for processes."""


def following(folder: Path) -> Loop:
    """A live loop whose jobs end as soon as they are started."""
    path = folder / "cluster.json"
    write_cluster(cluster(4, slots="cpu"), path)
    options = RunOptions(folder / "state", cluster=str(path), question=Question("fair-share"))
    prepared = PreparedRun.read(options, opens({}), resume=False)
    return prepared.loop(prepared.open(), follow=True)


def run(loop: Loop, folder: Path, until: int = JOBS) -> None:
    """Let jobs come until there were that many, report how far they are, and end."""
    script = folder / "train.py"
    script.touch()
    spool, log = Spool(loop.state.dirs), loop.state.log
    with spool.locked():
        numbers = range(len(log.jobs), until)
        spool.request_run(job(f"j{n}", command=(str(script),), workdir=str(folder)) for n in numbers)
    while len(log.jobs) < until or log.active:
        loop.step()
        said = {"attempt": 1, "generation": 1, "gpus": 1, "global_batch": 8, "step": 1, "epoch": 0}
        for job_id in log.active:
            log.newest[job_id] = Progress.model_validate({**said, "job": job_id, "samples_done": 8.0})


def reached(origin: object) -> Iterator[object]:
    seen, left = {id(origin)}, [origin]
    while left:
        each = left.pop()
        yield each
        for referent in gc.get_referents(each):
            if id(referent) not in seen and not isinstance(referent, _NO_STATE):
                seen.add(id(referent))
                left.append(referent)


def large_ones(origin: object, records: Iterable[object]) -> list[str]:
    """The containers that are reached from an object and hold a thing for each job, but for the records.

    What an object keeps its attributes in, or a record its values, is none of them.
    """
    kinds, found = dict | list | set | deque, [*reached(origin)]
    own = {id(vars(each)) for each in found if hasattr(each, "__dict__")}
    own |= {id(value) for record in records for value in vars(record).values()}
    large = [each for each in found if isinstance(each, kinds) and len(each) >= JOBS and id(each) not in own]
    return [f"{type(each)} {str(each)[:300]}" for each in large]


def bytes_held(origin: object) -> int:
    return sum(map(sys.getsizeof, reached(origin)))


def test_only_the_records_of_jobs_that_have_ended_are_kept(tmp_path, monkeypatch) -> None:
    """What is left of a job is text: what the log says of it, and what the policy knew."""
    monkeypatch.setattr(
        FairShare, "traits", replace(FairShare.traits, default_interval_s=1e-9)
    )  # each turn is a round
    loop = following(tmp_path)
    with loop.state as state:
        run(loop, tmp_path)
        records = [state.log.jobs, loop.session.book.ended]
        assert [len(each) for each in records] == [JOBS] * 2
        assert large_ones(loop, records) == []
        before = bytes_held(loop)
        run(loop, tmp_path, 2 * JOBS)
        after, written = bytes_held(loop), state.dirs.events.read_bytes()
        assert (after - before) / JOBS < 2000
        for _ in range(200):
            loop.step()
        assert bytes_held(loop) - after < 200, "a turn takes nothing"
        assert state.dirs.events.read_bytes() == written, "without jobs there are no rounds"


def test_a_snapshot_is_compared_with_its_log_in_little_memory(tmp_path: Path) -> None:
    """The writer of a log does that again and again, and what its largest look took it keeps."""
    log = tmp_path / "events.jsonl"
    log.write_bytes(bytes(1 << 23))
    place = LogPlace(log.stat().st_size, crc=crc32(bytes(1 << 23)))
    tracemalloc.start()
    try:
        assert place.is_in(log)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < place.bytes / 8


def test_a_job_that_ends_while_it_is_held_is_put_away_too(tmp_path: Path) -> None:
    loop = following(tmp_path)
    with loop.state as state:
        run(loop, tmp_path, 1)
        spool = Spool(state.dirs)
        with spool.locked():
            spool.request_run([job("held", command=("train.py",))])
        order_jobs(state.dirs.path, "hold", ["held"])
        loop.step()
        cancel(state.dirs.path, ["held"])
        run(loop, tmp_path, 4)
        assert isinstance(loop.session.book.ended, LazyDict)
        assert loop.session.book.ended.raw("held") is not None


def test_a_loop_leaves_no_garbage_that_waits_for_a_collector(tmp_path: Path) -> None:
    """A live loop collects rarely: cycles would be kept for hours, and what they hold, too."""
    loop = following(tmp_path)
    with loop.state as state:
        run(loop, tmp_path, JOBS)
        assert state.rebuilding is not None
        renew_snapshot(state.dirs, state.log, state.rebuilding)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            run(loop, tmp_path, 2 * JOBS)
            renew_snapshot(state.dirs, state.log, state.rebuilding)
            gc.collect()
            assert Counter(type(each).__qualname__ for each in gc.garbage) == {}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
