"""Other hosts of a Slurm cluster ask by letters that munge vouches for."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from pliant.schemas.errors import UsageError
from pliant.tools.run.door import opening
from pliant.tools.run.door.letters import LETTER, Munge, about, address_of, answers_of, letters_of, send
from pliant.tools.run.door.opening import opened_door
from pliant.tools.run.door.protocol import as_line, value_in
from pliant.tools.run.statedir.directory import StateDir, make_own
from tests.leftovers import started
from tests.tools.run.door.people import (
    ADA,
    BOB,
    EVE,
    LOOK,
    Shared,
    all_may_enter,
    as_account,
    only_root_becomes_others,
)
from tests.tools.run.site import until


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
    monkeypatch.setattr(opening, "munge_socket", lambda: munge.socket)
    with all_may_enter() as folder:
        run = Shared(folder)
        dirs = StateDir(run.state)
        make_own(dirs)
        with opened_door(dirs, munge=True):
            found = json.loads(address_of(dirs).read_text())
            address_of(dirs).write_text(json.dumps({**found, "host": "elsewhere"}))
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
    assert list(letters_of(StateDir(far.state)).iterdir()) == []


def letter_of(run: Shared, munge: Munge, uid: int, name: str) -> bytes:
    """A letter, as an account writes it."""
    dirs = StateDir(run.state)

    def body() -> str:
        letter = {"credential": munge.encode(LOOK, about(dirs, name)), "request": LOOK.decode()}
        return as_line(letter).decode()

    return str(as_account(uid, body)).encode()


def put(run: Shared, uid: int, name: str, letter: bytes) -> dict[str, object]:
    """Put a letter there as an account; returns the answer that is written for it."""
    dirs = StateDir(run.state)

    def body() -> str:
        path = letters_of(dirs) / f"{name}.draft"
        path.write_bytes(letter)
        path.rename(path.with_suffix(LETTER))
        return ""

    as_account(uid, body)
    path = answers_of(dirs) / name
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
            lambda: os.listdir(letters_of(dirs)),
            lambda: os.listdir(answers_of(dirs)),
            lambda: (answers_of(dirs) / "planted").write_text("{}"),
        ):
            try:
                attempt()
            except PermissionError:
                found.append("refused")
        os.symlink("/etc/passwd", letters_of(dirs) / f"link{LETTER}")
        os.mkfifo(letters_of(dirs) / f"fifo{LETTER}")
        os.link(own, letters_of(dirs) / f"hard{LETTER}")
        return found

    far.home(EVE)
    assert as_account(EVE, body) == ["refused"] * 3
    until(lambda: list(letters_of(dirs).iterdir()) == [])
    assert list(answers_of(dirs).iterdir()) == []
    assert (far.home(EVE) / "own").exists()


def test_an_answer_is_root_s_or_is_not_believed(far: Shared, munge: Munge):
    dirs = StateDir(far.state)
    assert value_in(as_account(BOB, lambda: send(dirs, LOOK, munge).decode()).encode()) is not None
    with pytest.raises(UsageError):
        munge.check(munge.encode(b"other", about(dirs, "x")), b"answer", about(dirs, "x"))
