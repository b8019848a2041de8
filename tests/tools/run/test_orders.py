import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from pliant.cli.status import Form, status
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.io import write_cluster, write_schedule
from pliant.schemas.job import Changes
from pliant.tools.run.service.drain_notices import DrainNotices, Notice
from pliant.tools.run.service.run import run_and_follow, run_once, run_until_done
from pliant.tools.run.service.submit import cancel, order_jobs, order_nodes
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.fold import Drain, RunLog
from pliant.tools.run.statedir.requests import Order, Spool
from pliant.tools.run.watch.job_status import status_of, statuses
from pliant.tools.run.watch.status import Watcher, closed_lines, decide_between_runs
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.policies.fifo import Fifo
from tests.builders import cluster
from tests.tools.run.conftest import left_running
from tests.tools.run.scripts import EXIT
from tests.tools.run.site import Site, in_order, until
from tests.tools.run.test_follow import ask, begin, end_all, go_on, never, nothing, phase, story, trains

pytestmark = pytest.mark.usefixtures("plain_python")


@pytest.fixture
def two_nodes(site: Site) -> Site:
    return with_cluster(site, 2, 2)


def with_cluster(site: Site, *slots: int, **more: object) -> Site:
    site.cluster = cluster(*slots, slots="cpu").model_copy(update=more)
    write_cluster(site.cluster, site.folder / "cluster.json")
    return site


def state_of(site: Site, job_id: str) -> tuple[str, str]:
    found = Watcher(site.state).look(ahead=True)
    job = status_of(found, job_id, found.log.last_s)
    assert job is not None
    return job.state, job.why


def requests(site: Site) -> list[object]:
    return [*Spool(StateDir(site.state)).requests()]


def decided(site: Site, nodes: str = "cluster.json") -> str:
    """The first half of the cron line, ``pliant schedule --state``; the path of what it decides."""
    path, cluster_file = site.folder / "decided.json", str(site.folder / nodes)
    write_schedule(decide_between_runs(str(site.state), Question("fifo"), cluster=cluster_file), path)
    return str(path)


def cron(site: Site, schedule: str = "", **more: object) -> None:
    """The cron line, or its second half with a schedule."""
    run_once(replace(go_on(site), schedule=schedule or decided(site), **more))


def placement(site: Site, job_id: str) -> dict[str, int]:
    return dict(site.log().jobs[job_id].placement)


def test_a_held_job_saves_and_goes_on_once_it_is_released(site: Site) -> None:
    saved: list[float] = []

    def is_idle(log: RunLog) -> bool:
        return phase("b", "finished")(log) and left_running(site.folder) == []

    def release() -> None:
        saved.append(float((site.state / "jobs" / "a" / "saved-0").read_text()))
        order_jobs(site.state, "release", ["a"])

    site.job("a", samples=3000, gpus=2)
    log, _ = run_until_done(
        site.options("fifo"),
        story(
            (trains("a"), lambda: ask(site, "b", samples=20, gpus=2)),
            (phase("b", "waiting"), lambda: order_jobs(site.state, "hold", ["a"])),
            *[is_idle] * 5,
            (is_idle, release),
            never,
        ),
    )
    assert in_order(
        ["start a 2", "hold a", "preempt a 0", "start b 2", "finish b 0", "unhold a", "resume a 2"],
        site.story(),
    )
    assert 0 < saved[0] < 3000, "it stopped by the protocol"
    assert log.jobs["a"].samples_done == 3000
    assert requests(site) == []


