"""Keep a command of another account: what ``supervisor.py`` does, run by root.

Run as ``python -I -S supervisor_setuid.py CODE_FILE FOLDER COMMAND…``. Standard input holds the account and
the environment of the command as JSON: in the environment of this process, which is root's, they would be
obeyed by the system's loader.

The command's processes cannot end this one, and whatever they leave behind becomes its child and is killed
by it: a job ends with its supervisor, also if it hides. For files this process has the account's rights, as
the files are in the account's folder. Only a step of Slurm has files of its own beside these, see
``step.py``.
"""

from __future__ import annotations

import contextlib
import ctypes  # noqa: F401 - supervisor.py imports it once the libraries may be out of reach
import importlib
import json
import os
import resource
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType
    from typing import Any

_HANDLED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)


def main(arguments: list[str]) -> int:
    with open(0, encoding="utf-8", closefd=False) as told:
        account = SetuidAccount(json.load(told))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    supervisor = _supervisor()
    supervisor.find_module("resource_usage")
    supervisor.find_module("cgroup")
    supervisor.Helpers.load(account.env)
    group = os.environ.pop(supervisor.ENV_GROUP, "")
    # later imports would have the account's rights, and Python may lie where only root reads
    import shutil

    del shutil
    account.take_file_rights()
    code_file, folder, *argv = arguments
    return int(supervisor.supervise(code_file, folder, argv, account=account, group=group))


class SetuidAccount:
    """Whose the command is."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._uid, self._gid = int(order["uid"]), int(order["gid"])
        self._groups = [int(group) for group in order["groups"]]
        self._umask = int(order["umask"])
        self._limits = [(int(number), int(value)) for number, value in order["limits"]]
        self.env = {str(name): str(value) for name, value in order["env"].items()}

    def take_file_rights(self) -> None:
        """The real and the saved ids stay root's: the account can neither end nor trace this process."""
        os.umask(0o077)
        os.setgroups(self._groups)
        os.setegid(self._gid)
        os.seteuid(self._uid)

    @contextlib.contextmanager
    def as_root(self) -> Iterator[None]:
        """Within it, this process has root's rights. No handler runs meanwhile: it would have them, too."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            os.seteuid(0)
            yield
        finally:
            os.seteuid(self._uid)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def start(self, argv: list[str], *, unnoticing: bool = False) -> int:
        """Start the command in the folder where this process is; returns its pid.

        :param unnoticing: it begins with SIGUSR1 ignored, and learns that notices come.
        :raises OSError: it cannot be started.
        """
        heard, says = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # no handler of this process runs there
        try:
            pid = os.fork()
            if pid == 0:
                self._become(argv, says, before, unnoticing=unnoticing)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(says)
        with os.fdopen(heard, "rb") as words:
            number = words.read()
        if number:
            os.waitpid(pid, 0)
            raise OSError(int(number), os.strerror(int(number)))
        return pid

    def _become(self, argv: list[str], says: int, mask: Iterable[int], *, unnoticing: bool) -> None:
        """Give up all that is root's and become the command."""
        try:
            self.drop_root()
            if unnoticing:
                signal.signal(signal.SIGUSR1, signal.SIG_IGN)
                self.env["PLIANT_NOTICES"] = "1"
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvpe(argv[0], argv, self.env)  # noqa: S606 - no shell: that is the point
        except OSError as error:
            os.write(says, str(error.errno or 1).encode())
        finally:
            os._exit(127)

    def drop_root(self) -> None:
        """Become the account in all respects: rights, limits, umask, signals."""
        os.seteuid(0)
        for number, value in self._limits:
            resource.setrlimit(number, (value, value))
        os.setgroups(self._groups)
        os.setresgid(self._gid, self._gid, self._gid)
        os.setresuid(self._uid, self._uid, self._uid)
        os.umask(self._umask)
        for number in (*_HANDLED, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)

    def kill(self, pid: int, number: int) -> None:
        """Send a signal with root's rights: what the command has started may run as another user."""
        with self.as_root():
            os.kill(pid, number)


def _supervisor() -> ModuleType:
    """``supervisor.py`` by its path, as this process has no packages."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    try:
        return importlib.import_module("supervisor")
    finally:
        del sys.path[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
