"""Policies by name: the built-in table, whatever other packages register, and files that users name.

A package adds policies through the entry-point group ``pliant.policies``, name = "module:Class"
(:mod:`.plugins`).

A policy in a file is not installed: ``--policy ./policy.py``; ``PATH:NAME`` if there are several. Schedules
and state directories name it by :func:`name_of`, so that later commands find it from any folder. Event files
have its own name alone, as for every policy.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any, Final, Literal, TypeGuard, get_args, get_origin

from pliant.schemas.errors import UsageError
from pliant.schemas.quantities import read_duration, read_size
from pliant.schemas.text import did_you_mean, shortened
from pliant.tools.schedule.plugins import Plugins
from pliant.tools.schedule.policy import Knows, Policy, blaming, in_words, parameter_names, raised_at

IN_FILE: Final = "policy_file:"
"""Prefix of the name of its module; the absolute path follows."""
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
    if not module.startswith(IN_FILE):
        return policy.name
    return f"{module.removeprefix(IN_FILE)}:{policy.name}"


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
    policy_by_name = {each.name: each for each in own}
    if wanted is None and len(policy_by_name) == 1:
        return next(iter(policy_by_name.values()))
    named = [each for each in own if wanted in (each.name, each.__name__)]
    if named:
        return named[0]
    if not policy_by_name:
        base = f"{Policy.__module__}.{Policy.__name__}"
        raise UsageError(f"{path} holds no policy: expected a subclass of {base} with a name")
    listed = ", ".join(sorted(policy_by_name))
    if wanted is None:
        raise UsageError(
            f"{path} holds several policies ({listed}): name one, as in {path}:{min(policy_by_name)}"
        )
    raise UsageError(f'{path} holds no policy "{wanted}"; it holds: {listed}')


def _is_policy_of(candidate: object, module: types.ModuleType) -> TypeGuard[type[Policy]]:
    return (
        isinstance(candidate, type)
        and issubclass(candidate, Policy)
        and candidate.__module__ == module.__name__
        and isinstance(getattr(candidate, "name", None), str)
    )


@cache
def _module(path: str, shown: str) -> types.ModuleType:
    """Run the file once; what lies beside it can be imported, as for a script."""
    name = f"{IN_FILE}{path}"
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


BUILT_IN: Final[Mapping[str, str]] = {
    "allox": "pliant.tools.schedule.policies.allox:Allox",
    "ares": "pliant.tools.schedule.policies.ares.policy:Ares",
    "ares-goodput": "pliant.tools.schedule.policies.ares.goodput:AresGoodput",
    "dorm": "pliant.tools.schedule.policies.multi_resource.policies:Dorm",
    "drf": "pliant.tools.schedule.policies.multi_resource.policies:Drf",
    "drl": "pliant.tools.schedule.policies.drl:Drl",
    "edf": "pliant.tools.schedule.policies.edf:Edf",
    "edf-elastic": "pliant.tools.schedule.policies.edf:EdfElastic",
    "elastic-dp": "pliant.tools.schedule.policies.elastic_dp.policy:ElasticDp",
    "elasticflow": "pliant.tools.schedule.policies.elasticflow:ElasticFlow",
    "fair-share": "pliant.tools.schedule.policies.fair_share:FairShare",
    "fifo": "pliant.tools.schedule.policies.fifo:Fifo",
    "fifo-demands": "pliant.tools.schedule.policies.multi_resource.policies:FifoDemands",
    "gavel": "pliant.tools.schedule.policies.gavel:Gavel",
    "gavel-ftf": "pliant.tools.schedule.policies.gavel:GavelFtf",
    "gavel-makespan": "pliant.tools.schedule.policies.gavel:GavelMakespan",
    "gavel-throughput": "pliant.tools.schedule.policies.gavel:GavelThroughput",
    "las": "pliant.tools.schedule.policies.las:Las",
    "lucid": "pliant.tools.schedule.policies.lucid:Lucid",
    "max-bs": "pliant.tools.schedule.policies.elastic_dp.policy:MaxBs",
    "min-bs": "pliant.tools.schedule.policies.elastic_dp.policy:MinBs",
    "oasis": "pliant.tools.schedule.policies.oasis.policy:Oasis",
    "oasis-offline": "pliant.tools.schedule.policies.oasis.offline:OasisOffline",
    "ones": "pliant.tools.schedule.policies.ones.policy:Ones",
    "optimus": "pliant.tools.schedule.policies.optimus:Optimus",
    "pollux": "pliant.tools.schedule.policies.pollux.policy:Pollux",
    "random-bs": "pliant.tools.schedule.policies.elastic_dp.policy:RandomBs",
    "recorded": "pliant.tools.schedule.policies.recorded:Recorded",
    "rrh": "pliant.tools.schedule.policies.multi_resource.policies:Rrh",
    "shadow-price": "pliant.tools.schedule.policies.shadow_price.policy:ShadowPrice",
    "shockwave": "pliant.tools.schedule.policies.shockwave:Shockwave",
    "sia": "pliant.tools.schedule.policies.sia.policy:Sia",
    "sjf": "pliant.tools.schedule.policies.srtf:Sjf",
    "slurm": "pliant.tools.schedule.policies.slurm:Slurm",
    "srtf": "pliant.tools.schedule.policies.srtf:Srtf",
    "themis": "pliant.tools.schedule.policies.themis:Themis",
    "tiresias": "pliant.tools.schedule.policies.tiresias:Tiresias",
    "tiresias-gittins": "pliant.tools.schedule.policies.tiresias:TiresiasGittins",
}
POLICIES: Final = Plugins("policy", "pliant.policies", BUILT_IN)
_REQUIRED: Final = object()
_WORDS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a policy: its name, its values in words, its default as text."""

    name: str
    expected: str
    default: str