def test_jobs_are_updated_and_requeued_also_after_their_end(site: Site) -> None:
    """A job that runs starts again where it may not go on, also on the slots that it has had."""

    def attempts(*numbers: int) -> Callable[[RunLog], bool]:
        return lambda log: trains("a")(log) and [*log.jobs["a"].attempt.seen] == [*numbers]

    def refused() -> None:
        with pytest.raises(BadInputError, match='"b" needs 9 GPUs, the cluster has 2'):
            order_jobs(site.state, "update", ["a", "b"], changes=sizes(9))
        with pytest.raises(BadInputError, match="not elastic, so it has one number of GPUs"):
            order_jobs(site.state, "update", ["b", "a"], changes=sizes(1, 2))
        assert requests(site) == [], "all or none"
        order_jobs(site.state, "update", ["a"], changes={"retries": 9, "limits": {"run_seconds": 900.0}})
        order_jobs(site.state, "update", ["a"], changes=sizes(2))
        of_type: Changes = {"gpus": {"types": ["h800"]}}
        nowhere = Order(action="update", job="a", user="u", asked_s=0.0, changes=of_type)
        Spool(StateDir(site.state)).give([nowhere])  # as it would be where the cluster is another since

    def fresh() -> None:
        (StateDir(site.state).job("a").checkpoints / "7").mkdir(parents=True)
        order_jobs(site.state, "requeue", ["a"], from_start=True)

    def again() -> None:
        assert site.log().jobs["c"].attempt.exit_code == 7
        order_jobs(site.state, "requeue", ["c"])

    site.job("a", samples=1e6)
    site.job("b", samples=20)
    site.job("c", 7, text=EXIT, retries=0)
    run_and_follow(
        site.options("fifo"),
        story(
            (attempts(1), refused),
            (attempts(1, 2), lambda: order_jobs(site.state, "requeue", ["a"])),
            (attempts(1, 2, 3), fresh),
            (attempts(1, 2, 3, 4), lambda: cancel(site.state, ["a"])),
            (phase("c", "failed"), again),
            lambda _: site.of("c").count("fail c 0") == 2,
        ),
    )
    starts = ["start a 1", "update a", "requeue a 0", "update a", "update a", "resume a 2", "requeue a 0"]
    assert site.of("a")[1:] == [*starts, "resume a 2", "requeue a 0", "resume a 2", "cancel a 0"]
    assert [line for line in site.of("c") if "c 0" in line] == ["fail c 0", "requeue c 0", "fail c 0"]
    job, files = site.log().jobs["a"], StateDir(site.state).job("a")
    assert job.job.gpus.types is None, "of no GPU of the cluster: it stays as it is"
    assert (job.job.retries, job.job.limits.run_seconds, job.job.gpus.requested) == (9, 900.0, 2)
    assert (files.path / "checkpoints-3" / "7").is_dir()
    assert not files.from_start.exists()
    launches = [json.loads(files.attempt(number).launch.read_bytes()) for number in (1, 2, 3, 4)]
    runs = [launch["units"][0]["env"]["WANDB_RUN_ID"] for launch in launches]
    assert runs[0] == runs[1] == runs[2] != runs[3], "trackers show another run from the start on"
    assert sum(float((event.detail or {}).get("lost_gpu_hours", 0.0)) for event in site.events()) > 0
    assert order_jobs(site.state, "update", ["a", "b"], changes=sizes(1)) == ["a", "b"], "they have ended"


def sizes(least: int, most: int = 0) -> Changes:
    return {"gpus": {"requested": most or least, "min": least, "max": most or least, "sizes": None}}


