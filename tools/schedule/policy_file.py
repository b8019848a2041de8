"""A policy in a file that is not installed: ``--policy ./policy.py``; ``PATH:NAME`` if there are several.

Schedules and state directories name it by :func:`name_of`, so that later commands find it from any folder.
Event files have its own name alone, as for every policy.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Final, TypeGuard

from pliant.schemas.errors import UsageError
from pliant.tools.schedule.policy import Policy, in_words, raised_at

_MODULE: Final = "policy_file:"
"""What the name of its module begins with; the absolute path follows."""
_PLACE: Final = re.compile(r"(.+\.py)(?::(\w[\w-]*))?", re.DOTALL)


def is_file(name: str) -> bool:
    """Whether the name of a policy names a file; nothing is read."""
    return _PLACE.fullmatch(name) is not None


def label_of(name: str) -> str:
    """What event files call a policy, from the name that schedules have for it."""
    return name.rpartition(":")[2] if is_file(name) else name


def name_of(policy: type[Policy]) -> str:
    """``/folder/policy.py:NAME`` of a policy in a file, the name of any other."""
    module = policy.__module__
    if not module.startswith(_MODULE):
        return policy.name
    return f"{module.removeprefix(_MODULE)}:{policy.name}"


def canonical(name: str) -> str:
    """As :func:`name_of`, from what a user named.

    :raises UsageError: as :func:`policy_in_file`.
    """
    return name_of(policy_in_file(name)) if is_file(name) else name


def policy_in_file(name: str) -> type[Policy]:
    """:raises UsageError: the file is missing or raises an exception, or does not hold that policy alone."""
    place = _PLACE.fullmatch(name)
    if place is None:
        raise UsageError(f'"{name}": expected PATH.py or PATH.py:NAME')
    path, wanted = place[1], place[2]
    module = _module(os.path.abspath(path), path)
    own = [each for each in vars(module).values() if _is_policy_of(each, module)]
    found = {each.name: each for each in own}
    if wanted is None and len(found) == 1:
        return next(iter(found.values()))
    named = [each for each in own if wanted in (each.name, each.__name__)]
    if named:
        return named[0]
    if not found:
        base = f"{Policy.__module__}.{Policy.__name__}"
        raise UsageError(f"{path} holds no policy: expected a subclass of {base} with a name")
    listed = ", ".join(sorted(found))
    if wanted is None:
        raise UsageError(f"{path} holds several policies ({listed}): say which, as in {path}:{min(found)}")
    raise UsageError(f'{path} holds no policy "{wanted}"; it holds: {listed}')


def _is_policy_of(found: object, module: ModuleType) -> TypeGuard[type[Policy]]:
    return (
        isinstance(found, type)
        and issubclass(found, Policy)
        and found.__module__ == module.__name__
        and isinstance(getattr(found, "name", None), str)
    )


@cache
def _module(path: str, shown: str) -> ModuleType:
    """Run the file once; what lies beside it can be imported, as for a script."""
    name = f"{_MODULE}{path}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise UsageError(f"{shown}: no such file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    sys.path.append(os.path.dirname(path))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        at = raised_at(error, name.partition(".")[0])
        raise UsageError(f"{shown} cannot be loaded: {f'{at}: ' if at else ''}{in_words(error)}") from error
    return module
