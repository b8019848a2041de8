"""What the workers of a job share before they have a process group: small files in a folder of their own.

Workers meet, and gloo's connections are made, over a :class:`FolderStore`: one file a key, which is there as
a whole or not at all, whichever worker is killed and when. Waiting for a key can be broken off.

Everything that comes later (NCCL, groups that a script makes, a script's own use of the default store) uses
PyTorch's FileStore in the same folder, see :func:`shared_store`. It is C++, so that a background thread needs
no interpreter. What has to be known about it:

- All keys are in one file, appended by four writes under ``flock``. A worker that is killed between them, or
  a full disk, leaves half a record, and then every reader spins inside C++ and cannot be interrupted. That is
  why workers do not meet over it. It also writes when it is made and when it is freed, see below.
- It holds the interpreter lock while it is made, and releases it while it waits.
- It looks for a key every 10 ms, for 300 s unless ``set_timeout`` says otherwise (0: without end), whatever
  the timeout of the group that asks.
- With a number of users it deletes the file when as many have freed it, though others may still come. Without
  one it never does: the folder is removed when the next generation trains.
- A lock is freed by its holder's death. On NFS ``flock`` is a lock of the server; mounts with
  ``local_lock=flock`` keep it to one host and break the store.

What the folder has to offer to workers on several hosts is in ``statedir/contract/__init__.py``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import torch.distributed as dist

from pliant.tools.run.elastic.membership.plan_watch import Pace
from pliant.tools.run.statedir.contract.files import ask_server, is_there

POLL_S: Final = 0.003
ASK_S: Final = 0.05
"""Between two questions to the server for a key that is not there, as far as this host knows."""
_ANSWER: Final = timedelta(seconds=10)
_STORE: Final = "store"


class FolderStore(dist.Store):
    """A store for the time until a process group is formed.

    C++ calls its methods and does not keep it alive: hold a reference as long as the group lives.

    :param folder: of these workers, this generation and this round alone; it is there.
    :param called_away: looked at while waiting; True, or what it raises, breaks the wait off.
    """

    def __init__(self, folder: Path, called_away: Callable[[], bool]) -> None:
        super().__init__()
        self._folder, self._called_away = folder, called_away
        self._asks = Pace(ASK_S)

    def set(self, key: str, value: Any) -> None:
        """Make a key's value known."""
        make_known(self._path(key), value.encode() if isinstance(value, str) else bytes(value))

    def set_once(self, key: str, value: str) -> None:
        """Make a key's value known, unless it has one: of several workers the first one decides.

        :raises FileNotFoundError: the folder is gone, the meeting is over.
        """
        path = self._path(key)
        unseen = _beside(path, value.encode())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(unseen, path)
        finally:
            unseen.unlink(missing_ok=True)

    def get(self, key: str) -> bytes:
        """A key's value, once it has one."""
        self.wait([key])
        return self._path(key).read_bytes()

    def add(self, key: str, value: int) -> int:
        """Count; the sum, which is the key's value from now on."""
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            ask_server(self._folder)
            path = self._path(key)
            total = value + (int(path.read_bytes()) if is_there(path) else 0)
            self.set(key, str(total))
        return total

    def check(self, keys: list[str]) -> bool:
        """Whether all of them have a value."""
        if all(is_there(self._path(key)) for key in keys):
            return True
        if not self._asks.is_due():
            return False
        ask_server(self._folder)
        return all(is_there(self._path(key)) for key in keys)

    def wait(self, keys: list[str], timeout: timedelta = _ANSWER) -> None:
        """Wait until all of them have a value.

        :raises RuntimeError: called away, or the time is over.
        """
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.check(keys):
            if self._called_away() or time.monotonic() > deadline:
                raise RuntimeError("gloo: a worker did not connect")
            pause()

    def _path(self, key: str) -> Path:
        return self._folder / f"key-{quote(key, safe='')}"


def shared_store(folder: Path, name: str) -> tuple[dist.FileStore, Path]:
    """A FileStore that is one for all who name this folder, and the path to remove before it is freed.

    A FileStore counts its users in its file, when it is made and when it is freed. To be killed at that does
    not harm the others: it is made on a file of its own, the first of which becomes the shared one and the
    others give their name to it. When it is freed and the name is gone, it writes nothing.

    :param name: of this user, one of its own.
    :raises OSError: the folder is gone, say.
    """
    own, shared = folder / f"{_STORE}-{name}", folder / _STORE
    # PyTorch would wait for a folder that is gone, with the interpreter lock
    own.touch(mode=0o600)
    store = dist.FileStore(str(own))
    with contextlib.suppress(FileExistsError):
        os.link(own, shared)
    another = own.with_suffix(".new")
    os.link(shared, another)
    another.replace(own)
    return store, own


def make_known(path: Path, value: bytes) -> None:
    """Replace a file that matters to living processes only: nothing is forced to disk, and nothing waits.

    Only its owner can read it.
    """
    _beside(path, value).replace(path)


def pause() -> None:
    """The time between two looks."""
    time.sleep(POLL_S)


def _beside(path: Path, value: bytes) -> Path:
    """A file next to another one that holds the value; no process on any host uses its name."""
    made = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        made.touch(mode=0o600)
        made.write_bytes(value)
    except OSError:
        # on a full disk: who tries again and again must not leave a file each time
        with contextlib.suppress(OSError):
            made.unlink(missing_ok=True)
        raise
    return made