def test_an_order_waits_in_the_spool_for_the_next_run(site: Site) -> None:
    for job_id in "abc":
        ask(site, job_id, samples=20)
    order_jobs(site.state, "hold", ["a"])
    (path,) = StateDir(site.state).spool.glob("*.order.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "has ordered to hold it" in state_of(site, "a")[1]
    run_and_follow(begin(site, "fifo"), story(phase("c", "finished")))
    assert site.of("a") == ["submit a", "hold a"]
    assert state_of(site, "a")[0] == "held"
    order_jobs(site.state, "release", ["a"])
    assert state_of(site, "a")[1].endswith("has ordered to release it")
    run_and_follow(go_on(site), story(phase("a", "finished")))
    assert site.of("a")[1:] == ["hold a", "unhold a", "start a 1", "finish a 0"]
    with pytest.raises(UsageError, match="has no job d, e: nothing was ordered"):
        order_jobs(site.state, "hold", ["b", "d", "e"])
    assert order_jobs(site.state, "hold", ["a"]) == ["a"]
    assert requests(site) == [], "a job that has ended stays as it is"


def test_cron_sees_orders_before_the_run_writes_them_down(site: Site) -> None:
    ask(site, "a", samples=1e6, gpus=2)
    ask(site, "b", samples=1e6, gpus=2)
    order_jobs(site.state, "priority", ["b"], priority=1.0)
    cron(site)
    assert in_order(["submit a", "submit b", "priority b", "start b 2"], site.story())
    assert site.log().jobs["b"].job.priority == 1.0
    order_jobs(site.state, "hold", ["b"])
    cron(site)
    assert (site.log().jobs["a"].phase, site.log().jobs["b"].phase) == ("running", "preempted")
    end_all(site, "a", "b")


def test_no_job_comes_to_a_drained_node(two_nodes: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site, lines = two_nodes, []

    def look() -> None:
        found = Watcher(site.state).look()
        lines.extend(closed_lines(found, found.log.last_s))
        status(state=site.state, format=Form.json)
        order_nodes(site.state, "resume", ["n0"])

    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=1500, gpus=2)),
            (trains("a"), lambda: order_nodes(site.state, "drain", ["n0"], reason="fans")),
            (lambda log: "n0" in log.drained, lambda: ask(site, "b", samples=1e6, gpus=2)),
            (trains("b"), lambda: ask(site, "c", samples=20, gpus=2)),
            (phase("a", "finished"), look),
            phase("c", "finished"),
        ),
    )
    assert placement(site, "b") == {"n1": 2}
    assert site.of("a") == ["submit a", "start a 2", "finish a 0"], "it was not disturbed"
    assert in_order(["drain None", "finish a 0", "undrain None", "start c 2"], site.story())
    (line,) = lines
    assert line.startswith("node n0 is drained by ")
    assert line.endswith(": fans")
    (drained,) = json.loads(capsys.readouterr().out)["drained_nodes"]
    assert (drained["node"], drained["reason"], drained["now"], drained["jobs"]) == ("n0", "fans", False, [])
    end_all(site, "b")


def test_unknown_nodes_are_refused_and_others_wait_in_the_spool(two_nodes: Site) -> None:
    site = two_nodes
    ask(site, "a", samples=20)
    with pytest.raises(UsageError, match="no run has begun there, so its nodes are not known"):
        order_nodes(site.state, "drain", ["n0"])
    run_and_follow(begin(site, "fifo"), story(phase("a", "finished")))
    ask(site, "n0", samples=20)
    order_jobs(site.state, "hold", ["n0"])  # a job of the same name
    order_nodes(site.state, "resume", ["n0"])
    order_nodes(site.state, "drain", ["n1"])
    found = Watcher(site.state).look()
    assert [line.partition(" ")[2] for line in closed_lines(found, 0.0)] == [
        *("has ordered to resume node n0", "has ordered to drain node n1")
    ]
    (waiting,) = (each for each in statuses(found, found.log.last_s) if each.id == "n0")
    assert waiting.why.endswith("has ordered to hold it")
    one_node = decide_between_runs(str(site.state), Question("fifo"))
    write_schedule(one_node.model_copy(update={"cluster": cluster(2, slots="cpu")}), site.folder / "one.json")
    cron(site, str(site.folder / "one.json"))
    assert list(site.log().drained) == ["n1"], "also where the next schedule is of other nodes"


def test_jobs_start_after_others_or_are_cancelled(site: Site) -> None:
    """In the loop and from cron, each call of which knows from the log alone what they wait for."""
    seen: list[tuple[str, str]] = []
    options = begin(site, "fifo", retries=0)
    ask(site, "a", text=EXIT)
    ask(site, "b", after={"a": "ok"})
    ask(site, "c", after={"b": "ok"})
    ask(site, "d", samples=1e6, after={"a": "any"})
    ask(site, "e", samples=20, after={"d": "any"})
    run_and_follow(options, story((trains("d"), lambda: seen.append(state_of(site, "e")))))
    assert seen == [("waiting", "waits for job d to end")]
    ask(site, "f", text=EXIT)
    ask(site, "g", after={"f": "ok"})
    ask(site, "h", text="", after={"a": "failed", "d": "failed"})
    ask(site, "i", after={"h": "failed"})
    cancel(site.state, ["d"])
    until(lambda: cron(site, retries=0) or all(site.log().jobs[name].ended for name in "efgi"))
    assert in_order(["fail a 0", "cancel b 0", "start d 1", "cancel d 0", "start e 1"], site.story())
    ended = {job_id: (job.phase, job.reason) for job_id, job in site.log().jobs.items()}
    for job_id, other, end in (("b", "a", "failed"), ("c", "b", "was cancelled"), ("g", "f", "failed")):
        assert ended[job_id] == ("cancelled", f"was to start after job {other}, which {end}")
    assert ended["h"][0] == "finished"
    assert ended["i"] == ("cancelled", "was to start if job h failed, which finished")
    assert state_of(site, "b") == ended["b"]


