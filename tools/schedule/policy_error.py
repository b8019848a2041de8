"""The error of a policy: it broke a rule, or its own code raised an exception."""

from __future__ import annotations

import inspect
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from pliant.schemas.errors import PliantError
from pliant.tools.schedule.policy import Policy

OURS = Policy.__module__.partition(".")[0]


class PolicyError(PliantError):
    """A bug of a policy, not of its input: it broke a rule, or its code raised an exception.

    The message names the policy; where code raised, also file and line, and ``__cause__`` is the exception.
    """

    @classmethod
    def broke_rule(cls, policy: str, what: str) -> PolicyError:
        """The policy decided or returned what no policy may."""
        return cls(f'policy "{policy}" {what}: this is a bug in the policy')


class blaming:  # noqa: N801 - reads as a word of the with statement; a class costs less than a generator
    """In this block an exception out of the code of another package becomes an error that names the policy.

    It stays as it is where the policy is one of pliant's own, or the error is an expected one.

    :param doing: what is under way, where the name of the method would not say it.
    :raises PolicyError: from the exception.
    """

    __slots__ = ("_doing", "_policy")

    def __init__(self, policy: type[Policy], *, doing: str = "") -> None:
        self._policy = policy
        self._doing = doing

    def __enter__(self) -> None:
        """Nothing is set up."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """``SystemExit`` is the policy's as well, unless a signal handler of pliant raised it."""
        if isinstance(error, Exception | SystemExit):
            blame(self._policy, error, self._doing)


def blame(policy: type[Policy], error: BaseException, doing: str = "") -> None:
    """What :class:`blaming` does with an exception, where a block would cost too much: decisions are many.

    :raises PolicyError: from the exception, unless it stays as it is.
    """
    if isinstance(error, PliantError | MemoryError) or _package(policy.__module__) == OURS:
        return
    if isinstance(error, SystemExit) and _raised_in(error) == OURS:
        return
    name = getattr(policy, "name", policy.__qualname__)
    raise PolicyError(f'policy "{name}" ({_place(policy, error)}): {doing}{in_words(error)}') from error


def in_words(error: BaseException) -> str:
    """``KeyError: 'x'``, on one line; the type alone where the exception says nothing."""
    said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def raised_at(error: BaseException, package: str) -> str | None:
    """``FILE:LINE`` of the innermost frame of a package in a traceback; None: the error passed none.

    Of a syntax error the place in the file that cannot be compiled.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_short(error.filename)}:{error.lineno}"
    place = None
    for frame, line in walk_tb(error.__traceback__):
        in_file = not frame.f_code.co_filename.startswith("<")  # as that of an annotation that is text
        if in_file and _package_of(frame) == package:
            place = f"{_short(frame.f_code.co_filename)}:{line}"
    return place


def _raised_in(error: BaseException) -> str:
    """The package of the innermost frame of a traceback."""
    packages = [_package_of(frame) for frame, _ in walk_tb(error.__traceback__)]
    return packages[-1] if packages else ""


def _package_of(frame: FrameType) -> str:
    return _package(frame.f_globals.get("__name__") or "")


def _place(policy: type[Policy], error: BaseException) -> str:
    """Where the policy's own code raised; where it did not, its class."""
    return raised_at(error, _package(policy.__module__)) or _defined_at(policy)


def _defined_at(policy: type[Policy]) -> str:
    try:
        file, (_, line) = inspect.getfile(policy), inspect.getsourcelines(policy)
    except (OSError, TypeError):
        return f"{policy.__module__}:{policy.__qualname__}"
    return f"{_short(file)}:{line}"


def _short(file: str) -> str:
    """A path as seen from the working directory, where the file lies below it."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (OSError, ValueError):
        return file


def _package(module: str) -> str:
    return module.partition(".")[0]
