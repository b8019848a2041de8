"""What each account sees of a shared run."""

from __future__ import annotations

import json

from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.door.people import ADA, BOB, LEA, OPS, ROLES, Shared
from tests.tools.run.site import until

HIDDEN = "s3cret"
JOB = {
    "gpus": {"requested": 2},
    "model": f"model-{HIDDEN}",
    "command": ["train.py", "--token", HIDDEN],
    "env": {"TOKEN": HIDDEN},
    "labels": {"note": HIDDEN},
}


def secretive(run: Shared, name: str) -> str:
    done = run.by(ADA, "submit -", stdin=json.dumps({"id": name, **JOB}) + "\n")
    assert done.exit_code == 0, done.stderr
    until(lambda: run.events(name))
    return name


def test_others_see_job_user_sizes_and_times_and_nothing_else(run: Shared):
    name = secretive(run, "v-public")
    found = json.loads(run.by(BOB, "status -f json").stdout)
    job = next(each for each in found["jobs"] if each["id"] == name)
    assert (job["state"], HIDDEN in json.dumps(found)) == ("waiting", False)
    lines = run.by(BOB, "status --columns job,user,state").stdout.splitlines()
    assert next(line for line in lines if name in line).split() == [name, str(ADA), "waiting"]
    run.by(ADA, f"cancel {name}")
    until(lambda: ("cancel", ADA) in run.events(name))
    look = {"ask": "look", "ahead": True}
    for question in (look, {"ask": "use"}, {"ask": "describe", "job": name}, {"ask": "ends", "jobs": [name]}):
        line = json.dumps(question).encode() + b"\n"
        for other in (BOB, LEA, OPS):
            answer = json.dumps(run.ask(other, line))
            assert HIDDEN not in answer
            assert str(run.home(ADA)) not in answer
    assert HIDDEN in json.dumps(run.ask(ADA, json.dumps(look).encode() + b"\n"))


def test_the_log_shows_each_what_is_theirs(run: Shared):
    name = secretive(run, "v-log")
    own, others = (run.by(uid, "log --tail 1000") for uid in (ADA, BOB))
    assert (own.exit_code, others.exit_code) == (0, 0), others.stderr
    assert (HIDDEN in own.stdout, HIDDEN in others.stdout) == (True, False)
    mine, theirs = (
        [each for each in map(json.loads, seen.stdout.splitlines()) if each.get("job") == name]
        for seen in (own, others)
    )
    assert [each["event"] for each in mine] == [each["event"] for each in theirs] == ["submit"]
    assert theirs[0]["detail"]["job"]["user"] == str(ADA)


def test_a_page_describes_a_job_to_all(run: Shared):
    name = secretive(run, "v-page")
    assert run.by(OPS, f"priority {name} 2").exit_code == 0
    until(lambda: ("priority", OPS) in run.events(name))
    for uid in (ADA, BOB):
        page = run.by(uid, f"status {name}")
        assert page.exit_code == 0, page.stderr
        assert f"given priority 2 by {OPS}" in page.stdout


def test_output_is_for_the_owner_of_the_job_alone(run: Shared):
    name = secretive(run, "v-output")
    logs = StateDir(run.state).job(name).attempt(1).logs
    logs.mkdir(parents=True)
    (logs / "launcher-0.log").write_text("epoch 1\n")
    assert run.by(ADA, f"log {name}").stdout.splitlines()[-1] == "epoch 1"
    for other in (BOB, LEA, OPS):
        assert f"job {name} belongs to {ADA}: its output is for its owner" in run.refused(
            other, f"log {name}"
        )
    assert run.logged(f"door: {BOB} (uid {BOB}): refused: job {name} belongs to")


def test_where_jobs_are_private_others_see_counts_alone(run: Shared):
    name = secretive(run, "v-private")
    run.set_roles(**ROLES, visibility="private")
    seen = run.by(BOB, "status")
    assert name not in seen.stdout
    assert "others have 0 jobs on 0 GPUs, and " in seen.stderr
    assert name not in run.by(BOB, "log --tail 1000").stdout
    for words in (f"cancel {name}", f"log {name}", f"wait {name}", f"status {name}"):
        assert f"has no job {name}" in run.refused(BOB, words)
    for chief in (LEA, OPS):
        assert name in run.by(chief, "status").stdout
