import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pliant.schemas.io import write_cluster, write_jobs
from tests.builders import cluster, job
from tests.cli import calling

SUBMIT = "submit jobs.jsonl --state live"
SCHEDULE = "schedule --state live --cluster cluster.json --policy"


def call(line: str) -> Any:
    return calling.call(*line.split(), columns=200)


@pytest.fixture
def here(here: Path) -> Path:
    write_cluster(cluster(2, slots="cpu", gpu_type="cpu"), "cluster.json")
    (here / "train.py").write_text("print('done')\n")
    write_jobs([job(each, command=("train.py",)) for each in "ab"], "jobs.jsonl")
    return here


def test_jobs_can_be_held_before_the_first_run(here: Path) -> None:
    done = call(f"hold --state live {call(SUBMIT).stdout}")
    assert done.exit_code == 0, done.stderr
    assert "it takes effect with the next pliant run --state live" in done.stderr
    result = json.loads(call("status --state live -f json").stdout)
    assert [each["state"] for each in result["jobs"]] == ["submitted", "submitted"]
    assert all("has ordered to hold it" in each["why"] for each in result["jobs"])
    decided = json.loads(call(f"{SCHEDULE} fifo").stdout)
    assert [each["reason"].split()[:2] for each in decided["waiting"]] == [["held", "by"]] * 2


def test_a_priority_can_be_stated_and_changed(here: Path) -> None:
    assert call(f"{SUBMIT} --priority 3").exit_code == 0
    assert call("priority b --state live -- -2.5").exit_code == 0
    decided = call(f"{SCHEDULE} ares")
    result = {each["id"]: each["priority"] for each in json.loads(decided.stdout)["jobs"]}
    assert result == {"a": 3.0, "b": -2.5}
    assert 'policy "ares" ignores priorities: 2 jobs state one' in decided.stderr


@pytest.mark.parametrize("policy", ["ares", "fifo"])
def test_a_priority_that_the_policy_ignores_is_warned_of(here: Path, policy: str) -> None:
    assert call(f"{SUBMIT} --priority 3").exit_code == 0
    assert call(f"{SCHEDULE} {policy} -o new.json").exit_code == 0
    shutil.move("new.json", "live/schedule.json")
    done = call("priority a 2 --state live")
    assert done.exit_code == 0
    assert ("ignores priorities" in done.stderr) == (policy == "ares")


def test_orders_take_arrays_patterns_users_and_states(here: Path) -> None:
    """What each order is about, by what it leaves in the spool; the name of a job is before an array's."""
    sweep = [
        job(f"s-{i}", command=("train.py",), array={"name": "s", "index": i}, user="ann") for i in (0, 1)
    ]
    write_jobs([*sweep, job("s", command=("train.py",)), job("t", command=("train.py",))], "jobs.jsonl")
    assert call(SUBMIT).exit_code == 0

    def held(words: str) -> list[str]:
        done = call(f"hold {words} --state live")
        assert done.exit_code == 0, done.stderr
        found = json.loads(call("status --state live -f json").stdout)["jobs"]
        assert call("release * --state live").exit_code == 0
        for path in (here / "live" / "spool").glob("*.order.json"):
            path.unlink()
        return [each["id"] for each in found if "to hold it" in each["why"]]

    assert held("s") == ["s"]
    assert (
        held("s-*") == held("--user ann") == held("* --user ann,bob --state-is submitted") == ["s-0", "s-1"]
    )
    assert held("t s-[1-9]") == ["s-1", "t"]
    assert held("t --user ann") == held("--state-is failed") == []
    done = call("priority s-* 7 --state live")
    assert done.exit_code == 0, done.stderr
    found = json.loads(call("status --state live -f json").stdout)["jobs"]
    assert [each["id"] for each in found if "priority 7" in each["why"]] == ["s-0", "s-1"]
    for words, why in (
        ("x*", "no job and no array like x*"),
        ("", "name jobs or arrays"),
        ("x", "has no job x"),
    ):
        done = call(f"cancel {words} --state live")
        assert (done.exit_code, why in done.stderr) == (2, True), done.stderr


def test_waiting_has_an_end(here: Path) -> None:
    done = call(f"{SUBMIT} --dry-run --wait")
    assert (done.exit_code, "leave one out" in done.stderr) == (2, True)
    assert call(SUBMIT).exit_code == 0
    done = call("wait a b --timeout 0 --state live")
    assert (done.exit_code, "2 jobs of 2 had not ended after 0 s" in done.stderr) == (75, True)
