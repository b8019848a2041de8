"""Short names that tell runs apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from pliant.tools.report.records import RunRecord


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """The policy of each run and, of several traces, the trace; then what else sets equal ones apart."""
    traces = _traces(runs)
    kinds = [(run.info.policy, *traces[run.info.trace_hash]) for run in runs]
    found = []
    for run, named in zip(runs, kinds, strict=True):
        alike = [other for other, name in zip(runs, kinds, strict=True) if name == named]
        parts = _differences(run, alike) if len(alike) > 1 else []
        found.append(" ".join([*named, *parts]))
    return _numbered(found)


def _traces(runs: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    """What labels call each trace, by its hash: nothing if it is the only one."""
    names = {run.info.trace_hash: run.info.trace or "" for run in runs}
    if len(names) == 1:
        return dict.fromkeys(names, ())
    total = Counter(names.values())
    return {
        found: (name,) if name and total[name] == 1 else (f"{name}@{found[:6]}".removeprefix("@"),)
        for found, name in names.items()
    }


def _differences(run: RunRecord, alike: Sequence[RunRecord]) -> list[str]:
    parts = []
    if len({other.info.simulated for other in alike}) > 1:
        parts.append(kind(run))
    if len({other.info.demand for other in alike}) > 1:
        parts.append(f"{run.info.demand} demand")
    names = sorted({name for other in alike for name in other.info.parameters})
    for name in names:
        values = {_value(other.info.parameters.get(name)) for other in alike}
        if len(values) > 1:
            parts.append(f"{name}={_value(run.info.parameters.get(name))}")
    if len({other.info.seed for other in alike}) > 1:
        parts.append(f"seed={run.info.seed}")
    return parts or [f"[{PurePath(run.source).stem}]"]


def parameters_text(run: RunRecord) -> list[str]:
    """``name=value`` of every parameter of the policy that is set."""
    found = sorted(run.info.parameters.items())
    return [f"{name}={_value(value)}" for name, value in found if value is not None]


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _numbered(names: list[str]) -> list[str]:
    """Names that are still equal get a number."""
    total, seen = Counter(names), Counter[str]()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if total[name] == 1 else f"{name} #{seen[name]}")
    return found


def kind(run: RunRecord) -> str:
    """Where the times of a run come from."""
    return "simulated" if run.info.simulated else "measured"
