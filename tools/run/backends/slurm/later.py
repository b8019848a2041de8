"""A command of Slurm that runs in a thread: what it says is there once it has ended.

A process that ends waits for its threads: what was submitted or cancelled reaches Slurm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.backends.slurm.ask import ask


class Later:
    """One call of a command. Never waits unless it is asked to.

    :param base: the environment that the command gets, but for what is Slurm's; None: that of this process.
    """

    def __init__(self, argv: Sequence[str], base: Mapping[str, str] | None = None) -> None:
        self.done = False
        self.text = ""
        """What it printed."""
        self.failure = ""
        """Why it failed; empty: it did not."""
        self.ended_s = float("inf")
        """When it ended, on the clock of this process."""
        self._argv, self._base = argv, base
        self._thread = threading.Thread(target=self._run, name="pliant-slurm")
        self._thread.start()

    def wait(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self.text = ask(self._argv, base=self._base)
        except ServiceMissingError as error:
            self.failure = str(error)
        self.ended_s = time.monotonic()
        self.done = True
