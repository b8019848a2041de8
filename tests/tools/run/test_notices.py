"""Nodes that are to be left within a time: ``pliant drain NODE --within 90s``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.schemas.io import write_cluster
from pliant.tools.run.service.gang import Notice, Notices
from pliant.tools.run.service.run import run_and_follow
from pliant.tools.run.service.submit import order_nodes
from pliant.tools.run.statedir.log.fold import Drain, RunLog
from pliant.tools.run.watch.status import Watcher, closed_lines
from pliant.tools.schedule.policies.fifo import Fifo
from tests.builders import cluster
from tests.cli.calling import call
from tests.tools.run.conftest import left_running
from tests.tools.run.site import Site, in_order
from tests.tools.run.test_follow import ask, begin, end_all, nothing, story, trains

DRAIN = Drain("ada", 1000.0, now=True, until_s=1090.0)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two nodes of one slot."""
    found = Site(tmp_path)
    found.cluster = cluster(1, 1, slots="cpu")
    write_cluster(found.cluster, found.folder / "cluster.json")
    return found


def leave(site: Site, node: str, within_s: float) -> Callable[[], None]:
    return lambda: order_nodes(site.state, "drain", [node], now=True, within_s=within_s)


def test_times_of_a_notice_outlive_a_restart_and_a_set_clock() -> None:
    found = Notices()
    assert found.hear({"n0": DRAIN, "n1": Drain("bob", 1000.0, now=True)}, 1010.0, 5.0)
    assert found.by_node == {"n0": Notice(stop_s=40.0, term_s=70.0, over_s=85.0)}
    assert not found.hear({"n0": DRAIN}, 5000.0, 6.0), "the system's clock was set"
    assert (found.late(39.9), [*found.late(40.0)]) == ({}, ["n0"])
    assert found.of(["n1"]) is None
    assert found.hear({}, 1012.0, 7.0), "the node was resumed"
    assert found.by_node == {}
    found.hear({"n0": DRAIN}, 1090.0, 8.0)
    assert found.by_node == {}, "no run was there in time: jobs leave as after --now"


def test_a_job_on_two_nodes_leaves_by_the_earlier_times() -> None:
    found = Notices()
    long = Drain("bob", 900.0, now=True, until_s=1100.0)  # half of it is left already, and 30 s for SIGTERM
    found.hear({"n0": DRAIN, "n1": long}, 1000.0, 0.0)
    assert found.by_node == {"n0": Notice(45.0, 75.0, 90.0), "n1": Notice(0.0, 70.0, 100.0)}
    assert found.of(["n0", "n1", "n2"]) == found.of(["n1", "n0"]) == Notice(0.0, 70.0, 90.0)
    assert found.of(["n2", "n1"]) == found.by_node["n1"]
    assert found.late(0.0) == {"n1": "is to be left: bob has ordered it"}


@pytest.mark.usefixtures("plain_python")
def test_a_job_that_ignores_a_notice_is_killed_when_time_is_over(site: Site) -> None:
    last_s: list[float] = []
    said: list[str] = []

    def watch(log: RunLog) -> bool:
        if not left_running(site.folder):
            return "n0" in log.drained
        if "n0" in log.drained:
            last_s.append(time.time())
        return False

    def say() -> None:
        found = Watcher(site.state).look()
        said.extend(closed_lines(found, found.log.last_s))

    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", "--stubborn", samples=1e6)),
            (trains("a"), leave(site, "n1", 600.0)),
            (lambda log: "n1" in log.drained, leave(site, "n0", 3.0)),
            (watch, say),
        ),
    )
    until_s = site.log().drained["n0"].until_s
    assert until_s is not None
    assert last_s[-1] > until_s - 0.5, "it had all of the time"
    assert in_order(["start a 1", "drain None", "drain None", "preempt a 0"], site.story())
    assert [line.partition(" since ")[0].partition(" by ")[0] for line in said] == [
        *("node n0 is drained", "node n1 is drained"),
    ]
    end_all(site, "a")


@pytest.mark.usefixtures("plain_python")
def test_jobs_leave_though_the_policy_fails(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    decide = Fifo.decide

    def fails_from_then_on() -> None:
        monkeypatch.setattr(Fifo, "decide", lambda *_: 1 / 0)
        leave(site, "n0", 4.0)()

    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=1e6)),
            (trains("a"), fails_from_then_on),
            (lambda log: "n0" in log.drained and not left_running(site.folder), int),
        ),
    )
    monkeypatch.setattr(Fifo, "decide", decide)
    (left,) = [event for event in site.events() if event.event == "requeue"]
    assert str((left.detail or {})["reason"]).startswith("node n0 is to be left: ")
    assert float((site.state / "jobs" / "a" / "saved-0").read_text()) > 0, "it saved"
    assert site.log().jobs["a"].failures == 0
    end_all(site, "a")


def test_a_time_of_less_than_a_second_is_refused(site: Site) -> None:
    done = call("drain", "n0", "--state", str(site.state), "--within", "0.1")
    assert done.exit_code == 2
    assert "expected 1 s or more" in done.stderr
