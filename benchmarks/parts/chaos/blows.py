"""What a storm does to a state directory and to whatever works on it. Each is one blow, with its weight."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psutil

from benchmarks.parts.chaos.hostile import HOSTILE, written
from benchmarks.parts.chaos.storm import MOST_ALIVE, Storm
from pliant.schemas.errors import PliantError
from pliant.schemas.io import read_jobs
from pliant.schemas.job import Job
from pliant.tools.run.service.submit import cancel, submit
from tests.builders import job
from tests.tools.run.conftest import left_running

_LAUNCHERS: Final = ("supervisor.py", "run_torchrun.py")


def submit_one(storm: Storm) -> None:
    """A new job, unless enough of them are alive."""
    if storm.alive() >= MOST_ALIVE:
        return
    spec, samples = _job(storm, storm.new_id())
    _give(storm, spec, samples)


def _job(storm: Storm, job_id: str, **more: Any) -> tuple[Job, float]:
    high = storm.chance.choice((1, 2, 3))
    if len(storm.wanted) % storm.elastic_every == storm.elastic_every - 1:
        epochs = storm.chance.randint(2, 6)
        command, samples = (storm.elastic, str(epochs)), 64.0 * epochs
    else:
        samples = float(storm.chance.randrange(100, 3000, 10))
        command = (storm.script, "--samples", str(samples))
    fields = {"checkpoint_seconds": 0.5, "command": command, "work": {"samples": samples}, **more}
    return job(job_id, batch=8, high=high, **fields), samples


def _give(storm: Storm, spec: Job, samples: float | None) -> None:
    """Submit a job; what is refused was not acknowledged and counts for nothing."""
    try:
        submit(storm.dirs.path, [spec], "storm", folder=storm.folder, now_s=time.time())
    except PliantError:
        storm.done["refused submission"] += 1
    else:
        storm.wanted[spec.id] = samples
        storm.done["submission"] += 1


def submit_hostile(storm: Storm) -> None:
    """A job that is wrong in some way. It may be refused; if it is accepted, it may not harm the others."""
    hostile = storm.chance.choice(HOSTILE)
    path = written(storm.folder, storm.new_id(), f"{storm.script} --samples 10", **hostile)
    try:
        (spec,) = read_jobs(path)
    except PliantError:
        storm.done["refused submission"] += 1
    else:
        _give(storm, spec, None)


def cancel_one(storm: Storm) -> None:
    if storm.wanted:
        victim = storm.chance.choice(sorted(storm.wanted))
        cancel(storm.dirs.path, [victim])
        storm.cancelled.add(victim)
        storm.done["cancellation"] += 1


def remove_workdir(storm: Storm) -> None:
    """A job whose folder is removed, before its start or while it trains: it finishes, or fails."""
    job_id = storm.new_id()
    folder = storm.folder / f"work-{job_id}"
    folder.mkdir()
    spec, _ = _job(storm, job_id, workdir=str(folder))
    _give(storm, spec, None)
    time.sleep(storm.chance.uniform(0, 1.0))
    with suppress(OSError):  # something may lie in it
        folder.rmdir()
        storm.done["removed folder"] += 1


def kill_worker(storm: Storm) -> None:
    _hit(storm, "kill of a worker", psutil.Process.kill)


def stop_launcher(storm: Storm) -> None:
    """What started a worker stands still and never learns how the worker ended."""
    _hit(storm, "stop of a launcher", psutil.Process.suspend, _launches)


def stop_worker(storm: Storm) -> None:
    def pause(process: psutil.Process) -> None:
        process.suspend()
        time.sleep(storm.chance.uniform(0, 2.0))
        process.resume()

    _hit(storm, "stop of a worker", pause, lambda process: not _launches(process))


def _launches(process: psutil.Process) -> bool:
    try:
        return any(word.endswith(_LAUNCHERS) for word in process.cmdline())
    except psutil.Error:
        return False


def _hit(
    storm: Storm,
    what: str,
    act: Callable[[psutil.Process], object],
    chosen: Callable[[psutil.Process], bool] = bool,
) -> None:
    """Do it to one of the chosen processes."""
    victims = [process for process in left_running(storm.folder) if chosen(process)]
    if victims:
        with suppress(psutil.NoSuchProcess):
            act(storm.chance.choice(sorted(victims, key=lambda process: process.pid)))
            storm.done[what] += 1


def kill_loop(storm: Storm) -> None:
    """``kill -9`` for the live loop, wherever it is; another one starts, maybe to be killed at once."""
    storm.start_loop()
    storm.kill_loop()
    storm.done["kill of the loop"] += 1
    if storm.chance.random() < 0.7:
        storm.start_loop()


def turn_of_cron(storm: Storm) -> None:
    """Instead of the live loop a call decides and another one executes, and one of them is killed."""
    storm.kill_loop()
    with (storm.folder / "cron.log").open("ab") as log:
        pipes = {"cwd": storm.folder, "env": storm.environment(), "stderr": log}
        state = ("--state", str(storm.dirs.path), "--wait", "60")
        schedule = storm.command("schedule", *state, "--policy", "fair-share")
        deciding = subprocess.Popen(schedule, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **pipes)
        run = storm.command("run", *state, "--retries", "100000")
        executing = subprocess.Popen(run, stdin=deciding.stdout, stdout=subprocess.DEVNULL, **pipes)
        if deciding.stdout is not None:
            deciding.stdout.close()
        time.sleep(storm.chance.uniform(0, 3.0))
        storm.chance.choice((deciding, executing)).kill()
        storm.until(lambda: deciding.poll() is not None and executing.poll() is not None)
    storm.done["turn of cron"] += 1


def kill_node_daemon(storm: Storm) -> None:
    """Slurmd dies, and comes back at once or after Slurm has taken its node for lost."""
    if storm.slurm is not None:
        node = storm.chance.choice(sorted(storm.slurm.gpus))
        storm.slurm.end_node(node)
        time.sleep(storm.chance.choice((0.5, 2.0, 2.0, 14.0)))
        storm.slurm.start_node(node)
        storm.done["kill of slurmd"] += 1


def kill_controller(storm: Storm) -> None:
    """Slurmctld dies or is ended, and comes back."""
    if storm.slurm is not None:
        storm.slurm.end_controller(crash=storm.chance.random() < 0.5)
        time.sleep(storm.chance.uniform(0, 3.0))
        storm.slurm.start_controller()
        storm.done["end of slurmctld"] += 1


def fill_disk(storm: Storm) -> None:
    storm.start_loop()
    storm.disk.fill(storm.pids())
    try:
        submit_one(storm)
        time.sleep(storm.chance.uniform(0, 1.0))
    finally:
        storm.disk.free(storm.pids())
    storm.done["full disk"] += 1
    storm.disk_was_full = True


def damage_log(storm: Storm) -> None:
    """One bit of the log flips. Everything that reads it says so, and it is repaired."""
    storm.kill_loop()
    lines = storm.dirs.events.read_bytes().splitlines(keepends=True)
    hit = [number for number, line in enumerate(lines) if _can_be_lost(line)]
    if not hit:
        return
    number = storm.chance.choice(hit)
    place = storm.chance.randrange(len(lines[number]) - 1)
    line = bytearray(lines[number])
    line[place] ^= 1 << storm.chance.randrange(7)
    storm.dirs.events.write_bytes(b"".join([*lines[:number], bytes(line), *lines[number + 1 :]]))
    status = storm.call("status", "--state", str(storm.dirs.path))
    assert (status.returncode, status.stderr.count("\n")) == (3, 1), status
    repaired = storm.call("log", "--repair", "--state", str(storm.dirs.path))
    assert repaired.returncode == 0, repaired
    assert "dropped" in repaired.stdout, repaired
    storm.done["damaged log"] += 1


def _can_be_lost(line: bytes) -> bool:
    """Whether an event can be found again: a submission or a cancellation is nowhere else."""
    kept = (b'"submit"', b'"cancel"', b'"decision"', b'"schema"')
    return line.endswith(b"\n") and not any(word in line for word in kept)


Blow = Callable[[Storm], None]
BLOWS: Final[dict[Blow, int]] = {
    submit_one: 8,
    cancel_one: 3,
    kill_worker: 4,
    kill_loop: 2,
    Storm.end_loop: 1,
    submit_hostile: 3,
    remove_workdir: 1,
    stop_launcher: 2,
    fill_disk: 1,
    damage_log: 1,
    stop_worker: 2,
    turn_of_cron: 1,
}
"""Everything that a storm does, and how often compared with the others."""
ON_SLURM: Final[dict[Blow, int]] = {**BLOWS, kill_node_daemon: 2, kill_controller: 1}
"""Everything, where the jobs are steps of a Slurm."""
