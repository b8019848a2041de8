"""torchrun as pliant starts it: with torchrun's own arguments, run as a file.

- ``--rdzv-backend=one-node`` is a rendezvous in torchrun's own memory, for the workers of one node. The
  others keep their state in a store that listens on every address of the machine, or in a file, which a full
  disk tears; torchrun then never ends.
- It ends as the worker that failed first did, by the same exit code or signal; torchrun always returns 1.
- On several nodes its workers use the network interface of the node's own address. Otherwise they look up the
  machine's name, which may be unknown or mean the loopback interface.
- SIGUSR1, a notice that the machine goes, does not end it: its workers get it.
- Its logs are private, whatever the umask; the workers get the umask unchanged.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

import psutil
from torch.distributed import HashStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)
from torch.distributed.run import main

from pliant.schemas.errors import UsageError
from pliant.tools.profile.torchrun.start import VARIABLES, interface_of, refuse_loopback

NAME: Final = "one-node"


class OneNode(RendezvousHandler):
    """The rendezvous of a single torchrun: complete at once."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        self._address = parameters.local_addr
        self._closed = False

    def get_backend(self) -> str:
        return NAME

    def next_rendezvous(self) -> RendezvousInfo:
        """Rank 0 of 1; the workers reach each other at the node's address, at a free port."""
        store = HashStore()
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo.build(0, store, self._address))

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def stay_on_interface(arguments: Sequence[str]) -> None:
    """Keep the workers of one of several nodes on the interface of its address, unless the user chose one.

    :raises UsageError: the user's choice keeps other nodes out.
    """
    given = dict(word.partition("=")[::2] for word in arguments)
    if given.get("--rdzv-backend") != "static":
        return
    address = given.get("--local-addr", "")
    interface = interface_of(address)
    if interface is not None:
        refuse_loopback(address)
        for variable, form in VARIABLES.items():
            os.environ.setdefault(variable, form.format(interface))


def keep_logs_private() -> None:
    """Make torchrun's folders 0700 and its files 0600. Workers get the umask unchanged."""
    of_workers, start = os.umask(0o077), SubprocessHandler._popen

    def start_worker(handler: SubprocessHandler, *args: Any) -> Any:
        own = os.umask(of_workers)
        try:
            return start(handler, *args)
        finally:
            os.umask(own)

    setattr(SubprocessHandler, "_popen", start_worker)  # noqa: B010 - no subclass of it is asked for


def pass_on_notices() -> None:
    """Send a SIGUSR1 to the workers; a worker that has no handler for it ends, as without torchrun.

    Where it is ignored from the start, the workers get it themselves, and begin with it ignored, too.
    """
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN:
        return

    def send(number: int, _frame: FrameType | None) -> None:
        for worker in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                worker.send_signal(number)

    signal.signal(signal.SIGUSR1, send)


def run() -> int:
    """The exit code of the worker that failed first, negative for a signal; 0 if none failed."""
    try:
        stay_on_interface(sys.argv[1:])
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    rendezvous_handler_registry.register(NAME, OneNode)
    try:
        main()
    except ChildFailedError as error:
        print(error, file=sys.stderr)
        _, failure = error.get_first_failure()
        return int(failure.exitcode) or 1
    return 0


def end_by(number: int) -> None:
    """End by a signal, without a second core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    sys.stderr.flush()
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    keep_logs_private()
    pass_on_notices()
    code = run()
    if code < 0:
        end_by(-code)
    sys.exit(code)
