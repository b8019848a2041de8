"""Jobs whose scripts do not use the elastic library: asked to save, started again with another size."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import job_fields, parse_jobs
from pliant.tools.profile.torchrun.start import is_usage_error
from pliant.tools.run.progress import TrainingProgress
from pliant.tools.run.service.commands import read_plan
from pliant.tools.run.service.run import run_once, run_until_done
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.contract.folders import JobDir
from pliant.tools.run.statedir.contract.plan import PROTOCOL, Plan, Progress, ProgressFile, request_stop
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.watch.job_page import history
from pliant.tools.run.watch.job_status import status_of
from pliant.tools.run.watch.status import Watcher
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, until
from tests.tools.run.test_follow import Condition, Step, never, story

pytestmark = pytest.mark.usefixtures("plain_python", "own_notices")

SCRIPT = '''
"""Trains --steps of eight samples, 10 ms each; saves every --every steps and when it is asked to leave."""
import argparse, os, pathlib, signal, sys, time
from pliant.tools.run.progress import TrainingProgress

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=10**9)
options.add_argument("--every", type=int, default=10**9)
options.add_argument("--gate", default="/", help="no end before this file is there")
options.add_argument("--crash", default="/none", help="crash once this file is there")
options.add_argument("--deaf", action="store_true", help="watch no file that asks to stop")
options.add_argument("--polite", action="store_true", help="save and leave at SIGTERM, and report nothing")
options.add_argument("--asks", action="store_true", help="ask itself to stop by SIGUSR1, once")
options = options.parse_args()
saved, trained = pathlib.Path("saved"), pathlib.Path("trained")
if options.deaf:
    del os.environ["PLIANT_STOP"]
step = int(saved.read_text()) if saved.exists() else 0
progress = TrainingProgress(8) if not options.polite else None


def save(*_):
    saved.write_text(str(step))


def leave(*_):
    save()
    sys.exit()


if options.polite:
    signal.signal(signal.SIGTERM, leave)
while step < options.steps or not os.path.exists(options.gate):
    time.sleep(0.01)
    if options.asks and not saved.exists():
        signal.raise_signal(signal.SIGUSR1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # no handler sees half a step
    step += 1
    with trained.open("a") as file:
        file.write(f"{step}\\n")
    if os.path.exists(options.crash):
        os.remove(options.crash)
        sys.exit("diverged")
    leaving = progress is not None and progress.step(step, loss=1 / step)
    if leaving or step % options.every == 0:
        save()
        if progress:
            progress.saved(step, seconds=0.001)
    if leaving:
        progress.leave()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
if progress:
    progress.done()
'''


RIGID = {"resize": "in-place", "elastic": "none", "high": None}


def relaunched(site: Site, *words: object, **more: object) -> None:
    fields = {"samples": 1e6, "resize": "relaunch", "elastic": "size", "high": 2, **more}
    site.job("a", *words, text=SCRIPT, workdir=str(site.folder), **fields)  # type: ignore[arg-type]


def newest(site: Site) -> Progress | None:
    return ProgressFile(StateDir(site.state).job("a").progress).fresh()


def steps(site: Site) -> list[int]:
    return list(map(int, (site.folder / "trained").read_text().split()))


def without_gap(site: Site) -> int:
    """How many steps were trained; none twice, and none was left out."""
    trained = steps(site)
    assert trained == list(range(1, len(trained) + 1))
    return len(trained)


def details(site: Site, *names: str) -> list[dict[str, object]]:
    return [
        {name: detail[name] for name in names}
        for event in site.events()
        if (detail := event.detail or {}).keys() >= set(names)
    ]


def costs(site: Site) -> dict[object, float]:
    return {(e.detail or {}).get("after"): e.overhead_seconds for e in site.events() if e.overhead_seconds}


def run(site: Site, policy: str | None, *steps: Step) -> JobLog:
    """Run until all is done; each step is taken once its condition holds. Returns the record of the job."""
    return run_until_done(site.options(policy), story(*steps, never))[0].jobs["a"]


def after(site: Site, change: str) -> Condition:
    """Whether the job has trained since it started, shrank, …"""
    return lambda _: any((event.detail or {}).get("after") == change for event in site.events())


def interrupt() -> None:
    signal.raise_signal(signal.SIGTERM)


def test_a_job_file_states_the_resize_and_its_contradictions() -> None:
    line = '{"id": "a", "model": "m", "gpus": {"requested": 2, "min": 1, "max": 4}, "resize": "relaunch"}'
    (job,) = parse_jobs(line.encode(), "jobs.jsonl")
    assert (job.elastic, job.min_gpus, job.max_gpus(8), job.minor) == ("size", 1, 4, 3)
    assert job_fields(job)["elastic"] == "size"
    for elastic in ("none", "size+batch"):
        text = f'{line[:-1]}, "elastic": "{elastic}"}}'
        with pytest.raises(BadInputError, match="contradicts the resize 'relaunch', expected 'size'"):
            parse_jobs(text.encode(), "jobs.jsonl")


def test_a_resize_asks_for_a_save_and_goes_on_from_there(site: Site) -> None:
    shrunk = site.folder / "shrunk"
    relaunched(site, "--steps", 40, "--gate", site.gate, samples=40 * 8)
    later = site.job("b", "--gate", shrunk, samples=100, high=1)
    site.jobs.pop()
    found = run(
        site,
        "fair-share",
        (after(site, "start"), lambda: submit(site.state, [later], "t", folder=site.folder, now_s=0.0)),
        (after(site, "shrink"), shrunk.touch),
        (after(site, "grow"), site.gate.touch),
    )
    assert site.of("a") == ["submit a", "start a 2", "shrink a 1", "grow a 2", "finish a 0"]
    assert found.samples_done == 8 * without_gap(site)
    assert [each["mechanism"] for each in details(site, "mechanism")] == ["relaunched"] * 2
    assert [each["workers"] for each in details(site, "first_step", "workers")] == [1, 1, 1]
    assert set(costs(site)) == {"start", "shrink", "grow"}


@pytest.mark.parametrize("kind", ["relaunched", "rigid", "rigid, reports nothing"])
def test_a_preempted_script_saves_and_loses_no_step(site: Site, kind: str) -> None:
    """One that reports nothing saves at SIGTERM; by its exit code alone it would have finished."""
    reports, fields = kind != "rigid, reports nothing", {} if kind == "relaunched" else RIGID
    relaunched(site, "--steps", 30, "--gate", site.gate, *([] if reports else ["--polite"]), **fields)
    trains = after(site, "start") if reports else lambda _: (site.folder / "trained").exists()
    found = run(site, "fair-share" if kind == "relaunched" else "fifo", (trains, interrupt))
    assert found.phase == "preempted"
    if reports:
        saved = newest(site)
        assert saved is not None
        assert (saved.ended, saved.checkpoint and saved.checkpoint.step) == ("stopped", saved.step)
    site.gate.touch()
    assert run(site, None).phase == "finished"
    without_gap(site)


def test_work_after_the_last_acknowledged_save_is_done_again(site: Site) -> None:
    crash = site.folder / "crash"
    relaunched(site, "--steps", 30, "--every", 150, "--gate", site.gate, "--crash", crash)

    def beyond(_log: RunLog) -> bool:
        found = newest(site)
        return found is not None and found.checkpoint is not None and found.step > found.checkpoint.step

    found = run(site, "fair-share", (beyond, crash.touch), (after(site, "resume"), site.gate.touch))
    assert found.phase == "finished"
    (lost,) = details(site, "lost_samples", "step")
    again = steps(site)
    saved = int(str(lost["step"]))
    assert saved % 150 == 0 < saved
    assert (again.count(saved), again.count(saved + 1)) == (1, 2), "it goes on from the save"
    (back,) = (event for event in site.events() if "lost_samples" in (event.detail or {}))
    assert back.samples_done == 8 * saved
    lines = [each.words for each in history(StateDir(site.state), "a")]
    assert f"went back to its save after step {saved}, {lost['lost_samples']:g} samples lost" in lines


def test_a_script_that_watches_no_file_gets_sigterm_at_once(site: Site) -> None:
    relaunched(site, "--deaf")
    found = run(site, "fair-share", (lambda log: log.jobs["a"].samples_done > 0, interrupt))
    assert (found.phase, site.of("a")[-1]) == ("preempted", "requeue a 0")


def test_a_signal_from_outside_saves_and_the_job_goes_on(site: Site) -> None:
    relaunched(site, "--asks", "--steps", 20, **RIGID)
    assert (run(site, "fifo").phase, without_gap(site)) == ("finished", 20)
    (why,) = details(site, "reason", "failures")
    assert why["reason"] == "stopped by somebody else"


def test_after_a_one_shot_run_a_job_runs_once_it_reports(site: Site) -> None:
    relaunched(site, "--steps", 5, "--gate", site.gate)
    run_once(site.options())
    until(lambda: newest(site) is not None)
    shown = status_of(Watcher(site.state).look(), "a", time.time())
    assert shown is not None
    assert (shown.state, shown.log.samples_done > 0) == ("running", True)
    site.gate.touch()
    until(lambda: left_running(site.folder) == [])
    found = run(site, None)
    assert (found.phase, found.samples_done) == ("finished", 8 * steps(site)[-1])
    assert set(costs(site)) == {"start"}, "the launcher that finds it ended knows when it began to train"


NOTICES = (signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    plan = Plan(job="a", generation=3, attempt=2, members=(), progress_s=1e-9)
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    (tmp_path / "stop").touch()
    return tmp_path


def rank(job: Path, number: int = 0, workers: int = 1, **more: str) -> TrainingProgress:
    paths = {"PLIANT_PROGRESS": str(job / "progress.json"), "PLIANT_STOP": str(job / "stop")}
    return TrainingProgress(environ={"RANK": str(number), "WORLD_SIZE": str(workers), **paths, **more})


def written(job: Path) -> Progress:
    return Progress.model_validate_json((job / "progress.json").read_bytes())


def test_the_file_says_how_far_it_is_and_what_is_saved(job: Path) -> None:
    progress = rank(job, PLIANT_BATCH="16")
    assert progress.step(1, loss=2.0, epoch=0) is False
    assert progress.step(2, loss=math.nan, epoch=1) is False
    found = written(job)
    assert (found.job, found.attempt, found.generation, found.gpus) == ("a", 2, 3, 1)
    assert (found.step, found.samples_done, found.global_batch, found.epoch) == (2, 32.0, 16, 1)
    assert (found.loss, found.checkpoint, found.watches_stop, found.ended) == (None, None, True, None)
    progress.saved(2, seconds=0.5)
    saved = written(job).checkpoint
    assert saved is not None
    assert (saved.step, saved.samples_done, saved.seconds) == (2, 32.0, 0.5)
    progress.done()
    assert written(job).ended == "done"


def test_all_ranks_leave_after_one_step_under_any_plan(job: Path) -> None:
    first, second = rank(job, 0, 2), rank(job, 1, 2)
    assert [first.step(5), second.step(5)] == [False, False]
    request_stop(job / "stop")
    assert second.step(6) is False, "rank 0 names the step"
    assert first.step(6) is False
    assert (first.stopping, second.stopping) == (True, True)
    request_stop(job / "stop")  # a launcher that takes over asks again
    assert [second.step(7), first.step(7)] == [True, True]
    first.saved(7)
    assert written(job).ended == "stopped"
    # A plan of a former version states no protocol.
    path = job / "plan.json"
    for protocol in (None, PROTOCOL):
        plan = Plan.model_validate_json(path.read_bytes()).model_copy(update={"protocol": protocol})
        path.write_text(plan.model_dump_json())
        assert ("protocol" in json.loads(path.read_text())) == (protocol is not None)
        read = read_plan(JobDir(job))
        assert read is not None
        assert read.protocol == protocol


@pytest.mark.parametrize("notice", NOTICES)
def test_a_signal_to_any_rank_is_a_request_to_stop(job: Path, notice: signal.Signals) -> None:
    first = rank(job, 0, 2)
    for number in NOTICES:
        signal.signal(number, signal.SIG_DFL)
    second = rank(job, 1, 2)
    signal.raise_signal(notice)
    assert [second.step(1), first.step(1), second.step(2), first.step(2)] == [False, False, True, True]


def test_the_batch_is_kept_or_the_job_ends_with_the_reason(job: Path, capsys) -> None:
    kept = {size: rank(job, 0, size, PLIANT_BATCH="32").accumulate(4, own=1) for size in (1, 2, 4, 8)}
    assert kept == {1: 8, 2: 4, 4: 2, 8: 1}
    assert rank(job, 0, 2).accumulate(4, own=3) == 3, "a job that states no batch leaves it to the script"
    assert capsys.readouterr().err == ""
    for per_rank, advice in (
        (4, 'let it have "sizes": [1, 2, 4, 8] in its gpus, or give'),
        (64, "each: give"),
    ):
        with pytest.raises(SystemExit, match="2"):
            rank(job, 0, 3, PLIANT_BATCH="32").accumulate(per_rank)
        said = capsys.readouterr().err
        assert "the job's batch of 32 cannot be kept on 3 workers" in said
        assert advice in said
        assert is_usage_error(said.strip()), "it is not tried again"
    (job / "plan.json").write_text(json.dumps({"job": "a"}))
    assert rank(job).step(1) is False, "a report that fails ends no training"
    assert "pliant: no progress is reported" in capsys.readouterr().err


def test_without_a_launcher_it_trains_to_the_end(tmp_path: Path) -> None:
    text = (
        "import sys; from pliant.tools.run.progress import TrainingProgress\n"
        "p = TrainingProgress(8); print(p.step(1), p.saved(1), p.done(), 'torch' in sys.modules, "
        "'pydantic' in sys.modules)"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLIANT")}
    found = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True
    )
    assert found.stdout == "False None None False False\n"
    assert list(tmp_path.iterdir()) == []
