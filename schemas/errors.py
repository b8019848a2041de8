"""Every error a user can cause or meet; each class carries the exit code that the command line ends with.

Only ``cli/`` turns these into an exit. Exit codes: 0 done, 1 a bug (ours, or a policy's), 2 usage, 3 bad
input, 4 infeasible, 5 some jobs failed, 69 a needed service is missing, 75 locked (try again), 130/143
signalled, 141 the reader of stdout left early.

Libraries that only some of the work needs are the package's extras; :func:`require` names a missing one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar, Final

from pliant.schemas.text import harmless


class PliantError(Exception):
    """Base of all expected errors. The message is one line, written for the person at the terminal."""

    exit_code: ClassVar[int] = 1


class UsageError(PliantError):
    """The command line contradicts itself or lacks something."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in one input: where it is, what it is, what was expected."""

    source: str
    line: int | None
    pointer: str
    message: str

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return harmless(
            f"{where}: {self.pointer}: {self.message}" if self.pointer else f"{where}: {self.message}"
        )


class BadInputError(PliantError):
    """A file does not say what its schema asks for. Holds every problem found, prints the first twenty."""

    exit_code = 3
    shown = 20

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        super().__init__(problems if isinstance(problems, str) else self._text())

    def _text(self) -> str:
        lines = [str(problem) for problem in self.problems[: self.shown]]
        hidden = len(self.problems) - len(lines)
        return "\n".join([*lines, f"… and {hidden} more"] if hidden > 0 else lines)

    @classmethod
    def one(cls, source: str, message: str, *, line: int | None = None, pointer: str = "") -> BadInputError:
        return cls([Problem(source, line, pointer, message)])


class InfeasibleError(PliantError):
    """The inputs are well formed but no decision satisfies them."""

    exit_code = 4


class JobsFailedError(PliantError):
    """The work was done, but some jobs failed or a figure is out of its stated range."""

    exit_code = 5


class JobsTimedOutError(JobsFailedError):
    """All jobs that did not finish were ended by limits of their own."""

    exit_code = 6


class ServiceMissingError(PliantError):
    """Something outside this program is needed and not there (Slurm, a GPU driver, disk space, memory)."""

    exit_code = 69


class OutOfMemoryError(ServiceMissingError):
    """The inputs are larger than the memory that this process may use."""

    def __init__(self, so_far: str = "") -> None:
        after = f" after {so_far}" if so_far else ""
        super().__init__(
            f"memory ran out{after}; nothing was half-written: give this process more memory "
            "(a replay takes 0.4 to 2.5 GB for a million jobs), or less to do"
        )


class LockedError(PliantError):
    """Another process is writing the same state directory; trying again later works."""

    exit_code = 75


EXTRAS: Final = {
    "torch": "run",
    "matplotlib": "figures",
    "pandas": "notebooks",
    "transformers": "integrations",
    "lightning": "integrations",
    "accelerate": "integrations",
    "wandb": "trackers",
    "mlflow": "trackers",
    "tensorboard": "trackers",
}
"""The extra of pyproject.toml that brings each library."""


def missing(library: str) -> str | None:
    """How to install a library, as a clause. Returns None if it is there; it is not imported."""
    if find_spec(library) is not None:
        return None
    return f"{library} is not installed: pip install 'pliant[{EXTRAS[library]}]'"


def require(library: str, what: str) -> None:
    """:raises ServiceMissingError: the library that ``what`` needs is not installed."""
    if (advice := missing(library)) is not None:
        raise ServiceMissingError(f"{what}, but {advice}")
