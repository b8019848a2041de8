"""Several accounts ask one run: what each may do, and what the log says of it."""

import json
from pathlib import Path

import pytest

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.run.gateway import remote_client
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.permissions import Roles, events_for
from pliant.tools.run.service.reload import ClusterFile, refusal_event
from pliant.tools.run.statedir.directory import StateDir
from tests.tools.run.gateway.people import ADA, BOB, EVE, LEA, NODE, OPS, ROLES, Shared
from tests.tools.run.site import until


def submitted(run: Shared, uid: int, name: str) -> str:
    done = run.by(uid, "submit train.py --name", name)
    assert (done.exit_code, done.stdout) == (0, f"{name}\n"), done.stderr
    return name


def submit_event(run: Shared, job: str) -> Event:
    found = [each for each in read_events(StateDir(run.state).events) if each.event == "submit"]
    return next(each for each in found if each.job == job)


def test_jobs_and_orders_bear_the_account_that_gave_them(run: Shared):
    job = submitted(run, ADA, "a")
    for words in (f"hold {job}", f"release {job}", f"priority {job} 3"):
        assert run.by(ADA, words).exit_code == 0
    assert run.by(OPS, f"cancel {job}").exit_code == 0
    until(lambda: len(run.events(job)) == 5)
    names = ["submit", "hold", "unhold", "priority", "cancel"]
    assert run.events(job) == list(zip(names, [ADA, ADA, ADA, ADA, OPS], strict=True))
    detail = submit_event(run, job).detail or {}
    assert (detail["uid"], detail["job"]["user"]) == (ADA, str(ADA))
    assert detail["job"]["workdir"] == str(run.home(ADA))
    done = run.by(BOB, f"wait {job}")
    assert (done.exit_code, done.stdout) == (5, f"{job} cancelled\n")
    assert run.by(BOB, "wait nosuch").exit_code == 2


def test_jobs_of_others_are_changed_by_operators_and_leads_alone(run: Shared):
    orders = ("hold {}", "release {}", "priority {} 9", "update {} --limit 9h", "requeue {}", "cancel {}")
    job = submitted(run, ADA, "b")
    until(lambda: run.events(job))
    before = run.events(job)
    for stranger in (BOB, EVE):
        for words in orders:
            line = run.refused(stranger, words.format(job))
            assert f"job {job} belongs to {ADA}, and {stranger} may not" in line
    assert run.logged(f"gateway: {EVE} (uid {EVE}): refused: job {job} belongs to")
    assert run.events(job) == before
    for chief in (LEA, OPS):
        job = submitted(run, ADA, f"b-{chief}")
        for words in orders:
            assert run.by(chief, words.format(job)).exit_code == 0
    run.refused(LEA, f"cancel {submitted(run, BOB, 'c')}")  # not of the team


def test_users_do_only_what_their_rights_allow(run: Shared) -> None:
    forged = f'{{"id": "forged", "user": "{BOB}", "command": ["train.py"]}}\n'
    assert f"states the user {BOB}, and {EVE} submits it" in run.refused(EVE, "submit -", stdin=forged)
    assert run.logged(f'refused: job "forged" states the user {BOB}')
    assert run.by(BOB, "submit -", stdin=forged).exit_code == 0
    assert run.by(EVE, "submit -", stdin=forged.replace("user", "usr")).exit_code == 3
    # What an operator holds its user does not release.
    job = submitted(run, BOB, "d")
    assert run.by(OPS, f"hold {job}").exit_code == 0
    assert f"is held by {OPS}, who can release it" in run.refused(BOB, f"release {job}")
    assert run.by(OPS, f"release {job}").exit_code == 0
    # Only operators drain nodes.
    assert "only operators drain nodes" in run.refused(LEA, f"drain {NODE}")
    cluster = StateDir(run.state).cluster
    assert "only operators change the cluster" in run.refused(LEA, "reload -", stdin=cluster.read_text())
    span = "--from +1h --until +1h"
    assert "only operators reserve nodes" in run.refused(LEA, f"reserve {NODE} {span} --for {LEA}")
    made = run.by(OPS, f"reserve {NODE} {span} --for {LEA}")
    assert made.stdout.startswith(f"reservation {LEA}-1: {NODE} from "), made.stderr
    assert f"for user {LEA}, by {OPS} (to come)" in run.by(ADA, "reserve --list").stdout
    assert run.by(OPS, f"reserve --cancel {LEA}-1").stdout == f"reservation {LEA}-1 ends\n"
    assert run.by(OPS, f"drain {NODE} --reason fans").exit_code == 0
    until(lambda: "fans" in run.by(ADA, "status").stderr)
    events = [each for each in read_events(StateDir(run.state).events) if each.event == "drain"]
    assert [(each.detail or {})["uid"] for each in events] == [0, OPS]


def test_names_arguments_and_scripts_of_submissions(run: Shared):
    assert run.by(ADA, "submit train.py").stdout == "train\n"
    assert run.by(BOB, "submit train.py").stdout == "train-2\n"
    assert run.by(BOB, "submit train.py --name train").exit_code == 3
    done = run.by(ADA, "submit train.py --name args --gpus 1-2 --batch 8 -- --lr 0.1")
    assert done.stdout == "args\n", done.stderr
    until(lambda: run.events("args"))
    job = (submit_event(run, "args").detail or {})["job"]
    assert (job["command"], job["elastic"]) == (["train.py", "--lr", "0.1"], "size")
    assert "no such script" in run.refused(ADA, "submit nothere.py", code=3)


# What each account sees.


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


def test_the_log_and_the_page_of_a_job_show_each_what_is_theirs(run: Shared):
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
    assert run.logged(f"gateway: {BOB} (uid {BOB}): refused: job {name} belongs to")


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


def test_of_a_reload_accounts_see_the_cluster_alone() -> None:
    cluster = {"cluster": {}, "next_cluster": {"nodes": []}, "leaving": ["n"], "now": True}
    hidden = {"lines": ["job a …"], "user": "ops", "uid": 1, "order": 2}
    refused = refusal_event(ClusterFile(Cluster(nodes=()), "c.json", user="ops"), 2.0, "job a …")
    caller, roles = Caller(BOB, "bob", BOB, frozenset()), Roles(visibility="private", operators=("ops",))
    seen = [*map(events_for(caller, lambda: roles), (Event(1.0, "reload", detail=cluster | hidden), refused))]
    assert seen == [Event(1.0, "reload", detail=cluster), None]
    assert events_for(caller._replace(name="ops"), lambda: roles)(refused) == refused


def test_a_log_that_a_gateway_does_not_give_whole_is_not_summed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_client, "MAX_EVENTS", 2)
    client = remote_client.SocketClient(tmp_path)
    lines = [b'{"schema":"pliant.event/1"}\n', *[b"{}\n"] * 9]
    monkeypatch.setattr(client, "events", lambda last, follow: iter([lines[0], *lines[1:][-last:]]))
    with pytest.raises(UsageError, match=r"more than 2 events.*run it as root"):
        [*client.whole_log()]
    del lines[3:]
    assert [*client.whole_log()] == lines
