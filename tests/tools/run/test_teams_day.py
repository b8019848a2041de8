"""A day of three teams, in the real loop on simulated nodes and in a replay: what is lent comes back."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from pliant.schemas.cluster import Cluster, Shares, Team
from pliant.schemas.job import Job
from pliant.tools.replay.inputs import inputs
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import write
from pliant.tools.replay.run import Run, replay
from pliant.tools.report.metrics import team_figures, team_spans
from pliant.tools.report.read_run import read_run
from pliant.tools.report.records import RunRecord
from tests.builders import cluster, job
from tests.tools.run.simulated.nodes import SAMPLES
from tests.tools.run.simulated.workers import SAMPLES_PER_GPU_S
from tests.tools.run.simulated.world import MEMORY, World

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
