"""Predictions for accounts that ask through the door: about the jobs that they see, and nothing of others."""

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pliant.cli.whatif_answer import enlarged
from pliant.schemas.errors import InfeasibleError, UsageError
from pliant.tools.run.gateway import handlers
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.protocol import WhatIfQuestion
from pliant.tools.run.gateway.supervisor import supervised_gateway
from pliant.tools.run.statedir.directory import StateDir
from tests.builders import cluster, job
from tests.tools.run.gateway import people
from tests.tools.run.live_states import live_state


@pytest.fixture(scope="module")
def door() -> Iterator[people.Shared]:
    """A door alone: a job of EVE's holds both GPUs; one of ADA's waits, and one of BOB's behind it."""
    people.only_root_becomes_others()
    with people.all_may_enter() as folder:
        run = people.Shared(folder)
        owners = {"secret": people.EVE, "adas": people.ADA, "bobs": people.BOB}
        jobs = [
            job(name, at=float(at_s), gpus=2, gpu_seconds=2 * 5000, user=str(uid))
            for at_s, (name, uid) in enumerate(owners.items())
        ]
        live_state(run.state, jobs, cluster(2), lasted_s=10, owners=owners)
        roles = people.write_roles(folder / "roles.json", **people.ROLES)
        said = logging.FileHandler(folder / "run.err")
        people.import_commands()  # which log elsewhere
        with pytest.MonkeyPatch.context() as patch, closing(said):
            patch.setattr(logging.getLogger("pliant"), "handlers", [said])
            with supervised_gateway(StateDir(run.state), roles):
                yield run


@pytest.fixture
def queue(door: people.Shared) -> people.Shared:
    door.set_roles(**people.ROLES)
    return door


def asked(run: people.Shared, uid: int, *words: str) -> dict:
    done = run.by(uid, "whatif --json", *words)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_predictions_are_about_the_jobs_that_each_sees(queue: people.Shared):
    found = asked(queue, people.BOB, "--add-nodes 2")
    jobs = {each["job"]: each for each in found["jobs"]}
    assert [*jobs] == ["secret", "adas", "bobs"]
    assert jobs["adas"]["delay_seconds"] == pytest.approx(-5000, abs=200)
    assert found["gpu_use"]["now"] == pytest.approx(1.0, abs=0.05)

    few = {"requests_per_second": 0.01, "burst": 20}
    queue.set_roles(**people.ROLES, visibility="private", limits_of={str(people.OPS): few})
    found = asked(queue, people.BOB, "--add-nodes 2")
    assert [each["job"] for each in found["jobs"]] == ["bobs"]
    assert found["gpu_use"] == {"now": None, "then": None}
    assert "secret" not in json.dumps(found)
    assert "has no job secret" in queue.refused(people.BOB, "whatif --cancel secret")
    assert len(asked(queue, people.OPS, "--add-nodes 2")["jobs"]) == 3
    assert [queue.by(uid, "status").exit_code for uid in (people.OPS, people.BOB)] == [75, 0], (
        "it counts as 20 requests"
    )


def test_a_dry_run_says_what_would_happen_and_submits_nothing(queue: people.Shared):
    (queue.home(people.ADA) / "pliant.toml").write_text("[job.work]\ngpu_seconds = 100\n")
    done = queue.by(people.ADA, "submit train.py --gpus 2 --name new --priority 1 --dry-run")
    assert (done.exit_code, '"id":"new"' in done.stdout) == (0, True), done.stderr
    assert "new: would start in " in done.stderr
    assert queue.by(people.ADA, "submit train.py --gpus 9 --dry-run").exit_code == 3
    queue.set_roles(**people.ROLES, visibility="private", limits_of={str(people.ADA): {"waiting_jobs": 2}})
    used = queue.by(people.ADA, "submit train.py --gpus 2 --name secret --dry-run")
    assert (used.exit_code, 'job "secret" was submitted to' in used.stderr) == (3, True)
    many = queue.by(people.ADA, "submit train.py --gpus 1 --name new --array 0-2 --dry-run")
    assert (many.exit_code, "3 jobs, and 2 of " in many.stderr) == (2, True), many.stderr
    assert not list(StateDir(queue.state).spool.glob("*.jsonl"))


@pytest.mark.parametrize("policy", ["/etc/passwd.py", "drl --param network=/etc/shadow", "../p.py"])
def test_no_code_and_no_file_of_an_account_is_read_by_root(queue: people.Shared, policy: str):
    line = queue.refused(people.OPS, f"whatif --policy {policy}")
    assert "only policies as they are can be asked about in a run of another account" in line


def test_the_time_of_its_process_is_charged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said = """print('{"ok": true, "cpu_s": 1.5}', '[]', sep=chr(10), end='')"""
    monkeypatch.setattr(handlers, "WHATIF_PROGRAM", ("-c", said))
    asks = handlers.WhatIfRunner(tmp_path)
    assert asks.of(WhatIfQuestion(add_nodes="2"), Caller.of(people.EVE), (), ()) == b"[]"
    assert [asks.spent_s(people.EVE), asks.spent_s(people.EVE)] == [1.5, 0.0]


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("while True: pass", "no answer within 30 s of the processor: too many jobs for this policy"),
        ("bytearray(whatif_answer.MEMORY_LIMIT_BYTES)", "more than 4 GiB of memory would be needed"),
    ],
)
def test_a_question_that_takes_too_much_ends_with_the_reason(tmp_path, monkeypatch, does, error):
    """With a second of the processor in place of thirty, after what a slow machine takes to start."""
    script = (
        "import sys, time\nfrom pliant.cli import whatif_answer\n"
        f"whatif_answer.CPU_LIMIT_S = int(time.process_time()) + 2\ndef fails(*_):\n    {does}\n"
        "whatif_answer.whatif_on_own_files = fails\nwhatif_answer.main(sys.argv[1])"
    )
    monkeypatch.setattr(handlers, "WHATIF_PROGRAM", ("-c", script))
    monkeypatch.setattr(handlers, "RESPONSE_TIMEOUT_S", 600.0)
    with pytest.raises(InfeasibleError, match=error):
        handlers.WhatIfRunner(tmp_path).of(WhatIfQuestion(add_nodes="2"), Caller.of(people.EVE), (), ())


@pytest.mark.parametrize("number", ["0", "10001", "1000000000", "99999999999999999999"])
def test_so_many_nodes_are_not_even_named(number: str):
    with pytest.raises(UsageError, match="expected a number of nodes"):
        enlarged(cluster(2), number)
