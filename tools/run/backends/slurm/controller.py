"""Slurm's commands in threads: its controller may take milliseconds, or many seconds if it does not answer.

:class:`Controller` looks repeatedly without waiting. :class:`Later` is one command; a process that ends waits
for its threads, so what was submitted or cancelled reaches Slurm.
"""

from __future__ import annotations

import logging
import os
import secrets
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
from pliant.tools.run.statedir.contract.as_user import with_own_files

LOOK_S: Final = 1.0
"""Between two looks at jobs and steps."""
NODES_S: Final = 5.0
"""Between two looks at the nodes."""
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class ControllerView:
    """What Slurm said at one time."""

    asked_s: float
    """On this process's clock; later changes are not in the view."""
    jobs: Sequence[SlurmJob] = ()
    steps: Mapping[str, SlurmStep] = field(default_factory=dict)
    """By job id of the lease and name: ``7/resnet.2.0``."""
    nodes: Mapping[str, SlurmNode] = field(default_factory=dict)


class Controller:
    """The Slurm of the environment.

    :param nodes: those of interest.
    """

    def __init__(self, nodes: Iterable[str]) -> None:
        self.view: ControllerView | None = None
        """The newest, until another look succeeds."""
        self.failure = ""
        self.of_all = False
        """Whether jobs of other accounts are looked for, too."""
        self._nodes = tuple(nodes)
        self._nodes_s = float("-inf")
        self._look_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._warned = False

    @with_own_files
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
        """The newest view; waits for the first one.

        :raises ServiceMissingError: Slurm is not installed, or its controller does not answer.
        """
        if self.view is None:
            self._look_s = time.monotonic()
            self._ask()
        if self.view is None:
            raise ServiceMissingError(
                f"Slurm cannot be asked which jobs and nodes it has: {self.failure}; "
                "go to a host where squeue answers (pliant doctor --cluster FILE says more)"
            )
        return self.view

    def _ask(self) -> None:
        """One look, which counts only if all of it succeeds."""
        asked_s = time.monotonic()
        try:
            jobs = (
                _jobs_of_all() if self.of_all else parsing.jobs(ask(command_lines.squeue_jobs(os.getuid())))
            )
            steps = parsing.steps(ask(command_lines.squeue_steps(os.getuid())))
            nodes = self._ask_for_nodes(asked_s)
        except ServiceMissingError as error:
            self.failure = str(error)
            return
        self.failure = ""
        by_name = {f"{step.job_id}/{step.name}": step for step in steps}
        self.view = ControllerView(asked_s, jobs, by_name, nodes)

    def _ask_for_nodes(self, asked_s: float) -> Mapping[str, SlurmNode]:
        if not self._nodes:
            return {}
        if self.view is not None and asked_s - self._nodes_s < NODES_S:
            return self.view.nodes
        wanted, found = set(self._nodes), parsing.nodes(ask(command_lines.show_nodes()))
        self._nodes_s = asked_s
        return {node.name: node for node in found if node.name in wanted}

    def _warn(self) -> None:
        if self.failure and not self._warned:
            _log.warning("Slurm does not answer (%s): jobs run on, and it is asked again", self.failure)
        elif self._warned and not self.failure:
            _log.warning("Slurm answers again")
        self._warned = bool(self.failure)


def _jobs_of_all() -> list[SlurmJob]:
    """The jobs of all accounts, each behind a mark that none of them can know and put in a job's name."""
    mark = secrets.token_hex(16)
    listing = {command_lines.LISTING: f"{mark}{command_lines.JOB_FIELDS}"}
    return parsing.jobs(ask(command_lines.squeue_jobs(None), more=listing), mark)


class Later:
    """One call of a command in a thread; ``base`` as for :func:`.commands.ask`.

    A thread begins with the file rights of the one that starts it.
    """

    @with_own_files
    def __init__(self, argv: Sequence[str], base: Mapping[str, str] | None = None) -> None:
        self.done = False
        self.text = ""
        self.failure = ""
        self.ended_s = float("inf")
        """On the clock of this process."""
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
