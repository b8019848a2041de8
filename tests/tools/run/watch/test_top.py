"""``pliant top``: what the jobs that run use, by the reports of their workers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.cli.status import Form, top
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.text import width_of
from pliant.tools.run.statedir.contract.plan import write_progress
from pliant.tools.run.statedir.directory import StateDir
from pliant.tools.run.statedir.log.events import run_event, submit_event
from pliant.tools.run.statedir.state import State
from pliant.tools.run.watch.top import Use, UseMeter, sorted_uses, summary_line, top_text
from pliant.tools.schedule.decide import Question, decide
from tests.builders import cluster, job
from tests.effort import examples
from tests.tools.run.statedir.contract.test_folders import report

NOW_S = 2e9


@pytest.fixture
def dirs(tmp_path: Path) -> StateDir:
    """On eight GPUs a holds two, b four, c waits and d has ended."""
    jobs = [job(name, user=name.upper()) for name in "abcd"]
    with State(tmp_path / "state") as state:
        state.record([run_event(decide(jobs, cluster(8), None, Question("fifo")), "hash", NOW_S)])
        state.record([submit_event(each, NOW_S) for each in jobs])
        for name, gpus in (("a", 2), ("b", 4), ("d", 1)):
            place = (("n0", gpus),)
            state.record([Event(NOW_S, "start", name, gpus=gpus, placement=place, global_batch=64)])
        state.record([Event(NOW_S + 1, "finish", "d", gpus=0, placement=(), detail={"attempt": 1})])
    return state.dirs


def reports(dirs: StateDir, name: str, heard_s: float, **more: Any) -> None:
    path = dirs.job(name).progress
    path.parent.mkdir(parents=True, exist_ok=True)
    write_progress(path, report(job=name, **more))
    os.utime(path, (heard_s, heard_s))


def seen(dirs: StateDir) -> list[Use]:
    return UseMeter(dirs.path).look()[1]


def test_jobs_that_hold_gpus_are_shown_with_their_reports(dirs: StateDir, tmp_path: Path) -> None:
    measured = {"samples_per_second": 120.0, "step_seconds": 0.25, "loss": 1.5, "memory": 3 << 29}
    reports(dirs, "a", NOW_S + 5, generation=3, **measured)
    log, uses = UseMeter(dirs.path).look()
    table = top_text(sorted_uses(uses, "gpus"), NOW_S + 8).splitlines()
    assert [" ".join(line.split()) for line in table] == [
        "job user GPUs share samples/s per GPU step batch busy memory loss plan heard",
        "b B 4 50 % - - - 64 - - - - -",
        "a A 2 25 % 120 60 0.25 s 64 - 1.5 GiB 1.5 1.3 3 s ago",
    ]
    assert summary_line(log, uses) == "2 jobs on 6 of 8 GPUs, 1 without"
    with pytest.raises(UsageError, match="no state directory"):
        UseMeter(tmp_path)


def test_the_order_is_that_which_was_asked_for(dirs: StateDir) -> None:
    reports(dirs, "a", NOW_S + 5, samples_per_second=120.0)
    reports(dirs, "b", NOW_S + 9, samples_per_second=10.0)
    orders = {by: [use.id for use in sorted_uses(seen(dirs), by)] for by in ("gpus", "speed", "job", "heard")}
    assert orders == {"gpus": ["b", "a"], "speed": ["a", "b"], "job": ["a", "b"], "heard": ["a", "b"]}


def test_a_report_of_an_earlier_attempt_or_a_torn_one_is_ignored(dirs: StateDir) -> None:
    reports(dirs, "a", NOW_S, attempt=1, samples_per_second=120.0)
    with State(dirs.path) as state:
        state.record([Event(NOW_S + 2, "progress", "a", samples_done=1.0, detail={"attempt": 2})])
    path = dirs.job("b").progress
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"schema": "pliant.prog')
    assert [(use.progress, use.heard_s) for use in seen(dirs)] == [(None, None), (None, None)]


def test_programs_get_every_field(dirs: StateDir, capsys: pytest.CaptureFixture[str]) -> None:
    reports(dirs, "a", NOW_S + 5, samples_per_second=120.0)
    top(state=dirs.path, format=Form.json, sort="job")
    first, second = json.loads(capsys.readouterr().out)["jobs"]
    assert first.keys() == second.keys()
    assert (first["id"], first["share"], first["samples_per_second"]) == ("a", 0.25, 120.0)
    assert (second["samples_per_second"], second["heard_at"]) == (None, None)
    text = (Path(__file__).resolve().parents[4] / "docs" / "running-json.md").read_text()
    assert [name for name in first if f"`{name}`" not in text] == []


@given(st.integers(8, 120), st.floats(0, 1e300), st.text(max_size=40))
@settings(
    deadline=None, max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_line_is_wider_than_the_terminal(dirs: StateDir, width: int, speed: float, user: str) -> None:
    reports(dirs, "a", NOW_S, samples_per_second=speed, loss=-speed, step_seconds=1e-9)
    uses = seen(dirs)
    uses[0].job.job = uses[0].job.job.model_copy(update={"user": user})
    assert max(map(width_of, top_text(uses, NOW_S + 1e6, width).splitlines())) <= width


def test_shared_gpus_count_once_in_all_and_one_half_for_each_job(dirs: StateDir) -> None:
    with State(dirs.path) as state:
        place = (("n0", 2),)
        state.record([Event(NOW_S + 2, "start", "c", gpus=2, placement=place, detail={"beside": "a"})])
    uses = {use.id: use for use in seen(dirs)}
    assert (uses["a"].share, uses["c"].share, uses["a"].job.beside) == (1 / 8, 1 / 8, "c")
    assert summary_line(state.log, list(uses.values())) == "3 jobs on 6 of 8 GPUs, 0 without"
