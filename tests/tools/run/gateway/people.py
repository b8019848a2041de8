"""Accounts without a name or a home, which only root can become: a test calls ``pliant`` as one of them."""

import importlib
import json
import os
import pkgutil
import shutil
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from rich.cells import cell_len

from pliant.schemas.io import read_events, write_cluster
from pliant.tools.run.gateway.protocol import SOCKET
from pliant.tools.run.statedir.directory import StateDir
from tests.builders import cluster
from tests.cli.calling import call
from tests.leftovers import started
from tests.tools.run.site import PLIANT, environment, until

ADA, BOB, EVE, LEA, OPS, MAL = range(61_501, 61_507)
ROLES: Final = {"operators": [str(OPS)], "teams": {"vision": {"leads": [str(LEA)], "users": [str(ADA)]}}}
# limits of one account
LIMITS: Final = {
    "requests_per_second": 0.001,
    "burst": 12,
    "connections": 4,
    "waiting_jobs": 2,
    "request_bytes": 2000,
    "priority": 5.0,
}
NODE: Final = "n0"
CHANGED: Final = "the roles have changed"
LOOK: Final = b'{"ask":"look"}\n'


class Called(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


@dataclass(slots=True)
class Shared:
    """A run that root shares; nothing is started in it, for its node is drained."""

    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def by(self, uid: int, *words: object, stdin: str = "") -> Called:
        """``pliant`` with these words, and the state directory, as an account."""
        self.home(uid)
        import_commands()

        def body() -> Called:
            os.chdir(self.home(uid))
            before, _, after = " ".join(map(str, words)).partition(" -- ")
            line = [*before.split(), "--state", str(self.state), *(["--", *after.split()] if after else [])]
            done = call(*line, stdin=stdin.encode(), columns=200)
            if done.exception and not isinstance(done.exception, SystemExit):
                raise done.exception
            return Called(done.exit_code, done.stdout, done.stderr)

        return Called(*as_account(uid, body))

    def refused(self, uid: int, *words: object, code: int = 2, stdin: str = "") -> str:
        """The one line with which a command is refused."""
        done = self.by(uid, *words, stdin=stdin)
        assert (done.exit_code, done.stdout) == (code, ""), done
        (line,) = done.stderr.splitlines()
        return line

    def home(self, uid: int) -> Path:
        """A folder of the account, with a script in it."""
        path = self.folder / f"home-{uid}"
        if not path.exists():
            path.mkdir()
            (path / "train.py").write_text("print('done')\n")
            os.chown(path, uid, uid)
        return path

    def set_roles(self, **roles: Any) -> None:
        """Change the file of roles; the door has seen it when this returns."""
        path = self.folder / "roles.json"
        before = path.read_text()
        write_roles(path, **roles)
        if path.read_text() != before:
            count = (self.folder / "run.err").read_text().count(CHANGED)
            until(lambda: self._noticed(count))

    def _noticed(self, count: int) -> bool:
        self.ask(BOB, LOOK)  # the door reads the file when it is asked
        return (self.folder / "run.err").read_text().count(CHANGED) > count

    def ask(self, uid: int, data: bytes) -> dict[str, Any]:

        def body() -> dict[str, Any]:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self.state / "door" / SOCKET))
                with suppress(BrokenPipeError):  # refused before it was read; the answer says why
                    connection.sendall(data)
                with connection.makefile("rb") as file:
                    return dict(json.loads(file.readline()))

        return dict(as_account(uid, body))

    def logged(self, text: str) -> bool:
        return text in (self.folder / "run.err").read_text()

    def events(self, job: str) -> list[tuple[str, Any]]:
        return [
            (event.event, (event.detail or {}).get("uid"))
            for event in read_events(StateDir(self.state).events)
            if event.job == job and event.event != "decision"
        ]


def as_account(uid: int, body: Callable[[], Any]) -> Any:
    """What a function returns in a process of another account; it has no way back to root."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(writer, json.dumps(body()).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - the child of a fork must not go on as pytest
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return json.loads(said)


@cache
def import_commands() -> None:
    """What commands import when they are called: others may not be able to read Python's own files."""
    with tempfile.TemporaryDirectory() as folder:
        state, jobs = Path(folder, "state"), Path(folder, "jobs.jsonl")
        Path(folder, "train.py").write_text("")
        jobs.write_text(json.dumps({"id": "a", "command": ["train.py"], "workdir": folder}) + "\n")
        words = "status|status a|status -f json|status --columns job|top|top -f json|log a|log --tail 3"
        more = "hold a|priority a 1|release a|drain n|wait b|cancel a"
        for line in (*[f"submit {jobs}"] * 2, "submit none.py", *words.split("|"), *more.split("|")):
            call(*line.split(), "--state", str(state))
    for name in ("pliant.tools.report.job_cost", "rich.live", "rich.progress"):
        importlib.import_module(name)
    cell_len("\N{HORIZONTAL ELLIPSIS}")  # reads tables of its own
    for name in ("pliant.cli", "pliant.tools.run.gateway", "pliant.tools.run.watch"):
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)


def only_root_becomes_others() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes several accounts")


@contextmanager
def all_may_enter() -> Iterator[Path]:
    """A folder that other accounts can enter, and read what is made in it, whatever the modes of pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="pliant door ", dir="/tmp")).resolve()
    before = os.umask(0o022)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        os.umask(before)
        shutil.rmtree(folder)


def write_roles(path: Path, **roles: Any) -> Path:
    path.write_text(json.dumps({"schema": "pliant.roles/1", **roles}))
    path.chmod(0o644)
    return path


@contextmanager
def shared_run(folder: Path, *begin: str, idle: bool = True) -> Iterator[Shared]:
    """A run of root's.

    :param begin: words before the command.
    :param idle: its one node gives no work.
    """
    found = Shared(folder)
    write_cluster(cluster(2, slots="cpu"), folder / "cluster.json")
    write_roles(folder / "roles.json", **ROLES)
    words = ["serve", "--policy", "fifo", "--cluster", f"{folder}/cluster.json"]
    argv = [*begin, *PLIANT, *words, "--roles", f"{folder}/roles.json", "--state", str(found.state)]
    with (folder / "run.err").open("wb") as err:
        where = {"cwd": folder, "env": environment(), "stdin": subprocess.DEVNULL, "stderr": err}
        with started(argv, stdout=subprocess.DEVNULL, **where) as run:
            until(lambda: run.poll() is not None or (found.state / "door" / SOCKET).exists())
            assert run.poll() is None, (folder / "run.err").read_text()
            if idle:
                done = call("drain", NODE, "--state", str(found.state))
                assert done.exit_code == 0, done.stderr
            yield found
            run.terminate()
            run.wait()
