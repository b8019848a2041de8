"""What the state of a job may hold, and its way into bytes and back without executing anything.

That is what ``torch.load(weights_only=True)`` takes: tensors, numbers, text, bytes, None, dictionaries
(``OrderedDict`` and ``Counter`` included), lists, tuples and sets of them, and the classes that the author
allows by ``torch.serialization.add_safe_globals``. NumPy's numbers become Python's.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from pliant.schemas.errors import BadInputError, UsageError

_MAPPINGS: Final = (dict, OrderedDict)
_SEQUENCES: Final = (list, tuple)


def plain(state: Any) -> Any:
    """The same state with NumPy's numbers as Python's: they come as arguments of schedulers, say."""
    return mapped(state, lambda found: found.item() if isinstance(found, np.generic) else found)


def check_storable(name: str, state: Any) -> None:
    """Refuse a state that could not be loaded again. Tensors are left out: it costs next to nothing.

    :param name: whose state it is.
    :raises UsageError: it holds objects of other classes, or what cannot be pickled at all.
    """
    for_all = torch.empty(0)
    hollow = mapped(plain(state), lambda found: for_all if isinstance(found, torch.Tensor) else found)
    stored(hollow, name)


def stored(state: Any, name: str = "the job") -> bytes:
    """The state as ``torch.save`` writes it.

    :param name: whose state it is.
    :raises UsageError: it could not be loaded again.
    """
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
    except Exception as error:  # whatever an object's own way to be pickled raises
        raise UsageError(f"the state of {name} cannot be saved: {_first_line(error)}") from error
    if others := _others(buffer):
        raise UsageError(
            f"the state of {name} holds {others}{_place(state)}: keep it to tensors and plain values, "
            "or allow these by torch.serialization.add_safe_globals"
        )
    return buffer.getvalue()


def loaded(body: bytes, source: str) -> dict[str, Any]:
    """The state, with its tensors in main memory.

    :param source: where it is from.
    :raises UsageError: it holds objects of classes that are not allowed.
    :raises BadInputError: it cannot be understood.
    """
    buffer = io.BytesIO(body)
    state: dict[str, Any] = {}
    try:
        if not (others := _others(buffer)):
            buffer.seek(0)
            state = torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:  # a file may hold anything
        raise BadInputError.one(source, f"the state cannot be loaded: {_first_line(error)}") from error
    if others:
        raise UsageError(
            f"{source} holds {others}: these are not loaded unless the script allows them "
            "by torch.serialization.add_safe_globals"
        )
    return state


def _others(buffer: io.BytesIO) -> str:
    """Names of the classes and functions in it that would not be loaded."""
    buffer.seek(0)
    return ", ".join(sorted(get_unsafe_globals_in_checkpoint(buffer)))


def _place(state: Any) -> str:
    """Where in a state the first of these is, by keys and indices."""
    keys: list[str] = []
    rest = mapped(state, lambda found: None if isinstance(found, torch.Tensor) else found)
    while found := [(key, child) for key, child in _children(rest) if _holds_others(child)]:
        key, rest = found[0]
        keys.append(str(key))
    return f" at {'.'.join(keys)}" if keys else ""


def _children(state: Any) -> Iterable[tuple[Any, Any]]:
    if type(state) in _MAPPINGS:
        return list(state.items())
    return enumerate(state) if type(state) in _SEQUENCES else ()


def _holds_others(state: Any) -> bool:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return bool(_others(buffer))


def mapped(state: Any, leaf: Callable[[Any], Any]) -> Any:
    """A copy of the same shape, with other leaves: what lies in plain dictionaries, lists and tuples."""
    kind = type(state)
    if kind in _MAPPINGS:
        made = kind((name, mapped(value, leaf)) for name, value in state.items())
        if kind is OrderedDict:
            made.__dict__.update(state.__dict__)  # modules keep the versions of their states there
        return made
    if kind in _SEQUENCES:
        return kind(mapped(value, leaf) for value in state)
    return leaf(state)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
