"""Any pliant file as a pandas DataFrame, for notebooks (docs/notebooks.md). Nothing else imports pandas.

Columns have the names of the schema, a field within a field as in ``gpus.requested``. A column has the same
type in every file: Int64 (seeds: UInt64), float64 with NaN where nothing is stated, boolean, or string. Lists
and objects stay Python's.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from pliant.schemas.cluster import Node
from pliant.schemas.errors import BadInputError, UsageError, missing
from pliant.schemas.event import Event
from pliant.schemas.file_io.files import source_name
from pliant.schemas.job import Job
from pliant.schemas.kinds import read_kind
from pliant.schemas.metrics import CheckedFigure, JobFigures, Metrics, ReportedRun, RunGroup
from pliant.schemas.profile import ConvergenceRow, ProfileRow
from pliant.schemas.schedule import Allocation, Verdict

try:
    import pandas as pd
except ModuleNotFoundError:
    text = f"frames are pandas DataFrames, but {missing('pandas')}"
    raise ModuleNotFoundError(text, name="pandas") from None

TABLES: Final[Mapping[str, Mapping[str, type]]] = {
    "job": {"jobs": Job},
    "cluster": {"nodes": Node},
    "profile": {"rows": ProfileRow},
    "convergence": {"rows": ConvergenceRow},
    "schedule": {"allocations": Allocation, "waiting": Verdict, "rejected": Verdict, "jobs": Job},
    "event": {"events": Event},
    "metrics": {"runs": ReportedRun, "groups": RunGroup, "jobs": JobFigures, "expectations": CheckedFigure},
}
"""The tables of each kind of file with the types of their rows; :func:`read` returns the first by default."""
_DTYPES: Final = {str: "string", int: "Int64", float: "float64", bool: "boolean"}


def read(path: str | Path, table: str | None = None, *, kind: str | None = None) -> pd.DataFrame:
    """A file as a DataFrame, a row for each job, node, measurement, epoch, event, allocation or run.

    :param table: what to read of a schedule (allocations, waiting, rejected, jobs) or of a report's metrics
        (runs, groups, jobs, expectations). Default: the first of these.
    :param kind: one of the eight kinds. Default: the one that the file states or looks like.
    :raises BadInputError: with every problem of the file.
    :raises UsageError: there is no such kind, or a file of this kind has no such table.
    """
    kind, content = read_kind(path, kind)
    return frame(kind, content, table, source_name(path))


def frame(kind: str, content: Sequence[Any], table: str | None = None, source: str = "") -> pd.DataFrame:
    """The records of a file of this kind, or its document in a sequence of one, as a DataFrame.

    :param source: what messages call it.
    :raises BadInputError: a whole number has more than 64 bits.
    :raises UsageError: a file of this kind has no such table.
    """
    tables = TABLES.get(kind, {})
    table = table or next(iter(tables), "")
    if table not in tables:
        named = f"no table {table!r}, expected one of {', '.join(tables)}" if tables else "no tables"
        raise UsageError(": ".join(part for part in (source, f"{kind} files have {named}") if part))
    if (kind, table) == ("metrics", "jobs"):
        return _jobs_of_runs(content[0])
    if (kind, table) == ("metrics", "groups"):
        return _means(content[0].groups)
    if kind == "cluster":
        content = content[0].expanded()
    elif kind in ("schedule", "metrics"):
        content = getattr(content[0], table) or ()
    try:
        return _frame(content, tables[table])
    except (OverflowError, TypeError):  # pandas raises the one or the other
        raise BadInputError.one(source or kind, "holds a whole number beyond 64 bits") from None


def events_of_runs(policies: Sequence[str], runs: Sequence[Sequence[Event]]) -> pd.DataFrame:
    """The events of several runs, one below the other, after a column that says under which policy."""
    frames = [frame("event", events) for events in runs]
    for policy, each in zip(policies, frames, strict=True):
        each.insert(0, "policy", pd.Series([policy] * len(each), dtype="string"))
    return pd.concat(frames, ignore_index=True)


def fields_of(rows: Any) -> Iterator[dict[str, Any]]:
    """The fields of each row of a DataFrame, as a file of records has them: those with a value, nested."""
    names = [str(name).split(".") for name in rows.columns]
    for row in rows.itertuples(index=False, name=None):
        record: dict[str, Any] = {}
        for path, value in zip(names, row, strict=True):
            if not pd.api.types.is_scalar(value) or not pd.isna(value):
                reduce(lambda inner, name: inner.setdefault(name, {}), path[:-1], record)[path[-1]] = value
        yield record


def _jobs_of_runs(metrics: Metrics) -> pd.DataFrame:
    pairs = [(run, job) for run in metrics.runs for job in run.jobs or ()]
    whose = _frame([run for run, _ in pairs], ReportedRun)[["run", "policy"]]
    return pd.concat([whose, _frame([job for _, job in pairs], JobFigures)], axis="columns")


def _means(groups: Sequence[RunGroup]) -> pd.DataFrame:
    """A row for each group of runs: its means over seeds and traces, each with the 95 % interval."""
    names = list(dict.fromkeys(name for each in groups for name in each.figures))
    ratios = [each.mean_jct for each in groups]
    columns: dict[str, Any] = {
        "name": pd.Series([each.name for each in groups], dtype="string"),
        "runs": pd.Series([len(each.runs) for each in groups], dtype="Int64"),
        "against": pd.Series([ratio.of if ratio else None for ratio in ratios], dtype="string"),
    }
    estimates: dict[str, Sequence[Any]] = {"mean_jct_ratio": ratios}
    estimates |= {name: [each.figures.get(name) for each in groups] for name in names}
    for name, by_group in estimates.items():
        middle = "ratio" if name == "mean_jct_ratio" else "mean"
        for ending, field in (("", middle), (".low", "low"), (".high", "high")):
            values = [None if each is None else getattr(each, field) for each in by_group]
            columns[f"{name}{ending}"] = pd.Series(values, dtype="float64")
    return pd.DataFrame(columns)


def _frame(rows: Sequence[Any], row_type: type) -> pd.DataFrame:
    columns = {
        name: pd.Series([reduce(_field, path, row) for row in rows], dtype=dtype)
        for name, path, dtype in _columns(row_type)
    }
    return pd.DataFrame(columns)


def _field(record: object, name: str) -> Any:
    """Returns None if the record is missing or has another form."""
    return getattr(record, name, None)


def _columns(row_type: type) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """The columns of a type of rows: name, the attributes that lead to the value, type in pandas."""
    hints = get_type_hints(row_type)
    for attribute, name in _names(row_type).items():
        forms = _forms(hints[attribute])
        nested = [form for form in forms if isinstance(form, type) and issubclass(form, BaseModel)]
        for form in nested:
            for inner, path, dtype in _columns(form):
                yield f"{name}.{inner}", (attribute, *path), dtype
        if name == "seed":
            yield name, (attribute,), "UInt64"
        elif not nested:
            yield name, (attribute,), _DTYPES.get(forms[0], "object")


def _names(row_type: type[Any]) -> dict[str, str]:
    if issubclass(row_type, BaseModel):
        return {name: field.alias or name for name, field in row_type.model_fields.items()}
    return {field.name: field.name for field in dataclasses.fields(row_type)}


def _forms(hint: Any) -> list[Any]:
    """The types of a value that is not None; the words of a Literal are text."""
    if get_origin(hint) in (Union, types.UnionType):
        return [form for one in get_args(hint) for form in _forms(one) if form is not types.NoneType]
    return [str] if get_origin(hint) is Literal else [hint]
