import json
from pathlib import Path
from typing import Any

import pytest

from pliant.cli import config as config_module
from pliant.cli import run_modes
from pliant.cli.config import configuration
from pliant.schemas.io import write_cluster
from pliant.tools.run.service import inputs
from pliant.tools.run.service.loop import RunOptions
from pliant.tools.run.service.run import run_once
from pliant.tools.run.statedir.directory import StateDir
from tests.builders import cluster
from tests.cli.calling import call

JOB = '{"id": "a", "command": ["train.py"], "elastic": "size"}\n'
SETTINGS = """
state = "live"
cluster = "cluster.json"
policy = "shadow-price"

[parameters]
dwell_s = 300

[job]
user = "ann"
gpus = {requested = 2}
"""


@pytest.fixture(autouse=True)
def _project(here: Path) -> None:
    (here / "pliant.toml").write_text(SETTINGS)
    (here / "a.jsonl").write_text(JOB)
    (here / "train.py").write_text("print('trained')\n")
    write_cluster(cluster(2, slots="cpu"), "cluster.json")


def scheduled(*words: str) -> Any:
    return json.loads(call("schedule", *words).stdout)


def test_settings_are_found_from_a_folder_below(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = here / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    result = scheduled(str(here / "a.jsonl"), "--no-check")
    assert result["policy"] == {"name": "shadow-price", "parameters": result["policy"]["parameters"]}
    assert result["policy"]["parameters"]["dwell_s"] == 300
    assert (result["jobs"][0]["user"], result["allocations"][0]["gpus"]) == ("ann", 2)
    monkeypatch.chdir(here)
    assert call("submit", "a.jsonl").stdout == "a\n"
    monkeypatch.chdir(below)
    for words in (
        ["status"],
        ["top"],
        ["hold", "a"],
        ["release", "a"],
        ["priority", "a", "2"],
        ["cancel", "a"],
    ):
        done = call(*words)
        assert (done.exit_code, words) == (0, words), done.stderr
    assert "../../live" in call("status").stderr


def test_command_line_then_environment_then_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("submit", "a.jsonl").exit_code == 0
    monkeypatch.setenv("PLIANT_STATE", "other")
    assert call("submit", "a.jsonl").exit_code == 0
    assert call("submit", "a.jsonl", "--state", "third").exit_code == 0
    assert all((here / name).is_dir() for name in ("live", "other", "third"))


def test_a_typed_policy_and_one_in_a_file_below(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "dwell_s" not in scheduled("a.jsonl", "--policy", "fifo")["policy"].get("parameters", {})
    typed = scheduled("a.jsonl", "--param", "dwell_s=40")
    assert typed["policy"]["parameters"]["dwell_s"] == 40
    # A policy in a file is found from a folder below.
    (here / "pliant.toml").write_text('policy = "./mine.py"\n')
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    assert configuration().policy == "../mine.py"


def test_cron_goes_on_after_its_first_call_was_killed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*_words: object) -> None:
        raise Killed

    assert call("submit", "a.jsonl").exit_code == 0
    assert call("schedule", "-o", "first.json").exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "run_event", die)
        with pytest.raises(Killed):
            run_once(RunOptions(here / "live", schedule="first.json"))
    assert (here / "live" / "cluster.json").exists(), "it had begun to write what the run needs"
    again = call("schedule")
    assert again.exit_code == 0, again.stderr
    assert [given["job"] for given in json.loads(again.stdout)["allocations"]] == ["a"]


def test_a_follower_begins_with_cluster_and_policy_of_the_file() -> None:
    done = call("run", "--follow", "--dry-run")
    assert done.exit_code == 0, done.stderr
    assert "policy shadow-price, as pliant.toml says" in done.stderr


def test_a_run_of_another_folder_keeps_its_cluster(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = StateDir(here / "other")
    other.path.mkdir(mode=0o700)
    other.events.touch()
    write_cluster(cluster(1, slots="cpu"), other.cluster)
    asked: list[RunOptions] = []
    monkeypatch.setattr(run_modes, "follow", asked.append)
    done = call("run", "--follow", "--state", "other")
    assert [options.cluster for options in asked] == [None]
    assert "the run keeps its own cluster, not cluster.json: pliant reload cluster.json" in done.stderr
    other.path.rename(here / "live")
    call("run", "--follow", "--state", "live")
    assert [options.cluster for options in asked] == [None, "cluster.json"]


def test_a_replay_takes_no_job_defaults_of_the_file(here: Path) -> None:
    (here / "t.jsonl").write_text('{"id": "a", "model": "m", "work": {"gpu_seconds": 5}}\n')
    assert call("replay", "t.jsonl", "-o", "a.jsonl").exit_code == 0
    events = (here / "a.jsonl").read_text()
    assert '"shadow-price"' in events
    assert '"ann"' not in events


def test_doctor_says_where_each_setting_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_STATE", "other")
    checks = json.loads(call("doctor", "-f", "json").stdout)["checks"]
    assert [check["text"] for check in checks if check["area"] == "settings"] == [
        "state: other (PLIANT_STATE)",
        "cluster: cluster.json (pliant.toml)",
        "policy: shadow-price dwell_s=300 (pliant.toml)",
        "job: user, gpus (pliant.toml)",
    ]


def test_another_users_file_in_a_shared_folder_does_not_count(here: Path, monkeypatch) -> None:
    monkeypatch.setattr(config_module.os, "geteuid", lambda: 4711)
    monkeypatch.setattr(config_module, "ROOT", 4711)
    assert configuration().policy == "shadow-price"
    here.chmod(0o1777)
    assert configuration().policy is None
