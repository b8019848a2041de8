"""Several accounts ask one run: what each may do, and what the log says of it."""

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pliant.cli.ahead import enlarged
from pliant.schemas.errors import InfeasibleError, UsageError
from pliant.schemas.event import Event
from pliant.schemas.io import read_events
from pliant.tools.run.door import access, answers
from pliant.tools.run.door.access import closed_to_others
from pliant.tools.run.door.opening import opened_door
from pliant.tools.run.door.protocol import Foresee
from pliant.tools.run.door.roles import Person
from pliant.tools.run.statedir.directory import StateDir
from tests.builders import cluster, job
from tests.tools.run.door import people
from tests.tools.run.door.people import ADA, BOB, EVE, LEA, NODE, OPS, ROLES, Shared
from tests.tools.run.live_states import live_state
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
    orders = ("hold {}", "release {}", "priority {} 9", "cancel {}")
    job = submitted(run, ADA, "b")
    until(lambda: run.events(job))
    before = run.events(job)
    for stranger in (BOB, EVE):
        for words in orders:
            line = run.refused(stranger, words.format(job))
            assert f"job {job} belongs to {ADA}, and {stranger} may not" in line
    assert run.logged(f"door: {EVE} (uid {EVE}): refused: job {job} belongs to")
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


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder above which nothing counts as closed."""
    allows, above = access._allows, {tmp_path, *tmp_path.parents}
    monkeypatch.setattr(access, "_allows", lambda path, needed: path in above or allows(path, needed))
    (tmp_path / "home" / "bin").mkdir(parents=True)
    for each in (tmp_path / "home", tmp_path / "home" / "bin"):
        each.chmod(0o755)
    (tmp_path / "home" / "bin" / "python").touch(0o755)
    (tmp_path / "home" / "bin" / "python").chmod(0o755)
    return tmp_path


def test_a_folder_or_a_link_on_the_way_may_be_closed(place: Path) -> None:
    python = place / "home" / "bin" / "python"
    link = place / "python"
    link.symlink_to(python)
    assert closed_to_others(link, executes=True) is None
    (place / "home").chmod(0o750)
    assert closed_to_others(link, executes=True) == place / "home"
    (place / "home").chmod(0o711)
    assert closed_to_others(link, executes=True) is None
    assert closed_to_others(place / "home") == place / "home", "a package is looked for by its folder's list"
    python.chmod(0o754)
    assert closed_to_others(link, executes=True) == python
    assert closed_to_others(link) is None
    assert closed_to_others(place / "home" / "nothing") == place / "home" / "nothing"


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
            with opened_door(StateDir(run.state), roles):
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
    monkeypatch.setattr(answers, "ASKED", ("-c", said))
    asks = answers.Foresight(tmp_path)
    assert asks.of(Foresee(add_nodes="2"), Person.of(people.EVE), (), ()) == b"[]"
    assert [asks.spent_s(people.EVE), asks.spent_s(people.EVE)] == [1.5, 0.0]


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("while True: pass", "no answer within 30 s of the processor: too many jobs for this policy"),
        ("bytearray(ahead.MEMORY_BYTES)", "more than 4 GiB of memory would be needed"),
    ],
)
def test_a_question_that_takes_too_much_ends_with_the_reason(tmp_path, monkeypatch, does, error):
    """With a second of the processor in place of thirty, after what a slow machine takes to start."""
    script = (
        "import sys, time\nfrom pliant.cli import ahead\n"
        f"ahead.CPU_S = int(time.process_time()) + 2\ndef foreseen(*_):\n    {does}\n"
        "ahead.foreseen = foreseen\nahead.main(sys.argv[1])"
    )
    monkeypatch.setattr(answers, "ASKED", ("-c", script))
    with pytest.raises(InfeasibleError, match=error):
        answers.Foresight(tmp_path).of(Foresee(add_nodes="2"), Person.of(people.EVE), (), ())


@pytest.mark.parametrize("number", ["0", "10001", "1000000000", "99999999999999999999"])
def test_so_many_nodes_are_not_even_named(number: str):
    with pytest.raises(UsageError, match="expected a number of nodes"):
        enlarged(cluster(2), number)