def test_limits_end_running_and_waiting_jobs_with_a_checkpoint(site: Site) -> None:
    """Time on GPUs counts over all attempts; a job that waits has none. From cron, too."""
    options = begin(site, "fifo")
    ask(site, "a", samples=1e6, limits={"run_seconds": 2.0})
    ask(site, "b", samples=1e6, limits={"until": 1.0}, after={"a": "any"})
    ask(site, "c", text="", limits={"run_seconds": 60.0}, after={"a": "failed", "b": "failed"})
    run_and_follow(options, story(trains("a")))
    time.sleep(0.5)
    run_and_follow(go_on(site), story(phase("c", "finished")))
    jobs = site.log().jobs
    assert [state_of(site, each)[0] for each in "abc"] == ["timed out", "timed out", "finished"]
    assert jobs["a"].reason == "it has run for 2 s, its limit"
    assert jobs["a"].use.ran_s >= 1.9
    assert (jobs["b"].reason, jobs["b"].use.ran_s) == ("its time is over (limits.until)", 0.0)
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0
    assert [event.event for event in site.events() if event.job == "a"].count("fail") == 1
    ask(site, "d", samples=1e6, limits={"run_seconds": 1.0})
    until(lambda: cron(site) or ("d" in site.log().jobs and site.log().jobs["d"].ended))
    assert state_of(site, "d") == ("timed out", "it has run for 1 s, its limit")
    assert left_running(site.folder) == []


# Nodes that are to be left within a time: ``pliant drain NODE --within 90s``.

DRAIN = Drain("ada", 1000.0, now=True, until_s=1090.0)


def leave(site: Site, node: str, within_s: float) -> Callable[[], None]:
    return lambda: order_nodes(site.state, "drain", [node], now=True, within_s=within_s)


def test_notices_outlive_a_restart_and_the_earlier_one_counts() -> None:
    found = DrainNotices()
    assert found.update({"n0": DRAIN, "n1": Drain("bob", 1000.0, now=True)}, 1010.0, 5.0)
    assert found.by_node == {"n0": Notice(stop_s=40.0, term_s=70.0, over_s=85.0)}
    assert not found.update({"n0": DRAIN}, 5000.0, 6.0), "the system's clock was set"
    assert (found.late(39.9), [*found.late(40.0)]) == ({}, ["n0"])
    assert found.of(["n1"]) is None
    assert found.update({}, 1012.0, 7.0), "the node was resumed"
    assert found.by_node == {}
    found.update({"n0": DRAIN}, 1090.0, 8.0)
    assert found.by_node == {}, "no run was there in time: jobs leave as after --now"
    # A job on two nodes leaves by the earlier times.
    found = DrainNotices()
    long = Drain("bob", 900.0, now=True, until_s=1100.0)  # half of it is left already, and 30 s for SIGTERM
    found.update({"n0": DRAIN, "n1": long}, 1000.0, 0.0)
    assert found.by_node == {"n0": Notice(45.0, 75.0, 90.0), "n1": Notice(0.0, 70.0, 100.0)}
    assert found.of(["n0", "n1", "n2"]) == found.of(["n1", "n0"]) == Notice(0.0, 70.0, 90.0)
    assert found.of(["n2", "n1"]) == found.by_node["n1"]
    assert found.late(0.0) == {"n1": "is to be left: bob has ordered it"}


def test_jobs_leave_though_the_policy_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with_cluster(site, 1, 1)
    decide = Fifo.decide

    def fails_from_then_on() -> None:
        monkeypatch.setattr(Fifo, "decide", lambda *_: 1 / 0)
        leave(site, "n0", 4.0)()

    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=1e6)),
            (trains("a"), fails_from_then_on),
            lambda log: "n0" in log.drained and not left_running(site.folder),
        ),
    )
    monkeypatch.setattr(Fifo, "decide", decide)
    (left,) = [event for event in site.events() if event.event == "requeue"]
    assert str((left.detail or {})["reason"]).startswith("node n0 is to be left: ")
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0, "it saved"
    assert site.log().jobs["a"].retry.failures == 0
    end_all(site, "a")
