"""Slurm's commands in threads: its controller may take milliseconds, or many seconds if it does not answer.

:class:`Controller` looks again and again without waiting: each look is taken in a thread, and what it found
stays in force until the next one has found something. :class:`Later` is one command; a process that ends
waits for its threads, so what was submitted or cancelled reaches Slurm.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pliant.schemas.errors import ServiceMissingError
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.commands import ask
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmNode, SlurmStep

LOOK_S: Final = 1.0
"""Between two looks at jobs and steps."""
NODES_S: Final = 5.0
"""Between two looks at the nodes."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class ControllerView:
    """What Slurm said at one time."""

    asked_s: float
    """On the clock of this process; it shows nothing later."""
    jobs: Sequence[SlurmJob] = ()
    steps: Mapping[str, SlurmStep] = field(default_factory=dict)
    """By (lease's job id, name), written ``7/resnet.2.0``."""
    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)


class Controller:
    """The Slurm that the environment leads to.

    :param nodes: those that are of interest.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.view: ControllerView | None = None
        """The newest; None before the first."""
        self.failure = ""
        """Why the last look failed; empty if it did not."""
        self._nodes = tuple(nodes)
        self._nodes_s = float("-inf")
        self._look_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._warned = False

    def look(self) -> None:
        """Begin another look if it is due. Never waits."""
        if self._thread is not None and self._thread.is_alive():
            return
        if self._thread is not None:
            self._warn()
            self._thread = None
        if time.monotonic() - self._look_s >= LOOK_S:
            self._look_s = time.monotonic()
            self._thread = threading.Thread(target=self._ask, name="pliant-slurm", daemon=True)
            self._thread.start()

    def first(self) -> ControllerView:
        """The first view; waits for it.

        :raises ServiceMissingError: Slurm is not installed, or its controller does not answer.
        """
        if self.view is None:
            self._look_s = time.monotonic()
            self._ask()
        if self.view is None:
            raise ServiceMissingError(self.failure)
        return self.view

    def _ask(self) -> None:
        """One look; if any part of it fails, none counts."""
        asked_s = time.monotonic()
        try:
            jobs = parsing.jobs(ask(command_lines.squeue_jobs(os.getuid())))
            steps = parsing.steps(ask(command_lines.squeue_steps(os.getuid())))
            nodes = self._ask_for_nodes(asked_s)
        except ServiceMissingError as error:
            self.failure = str(error)
            return
        self.failure = ""
        self.view = ControllerView(
            asked_s, jobs, {f"{step.job_id}/{step.name}": step for step in steps}, nodes
        )

    def _ask_for_nodes(self, asked_s: float) -> Mapping[str, SlurmNode]:
        if not self._nodes:
            return {}
        if self.view is not None and asked_s - self._nodes_s < NODES_S:
            return self.view.nodes
        wanted, found = set(self._nodes), parsing.nodes(ask(command_lines.show_nodes()))
        self._nodes_s = asked_s
        return {node.name: node for node in found if node.name in wanted}

    def _warn(self) -> None:
        """Warn once that Slurm does not answer, and once that it does again."""
        if self.failure and not self._warned:
            _log.warning("Slurm does not answer (%s): jobs run on, and it is asked again", self.failure)
        elif self._warned and not self.failure:
            _log.warning("Slurm answers again")
        self._warned = bool(self.failure)


class Later:
    """One call of a command in a thread.

    :param base: the command's environment except for Slurm's variables; None for that of this process.
    """

    def __init__(self, argv: Sequence[str], base: Mapping[str, str] | None = None) -> None:
        self.done = False
        self.text = ""
        """What it printed."""
        self.failure = ""
        """Why it failed; empty if it did not."""
        self.ended_s = float("inf")
        """When it ended, on the clock of this process."""
        self._argv, self._base = argv, base
        self._thread = threading.Thread(target=self._run, name="pliant-slurm")
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self.text = ask(self._argv, base=self._base)
        except ServiceMissingError as error:
            self.failure = str(error)
        self.ended_s = time.monotonic()
        self.done = True
