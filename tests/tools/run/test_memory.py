"""A run that never ends keeps the records of jobs that have ended in memory, and nothing else of them."""

import gc
import sys
import tempfile
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final
from zlib import crc32

import pytest

from pliant.schemas.cluster import Cluster, Shares, Team
from pliant.schemas.file_io.events import LogPlace
from pliant.schemas.io import write_cluster
from pliant.schemas.job import Job
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import team_figures, team_spans
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord
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
from tests.tools.run.simulated.nodes import SAMPLES
from tests.tools.run.simulated.workers import SAMPLES_PER_GPU_S
from tests.tools.run.simulated.world import MEMORY, World

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
        spool.ask_to_run(job(f"j{n}", command=(str(script),), workdir=str(folder)) for n in numbers)
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
    monkeypatch.setattr(FairShare, "default_interval_s", 1e-9)  # each turn is a round
    loop = following(tmp_path)
    with loop.state as state:
        run(loop, tmp_path)
        records = [state.log.jobs, loop.session.ended]
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
            spool.ask_to_run([job("held", command=("train.py",))])
        order_jobs(state.dirs.path, "hold", ["held"])
        loop.step()
        cancel(state.dirs.path, ["held"])
        run(loop, tmp_path, 4)
        assert isinstance(loop.session.ended, LazyDict)
        assert loop.session.ended.raw("held") is not None


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


HOUR_S: Final = 600.0
"""Of this day: a sixth of a real one, so that a day has few turns."""
INTERVAL_S: Final = 60.0
TURN_S: Final = 20.0
DAY: Final[Mapping[str, tuple[tuple[float, int, float], ...]]] = {
    "night": ((0.0, 8, 60.0), (0.2, 8, 40.0)),
    "lab": ((6.0, 4, 6.0), (6.5, 8, 4.0), (13.0, 2, 3.0), (13.0, 2, 3.0)),
    "web": ((12.0, 2, 2.0), (12.5, 4, 4.0), (18.0, 8, 8.0)),
}
"""Of each team, jobs: the hour at which one comes, the most GPUs that it can use, GPU-hours."""


def day(*, live: bool) -> Iterator[Job]:
    """The jobs in order of their arrival; live ones state samples and what is to run."""
    for team, jobs in DAY.items():
        for number, (hour, gpus, gpu_hours) in enumerate(jobs):
            gpu_seconds = gpu_hours * HOUR_S
            samples = gpu_seconds * SAMPLES_PER_GPU_S
            command = ("train.py", SAMPLES, str(samples))
            lives = {"command": command, "workdir": "/", "work": {"samples": samples}, "batch": 8}
            work: dict[str, Any] = lives if live else {"gpu_seconds": gpu_seconds}
            yield job(
                f"{team}-{number}", at=hour * HOUR_S, gpus=min(2, gpus), low=1, high=gpus, user=team, **work
            )


def shared() -> Cluster:
    teams = {team: Team(users=(team,), guaranteed={"*": 2}) for team in DAY}
    return cluster(4, 2, 2, slots="cpu").model_copy(update={"shares": Shares(teams=teams)})


def longest_lack_s(run: RunRecord) -> dict[str, float]:
    """By team, the longest time in a row that it held less than its entitlement while a job of it waited."""
    longest = dict.fromkeys(DAY, 0.0)
    now = dict.fromkeys(DAY, 0.0)
    for seconds, standings in team_spans(run):
        for each in standings:
            lacks = each.waiting_jobs > 0 and each.held < each.entitled
            now[each.team] = now[each.team] + seconds if lacks else 0.0
            longest[each.team] = max(longest[each.team], now[each.team])
    return longest


def check(run: RunRecord) -> None:
    assert {each.outcome for each in run.jobs} == {"finished"}
    assert max(longest_lack_s(run).values()) <= 2 * INTERVAL_S
    begun_s = {each.job.id: each.steps[0].time_s - each.submit_s for each in run.jobs}
    assert max(begun_s[f"{team}-0"] for team in ("lab", "web")) <= 2 * INTERVAL_S
    by_team = {each.team: each for each in team_figures(run) if not each.user}
    assert (by_team["night"].borrowed_gpu_hours or 0.0) > HOUR_S / 3600, "nothing was lent"
    assert by_team["web"].deficit_gpu_hours == pytest.approx(0.0, abs=0.2 * HOUR_S / 3600)


@pytest.mark.parametrize("policy", ["shadow-price", "ares"])
def test_lent_gpus_come_back_in_a_replay_and_in_the_real_loop(policy: str, tmp_path: Path):
    run = Run(policy, conditions=Conditions(interval=INTERVAL_S))
    done = replay(inputs(list(day(live=False)), shared()), run)
    write(done.log, done.summary, str(tmp_path / "run.parquet"))
    check(read_run(tmp_path / "run.parquet"))

    with tempfile.TemporaryDirectory(prefix="pliant-day-", dir=MEMORY) as folder:
        world = World(Path(folder).resolve(), nodes=shared())
        world.policy = policy
        begun_s = world.clock.wall()
        jobs = deque(sorted(day(live=True), key=lambda job: job.submit_time))
        world.accepted = {each.id: float(each.command[-1]) for each in jobs}
        try:
            while jobs or world.loop is None or world.loop.state.log.active:
                while jobs and jobs[0].submit_time <= world.clock.wall() - begun_s:
                    world.give(jobs.popleft())
                world.turn(TURN_S)
                assert world.clock.wall() - begun_s < 48 * HOUR_S
            world.settle()
            world.check()
        finally:
            world.close()
        check(read_run(world.dirs.events))
