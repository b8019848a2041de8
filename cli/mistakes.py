"""What is wrong with a command line, in one line: the option, the value, and what is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import typer

from pliant.schemas.text import did_you_mean, shortened

_OF_COMMANDS: Final = ("-q", "--quiet", "--debug")
"""Options that every command has, and ``pliant`` itself has not."""
_WANTED: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}


def one_line(error: typer.TyperException) -> str:
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