@dataclass(frozen=True, slots=True)
class Description:
    """What ``pliant policies`` says about a policy."""

    name: str
    summary: str
    text: str
    elasticity: str
    knows: Knows
    needs: tuple[str, ...]
    traits: tuple[str, ...]
    """Sentences on what else callers notice of it."""
    priority: str | None
    """Meaning of priorities to it; empty: nothing; None: not stated."""
    interval_s: float | None
    """Seconds between decisions; None: at every change."""
    interval_parameter: str | None
    """The parameter that states ``interval_s``, if any."""
    parameters: tuple[Parameter, ...]
    source: str
    """module:Class."""

    @property
    def decides(self) -> str:
        if self.interval_s is None:
            return "at every change"
        by = "" if self.interval_parameter is None else f" (parameter {self.interval_parameter})"
        return f"every {self.interval_s:g} s{by}"


def policy_names() -> tuple[str, ...]:
    """Sorted."""
    return tuple(sorted(POLICIES.names()))


def policy_class(name: str) -> type[Policy]:
    """:raises UsageError: the name is unknown, or its package cannot be loaded."""
    if is_file(name):
        return policy_in_file(name)
    policy = POLICIES.load(name)
    if policy is None:
        known = policy_names()
        hint = did_you_mean(name, known) or f"pliant policies lists the {len(known)} that there are"
        raise UsageError(f'unknown policy "{shortened(name)}"; {hint}')
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        raise UsageError(f"{POLICIES.title(name)} is not a subclass of pliant.tools.schedule.policy.Policy")
    if name not in BUILT_IN and getattr(policy, "name", None) != name:
        raise UsageError(f"{POLICIES.title(name)} calls itself {getattr(policy, 'name', None)!r}")
    return policy


def make_policy(name: str, parameters: Mapping[str, Any] | None = None) -> Policy:
    """A new policy object; text values (``--param KEY=VALUE``) are read as the parameter's annotation says.

    :raises UsageError: unknown policy or parameter, or a value that the parameter does not take.
    :raises PolicyError: the policy of another package raised an exception.
    """
    policy = policy_class(name)
    annotations = parameter_types(policy)
    unknown = sorted(set(parameters or {}) - set(annotations))
    if unknown:
        hint = did_you_mean(unknown[0], annotations)
        known = f"its parameters: {', '.join(annotations) or 'none'}"
        raise UsageError(f'policy "{name}" has no parameter "{unknown[0]}"; {hint or known}')
    values = {key: _read(name, key, value, annotations[key]) for key, value in (parameters or {}).items()}
    values |= {key: os.path.abspath(values[key]) for key in files_among(policy, values)}
    required = [key for key, default in parameter_defaults(policy).items() if default is _REQUIRED]
    if missing := [key for key in required if key not in values]:
        raise UsageError(f'policy "{name}" needs --param {missing[0]}=VALUE')
    with blaming(policy):
        try:
            made = policy(**values)
            json.dumps(dict(made.parameters))  # schedules and event files repeat them
        except ValueError as error:
            raise UsageError(f'policy "{name}": {error}') from error
    return made


def files_among(policy: type[Policy], values: Mapping[str, Any]) -> list[str]:
    return [key for key in values if key in policy.traits.file_parameters and values[key]]


def describe(name: str) -> Description:
    """:raises UsageError: as :func:`policy_class`."""
    policy = policy_class(name)
    text = inspect.cleandoc(policy.__doc__ or "")
    annotations, defaults = parameter_types(policy), parameter_defaults(policy)
    own = policy.traits.interval_parameter
    return Description(
        name=policy.name,
        summary=text.splitlines()[0] if text else "",
        text=text,
        elasticity=policy.traits.elasticity,
        knows=policy.traits.knows,
        traits=_traits(policy),
        needs=tuple(sorted(policy.traits.needs)),
        priority=policy.traits.priority_means,
        interval_s=policy.traits.default_interval_s if own is None else _interval_s(defaults[own]),
        interval_parameter=own,
        parameters=tuple(
            Parameter(
                key,
                _in_words(kind, key),
                "required" if defaults[key] is _REQUIRED else json.dumps(defaults[key]),
            )
            for key, kind in annotations.items()
        ),
        source=name_of(policy) if is_file(name) else f"{policy.__module__}:{policy.__qualname__}",
    )


