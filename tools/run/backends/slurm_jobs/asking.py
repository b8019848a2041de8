"""A command of Slurm that runs in a thread: what it says is there once it has ended.

A process that ends waits for its threads: what was submitted or cancelled reaches Slurm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.backends.slurm import command_lines, parsing
from pliant.tools.run.backends.slurm.ask import ask


class Asking:
    """One call of a command. Never waits.

    :param base: the environment that the command gets, but for what is Slurm's; None: that of this process.
    """

    def __init__(self, argv: Sequence[str], base: Mapping[str, str] | None = None) -> None:
        self.done = False
        self.failure = ""
        """Why it failed; empty: it did not."""
        self.ended_s = float("inf")
        """When it ended, on the clock of this process."""
        self._text = ""
        self._argv, self._base = argv, base
        threading.Thread(target=self._run, name="pliant-slurm").start()

    @classmethod
    def about(cls, job_id: str) -> Asking:
        """Ask for a job."""
        return cls(command_lines.show_job(job_id))

    @property
    def state(self) -> str:
        """The state of the job that was asked for; empty: it is not known."""
        return parsing.job_state(self._text)

    def _run(self) -> None:
        try:
            self._text = ask(self._argv, base=self._base)
        except ServiceMissingError as error:
            self.failure = str(error)
        self.ended_s = time.monotonic()
        self.done = True
