"""``pliant run --metrics FILE``: what a monitoring system reads of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from pliant import __version__
from pliant.schemas.event import Event
from pliant.schemas.schedule import PolicyUse, Schedule, TeamStanding
from pliant.tools.run.service.monitoring import MetricsFile, metrics_text
from pliant.tools.run.service.run import run_and_follow, run_once, run_until_done
from pliant.tools.run.statedir.log.events import decision_event, run_event, submit_event
from pliant.tools.run.statedir.log.fold import RunLog, fold
from tests.builders import job, mixed_cluster
from tests.cli.calling import call
from tests.tools.run.site import Site
from tests.tools.run.test_follow import go_on, phase, story

DOCS = Path(__file__).parents[4] / "docs" / "monitoring.md"
CLUSTER = mixed_cluster(a100=(4, 4, 4), t4=(2,))


def value(text: str, name: str, **labels: str) -> float:
    """Of the one sample with this name and these labels."""
    inner = ",".join(f'{label}="{which}"' for label, which in labels.items())
    key = f"{name}{{{inner}}} " if labels else f"{name} "
    (line,) = (line for line in text.splitlines() if line.startswith(key))
    return float(line.removeprefix(key))


def held(at: float, name: str, kind: str, *where: tuple[str, int], **more: object) -> Event:
    gpus = sum(count for _, count in where)
    return Event(at, kind, name, gpus=gpus, placement=where, **more)  # type: ignore[arg-type]


RED = TeamStanding(team="red", own=4.5, entitled=5, held=4)


def a_day() -> RunLog:
    """At its end a100-1 is drained, a100-2 down; two jobs share a slot of t4-0, whose slots are left out."""
    asked = PolicyUse(name='fifo "quoted"\\', parameters={}, seed=0)
    schedule = Schedule(time=0.0, policy=asked, cluster=CLUSTER)
    placed = ("a100-0", 2), ("a100-1", 2)
    step = {"attempt": 1}
    first = {**step, "after": "start"}
    out = {"seconds": 60.0, "by": "a", "reason": "died"}
    return fold(
        [
            run_event(schedule, "0" * 64, 1.0),
            *(submit_event(job(name, user="ada" if name in "ef" else ""), 2.0) for name in "abcdef"),
            decision_event(3.0, 0.0, "fifo", 0.25),
            held(3.0, "a", "start", *placed, global_batch=10),
            held(3.0, "b", "start", ("t4-0", 1)),
            held(3.0, "d", "start", ("a100-2", 2)),
            Event(5.0, "progress", "a", samples_done=10.0, overhead_seconds=2.0, detail=first),
            Event(15.0, "progress", "a", samples_done=110.0, detail=step),
            Event(16.0, "checkpoint", "a", samples_done=110.0, overhead_seconds=0.5, detail=step),
            held(17.0, "a", "requeue", detail={"attempt": 1, "reason": "exit code 1", "failures": 1}),
            held(18.0, "b", "preempt"),
            Event(19.0, "drain", detail={"node": "a100-1", "user": "ada"}),
            Event(19.0, "node_down", detail={"node": "a100-2", "reason": "gone"}),
            held(20.0, "e", "start", ("t4-0", 1)),
            held(20.0, "f", "start", ("t4-0", 1), detail={"beside": "e"}),
            *(Event(20.0, "slot_down", detail={**out, "slot": slot}) for slot in ("t4-0/0", "t4-0/1")),
            Event(20.0, "slot_down", detail={**out, "slot": "a100-1/3"}),
            decision_event(21.0, 0.0, "fifo", 0.75, teams=[RED]),
            held(21.0, "a", "resume", *placed, global_batch=10),
            Event(
                23.0, "progress", "a", samples_done=60.0, global_batch=10, overhead_seconds=2.0,
                detail={"attempt": 2, "after": "resume", "first_step": True},
            ),
            Event(24.0, "hold", "c", detail={"user": "ada", "order": 1}),
        ]
    )  # fmt: skip


def test_every_number_of_the_file_is_that_of_the_log(golden_text: Callable[..., None]) -> None:
    def team_of(spec: object) -> str | None:
        return "red" if getattr(spec, "id", "") == "a" else None

    text = metrics_text(a_day(), CLUSTER.expanded(), 30.0, team_of)
    assert text.endswith("\n# EOF\n"), "the file is whole"
    golden_text(text.replace(__version__, "VERSION"))
    waiting = fold([submit_event(job("g"), 2.0), submit_event(job("h"), 4.0)])
    later = metrics_text(a_day(), CLUSTER.expanded(), 85.0)
    assert value(later, "pliant_gpus", type="t4", state="free") == 1, "its slot is no longer left out"
    lost = partial(value, text, "pliant_lost_gpu_seconds_total")
    assert value(text, "pliant_longest_wait_seconds") == 0, "c is held, the others have started"
    assert value(metrics_text(waiting, (), 9.0), "pliant_longest_wait_seconds") == 7.0
    assert lost(cause="changes") == 2 * 2.0 * 4
    assert lost(cause="checkpoints") == 0.5 * 4
    assert lost(cause="repeats") == pytest.approx(60 * 10 / 100 * 4), "it went back from 110 samples to 50"


def test_it_is_written_after_decisions_and_once_a_minute(tmp_path: Path) -> None:
    now, log, path = [0.0], a_day(), tmp_path / "pliant.prom"
    file = MetricsFile(path, CLUSTER.expanded(), clock=lambda: now[0])

    def written_at(at_s: float) -> bool:
        now[0] = at_s
        file.look(log, at_s)
        return value(path.read_text(), "pliant_last_turn_timestamp_seconds") == at_s

    assert written_at(0.0)
    assert not written_at(30.0)
    log.add(decision_event(30.0, 0.0, "fifo", 0.1))
    assert written_at(31.0)
    log.add(decision_event(31.5, 0.0, "fifo", 0.1))
    assert not written_at(31.5)
    assert written_at(32.0), "the decision is in the file a second later"
    assert written_at(92.0)


def test_a_file_that_cannot_be_written_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    file = MetricsFile(tmp_path / "gone" / "pliant.prom", CLUSTER.expanded())
    file.write(a_day(), 1.0)
    file.write(a_day(), 2.0)
    assert len([each for each in caplog.records if "pliant.prom" in each.getMessage()]) == 1
    (tmp_path / "gone").mkdir()
    file.write(a_day(), 3.0)
    assert (tmp_path / "gone" / "pliant.prom").exists()


@pytest.mark.usefixtures("plain_python")
def test_every_kind_of_run_writes_it_and_counters_go_on(site: Site) -> None:
    path = site.folder / "pliant.prom"

    def now(name: str, **labels: str) -> float:
        return value(path.read_text(), name, **labels)

    site.job("a", "--gate", site.gate, samples=50, high=2)
    run_once(site.options(metrics=path))
    assert (now("pliant_jobs", state="running"), now("pliant_job_starts_total")) == (1, 1)
    assert now("pliant_gpus", type="gpu", state="held") == 2
    before = now("pliant_decisions_total")
    site.gate.touch()
    for run in (
        lambda: run_and_follow(replace(go_on(site), metrics=path), story((phase("a", "finished"), int))),
        lambda: run_until_done(replace(go_on(site), metrics=path), lambda log, now_s: None),
    ):
        path.unlink()
        run()
        assert now("pliant_decisions_total") > before
        assert (now("pliant_job_starts_total"), now("pliant_jobs_ended_total", end="finished")) == (1, 1)
        assert now("pliant_gpus", type="gpu", state="free") == 2
    os.umask(mask := os.umask(0))
    assert os.stat(path).st_mode & 0o044 == 0o044 & ~mask, "the monitoring is another user"


def test_a_place_where_no_file_can_be_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.folder)
    for wrong, words in (("no/such/file", "the folder no/such is missing"), ("-", "names a file")):
        done = call("run", site.schedule(), "--state", str(site.state), "--metrics", wrong)
        assert done.exit_code == 2, done.stderr
        assert words in done.stderr
    assert not site.state.exists()


def test_the_docs_name_every_metric_and_no_other() -> None:
    text = metrics_text(a_day(), CLUSTER.expanded(), 30.0, lambda _job: "red")
    written = set(re.findall(r"^pliant_\w+", text, re.MULTILINE))
    assert written == set(re.findall(r"`(pliant_\w+)", DOCS.read_text()))
    examples = DOCS.parents[1] / "examples" / "monitoring"
    queries = "".join(path.read_text() for path in examples.iterdir())
    assert set(re.findall(r"\bpliant_\w+", queries)) <= written