def _traits(policy: type[Policy]) -> tuple[str, ...]:
    clock = ", ".join(f"`{name}`" for name in sorted(policy.traits.clock_parameters))
    files = ", ".join(f"`{name}`" for name in sorted(policy.traits.file_parameters))
    sentences = {
        "Packs: two jobs may train on one set of GPUs.": policy.traits.packs,
        "Asks an oracle about jobs where a replay has one (`--compat pollux`).": policy.traits.uses_oracle,
        "An oracle: knows the jobs of a replay that have not arrived; `pliant run` refuses it.": (
            policy.traits.needs_future
        ),
        "Asks for predictions of the work that jobs do not state.": policy.traits.uses_forecast,
        "In a live run it is also asked when a job ends an epoch.": policy.traits.decides_at_epochs,
        "Carries state that a log cannot restore: where it is lost, it begins again from what jobs hold.": (
            not policy.traits.rebuilds_state
        ),
        f"Decisions depend on the speed of the machine with {clock}.": bool(clock),
        f"Reads a file: {files}, in a recipe of a sweep relative to the recipe.": bool(files),
        "States a bound that reports hold runs against.": policy.bounds is not Policy.bounds,
        f"Weights of jobs: {policy.traits.weight_means}.": bool(policy.traits.weight_means),
    }
    return tuple(text for text, holds in sentences.items() if holds)


def _interval_s(default: object) -> float | None:
    """The interval that the default of a parameter states; 0 is at every change."""
    return float(default) if isinstance(default, int | float) and default else None


def parse_pairs(pairs: Sequence[str]) -> dict[str, str]:
    """``--param KEY=VALUE`` options as a mapping.

    :raises UsageError: no ``=``, or a key given twice.
    """
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f'--param "{pair}": expected KEY=VALUE')
        if key in values:
            raise UsageError(f'--param "{key}" is given twice')
        values[key] = value
    return values


def parameter_types(policy: type[Policy]) -> dict[str, Any]:
    """The annotations of a policy's parameters, in order.

    :raises PolicyError: those of another package's policy cannot be resolved.
    """
    with blaming(policy, doing="annotations of __init__: "):
        hints = typing.get_type_hints(policy.__init__) if policy.__init__ is not object.__init__ else {}
    return {name: hints.get(name, str) for name in parameter_names(policy)}


def parameter_defaults(policy: type[Policy]) -> dict[str, object]:
    """The defaults of a policy's parameters, ``_REQUIRED`` if there is none."""
    parameters = inspect.signature(policy).parameters if parameter_names(policy) else {}
    return {
        name: _REQUIRED if parameter.default is parameter.empty else parameter.default
        for name, parameter in parameters.items()
    }


def union_members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (typing.Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _in_words(annotation: Any, name: str = "") -> str:
    """:param name: of the parameter; its last part states the unit of a number."""
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "none"}
    for kind in (int, float):
        if _is_duration(name):
            words[kind] = "a time (seconds, 5m, 2h)"
        elif _is_size(name):
            words[kind] = "a size (bytes, 64GB)"
    parts = []
    for option in union_members(annotation):
        choices = get_args(option) if get_origin(option) is Literal else ()
        parts.append(", ".join(map(str, choices)) if choices else words.get(option, str(option)))
    return " or ".join(parts)


def _is_duration(name: str) -> bool:
    """Whether a number of that name is a length of time: ``interval_s``, but not ``forgiven_gpu_s``."""
    return name.endswith(("_s", "_seconds")) and not name.endswith(("_gpu_s", "_gpu_seconds"))


def _is_size(name: str) -> bool:
    return name.endswith("_bytes")


def _read(policy: str, key: str, value: Any, annotation: Any) -> Any:
    for option in union_members(annotation):
        fits, number = _read_as(option, _in_plain_units(key, option, value))
        if fits:
            return number
    several = "one of " if any(get_origin(each) is Literal for each in union_members(annotation)) else ""
    expected = f"{several}{_in_words(annotation, key)}"
    raise UsageError(f'policy "{policy}": parameter {key}: {value!r} is not {expected}')


def _in_plain_units(key: str, option: Any, value: Any) -> Any:
    """``5m`` and ``64GB`` as numbers, where a parameter of that name takes them. Other values stay."""
    if option in (int, float) and isinstance(value, str):
        with suppress(ValueError):
            if _is_duration(key):
                return f"{read_duration(value):.15g}" if value[-1:].isalpha() else value
            if _is_size(key):
                return str(read_size(value))
    return value


def _read_as(option: Any, value: Any) -> tuple[bool, Any]:
    """Whether the value, text or already a JSON value, is one of ``option``, and which."""
    if get_origin(option) is Literal:
        chosen = [choice for choice in get_args(option) if value == choice or value == str(choice)]
        return bool(chosen), chosen[0] if chosen else None
    if option is type(None):
        return value is None or value == "none", None
    if option is bool:
        word = str(value).lower()
        return word in _WORDS, _WORDS.get(word)
    if option in (int, float):
        return _read_number(option, value)
    return option is str and isinstance(value, str), value


def _read_number(kind: type[int] | type[float], value: Any) -> tuple[bool, Any]:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False, None
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        return False, None
    return math.isfinite(number) and (isinstance(value, str) or number == value), number
