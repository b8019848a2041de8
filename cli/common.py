"""What every command shares: --debug and --quiet, errors as exit codes and single lines, and broken pipes."""

from __future__ import annotations

import errno
import functools
import gc
import inspect
import logging
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from pliant.cli.config import current_folder
from pliant.cli.console import LINES, note, print_line, settings, terminal_left
from pliant.cli.option_types import DURATION_SHOWN, duration
from pliant.schemas.errors import OutOfMemoryError, PliantError, ServiceMissingError, UsageError
from pliant.schemas.file_io.files import abandon
from pliant.schemas.text import did_you_mean, harmless, shortened, without_long_words

if TYPE_CHECKING:
    from pliant.schemas.runinfo import Assumption


DECISIONS: Final = "What the policy decides by"
DEBUG = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Print only errors on stderr.")]
PARAM = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="KEY=VALUE", help="A parameter of the policy.", show_default=False),
]
TIME_BUDGET = Annotated[
    float | None,
    typer.Option(
        "--time-budget",
        parser=duration(),
        metavar=DURATION_SHOWN,
        help="Time for each decision of a policy that searches: its parameter time_budget_s.",
        rich_help_panel=DECISIONS,
    ),
]
SEED = Annotated[
    int,
    typer.Option("--seed", min=0, help="Seed of policies that decide at random.", rich_help_panel=DECISIONS),
]


def _demand(value: str) -> Literal["stated", "predicted"]:
    match value:
        case "stated" | "predicted":
            return value
        case "oracle":
            raise ValueError("only a replay knows when jobs will end; expected stated or predicted")
    hint = did_you_mean(value, ("stated", "predicted"))
    raise ValueError(f"expected stated or predicted{hint and '; '}{hint}")


DEMAND = Annotated[
    Literal["stated", "predicted"] | None,
    typer.Option(
        "--demand",
        parser=_demand,
        metavar="<stated|predicted>",
        help="What policies see of jobs that state no work: nothing, or predictions that learn as jobs end.",
        show_default="as before; at first stated",
        rich_help_panel=DECISIONS,
    ),
]
PREEMPTIBLE = Annotated[
    Literal["all", "stated"] | None,
    typer.Option(
        "--preemptible",
        metavar="<all|stated>",
        help="Whose GPUs policies may take or change: of all jobs; or of those that state or show that they "
        "can save (elastic, resize, checkpoint_seconds, preemptible).",
        show_default="as the cluster says, else stated",
        rich_help_panel=DECISIONS,
    ),
]
PREDICTOR = Annotated[
    str | None,
    typer.Option(
        "--predictor",
        metavar="FILE",
        help="Predictor to start from (JSON, by pliant predictor fit).",
        show_default="what was learned before",
        rich_help_panel=DECISIONS,
    ),
]
BROKEN_PIPE = 128 + signal.SIGPIPE
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
NO_ROOM = "failed to map segment"
"""The dynamic linker's message where a library does not fit into memory."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options and error handling."""

    @functools.wraps(function)
    def wrapped(*args: Any, debug: bool = False, quiet: bool = False, **kwargs: Any) -> None:
        gc.enable()
        settings.debug, settings.quiet = debug, quiet
        _log_to_stderr(quiet=quiet, debug=debug)
        signal.signal(signal.SIGTERM, _terminate)

        code = run_command(functools.partial(function, *args, **kwargs))
        if code:
            raise typer.Exit(code)

    signature = inspect.signature(function, eval_str=True)
    common = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in (("debug", DEBUG), ("quiet", QUIET))
    ]
    wrapped.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *common]
    )
    return wrapped


def print_assumptions(assumptions: Sequence[Assumption], *, strict: bool = False) -> None:
    """Print each assumption in one line.

    :raises BadInputError: there are some, with ``--strict``.
    """
    from pliant.tools.schedule.assumptions import refuse

    if strict:
        refuse(assumptions)
    for assumption in assumptions:
        note(assumption.text)


def policy_parameters(param: list[str] | None, time_budget: float | None) -> dict[str, str]:
    """Values of ``--param`` and ``--time-budget``.

    :raises UsageError: a key is given twice, or without a value.
    """
    from pliant.tools.schedule.registry import parse_pairs

    budget = [] if time_budget is None else [f"time_budget_s={time_budget:g}"]
    return parse_pairs([*(param or []), *budget])


def stated(context: typer.Context) -> list[str]:
    """What is on the command line, by the long names of options and what the help calls arguments."""
    options = []
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            is_option = any(name.startswith("-") for name in parameter.opts)
            options.append(max(parameter.opts, key=len) if is_option else str(parameter.metavar))
    return options


