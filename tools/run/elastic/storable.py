"""What the state of a job may hold, and its way into bytes and back without executing anything.

That is what ``torch.load(weights_only=True)`` takes: tensors, numbers, text, bytes, None, dictionaries
(``OrderedDict`` and ``Counter`` included), lists, tuples and sets of them, and the classes that the author
allows by ``torch.serialization.add_safe_globals``. NumPy's numbers become Python's.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from pliant.schemas.errors import BadInputError, UsageError

_MAPPINGS: Final = (dict, OrderedDict)
_SEQUENCES: Final = (list, tuple)


def plain(state: Any) -> Any:
    """The same state with NumPy's numbers as Python's: they come as arguments of schedulers, say."""
    return _mapped(state, lambda found: found.item() if isinstance(found, np.generic) else found)


def check_storable(name: str, state: Any) -> None:
    """Refuse a state that could not be loaded again. Tensors are left out: it costs next to nothing.

    :param name: whose state it is.
    :raises UsageError: it holds objects of other classes, or what cannot be pickled at all.
    """
    for_all = torch.empty(0)
    hollow = _mapped(plain(state), lambda found: for_all if isinstance(found, torch.Tensor) else found)
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
            f"the state of {name} holds {others}: keep it to tensors and plain values, "
            "or allow these by torch.serialization.add_safe_globals"
        )
    return buffer.getvalue()


def loaded(body: bytes, source: str) -> dict[str, Any]:
    """The state, with its tensors in main memory.

    :param source: where it is from.
    :raises UsageError: it holds objects of classes that nobody has allowed.
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


def _mapped(state: Any, leaf: Callable[[Any], Any]) -> Any:
    kind = type(state)
    if kind in _MAPPINGS:
        return kind((name, _mapped(value, leaf)) for name, value in state.items())
    if kind in _SEQUENCES:
        return kind(_mapped(value, leaf) for value in state)
    return leaf(state)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
