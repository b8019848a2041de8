"""Nodes that are drained while jobs run there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.cli.status import Form, status
from pliant.schemas.errors import UsageError
from pliant.schemas.io import write_cluster, write_schedule
from pliant.tools.run.service.run import run_and_follow, run_once
from pliant.tools.run.service.submit import order_jobs, order_nodes
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.requests import Spool
from pliant.tools.run.watch.job_status import statuses
from pliant.tools.run.watch.status import Watcher, closed_lines, decide_between_runs
from pliant.tools.schedule.decide import Question
from tests.builders import cluster
from tests.tools.run.site import Site, in_order
from tests.tools.run.test_follow import (
    ask,
    begin,
    end_all,
    go_on,
    nothing,
    phase,
    story,
    trains,
)

pytestmark = pytest.mark.usefixtures("plain_python")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Two nodes of two slots."""
    found = Site(tmp_path)
    found.cluster = cluster(2, 2, slots="cpu")
    write_cluster(found.cluster, found.folder / "cluster.json")
    return found


def node_of(site: Site, job_id: str) -> dict[str, int]:
    return dict(site.log().jobs[job_id].placement)


def test_a_job_finishes_on_a_drained_node_and_no_other_job_comes_there_until_it_is_resumed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[list[str]] = []

    def look() -> None:
        found = Watcher(site.state).look()
        said.append(closed_lines(found, found.log.last_s))
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
            (phase("c", "finished"), lambda: None),
        ),
    )
    assert node_of(site, "b") == {"n1": 2}
    assert site.of("a") == ["submit a", "start a 2", "finish a 0"], "it was not disturbed"
    assert in_order(["drain None", "finish a 0", "undrain None", "start c 2"], site.story())
    ((line,),) = said
    assert line.startswith("node n0 is drained by ")
    assert line.endswith(": fans")
    (drained,) = json.loads(capsys.readouterr().out)["drained_nodes"]
    assert (drained["node"], drained["reason"], drained["now"], drained["jobs"]) == ("n0", "fans", False, [])
    end_all(site, "b")


def test_jobs_leave_a_node_at_once_and_go_on_elsewhere(site: Site) -> None:
    run_and_follow(
        begin(site, "fifo"),
        story(
            (nothing, lambda: ask(site, "a", samples=1e6, gpus=2)),
            (trains("a"), lambda: order_nodes(site.state, "drain", ["n0"], now=True)),
            (lambda log: dict(log.jobs["a"].placement) == {"n1": 2}, lambda: None),
            (lambda log: (site.state / "jobs/a/attempts/2").is_dir(), lambda: None),
            (trains("a"), lambda: None),
        ),
    )
    assert site.of("a")[:3] == ["submit a", "start a 2", "move a 2"]
    end_all(site, "a")


def test_a_drain_outlives_a_restart_and_the_cron_line_heeds_it(site: Site) -> None:
    run_and_follow(
        begin(site, "fifo"),
        story((nothing, lambda: ask(site, "a", samples=1e6, gpus=2)), (trains("a"), lambda: None)),
    )
    ask(site, "b", samples=1e6, gpus=2)
    before = site.folder / "before.json"
    write_schedule(decide_between_runs(str(site.state), Question("fifo")), before)
    order_nodes(site.state, "drain", ["n1"])
    run_once(replace(go_on(site), schedule=str(before)))
    assert node_of(site, "b") == {}, "the schedule is older than the drain"
    after = site.folder / "after.json"
    write_schedule(decide_between_runs(str(site.state), Question("fifo")), after)
    run_once(replace(go_on(site), schedule=str(after)))
    assert node_of(site, "b") == {}
    order_nodes(site.state, "resume", ["n1"])
    run_and_follow(go_on(site), story((trains("b"), lambda: None)))
    assert node_of(site, "b") == {"n1": 2}
    end_all(site, "a", "b")


def test_nodes_that_are_unknown_are_refused_and_others_wait_in_the_spool(site: Site) -> None:
    ask(site, "a", samples=20)
    with pytest.raises(UsageError, match="no run has begun there, so its nodes are not known"):
        order_nodes(site.state, "drain", ["n0"])
    run_and_follow(begin(site, "fifo"), story((phase("a", "finished"), lambda: None)))
    with pytest.raises(UsageError, match="has no node n7; it has: n0, n1"):
        order_nodes(site.state, "drain", ["n0", "n7"])
    assert Spool(StateDir(site.state)).requests() == []
    ask(site, "n0", samples=20)
    order_jobs(site.state, "hold", ["n0"])  # a job of the same name
    order_nodes(site.state, "resume", ["n0"])
    order_nodes(site.state, "drain", ["n1"])
    found = Watcher(site.state).look()
    assert [line.partition(" ")[2] for line in closed_lines(found, 0.0)] == [
        *("has ordered to resume node n0", "has ordered to drain node n1"),
    ]
    (waiting,) = (each for each in statuses(found, found.log.last_s) if each.id == "n0")
    assert waiting.why.endswith("has ordered to hold it")


def test_a_node_is_drained_though_the_schedule_that_is_run_next_is_of_other_nodes(site: Site) -> None:
    run_and_follow(
        begin(site, "fifo"),
        story((nothing, lambda: ask(site, "a", samples=20)), (phase("a", "finished"), lambda: None)),
    )
    order_nodes(site.state, "drain", ["n1"])
    part = site.folder / "part.json"
    found = decide_between_runs(str(site.state), Question("fifo"))
    write_schedule(found.model_copy(update={"cluster": cluster(2, slots="cpu")}), part)
    run_once(replace(go_on(site), schedule=str(part)))
    assert list(site.log().drained) == ["n1"]