def run_command(body: Callable[[], None]) -> int:
    """Run the body of a command and return its exit code. Expected errors are printed in one line."""
    try:
        body()
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has enough
        abandon(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print_line("interrupted")
        return 128 + signal.SIGINT
    except (typer.Exit, typer.TyperException):
        raise
    except PliantError as error:
        return _fail(str(error), error.exit_code)
    except MemoryError:
        return _fail(str(OutOfMemoryError()), OutOfMemoryError.exit_code)
    except OSError as error:
        return _of_system(error)
    except Exception as error:  # noqa: BLE001 - the last line of defence before a traceback
        if isinstance(error, ImportError) and NO_ROOM in str(error):
            return _fail(str(OutOfMemoryError()), OutOfMemoryError.exit_code)
        return _bug(error)
    return 0


def _of_system(error: OSError) -> int:
    if error.errno == errno.EIO and terminal_left(sys.stdout):
        abandon(sys.stdout)
        return BROKEN_PIPE
    if isinstance(error, PermissionError) and error.filename is not None:
        return _fail(f"{error.filename}: no permission", UsageError.exit_code)
    if isinstance(error, FileNotFoundError) and current_folder() is None:
        text = "the current folder was removed: go to another one, or name all paths from / on"
        return _fail(text, UsageError.exit_code)
    if error.errno not in DISK_FULL:
        return _bug(error)
    where = error.filename or "stdout"
    return _fail(f"{where}: the disk is full; nothing was half-written", ServiceMissingError.exit_code)


def _fail(message: str, code: int) -> int:
    if settings.debug:
        raise  # noqa: PLE0704 - called from an except clause only
    for word in sys.argv:  # a name that was given stays in its line
        message = message.replace(word, harmless(word)) if "\n" in word else message
    for line in message.split("\n"):
        print_line(without_long_words(line))
    return code


def _bug(error: Exception) -> int:
    what = f"{type(error).__name__}: {error}"
    return _fail(f"this is a bug in pliant: {what}\nrun it again with --debug and report what it prints", 1)


def _terminate(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


class _Harmless(logging.Formatter):
    """Warnings quote names of files and keys, which must not act on the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record), keeps=LINES)


def _log_to_stderr(*, quiet: bool, debug: bool) -> None:
    logger = logging.getLogger("pliant")
    handler = logging.StreamHandler()
    handler.setFormatter(_Harmless("pliant: %(levelname)s: %(message)s"))
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.ERROR if quiet else logging.INFO)


_OF_COMMANDS: Final = ("-q", "--quiet", "--debug")
"""Options that every command has, and ``pliant`` itself has not."""
_WANTED: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def mistake_line(error: typer.TyperException) -> str:
    """The message of a usage error. Values and names that were typed are quoted as they are."""
    typed = getattr(error, "option_name", None)
    if typed in _OF_COMMANDS and hasattr(getattr(getattr(error, "ctx", None), "command", None), "commands"):
        return f"No such option: {typed}; it goes behind the command, as in pliant status {typed}"
    if typed is not None and hasattr(error, "possibilities"):
        return f"No such option: {typed}{_options_like(typed, error)}"
    parameter, wrong = getattr(error, "param", None), _wrong(error)
    if parameter is None or wrong is None:
        text = error.format_message().replace("\n\t", " ").rstrip(".")
        return text if text.endswith("?") else f"{text}{_where_to_look(error)}"
    value = shortened(str(wrong["input"]))
    return f'{_name(parameter)} "{value}": {_expected(parameter, str(wrong["input"]), wrong)}'


def _options_like(typed: str, error: Any) -> str:
    shown = [each for each in error.ctx.command.params if not getattr(each, "hidden", False)]
    names = ["--help", *(name for each in shown for name in each.opts if name.startswith("--"))]
    hint = did_you_mean(typed, names).replace('"', "")
    if hint:
        return f"; {hint}"
    has_rest = any("-- " in (each.metavar or "") for each in shown)
    return "; what is the script's goes behind --" if has_rest else _where_to_look(error)


def _where_to_look(error: Any) -> str:
    context = getattr(error, "ctx", None)
    return "" if context is None else f"; see {context.command_path} --help"


def _wrong(error: BaseException) -> Mapping[str, Any] | None:
    """The first complaint of the check that refused a value."""
    complaints = getattr(error.__cause__, "errors", None)
    return None if complaints is None else complaints()[0]


def _name(parameter: Any) -> str:
    is_option = any(name.startswith("-") for name in parameter.opts)
    return str(max(parameter.opts, key=len) if is_option else parameter.metavar or parameter.name.upper())


def _expected(parameter: Any, typed: str, wrong: Mapping[str, Any]) -> str:
    choices, stated = parameter.type_descriptor.choices, parameter.type_descriptor.parameter_info
    if choices is not None and stated.parser is None:
        names = [str(getattr(each, "value", each)) for each in choices]
        hint = did_you_mean(typed, names)
        return (
            f"expected {' or '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}{hint and '; '}{hint}"
        )
    kind, context = wrong["type"], wrong.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    wanted = _WANTED.get(getattr(parameter.type_descriptor.annotation, "__name__", ""), "")
    if wanted and stated.min is not None:
        wanted += f", {stated.min} or more" if stated.max is None else f" from {stated.min} to {stated.max}"
    return f"expected {wanted}" if wanted else str(wrong["msg"])
