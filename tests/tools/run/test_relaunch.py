"""Jobs whose scripts do not use the elastic library: asked to save, started again with another size."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from pliant.schemas.errors import BadInputError
from pliant.schemas.file_io.documents import job_fields, parse_jobs
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.run import run_once, run_until_done
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.contract.plan import Progress, ProgressFile
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.watch.job_page import history
from pliant.tools.run.watch.job_status import status_of
from pliant.tools.run.watch.status import Watcher
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, until

pytestmark = pytest.mark.usefixtures("plain_python")

SCRIPT = '''
"""Trains --steps of eight samples, 10 ms each; saves every --every steps and when it is asked to leave."""
import argparse, os, pathlib, signal, sys, time
from pliant.tools.run.progress import TrainingProgress

options = argparse.ArgumentParser()
options.add_argument("--steps", type=int, default=10**9)
options.add_argument("--every", type=int, default=10**9)
options.add_argument("--gate", default="/", help="no end before this file is there")
options.add_argument("--crash", default="/none", help="crash once this file is there")
options.add_argument("--deaf", action="store_true", help="hear of no stop by file")
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
    step += 1
    with trained.open("a") as file:
        file.write(f"{step}\\n")
    if os.path.exists(options.crash):
        os.remove(options.crash)
        sys.exit("diverged")
    if options.asks and not saved.exists():
        os.kill(os.getpid(), signal.SIGUSR1)
    leaving = progress is not None and progress.step(step, loss=1 / step)
    if leaving or step % options.every == 0:
        save()
        if progress:
            progress.saved(step, seconds=0.001)
    if leaving:
        progress.leave()
if progress:
    progress.done()
'''


def relaunched(site: Site, job_id: str = "a", *words: object, **more: object) -> None:
    site.job(job_id, *words, text=SCRIPT, **{"samples": 1e6, "resize": "relaunch", "elastic": "size", **more})  # type: ignore[arg-type]
    site.jobs[-1] = site.jobs[-1].model_copy(update={"workdir": str(site.folder)})


def rigid(site: Site, *words: object, **more: object) -> None:
    relaunched(site, "a", *words, resize="in-place", elastic="none", **more)


def newest(site: Site, job_id: str = "a") -> Progress | None:
    return ProgressFile(StateDir(site.state).job(job_id).progress).fresh()


def steps(site: Site) -> list[int]:
    """The steps that were trained, in order."""
    return list(map(int, (site.folder / "trained").read_text().split()))


def details(site: Site, *names: str) -> list[dict[str, object]]:
    return [
        {name: detail[name] for name in names}
        for event in site.events()
        if (detail := event.detail or {}).keys() >= set(names)
    ]


def costs(site: Site, job_id: str = "a") -> dict[object, float]:
    """Seconds that each change of a job cost."""
    return {
        (event.detail or {}).get("after"): event.overhead_seconds
        for event in site.events()
        if event.job == job_id and event.event == "progress" and event.overhead_seconds is not None
    }


def once(*steps: tuple[Callable[[RunLog], bool], Callable[[], object]]) -> runner.View:
    """A view that takes one step after the other, each as soon as its condition holds."""
    left = [*steps]

    def view(log: RunLog, now_s: float) -> None:
        if left and left[0][0](log):
            left.pop(0)[1]()

    return view


def told(site: Site, after: str) -> Callable[[RunLog], bool]:
    return lambda _: any((event.detail or {}).get("after") == after for event in site.events())


def trains(log: RunLog) -> bool:
    return "a" in log.jobs and log.jobs["a"].samples_done > 0


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_job_states_that_it_is_resized_by_a_relaunch_and_older_versions_see_that() -> None:
    line = '{"id": "a", "model": "m", "gpus": {"requested": 2, "min": 1, "max": 4}, "resize": "relaunch"}'
    (job,) = parse_jobs(line.encode(), "jobs.jsonl")
    assert (job.elastic, job.min_gpus, job.max_gpus(8), job.minor) == ("size", 1, 4, 3)
    assert job_fields(job)["elastic"] == "size"
    for elastic in ("none", "size+batch"):
        text = f'{line[:-1]}, "elastic": "{elastic}"}}'
        with pytest.raises(BadInputError, match="contradicts the resize 'relaunch', expected 'size'"):
            parse_jobs(text.encode(), "jobs.jsonl")


def test_a_resize_asks_for_a_save_and_goes_on_from_there_with_the_new_size(site: Site) -> None:
    first = site.folder / "shrunk"
    relaunched(site, "a", "--steps", 40, "--gate", site.gate, samples=40 * 8, high=2)
    options = site.options()
    later = site.job("b", "--gate", first, samples=100, high=1)
    log, _ = run_until_done(
        options,
        once(
            (told(site, "start"), lambda: submit(site.state, [later], "t", folder=site.folder, now_s=0.0)),
            (told(site, "shrink"), first.touch),
            (told(site, "grow"), site.gate.touch),
        ),
    )
    assert site.of("a") == ["submit a", "start a 2", "shrink a 1", "grow a 2", "finish a 0"]
    trained = steps(site)
    assert trained == list(range(1, len(trained) + 1)), "no step is trained twice, none is left out"
    assert log.jobs["a"].samples_done == 8 * len(trained)
    assert [each["mechanism"] for each in details(site, "mechanism")] == ["relaunched"] * 2
    assert [each["workers"] for each in details(site, "first_step", "workers")] == [1, 1, 1]
    found = costs(site)
    assert set(found) == {"start", "shrink", "grow"}
    assert all(seconds > 0 for seconds in found.values())


@pytest.mark.parametrize("resize", ["relaunch", "in-place"])
def test_a_preempted_script_saves_and_goes_on_without_a_lost_step(site: Site, resize: str) -> None:
    """A rigid one, too, if it reports."""
    more = {"high": 2} if resize == "relaunch" else {"elastic": "none"}
    relaunched(site, "a", "--steps", 30, "--gate", site.gate, resize=resize, **more)
    policy = "fair-share" if resize == "relaunch" else "fifo"
    log, _ = run_until_done(site.options(policy), once((told(site, "start"), interrupt)))
    saved = newest(site)
    assert log.jobs["a"].phase == "preempted"
    assert saved is not None
    assert (saved.ended, saved.checkpoint and saved.checkpoint.step) == ("stopped", saved.step)
    site.gate.touch()
    log, _ = run_until_done(site.options(None), once())
    trained = steps(site)
    assert (log.jobs["a"].phase, trained) == ("finished", list(range(1, len(trained) + 1)))


def test_work_after_the_last_acknowledged_save_is_lost_and_done_again(site: Site) -> None:
    crash = site.folder / "crash"
    relaunched(site, "a", "--steps", 30, "--every", 150, "--gate", site.gate, "--crash", crash, high=2)

    def beyond(log: RunLog) -> bool:
        found = newest(site)
        return found is not None and found.checkpoint is not None and found.step > found.checkpoint.step

    log, _ = run_until_done(
        site.options(), once((beyond, crash.touch), (told(site, "resume"), site.gate.touch))
    )
    (lost,) = details(site, "lost_samples", "step")
    again = steps(site)
    saved = int(str(lost["step"]))
    assert saved % 150 == 0 < saved
    assert again.count(saved) == 1
    assert again.count(saved + 1) == 2, "it goes on from the save"
    (back,) = (event for event in site.events() if "lost_samples" in (event.detail or {}))
    assert back.samples_done == 8 * saved
    assert log.jobs["a"].phase == "finished"
    said = [each.words for each in history(StateDir(site.state), "a")]
    assert f"went back to its save after step {saved}, {lost['lost_samples']:g} samples lost" in said


def test_a_script_that_does_not_watch_the_file_gets_sigterm_at_once(site: Site) -> None:
    relaunched(site, "a", "--deaf", high=2)
    log, _ = run_until_done(site.options(), once((trains, interrupt)))
    assert (log.jobs["a"].phase, site.of("a")[-1]) == ("preempted", "requeue a 0")


def test_a_rigid_script_that_saves_at_sigterm_and_ends_well_goes_on_later(site: Site) -> None:
    """By its exit code alone it would have finished."""
    rigid(site, "--polite", "--steps", 30, "--gate", site.gate)
    until_saved = site.folder / "trained"
    log, _ = run_until_done(site.options("fifo"), once((lambda _: until_saved.exists(), interrupt)))
    assert log.jobs["a"].phase == "preempted"
    site.gate.touch()
    log, _ = run_until_done(site.options(None), once())
    trained = steps(site)
    assert log.jobs["a"].phase == "finished"
    assert trained == list(range(1, len(trained) + 1))


def test_a_signal_from_outside_saves_and_the_job_goes_on(site: Site) -> None:
    rigid(site, "--asks", "--steps", 20)
    log, _ = run_until_done(site.options("fifo"), once())
    assert (log.jobs["a"].phase, steps(site)) == ("finished", list(range(1, 21)))
    (why,) = details(site, "reason", "failures")
    assert why["reason"] == "stopped by somebody else"


def test_under_a_one_shot_run_a_job_is_running_as_soon_as_it_reports(site: Site) -> None:
    relaunched(site, "a", "--steps", 5, "--gate", site.gate, high=2)
    run_once(site.options())
    until(lambda: newest(site) is not None)
    with_reports = Watcher(site.state).look()
    found = status_of(with_reports, "a", time.time())
    assert found is not None
    assert (found.state, found.log.samples_done > 0) == ("running", True)
    site.gate.touch()
    until(lambda: left_running(site.folder) == [])
    log, _ = run_until_done(site.options(None), once())
    assert (log.jobs["a"].phase, log.jobs["a"].samples_done) == ("finished", 8 * steps(site)[-1])
    assert set(costs(site)) == {"start"}, "the launcher that finds it ended knows when it began to train"
