"""A run that never ends keeps the records of jobs that have ended in memory, and nothing else of them."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any
from zlib import crc32

from pliant.schemas.file_io.event_log import Place
from pliant.schemas.io import write_cluster
from pliant.tools.run.service.inputs import Prepared
from pliant.tools.run.service.loop import Loop
from pliant.tools.run.service.options import Options
from pliant.tools.run.statedir.contract.progress import Progress
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.schedule.decide import Question
from tests.builders import cluster, job
from tests.tools.run.instant import InstantBackend, opens

JOBS = 40
_NO_STATE = (type, ModuleType, FunctionType, InstantBackend)
"""What is not of the run, or stands for processes."""


def following(folder: Path) -> Loop:
    """A live loop whose jobs end as soon as they are started."""
    write_cluster(cluster(4, slots="cpu"), folder / "cluster.json")
    options = Options(folder / "state", cluster=str(folder / "cluster.json"), question=Question("fair-share"))
    prepared = Prepared.read(options, opens({}), resume=False)
    return prepared.loop(prepared.open(), follow=True)


def run(loop: Loop, folder: Path) -> None:
    """Let the jobs come, report how far they are, and end."""
    script = folder / "train.py"
    script.touch()
    spool, log = Spool(loop.state.dirs), loop.state.log
    with spool.locked():
        spool.ask_to_run(job(f"j{n}", command=(str(script),), workdir=str(folder)) for n in range(JOBS))
    while len(log.jobs) < JOBS or log.active:
        loop.step()
        log.newest.update((job_id, report(job_id)) for job_id in log.active)


def report(job_id: str) -> Progress:
    """What a worker reports about once a second."""
    return Progress(
        job=job_id, attempt=1, generation=1, gpus=1, global_batch=8, step=1, epoch=0, samples_done=8.0
    )


def large_ones(origin: object, least: int) -> list[Any]:
    """The containers that are reached from an object and hold that many things or more."""
    seen, left, found = {id(origin)}, [origin], []
    while left:
        each = left.pop()
        if isinstance(each, dict | list | set | deque) and len(each) >= least:
            found.append(each)
        for referent in gc.get_referents(each):
            if id(referent) not in seen and not isinstance(referent, _NO_STATE):
                seen.add(id(referent))
                left.append(referent)
    return found


def test_only_the_records_of_jobs_that_have_ended_are_kept(tmp_path: Path) -> None:
    loop = following(tmp_path)
    with loop.state as state:
        run(loop, tmp_path)
        records = [state.log.jobs, loop.session.ended]
        assert [len(each) for each in records] == [JOBS] * 2
        others = [each for each in large_ones(loop, JOBS) if not any(each is record for record in records)]
        assert [(type(each), len(each), str(each)[:300]) for each in others] == []


def test_to_look_whether_a_snapshot_is_of_a_log_takes_no_memory_for_the_log(tmp_path: Path) -> None:
    """The writer of a log does that again and again, and what its largest look took it keeps."""
    log = tmp_path / "events.jsonl"
    log.write_bytes(bytes(1 << 23))
    place = Place(log.stat().st_size, crc=crc32(bytes(1 << 23)))
    tracemalloc.start()
    try:
        assert place.is_in(log)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < place.bytes / 8
