"""What may be saved or passed on: a state that loads again, and whose loading executes nothing.

It may hold what ``torch.load(weights_only=True)`` takes: tensors, numbers, text, bytes, None, dictionaries
(``OrderedDict`` and ``Counter`` included), lists, tuples and sets of them, and the classes that the author
allows by ``torch.serialization.add_safe_globals``. NumPy's numbers become Python's.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, BinaryIO

import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from pliant.schemas.errors import BadInputError, UsageError
from pliant.tools.run.elastic.state.training import MAPPINGS, SEQUENCES, Training, mapped, plain


def check_training(training: Training) -> None:
    """Refuse a training that could not be saved.

    :raises UsageError: an object's state holds more than tensors and plain values.
    """
    check_storable("the model", training.model.state_dict())
    for name, optimizer in training.optimizers.items():
        label = "the optimizer" if len(training.optimizers) == 1 else f"optimizer {name}"
        check_storable(label, optimizer.state_dict())
    for name, helper in training.helpers.items():
        check_storable(f"registered object {name}", helper.state_dict())


def check_storable(name: str, state: Any) -> None:
    """Refuse a state that could not be loaded again. Tensors are left out, so this is cheap.

    :param name: whose state it is.
    :raises UsageError: it holds objects of other classes, or cannot be pickled.
    """
    stand_in = torch.empty(0)
    hollow = mapped(plain(state), lambda found: stand_in if isinstance(found, torch.Tensor) else found)
    stored(hollow, name)


def stored(state: Any, name: str = "the job") -> bytes:
    """The state as ``torch.save`` writes it.

    :param name: whose state it is.
    :raises UsageError: it could not be loaded again.
    """
    buffer = io.BytesIO()
    store(state, buffer, name)
    refuse_others(buffer, state, name)
    return buffer.getvalue()


def store(state: Any, file: Any, name: str = "the job") -> None:
    """Write a state to whatever has ``write`` and ``flush``.

    :raises UsageError: an object in it cannot be pickled.
    """
    try:
        torch.save(state, file)
    except Exception as error:  # an object's own pickling may raise anything
        raise UsageError(f"the state of {name} cannot be saved: {_first_line(error)}") from error


def refuse_others(file: BinaryIO, state: Any, name: str = "the job") -> None:
    """Check that a state that was written will load again.

    :param state: what was written; it is asked where the trouble lies.
    :raises UsageError: it will not.
    """
    file.seek(0)
    if others := _others(file):
        raise UsageError(
            f"the state of {name} holds {others}{_place(state)}: keep it to tensors and plain values, "
            "or allow these by torch.serialization.add_safe_globals"
        )


def loaded(file: BinaryIO, source: str) -> dict[str, Any]:
    """The state that begins where ``file`` stands, with its tensors in main memory.

    :param source: where the bytes are from.
    :raises UsageError: the state holds objects of classes that are not allowed.
    :raises BadInputError: the bytes are not a state.
    """
    state: dict[str, Any] = {}
    try:
        start = file.tell()
        if not (others := _others(file)):
            file.seek(start)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a file may hold anything
        raise BadInputError.one(source, f"the state cannot be loaded: {_first_line(error)}") from error
    if others:
        raise UsageError(
            f"{source} holds {others}: these are not loaded unless the script allows them "
            "by torch.serialization.add_safe_globals"
        )
    return state


def _others(file: BinaryIO) -> str:
    return ", ".join(sorted(get_unsafe_globals_in_checkpoint(file)))


def _place(state: Any) -> str:
    """Where the first of these is in a state."""
    keys: list[str] = []
    rest = mapped(state, lambda found: None if isinstance(found, torch.Tensor) else found)
    while found := [(key, child) for key, child in _children(rest) if _holds_others(child)]:
        key, rest = found[0]
        keys.append(str(key))
    return f" at {'.'.join(keys)}" if keys else ""


def _children(state: Any) -> Iterable[tuple[Any, Any]]:
    if type(state) in MAPPINGS:
        return list(state.items())
    return enumerate(state) if type(state) in SEQUENCES else ()


def _holds_others(state: Any) -> bool:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return bool(_others(buffer))


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
