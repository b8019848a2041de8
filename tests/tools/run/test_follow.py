import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_schedule
from pliant.tools.run.service import run as runner
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_and_follow, run_until_done
from pliant.tools.run.service.submit import cancel, submit
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.policies.fifo import Fifo
from tests.tools.run.conftest import left_running
from tests.tools.run.site import QUICK, Site, in_order

Condition = Callable[[RunLog], bool]
Step = tuple[Condition, Callable[[], object]]


pytestmark = pytest.mark.usefixtures("plain_python")


def begin(site: Site, policy: str = "fair-share", **more: object) -> RunOptions:
    path = str(site.folder / "cluster.json")
    return RunOptions(site.state, question=Question(policy), cluster=path, timeouts=QUICK, **more)  # type: ignore[arg-type]


def go_on(site: Site, policy: str | None = None) -> RunOptions:
    return RunOptions(site.state, question=(policy and Question(policy)) or None, timeouts=QUICK)


def ask(site: Site, job_id: str, *words: object, **more: object) -> None:
    site.jobs.clear()
    spec = site.job(job_id, *words, **more)  # type: ignore[arg-type]
    submit(site.state, [spec], "jobs", folder=site.folder, now_s=0.0)


def story(*steps: Step | Condition) -> runner.View:
    """A view that takes one step after the other, each as soon as its condition holds; then it leaves.

    A condition alone is waited for.
    """
    ahead = [step if isinstance(step, tuple) else (step, lambda: None) for step in steps]
    ahead.append((nothing, lambda: signal.raise_signal(signal.SIGTERM)))

    def view(log: RunLog, now_s: float) -> None:
        if ahead and ahead[0][0](log):
            ahead.pop(0)[1]()

    return view


def never(log: RunLog) -> bool:
    return False


def phase(job_id: str, *wanted: str) -> Condition:
    return lambda log: job_id in log.jobs and log.jobs[job_id].phase in wanted


def trains(job_id: str) -> Condition:
    return lambda log: phase(job_id, "running")(log) and log.jobs[job_id].samples_done > 0


def nothing_runs(site: Site) -> Condition:
    return lambda log: left_running(site.folder) == []


def nothing(log: RunLog) -> bool:
    return True


def end_all(site: Site, *job_ids: str) -> None:
    cancel(site.state, job_ids)
    run_and_follow(go_on(site), story(nothing_runs(site)))


def test_jobs_are_taken_up_run_and_cancelled_while_it_lives(site: Site) -> None:
    _, stopped_by = run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=1e6, gpus=2)),
            (trains("a"), lambda: ask(site, "b", gpus=2)),
            (phase("b", "waiting"), lambda: ask(site, "c", at=9e9)),
            (nothing, lambda: ask(site, "d", samples=20, gpus=2)),
            (phase("d", "waiting"), lambda: cancel(site.state, ["b", "c"])),
            (phase("c", "cancelled"), lambda: cancel(site.state, ["a"])),
            phase("d", "finished"),
        ),
    )
    assert stopped_by == signal.SIGTERM
    assert site.of("b") == ["submit b", "cancel b 0"]
    assert site.of("c") == ["submit c", "cancel c 0"]
    assert in_order(["start a 2", "submit d", "cancel a 0", "start d 2", "finish d 0"], site.story())
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0, "it stopped by the protocol"
    assert Spool(StateDir(site.state)).requests() == []


def test_jobs_train_on_until_the_next_loop_takes_them_up(site: Site) -> None:
    run_and_follow(begin(site), story((nothing, lambda: ask(site, "a", samples=1e6, high=2)), trains("a")))
    assert left_running(site.folder) != []
    ask(site, "b", samples=20, high=1)
    run_and_follow(go_on(site), story(phase("b", "finished")))
    assert in_order(["start a 2", "shrink a 1", "start b 1", "finish b 0"], site.story())
    run_and_follow(go_on(site, "las"), story(trains("a")))
    assert read_schedule(site.state / "schedule.json").policy.name == "las"
    decisions = [(event.detail or {}).get("policy") for event in site.events() if event.event == "decision"]
    assert decisions[-1] == "las"
    assert "requeue a 0" not in site.story()
    end_all(site, "a")


def test_a_run_is_begun_with_a_cluster_and_goes_on_with_its_own(site: Site) -> None:
    with pytest.raises(UsageError, match="holds no run: name its --cluster"):
        run_and_follow(RunOptions(site.state, question=Question("fifo")), story())
    assert not site.state.exists()
    run_and_follow(begin(site), story())
    run_and_follow(begin(site), story())
    site.job("a")
    with pytest.raises(UsageError, match="began with other jobs: name no schedule"):
        run_and_follow(RunOptions(site.state, site.schedule()), story())


def test_a_loop_that_goes_on_passes_on_new_events_alone(site: Site) -> None:
    passed: list[str] = []

    def sink(events: Sequence[Event]) -> None:
        passed.extend(f"{event.event} {event.job}" for event in events if event.job)

    for job_id, options in (("a", begin(site)), ("b", None)):
        passed.clear()
        steps = [(nothing, lambda job_id=job_id: ask(site, job_id, samples=20)), phase(job_id, "finished")]
        run_and_follow(replace(options or go_on(site), sinks=(sink,)), story(*steps))
        assert passed[:2] == [f"submit {job_id}", f"start {job_id}"]
    assert not [line for line in passed if line.endswith(" a")]
    run_until_done(replace(go_on(site), sinks=(sink,)), lambda *_: None)
    assert "submit a" in passed, "a report needs all of them"


def test_a_policy_that_cannot_explain_or_save_itself_is_obeyed(site: Site, monkeypatch, caplog) -> None:
    monkeypatch.setattr(Fifo, "explain", lambda self, snapshot: 1 / 0)
    monkeypatch.setattr(Fifo, "dump_state", lambda self: {"queue": object()})
    run_and_follow(begin(site, "fifo"), story((nothing, lambda: ask(site, "a")), phase("a", "finished")))
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]
    assert "ZeroDivisionError: division by zero; the schedule does without" in caplog.text
    assert len({line for line in caplog.messages if "the schedule does without" in line}) == 2
