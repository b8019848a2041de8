"""Parameters of a policy drawn at random from its signature, so that no variant of it goes untried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from pliant.schemas.errors import PliantError
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.registry import parameter_defaults, parameter_types, union_members

if TYPE_CHECKING:
    import numpy as np

TEXTS: Final = ("", "linear", "saturating,flat", "0.01", "0.01,0.05", "1,16")
"""Tried for a parameter of text: models of the checks' jobs, and ascending numbers."""
_FACTORS: Final = (0.0, 0.1, 0.5, 1.0, 2.0, 10.0)
_NUMBERS: Final = (0.0, 0.5, 1.0, 5.0, 60.0)
"""Tried for a number whose default is none or 0."""
_ATTEMPTS: Final = 20
"""Draws that a policy may refuse before another draw of its parameters counts as impossible."""


def drawn_policies(policy: type[Policy], rng: np.random.Generator, count: int) -> Iterator[dict[str, Any]]:
    """Up to ``count`` sets of parameters that the policy accepts; each leaves about half at their defaults.

    Those that ``depends_on_clock`` names stay as they are. A policy refuses a set by ``ValueError`` or
    ``UsageError`` from its ``__init__``; then others are drawn.
    """
    types, defaults = parameter_types(policy), parameter_defaults(policy)
    types = {key: kind for key, kind in types.items() if key not in policy.depends_on_clock}
    for _ in range(count if types else 0):
        for _ in range(_ATTEMPTS):
            chosen = {
                key: _value(kind, defaults[key], rng) for key, kind in types.items() if rng.random() < 0.5
            }
            if _accepts(policy, chosen):
                yield chosen
                break


def _accepts(policy: type[Policy], values: dict[str, Any]) -> bool:
    try:
        policy(**values)
    except (ValueError, PliantError):
        return False
    return True


def _value(annotation: Any, default: Any, rng: np.random.Generator) -> Any:
    choices = [choice for member in union_members(annotation) for choice in _choices(member, default)]
    return choices[int(rng.integers(len(choices)))]


def _choices(kind: Any, default: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if kind is bool:
        return [False, True]
    if kind is type(None):
        return [None]
    if kind in (int, float):
        is_scale = isinstance(default, int | float) and bool(default)
        numbers = [factor * default for factor in _FACTORS] if is_scale else _NUMBERS
        return sorted({kind(number) for number in numbers})
    return list(TEXTS)
