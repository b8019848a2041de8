"""What an account tries that means harm: each is refused, and no other account notices."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from pliant.schemas.errors import BadInputError, LockedError, PliantError, UsageError
from pliant.schemas.io import write_cluster
from pliant.tools.run.gateway import supervisor
from pliant.tools.run.gateway.caller import Caller
from pliant.tools.run.gateway.handlers import RequestHandlers
from pliant.tools.run.gateway.munge_transport import (
    REQUEST_SUFFIX,
    Munge,
    address_file,
    credential_subject,
    replies_folder,
    requests_folder,
    send,
)
from pliant.tools.run.gateway.permissions import AccountLimits, Roles, read_roles
from pliant.tools.run.gateway.protocol import SOCKET, OrderJobs, as_line, read_line, value_in
from pliant.tools.run.gateway.supervisor import supervised_gateway
from pliant.tools.run.service.submit import submit
from pliant.tools.run.statedir.directory import StateDir, make_own, make_shared
from pliant.tools.run.statedir.requests import Spool
from tests.builders import cluster, job
from tests.cli.calling import call
from tests.leftovers import started
from tests.tools.run.gateway.people import (
    ADA,
    BOB,
    EVE,
    LOOK,
    MAL,
    Shared,
    all_may_enter,
    as_account,
    only_root_becomes_others,
    write_roles,
)
from tests.tools.run.site import until

Tries = Callable[[Path, Path], object]
ON_FILES: dict[str, Tries] = {
    "list": lambda state, _: os.listdir(state),
    "read the log": lambda state, _: (state / "events.jsonl").read_bytes(),
    "hold the lock": lambda state, _: os.open(state / "lock", os.O_RDONLY),
    "hard link into the spool": lambda state, own: os.link(own, state / "spool" / "1.2.uid0.jobs.jsonl"),
    "hard link into the door": lambda state, own: os.link(own, state / "door" / "roles.json"),
    "symbolic link into the door": lambda state, own: os.symlink(own, state / "door" / "other"),
    "rename over the socket": lambda state, own: os.rename(own, state / "door" / SOCKET),
    "remove the socket": lambda state, _: os.unlink(state / "door" / SOCKET),
    "FIFO in the door": lambda state, _: os.mkfifo(state / "door" / "fifo"),
    "swap the door": lambda state, _: os.rename(state / "door", state / "gone"),
    "swap the directory": lambda state, _: os.rename(state, state.with_name("gone")),
    "open the door's folder": lambda state, _: (state / "door").chmod(0o770),
}


def test_nothing_in_the_state_directory_can_be_touched(run: Shared):
    def attempt(attack: Tries) -> str:
        own = run.home(EVE) / "own"
        own.write_text(json.dumps({"id": "planted", "command": ["train.py"]}) + "\n")
        try:
            attack(run.state, own)
        except PermissionError:
            return "refused"
        return "it worked"

    run.home(EVE)
    results = as_account(EVE, lambda: {name: attempt(attack) for name, attack in ON_FILES.items()})
    assert results == dict.fromkeys(ON_FILES, "refused")
    assert run.by(BOB, "status").exit_code == 0


@pytest.mark.services
def test_a_door_that_another_account_made_is_not_asked():
    only_root_becomes_others()
    with all_may_enter() as folder, socket.socket(socket.AF_UNIX) as listening:
        run = Shared(folder)
        home, real = run.home(EVE), StateDir(folder / "state")
        make_own(real)
        make_shared(real)

        def build() -> None:
            (home / "made" / "door").mkdir(parents=True)
            (home / "made" / "spool").mkdir()
            (home / "linked").mkdir()
            os.symlink(real.door, home / "linked" / "door")
            listening.bind(str(home / "made" / "door" / SOCKET))
            listening.listen()

        def ask(state: Path) -> list[object]:
            os.chdir(run.home(BOB))
            done = call("submit", "train.py", "--state", str(state), columns=200)
            return [done.exit_code, done.stdout, done.stderr]

        as_account(EVE, build)
        run.home(BOB)
        for fake in ("made", "linked"):
            code, printed, error = as_account(BOB, partial(ask, home / fake))
            assert (code, printed) == (2, ""), error
            assert len(str(error).splitlines()) == 1
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.services
def test_without_a_run_there_is_one_line_and_no_request():
    only_root_becomes_others()
    with all_may_enter() as folder, socket.socket(socket.AF_UNIX) as gone:
        run, dirs = Shared(folder), StateDir(folder / "state")
        make_own(dirs)
        make_shared(dirs)
        for _ in range(2):
            for words in ("status", "submit train.py", "cancel a"):
                assert "no run serves" in run.refused(BOB, words, code=69)
            if not (dirs.door / SOCKET).exists():
                gone.bind(str(dirs.door / SOCKET))  # as a run that was killed leaves it
                (dirs.door / SOCKET).chmod(0o666)
        assert list(dirs.spool.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x00\xff nonsense\n", "not readable JSON"),
        (b'{"ask":"look","uid":0}\n', "is not a field"),
        (b'{"ask":"everything"}\n', "is wrong"),
        (b'{"ask":"cancel","jobs":["../../etc"]}\n', "is not allowed"),
        (b"[" * 100_000 + b"\n", "not readable JSON"),
        (b'{"ask":"submit","jobs":"{\\"id\\": 1}"}\n', "/id"),
    ],
)
def test_what_is_no_request_is_answered_with_one_line(run: Shared, data: bytes, said: str):
    answer = run.ask(EVE, data)
    assert (answer["ok"], answer["exit"]) == (False, 3)
    assert said in answer["error"]


def test_a_flood_is_refused_to_the_one_who_floods_alone(run: Shared):
    def flood() -> list[object]:
        refusals = set[str]()
        with ExitStack() as stack:
            for number in range(204):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                connection.connect(str(run.state / "door" / SOCKET))
                if number >= 4:  # the first ones say nothing
                    refusals.add(json.loads(connection.makefile("rb").readline())["error"])
        return sorted(refusals)

    refusals = as_account(MAL, flood)
    assert any("4 connections of" in line for line in refusals), refusals
    assert any("more than 0.001 requests a second" in line for line in refusals)
    assert run.by(BOB, "status").exit_code == 0
    assert run.logged(f"gateway: {MAL} (uid {MAL}): refused: ")
    run.refused(MAL, "status", code=75)


def test_a_slow_or_long_request_is_not_waited_for():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b'{"ask"')
        with pytest.raises(TimeoutError):
            read_line(ours, 1000, 0.01)
        theirs.sendall(b"x" * 2000)
        with pytest.raises(ValueError, match="more than 1,000 bytes"):
            read_line(ours, 1000, 60.0)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(ValueError, match="breaks off"):
            read_line(ours, 10_000, 60.0)


def test_limits_of_jobs_bytes_and_priority_are_named(run: Shared):
    limits = {"waiting_jobs": 2, "request_bytes": 2000, "priority": 5.0}
    run.set_roles(limits_of={str(BOB): limits})
    jobs = "".join(f'{{"id": "w{n}", "command": ["train.py"]}}\n' for n in range(3))
    for words, given, code, named in (
        ("submit -", jobs, 75, "and 2 may"),
        ("submit -", jobs.replace("train.py", "train.py" + '", "' + "x" * 3000), 3, "more than 2,000 bytes"),
        ("submit train.py --priority 6", "", 2, "priority 6 is more than its user may give (5)"),
    ):
        done = run.by(BOB, words, stdin=given)
        assert (done.exit_code, done.stdout, named in done.stderr) == (code, "", True), done
    assert run.ask(EVE, LOOK)["ok"]


def test_orders_too_long_or_malformed_are_never_written(tmp_path: Path) -> None:
    """Changes are copied into a file for each job."""
    dirs, who, ids = StateDir(tmp_path / "state"), Caller.of(EVE), [f"w{number}" for number in range(20)]
    jobs = [job(each, command=("train.py",), user=who.name) for each in ids]
    submit(dirs.path, jobs, "jobs", folder=tmp_path, now_s=0.0, check_scripts=False, by=who.account)
    answers, limits = RequestHandlers(dirs), AccountLimits(spool_bytes=20_000)
    for changes, error, named in (
        ({"exclude": ["x" * 1000]}, LockedError, "wait to be taken up, and 20,000 may"),
        ({"gpus": 3}, BadInputError, "/gpus: 3 has the wrong type"),
        ({"exclude": {"a": 1}}, BadInputError, "/exclude"),
        ({"retries": {"a": 1}}, BadInputError, "/retries"),
    ):
        order = OrderJobs(action="update", jobs=tuple(ids), changes=changes)  # type: ignore[arg-type]
        with pytest.raises(error, match=named):
            answers.to(order, who, Roles(), limits)
    assert [request.order for request in Spool(dirs).requests()] == [None]


@pytest.mark.services
def test_roles_count_where_no_other_account_can_write_them():
    only_root_becomes_others()
    with all_may_enter() as folder:
        path = write_roles(folder / "roles.json", operators=["ada"])
        link = folder / "link.json"
        link.symlink_to(path)
        assert read_roles(path).operators == ("ada",)
        path.chmod(0o666)
        refused(path, "no other account can write")
        path.chmod(0o644)
        os.chown(path, EVE, EVE)
        refused(path, "plain file of root's")
        os.chown(path, 0, 0)
        refused(link, "cannot be read")
        folder.chmod(0o777)
        refused(path, "other accounts can replace")
        dirs = StateDir(folder / "state")
        make_own(dirs)
        with (
            pytest.raises(UsageError, match="other accounts can replace what lies in it"),
            supervised_gateway(dirs),
        ):
            pass
        folder.chmod(0o755)
        with pytest.raises(PliantError, match="cannot be"), supervised_gateway(dirs, folder / "none.json"):
            pass
        write_roles(path, operator=["ada"])
        refused(path, "did you mean")


def refused(path: Path, why: str) -> None:
    with pytest.raises(PliantError, match=why):
        read_roles(path)


@pytest.mark.services
def test_a_shared_run_is_root_s_and_stays_shared():
    only_root_becomes_others()
    with all_may_enter() as folder:
        machines = ("--cluster", str(folder / "cluster.json"))
        write_cluster(cluster(1), folder / "cluster.json")

        def run(name: str, *more: str) -> list[object]:
            words = ("run", "--follow", "--policy", "fifo", "--state", str(folder / name), *more)
            done = call(*words, columns=200)
            return [done.exit_code, done.stderr]

        dirs = StateDir(folder / "state")
        make_own(dirs)
        make_shared(dirs)
        assert {dirs.path.stat().st_mode & 0o777, dirs.jobs.stat().st_mode & 0o777} == {0o711}
        code, error = run("state", *machines)
        assert (code, "which only pliant serve may start" in str(error)) == (2, True)
        code, error = as_account(BOB, lambda: run("bob", *machines, "--shared"))
        assert (code, "only root can" in str(error)) == (2, True), error


# The door's process comes and goes with the run.


def doors(state: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and str(state) in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def answers(run: Shared) -> bool:
    try:
        return bool(run.ask(BOB, LOOK)["ok"])
    except AssertionError:
        return False


@pytest.mark.services
def test_a_dead_door_is_opened_again_and_closed_with_its_run():
    only_root_becomes_others()
    with all_may_enter() as folder:
        run = Shared(folder)
        dirs = StateDir(run.state)
        make_own(dirs)
        with supervised_gateway(dirs):
            [door] = doors(dirs.path)
            assert answers(run)
            os.kill(door.pid, signal.SIGKILL)
            until(lambda: [each.pid for each in doors(dirs.path)] not in ([], [door.pid]))
            until(lambda: answers(run))
        assert doors(dirs.path) == []
        assert not answers(run)


@pytest.fixture(scope="module")
def munge() -> Iterator[Munge]:
    """A munged of the test's own."""
    only_root_becomes_others()
    munged = shutil.which("munged") or "/usr/sbin/munged"
    if not os.access(munged, os.X_OK) or shutil.which("unmunge") is None:
        pytest.skip("needs munge")
    with all_may_enter() as folder:
        private = folder / "private"
        private.mkdir(mode=0o700)
        (private / "key").touch(mode=0o600)
        (private / "key").write_bytes(secrets.token_bytes(128))
        words = [
            *(munged, "--foreground", "--force", f"--key-file={private}/key", f"--socket={folder}/socket"),
            *(f"--pid-file={private}/pid", f"--seed-file={private}/seed", f"--log-file={private}/log"),
        ]
        with started(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
            until((folder / "socket").exists)
            yield Munge(str(folder / "socket"))
            daemon.terminate()
            daemon.wait()


@pytest.fixture
def far(munge: Munge, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shared]:
    """A door that takes letters, of a run that seems to be on another host."""
    monkeypatch.setattr(supervisor, "munge_socket", lambda: munge.socket)
    with all_may_enter() as folder:
        run = Shared(folder)
        dirs = StateDir(run.state)
        make_own(dirs)
        with supervised_gateway(dirs, munge=True):
            found = json.loads(address_file(dirs).read_text())
            address_file(dirs).write_text(json.dumps({**found, "host": "elsewhere"}))
            yield run


def test_a_request_from_afar_bears_the_account_of_munge(far: Shared):
    done = far.by(ADA, "submit train.py --name a")
    assert (done.exit_code, done.stdout) == (0, "a\n"), done.stderr
    [path] = StateDir(far.state).spool.glob("*.jobs.jsonl")
    assert f".uid{ADA}." in path.name
    refused = far.by(BOB, "cancel a")
    assert refused.exit_code == 2
    assert f"job a belongs to {ADA}" in refused.stderr
    assert far.by(BOB, "status").stdout.splitlines()[1].split()[0] == "a"
    assert list(requests_folder(StateDir(far.state)).iterdir()) == []


def letter_of(run: Shared, munge: Munge, uid: int, name: str) -> bytes:
    dirs = StateDir(run.state)

    def body() -> str:
        letter = {"credential": munge.encode(LOOK, credential_subject(dirs, name)), "request": LOOK.decode()}
        return as_line(letter).decode()

    return str(as_account(uid, body)).encode()


def put(run: Shared, uid: int, name: str, letter: bytes) -> dict[str, object]:
    """Put a letter there as an account; returns the answer that is written for it."""
    dirs = StateDir(run.state)

    def body() -> str:
        path = requests_folder(dirs) / f"{name}.draft"
        path.write_bytes(letter)
        path.rename(path.with_suffix(REQUEST_SUFFIX))
        return ""

    as_account(uid, body)
    path = replies_folder(dirs) / name
    until(path.exists)
    assert path.stat().st_uid == uid
    found = json.loads(json.loads(path.read_text())["answer"])
    path.unlink()
    return dict(found)


def test_a_letter_counts_once_for_its_own_name_and_account(far: Shared, munge: Munge):
    letter = letter_of(far, munge, ADA, "first")
    assert put(far, ADA, "first", letter)["ok"] is True
    again = put(far, ADA, "first", letter)
    assert "eplay" in str(again["error"])
    other_name = put(far, ADA, "second", letter_of(far, munge, ADA, "third"))
    assert "about something else" in str(other_name["error"])
    stolen = put(far, EVE, "fourth", letter_of(far, munge, ADA, "fourth"))
    assert f"munge says it is of user {ADA}, and the file is of user {EVE}" in str(stolen["error"])
    changed = letter_of(far, munge, ADA, "fifth").replace(b"look", b"use")
    assert "about something else" in str(put(far, ADA, "fifth", changed)["error"])
    assert "a letter that is none" in str(put(far, ADA, "sixth", b"nonsense")["error"])


def test_an_old_credential_is_refused(munge: Munge):
    lasting, short = (
        subprocess.run(
            ["munge", f"--socket={munge.socket}", f"--ttl={ttl}", "--string={}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for ttl in (3600, 1)
    )
    made_s = time.time()
    with pytest.raises(UsageError, match="lives longer than 60 s"):
        munge.decode(lasting)
    until(lambda: time.time() > made_s + 2)
    with pytest.raises(UsageError, match=r"munge refuses the credential: .*xpired"):
        munge.decode(short)


def test_letters_of_others_are_closed_and_links_removed_unread(far: Shared):
    dirs = StateDir(far.state)

    def body() -> list[str]:
        found = []
        own = far.home(EVE) / "own"
        own.write_text("{}")
        for attempt in (
            lambda: os.listdir(requests_folder(dirs)),
            lambda: os.listdir(replies_folder(dirs)),
            lambda: (replies_folder(dirs) / "planted").write_text("{}"),
        ):
            try:
                attempt()
            except PermissionError:
                found.append("refused")
        os.symlink("/etc/passwd", requests_folder(dirs) / f"link{REQUEST_SUFFIX}")
        os.mkfifo(requests_folder(dirs) / f"fifo{REQUEST_SUFFIX}")
        os.link(own, requests_folder(dirs) / f"hard{REQUEST_SUFFIX}")
        return found

    far.home(EVE)
    assert as_account(EVE, body) == ["refused"] * 3
    until(lambda: list(requests_folder(dirs).iterdir()) == [])
    assert list(replies_folder(dirs).iterdir()) == []
    assert (far.home(EVE) / "own").exists()


def test_an_answer_is_root_s_or_is_not_believed(far: Shared, munge: Munge):
    dirs = StateDir(far.state)
    assert value_in(as_account(BOB, lambda: send(dirs, LOOK, munge).decode()).encode()) is not None
    with pytest.raises(UsageError):
        munge.check(
            munge.encode(b"other", credential_subject(dirs, "x")), b"answer", credential_subject(dirs, "x")
        )
