"""What the owner of a state directory orders while jobs run, wait, or nobody runs anything."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from pliant.schemas.cluster import UserLimit
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import read_schedule, write_cluster, write_schedule
from pliant.tools.run.service.run import run_and_follow, run_once, run_until_done
from pliant.tools.run.service.submit import cancel, order_jobs
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import RunLog
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.watch.job_status import status_of
from pliant.tools.run.watch.status import Watcher, decide_between_runs
from pliant.tools.schedule.decide import Question
from tests.builders import cluster
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, in_order
from tests.tools.run.test_follow import ask, begin, end_all, go_on, nothing, phase, story, trains

pytestmark = pytest.mark.usefixtures("plain_python")


def state_of(site: Site, job_id: str) -> tuple[str, str]:
    """What ``pliant status`` says of a job: its state, and why."""
    found = Watcher(site.state).look(ahead=True)
    job = status_of(found, job_id, found.log.last_s)
    assert job is not None
    return job.state, job.why


def spool(site: Site) -> Spool:
    return Spool(StateDir(site.state))


def test_a_running_job_that_is_held_keeps_its_work_and_goes_on_once_it_is_released(site: Site) -> None:
    seen: list[tuple[str, str]] = []
    saved: list[float] = []

    def look(log: RunLog) -> bool:
        return phase("b", "finished")(log) and left_running(site.folder) == []

    def note() -> None:
        seen.append(state_of(site, "a"))
        saved.append(float((site.state / "jobs" / "a" / "saved-0").read_text()))
        order_jobs(site.state, "release", ["a"])

    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=3000, gpus=2)),
            (trains("a"), lambda: ask(site, "b", samples=20, gpus=2)),
            (phase("b", "waiting"), lambda: order_jobs(site.state, "hold", ["a"])),
            (look, note),
            (phase("a", "finished"), lambda: None),
        ),
    )
    assert in_order(
        ["start a 2", "hold a", "preempt a 0", "start b 2", "finish b 0", "unhold a", "resume a 2"],
        site.story(),
    )
    ((state, why),) = seen
    assert state == "held"
    assert why.startswith("held by ")
    assert " since " in why
    assert 0 < saved[0] < 3000, "it stopped by the protocol"
    assert site.log().jobs["a"].samples_done == 3000
    assert spool(site).requests() == []


def test_a_job_that_is_held_has_no_share(site: Site) -> None:
    run_and_follow(
        begin(site),
        story(
            (nothing, lambda: ask(site, "a", samples=1e6, low=1, high=2)),
            (trains("a"), lambda: ask(site, "b", samples=1e6, low=1, high=2)),
            (lambda log: "b" in log.jobs, lambda: order_jobs(site.state, "hold", ["a"])),
            (lambda log: log.jobs["b"].gpus == 2, lambda: None),
        ),
    )
    assert site.log().jobs["a"].gpus == 0
    decided = decide_between_runs(str(site.state), Question("fair-share"))
    assert [verdict.reason for verdict in decided.waiting if verdict.job == "a"] == [
        f"held by {(site.log().jobs['a'].held or ('',))[0]}"
    ]
    end_all(site, "a", "b")


def test_until_done_waits_for_jobs_that_are_held(site: Site) -> None:
    site.job("a", samples=2000)
    site.job("b", samples=20)
    options = site.options("fifo")
    (site.state).mkdir(mode=0o700)
    write_schedule(read_schedule(options.schedule or ""), site.state / "schedule.json")
    order_jobs(site.state, "hold", ["a"])
    (site.state / "schedule.json").unlink()
    turns = 0

    def view(log: RunLog, now_s: float) -> None:
        nonlocal turns
        turns += phase("b", "finished")(log) and not left_running(site.folder)
        if turns == 5:
            order_jobs(site.state, "release", ["a"])

    log, _ = run_until_done(options, view)
    assert {job_id: job.phase for job_id, job in log.jobs.items()} == {"a": "finished", "b": "finished"}
    assert turns >= 5


def test_an_order_waits_in_the_spool_where_nobody_runs_the_directory(site: Site) -> None:
    with pytest.raises(UsageError, match="no state directory"):
        order_jobs(site.state, "hold", ["a"])
    ask(site, "a", samples=20)
    ask(site, "b", samples=20)
    order_jobs(site.state, "hold", ["a"])
    (path,) = StateDir(site.state).spool.glob("*.order.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "has ordered to hold it" in state_of(site, "a")[1]
    run_and_follow(begin(site, "fifo"), story((phase("b", "finished"), lambda: None)))
    assert site.of("a") == ["submit a", "hold a"]
    assert state_of(site, "a")[0] == "held"
    order_jobs(site.state, "release", ["a"])
    assert state_of(site, "a")[1].endswith("has ordered to release it")
    run_and_follow(go_on(site), story((phase("a", "finished"), lambda: None)))
    assert site.of("a")[1:] == ["hold a", "unhold a", "start a 1", "finish a 0"]
    with pytest.raises(UsageError, match="has no job c, d: nothing was ordered"):
        order_jobs(site.state, "hold", ["b", "c", "d"])
    assert order_jobs(site.state, "hold", ["a"]) == ["a"]
    assert spool(site).requests() == [], "a job that has ended stays as it is"


def cron(site: Site) -> None:
    """``pliant schedule --state | pliant run --state``."""
    nodes, path = str(site.folder / "cluster.json"), site.folder / "decided.json"
    write_schedule(decide_between_runs(str(site.state), Question("fifo"), cluster=nodes), path)
    run_once(replace(go_on(site), schedule=str(path)))


def test_cron_sees_orders_before_the_run_writes_them_down(site: Site) -> None:
    ask(site, "a", samples=1e6, gpus=2)
    ask(site, "b", samples=1e6, gpus=2)
    order_jobs(site.state, "priority", ["b"], priority=1.0)
    cron(site)
    assert in_order(["submit a", "submit b", "priority b", "start b 2"], site.story())
    order_jobs(site.state, "hold", ["b"])
    cron(site)
    assert (site.log().jobs["a"].phase, site.log().jobs["b"].phase) == ("running", "preempted")
    end_all(site, "a", "b")


def test_a_schedule_that_was_made_before_a_job_was_held_does_not_start_it(site: Site) -> None:
    site.job("a", samples=1e6)
    options = site.options("fifo")
    site.state.mkdir(mode=0o700)
    write_schedule(read_schedule(options.schedule or ""), site.state / "schedule.json")
    order_jobs(site.state, "hold", ["a"])
    run_once(options)  # the job arrives with this schedule, the order waited for it
    run_once(options)
    assert site.log().jobs["a"].gpus == 0
    assert left_running(site.folder) == []


def test_an_order_is_executed_once_wherever_a_run_is_killed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def killed(*_: object) -> None:
        raise KilledError

    ask(site, "a", samples=1e6)
    run_and_follow(begin(site, "fifo"), story((trains("a"), lambda: None)))
    for action in ("hold", "release", "hold"):
        order_jobs(site.state, action, ["a"])
    settled = Spool.settle
    monkeypatch.setattr(Spool, "settle", lambda self, log, *more: killed() if log.executed else None)
    with pytest.raises(KilledError):
        run_and_follow(go_on(site), lambda log, now_s: None)
    monkeypatch.setattr(Spool, "settle", settled)
    assert len(spool(site).requests()) == 3, "all is in the log, and the files are still there"
    order_jobs(site.state, "release", ["a"])
    run_and_follow(go_on(site), story((lambda log: log.jobs["a"].held is None, lambda: None)))
    assert [line for line in site.of("a") if "hold" in line] == [
        *("hold a", "unhold a", "hold a", "unhold a"),
    ]
    assert spool(site).requests() == []
    end_all(site, "a")


def test_a_cancelled_job_takes_its_orders_with_it(site: Site) -> None:
    ask(site, "a", samples=20)
    order_jobs(site.state, "hold", ["a"])
    cancel(site.state, ["a"])
    assert [request for request in spool(site).requests() if request.order] == []
    ask(site, "a", samples=20)
    run_and_follow(begin(site, "fifo"), story((phase("a", "finished"), lambda: None)))
    assert site.of("a") == ["submit a", "start a 1", "finish a 0"]


def test_an_order_about_a_job_that_the_log_has_lost_is_dropped(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    ask(site, "a", samples=20)
    order_jobs(site.state, "hold", ["a"])
    (submission,) = StateDir(site.state).spool.glob("*.jobs.jsonl")
    submission.unlink()
    ask(site, "b", samples=20)
    run_and_follow(begin(site, "fifo"), story((phase("b", "finished"), lambda: None)))
    assert "there is no job a any more" in caplog.text
    assert spool(site).requests() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_nobody_else_orders_anything(site: Site) -> None:
    ask(site, "a", samples=20)
    os.chown(site.state, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to"):
        order_jobs(site.state, "hold", ["a"])
    os.chown(site.state, 0, 0)


def test_a_job_that_is_given_a_higher_priority_overtakes_and_the_log_keeps_it(site: Site) -> None:
    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=1e6, gpus=2)),
            (trains("a"), lambda: ask(site, "b", samples=20, gpus=2)),
            (phase("b", "waiting"), lambda: ask(site, "c", samples=20, gpus=2)),
            (phase("c", "waiting"), lambda: order_jobs(site.state, "priority", ["c"], priority=2.0)),
            (lambda log: log.jobs["c"].job.priority == 2.0, lambda: cancel(site.state, ["a"])),
            (phase("b", "finished"), lambda: None),
        ),
    )
    assert in_order(["priority c", "cancel a 0", "start c 2", "finish c 0", "start b 2"], site.story())
    found = decide_between_runs(str(site.state), Question("fifo"))
    assert found.jobs == ()
    assert status_of(Watcher(site.state).look(), "c", 0.0).log.job.priority == 2.0  # type: ignore[union-attr]


def test_a_job_beyond_the_limit_of_its_user_says_so_and_starts_when_another_one_has_ended(site: Site) -> None:
    nodes = cluster(4, slots="cpu").model_copy(update={"user_limits": {"alice": UserLimit(gpus=2)}})
    write_cluster(nodes, site.folder / "cluster.json")
    why: list[str] = []
    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=1e6, gpus=2, user="alice")),
            (trains("a"), lambda: ask(site, "b", samples=20, user="alice")),
            (phase("b", "waiting"), lambda: ask(site, "c", samples=20, gpus=2, user="bob")),
            (phase("c", "finished"), lambda: why.append(state_of(site, "b")[1])),
            (nothing, lambda: cancel(site.state, ["a"])),
            (phase("b", "finished"), lambda: None),
        ),
    )
    assert why == ["beyond the limit of user alice: 2 GPUs"]
    with pytest.raises(BadInputError, match='requests 3 GPUs, user "alice" may hold 2'):
        ask(site, "d", gpus=3, user="alice")
