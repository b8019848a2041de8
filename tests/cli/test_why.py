import json
from dataclasses import replace
from pathlib import Path

import pytest

from pliant.schemas.event import Event
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.run.watch.job_page import waiting_for
from pliant.tools.run.watch.job_status import statuses
from pliant.tools.run.watch.status import Hidden, Status, Watcher
from tests.builders import job
from tests.cli.calling import call
from tests.tools.run.stories import Story
from tests.tools.run.watch.test_status import NOW_S, running


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW_S + 120)


def test_a_waiting_job_names_what_it_needs_and_who_holds_it(tmp_path: Path) -> None:
    running(tmp_path / "live")
    message = call("why", "b", "--state", str(tmp_path / "live"))
    assert message.exit_code == 0, message.output
    lines = dict(line.split(maxsplit=1) for line in message.stdout.splitlines())
    assert lines["why"] == "waits for 4 GPUs; it is next"
    assert (lines["needs"], lines["free"]) == ("4 GPUs", "0 of 4 GPUs")
    assert lines["a"].split()[:2] == ["-", "4"], "job a, of no user, holds four"
    assert lines["starts"].startswith("in ")
    assert "cost" not in lines


def test_a_running_job_shows_its_cost_also_as_json(tmp_path: Path) -> None:
    running(tmp_path / "live")
    message = call("why", "a", "--state", str(tmp_path / "live"))
    lines = [line.split(maxsplit=1) for line in message.stdout.splitlines()]
    assert ["cost", "480 GPU seconds held"] in lines
    assert ["lost", "8 GPU seconds (2 %) to starts"] in lines
    assert ["speed", "- (there is no profile)"] in lines
    assert ["cheapest", "- (there is no profile)"] in lines
    assert "started on 4 GPUs (n0:4)" in message.stdout
    document = json.loads(call("why", "a", "--json", "--state", str(tmp_path / "live")).stdout)
    assert document["schema"] == "pliant.why/1.1"
    assert document["cost"]["held_gpu_seconds"] == 480.0
    assert document["cost"]["lost_gpu_seconds"]["starts"] == 8.0
    assert document["cost"]["cheapest_unknown"] == "there is no profile"
    assert document["waiting"] is None
    assert [change["event"] for change in document["changes"]] == ["start"]


def test_held_jobs_and_hidden_gpus(tmp_path: Path) -> None:
    hold = Event(NOW_S + 1, "hold", "b", detail={"user": "ada", "order": 1})
    running(tmp_path / "live", hold)
    message = call("why", "b", "--state", str(tmp_path / "live"))
    assert "held by ada" in message.stdout
    assert "jobs that hold GPUs" not in message.stdout

    # As behind the door of a shared run whose visibility is private.
    running(tmp_path / "live")
    status = Watcher(tmp_path / "live").look()
    jobs = {name: result for name, result in status.log.jobs.items() if name != "a"}
    status.log.jobs, status.log.active = jobs, dict(jobs)
    for hidden, free in ((Hidden(), 4), (Hidden(running=1, gpus=4), 0)):
        seen = replace(status, hidden=hidden)
        everything = statuses(seen, NOW_S)
        result = waiting_for(everything[0], everything, seen)
        assert result is not None
        assert (result.free_gpus, result.holders) == (free, ())


def test_a_job_that_was_never_taken_up_and_one_that_is_unknown(tmp_path: Path, here: Path) -> None:
    state = running(tmp_path / "live").path
    jobs = here / "new.jsonl"
    jobs.write_text('{"id": "new", "command": ["train.py"]}\n')
    (here / "train.py").write_text("")
    assert call("submit", str(jobs), "--state", str(state)).exit_code == 0
    assert "no run has taken it up yet" in call("why", "new", "--state", str(state)).stdout
    unknown = call("why", "ne", "--state", str(state))
    assert unknown.exit_code == 2
    assert "new" in unknown.stderr, "it says what may have been meant"


@pytest.mark.parametrize("seed", range(4))
def test_lines_fit_whatever_happened(seed: int, tmp_path: Path) -> None:
    reported = Story(seed)
    reported.go_on(120)
    state = reported.write(tmp_path / "live").path
    for job_id in sorted({*reported.session.jobs, *reported.session.book.ended})[:12]:
        message = call("why", job_id, "--state", str(state))
        assert message.exit_code == 0, message.output
        cost = json.loads(call("why", job_id, "--json", "--state", str(state)).stdout)["cost"]
        if cost is not None and cost["trained_gpu_seconds"] is not None:
            assert all(lost >= 0 for lost in cost["lost_gpu_seconds"].values())


def test_a_job_over_a_users_limit_waits_for_that_users_jobs() -> None:
    log = RunLog()
    for name, user, gpus in (("a", "ada", 2), ("b", "bob", 1), ("c", "ada", 0)):
        held = JobLog(
            job(name, user=user, gpus=2), NOW_S, gpus=gpus, placement=(("n0", gpus),) if gpus else ()
        )
        log.jobs[name] = log.active[name] = held
    status = Status(log, reasons={"c": "beyond the limit of user ada: 2 GPUs"})
    everything = statuses(status, NOW_S)
    result = waiting_for(everything[2], everything, status)
    assert result is not None
    assert result.by_limit
    assert [each.id for each in result.holders] == ["a"]
    assert waiting_for(everything[0], everything, status) is None, "it holds GPUs"
