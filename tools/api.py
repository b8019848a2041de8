"""What ``import pliant`` offers: :func:`read`, :func:`synth`, :func:`replay`, :func:`report` and
:func:`schedule`.

They call what the commands of these names call, so that equal inputs give equal files, and raise what those
print: a :class:`~pliant.schemas.errors.PliantError` whose message says what is wrong. Inputs are files,
DataFrames or records; results stay in memory until :meth:`write`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, overload

from pydantic import TypeAdapter, ValidationError

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.documents import job_fields, parse_document, parse_jobs
from pliant.schemas.file_io.files import check_output, source_name, write_bytes
from pliant.schemas.file_io.json_lines import encode
from pliant.schemas.file_io.limits import spared_by_garbage_collection
from pliant.schemas.file_io.record import problems_of
from pliant.schemas.io import (
    read_cluster,
    read_convergence,
    read_jobs,
    read_predictor,
    read_profile,
    write_schedule,
)
from pliant.schemas.job import Job
from pliant.schemas.kinds import read_kind
from pliant.schemas.metrics import CheckedFigure, Metrics, Reference
from pliant.schemas.predictor import Predictor
from pliant.schemas.profile import ConvergenceRow, Profile
from pliant.schemas.schedule import Schedule
from pliant.schemas.text import did_you_mean
from pliant.tools.replay.engine.log import EventLog
from pliant.tools.replay.engine.simulated_cluster import simulated_cluster
from pliant.tools.replay.inputs import Inputs, inputs, trace_name
from pliant.tools.replay.options import Conditions, ReplayOptions
from pliant.tools.replay.output import Summary, check_paths, output_paths, write
from pliant.tools.replay.progress import validations
from pliant.tools.replay.run import Run
from pliant.tools.replay.run import replay as replay_one
from pliant.tools.report.expectations import check_expectations, read_expectations, refuse_missed
from pliant.tools.report.metrics import MetricOptions
from pliant.tools.report.read_run import fold, read_run
from pliant.tools.report.records import RunRecord
from pliant.tools.report.rendering.output import Extras, ReportFormat, document, render
from pliant.tools.report.report import Report, event_files, make_report, read_report
from pliant.tools.schedule.decide import Question, decide
from pliant.tools.schedule.explain import table as explained
from pliant.tools.schedule.registry import make_policy

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

AnyPath = str | PathLike[str]
_OPTIONS: Final = (*(each.name for each in fields(Conditions)), "jobs_limit")
_FORMATS: Final[Mapping[str, ReportFormat]] = {
    ".txt": "table",
    ".json": "json",
    ".csv": "csv",
    ".md": "md",
    ".html": "html",
}


@overload
def read(
    path: AnyPath, table: str | None = ..., *, kind: str | None = ..., records: Literal[False] = ...
) -> pd.DataFrame: ...
@overload
def read(path: AnyPath, table: None = ..., *, kind: str | None = ..., records: Literal[True]) -> Any: ...
def read(
    path: AnyPath, table: str | None = None, *, kind: str | None = None, records: bool = False
) -> pd.DataFrame | Any:
    """Read any file of pliant, as a DataFrame or as checked records.

    :param path: jobs, a cluster, a profile, a convergence table, a schedule, events, metrics or a predictor;
        what it is follows from its content.
    :param table: the table of a file that holds several: ``allocations``, ``waiting``, ``rejected`` or
        ``jobs`` of a schedule; ``runs``, ``groups``, ``jobs`` or ``expectations`` of metrics. Default: the
        first.
    :param kind: one of the eight kinds, where the content does not tell.
    :param records: return checked records, which the other functions take as well: a tuple of jobs, events or
        convergence rows; a ``Profile``, ``Cluster``, ``Schedule``, ``Metrics`` or ``Predictor``.
    :returns: a DataFrame with a row for each job, node, measurement, epoch, event, allocation or run. Columns
        and their units are those of docs/schemas.md, a field within a field like ``gpus.requested``; each has
        the same type in every file.
    :raises BadInputError: the file is missing or wrong, with every problem in a line.
    :raises UsageError: there is no such kind or table, or the kind has no table (a predictor).
    """
    if not records:
        from pliant.schemas import frames

        return frames.read(fspath(path), table, kind=kind)
    if table is not None:
        raise UsageError(f"table={table!r} goes with DataFrames: leave records=True out")
    kind, content = read_kind(fspath(path), kind)
    if kind == "profile":
        return read_profile(fspath(path))
    return tuple(content) if kind in ("job", "event", "convergence") else content[0]


def synth(recipe: AnyPath | Mapping[str, Any], *, records: bool = False, **fields: Any) -> Any:
    """Make a trace with random arrivals, as ``pliant trace synth`` does.

    :param recipe: poisson, bursty or diurnal, a recipe file (TOML or JSON), or its fields.
    :param records: return a tuple of job records instead of a DataFrame; :func:`replay` takes both.
    :param fields: of the recipe, instead of those that it states: ``jobs``, ``rate_per_hour``, ``seed``, …
    :raises BadInputError: a field is wrong, with every problem in a line.
    :raises UsageError: there is no such recipe.
    """
    from pliant.tools.replay.synthetic import synthesize
    from pliant.tools.replay.synthetic_recipe import read_recipe

    if isinstance(recipe, Mapping):
        stated = {**recipe, **fields}
        jobs = synthesize(read_recipe(str(stated.pop("kind", "poisson")), stated))
    else:
        jobs = synthesize(read_recipe(fspath(recipe), fields), fspath(recipe))
    if records:
        return jobs
    from pliant.schemas import frames

    return frames.frame("job", jobs)


@dataclass(frozen=True, slots=True, repr=False)
class ReplayResult:
    """Replays of one trace, a policy each; printed, it says how each went and why jobs are left."""

    summaries: tuple[Summary, ...]
    """Jobs finished, rejected and left, the end in seconds, decisions, assumptions; one for each policy."""
    _logs: tuple[EventLog, ...] = field(compare=False)

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies in the order in which they were named."""
        return tuple(each.policy for each in self.summaries)

    def frame(self, table: Literal["events", "runs", "jobs"] = "events") -> pd.DataFrame:
        """The replays as a DataFrame; the column ``policy`` says which row is whose.

        :param table: ``events``: a row for each event, in order, as :func:`read` gives them of event files;
            ``runs``: a row for each policy with its figures; ``jobs``: a row for each job of each policy with
            its JCT, waiting time, fairness and changes. Times are seconds.
        :raises UsageError: there is no such table.
        """
        _one_of("table", table, ("events", "runs", "jobs"))
        if table != "events":
            return self.report().frame(table)
        from pliant.schemas import frames

        return frames.events_of_runs(self.policies, [tuple(log.events()) for log in self._logs])

    def report(
        self,
        *,
        reference: Reference = "fair-share",
        baseline: str | None = None,
        bound: bool = False,
        completed_at_hours: float | Sequence[float] = (),
    ) -> ReportResult:
        """The figures of these replays side by side; parameters and errors are those of :func:`report`."""
        return report(
            self,
            reference=reference,
            baseline=baseline,
            bound=bound,
            completed_at_hours=completed_at_hours,
        )

    def write(self, path: AnyPath) -> tuple[str, ...]:
        """Write event files with summaries beside them, the same bytes as ``pliant replay -o``.

        :param path: a file (.parquet or .jsonl) for one policy, or a folder, which is made if it is missing.
        :returns: the event files, one for each policy.
        :raises UsageError: they cannot be written there, or several policies do not fit into one file.
        :raises ServiceMissingError: the disk is full.
        """
        paths = output_paths(fspath(path), self.policies)
        check_paths(paths)
        for log, summary, each in zip(self._logs, self.summaries, paths, strict=True):
            write(log, summary, each)
        return tuple(paths)

    def __repr__(self) -> str:
        assumed = dict.fromkeys(text for each in self.summaries for text in each.assumptions)
        return "\n".join([*assumed, *(line for each in self.summaries for line in each.lines())])


def replay(
    jobs: AnyPath | pd.DataFrame | Iterable[Job | Mapping[str, Any]],
    cluster: AnyPath | Cluster | Mapping[str, Any],
    *,
    policy: str | Sequence[str],
    profile: AnyPath | Profile | None = None,
    convergence: AnyPath | Iterable[ConvergenceRow] | None = None,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> ReplayResult:
    """Replay a trace under one or more policies, as ``pliant replay`` does; equal inputs give equal events.

    :param jobs: a job file; a DataFrame of jobs as :func:`read` gives it, whatever was changed in it; or jobs
        as records or dictionaries. Times are seconds.
    :param cluster: a cluster file, record or dictionary, as in ``{"nodes": [{"name": "n0", "gpus": 8}]}``.
    :param policy: a name of ``pliant policies``, or several, each for a replay of its own.
    :param profile: measured speeds. Default: each GPU trains one sample a second.
    :param convergence: validation runs; jobs that name one of its models train by its epochs.
    :param parameters: of the policy, by name. With several policies, a dictionary for each by its name.
    :param seed: of policies that decide at random, and of drawn failures.
    :param options: the options of ``pliant replay`` about policies and the simulated cluster, with
        underscores: interval, demand, predictor, rescale_cost, start_cost, resume_cost (seconds, or a
        dictionary by model), progress, noise_scale, speeds, compat, failures, mtbf, repair, interference,
        strict, jobs_limit. docs/cli.md has their units and defaults.
    :raises BadInputError: an input is wrong, with every problem in a line; jobs that are not from a file are
        called by their row, ``jobs:3`` for the third.
    :raises UsageError: a policy, a parameter or an option is unknown, or its value is not one that it takes.
    """
    names = [policy] if isinstance(policy, str) or not isinstance(policy, Iterable) else list(policy)
    if not names or not all(isinstance(name, str) for name in names):
        raise UsageError("policy: expected a name of `pliant policies`, or several")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f'policy "{twice}" is named twice')
    by_policy = _by_policy(names, parameters or {})
    chosen = _options({**options, "seed": seed})
    for name in names:
        make_policy(name, by_policy[name])
    simulated = simulated_cluster(chosen, fspath(profile) if isinstance(profile, str | PathLike) else None)
    read_in = _inputs(jobs, cluster, profile, convergence, chosen.jobs_limit)
    with spared_by_garbage_collection():
        done = [replay_one(read_in, Run(name, by_policy[name], seed, chosen, simulated)) for name in names]
    return ReplayResult(tuple(each.summary for each in done), tuple(each.log for each in done))


@dataclass(frozen=True, slots=True, repr=False)
class ReportResult:
    """Runs and their figures; printed, it is the table of ``pliant report``, and Markdown in a notebook."""

    made: Report
    """The runs, with what the figures are computed from."""

    @property
    def metrics(self) -> Metrics:
        """All figures with their jobs: the document of ``pliant report --format json --jobs``."""
        return document(self.made, Extras(jobs=True))

    def frame(self, table: Literal["runs", "groups", "jobs"] = "runs") -> pd.DataFrame:
        """The figures as a DataFrame; null where a figure does not apply. Times are seconds.

        :param table: ``runs``: a row for each run, columns as ReportedRun in docs/schemas.md; ``groups``: a
            row for all runs that differ in their seed only, with the mean of each figure and the ``.low`` and
            ``.high`` of its 95 % interval; ``jobs``: a row for each job of each run, columns as JobFigures.
        :raises UsageError: there is no such table.
        """
        from pliant.schemas import frames

        _one_of("table", table, ("runs", "groups", "jobs"))
        return frames.frame("metrics", (self.metrics,), table)

    def text(self, format: ReportFormat = "table", *, jobs: bool = False, width: int | None = None) -> str:  # noqa: A002
        """The report as ``pliant report`` prints it.

        :param format: table, json, csv, md or html.
        :param jobs: add the jobs.
        :param width: columns for a table; default: as many as it takes.
        """
        _one_of("format", format, get_args(ReportFormat))
        return render(self.made, format, Extras(jobs=jobs), width=width)

    def write(self, path: AnyPath, *, jobs: bool = False) -> None:
        """Write the report in the format that its name ends in: .txt, .json, .csv, .md or .html.

        :param jobs: add the jobs.
        :raises UsageError: the ending is another one, or the file cannot be written.
        :raises ServiceMissingError: the disk is full.
        """
        ending = Path(path).suffix
        if ending not in _FORMATS:
            raise UsageError(f"{fspath(path)}: expected a name that ends in {', '.join(_FORMATS)}")
        check_output(fspath(path))
        write_bytes(fspath(path), self.text(_FORMATS[ending], jobs=jobs).encode())

    def figures(self, folder: AnyPath | None = None) -> dict[str, Figure]:
        """Matplotlib figures by name, such as ``jct-cdf``; those that would be empty are left out.

        :param folder: also write them there as PNG and SVG, as ``pliant report --figures`` does.
        :raises UsageError: the folder cannot be written.
        """
        from pliant.tools.report.figures import draw, write_drawn

        drawn = draw(self.made)
        if folder is not None:
            write_drawn(drawn, Path(folder))
        return drawn

    def check(self, expected: AnyPath) -> tuple[CheckedFigure, ...]:
        """Compare with expected figures, as ``--expect`` does; docs/ci.md describes the file.

        :returns: each figure with its limits and what was found.
        :raises JobsFailedError: figures are out of their range, a line each.
        :raises BadInputError: the file is wrong, or expects figures of other runs.
        """
        source = source_name(fspath(expected))
        checked = check_expectations(self.made, read_expectations(fspath(expected)), source)
        refuse_missed(checked)
        return checked

    def __repr__(self) -> str:
        return self.text()

    def _repr_markdown_(self) -> str:
        return self.text("md")


def report(
    *runs: AnyPath | ReplayResult | Iterable[AnyPath | ReplayResult],
    reference: Reference = "fair-share",
    baseline: str | None = None,
    bound: bool = False,
    completed_at_hours: float | Sequence[float] = (),
) -> ReportResult:
    """Metrics of runs side by side, as ``pliant report`` computes them.

    :param runs: event files, folders of them (state directories, too), results of :func:`replay`, and lists
        of these.
    :param reference: the fair sharing that tables relate FTF to: fair-share, gps or isolated.
    :param baseline: label or policy of the run by which figures are divided and JCTs are paired with.
    :param bound: add lower bounds that no schedule of the finished jobs can beat.
    :param completed_at_hours: count the jobs that finished within these hours of the first submission.
    :raises BadInputError: a file is not one of events, or its events do not fit together.
    :raises UsageError: there are no runs, or none is called ``baseline``.
    """
    named = [each for run in runs for each in (run if isinstance(run, list | tuple) else (run,))]
    for each in named:
        if not isinstance(each, str | PathLike | ReplayResult):
            raise UsageError(f"report: expected files, folders or replays, got {type(each).__name__}")
    if not named:
        raise UsageError("report: no runs: name event files, folders or results of replay")
    _one_of("reference", reference, get_args(Reference))
    hours = completed_at_hours if isinstance(completed_at_hours, Iterable) else (completed_at_hours,)
    wanted = MetricOptions(bound, tuple(3600 * _number("completed_at_hours", hour) for hour in hours))
    paths = [fspath(each) for each in named if not isinstance(each, ReplayResult)]
    if len(paths) == len(named):
        return ReportResult(read_report(paths, reference=reference, baseline=baseline, wanted=wanted))
    folded = [run for each in named for run in _folded(each)]
    return ReportResult(make_report(folded, reference=reference, baseline=baseline, wanted=wanted))


def _folded(run: AnyPath | ReplayResult) -> list[RunRecord]:
    if isinstance(run, ReplayResult):
        pairs = zip(run.policies, run._logs, strict=True)
        return [fold(log.events(), policy) for policy, log in pairs]
    return [read_run(file) for file in event_files(fspath(run))[0]]


@dataclass(frozen=True, slots=True, repr=False)
class ScheduleResult:
    """One decision; printed, it is the table of ``pliant schedule --explain``."""

    record: Schedule

    def frame(
        self, table: Literal["allocations", "waiting", "rejected", "jobs"] = "allocations"
    ) -> pd.DataFrame:
        """A table of the schedule as a DataFrame, a row for each job; columns as in docs/schemas.md.

        :raises UsageError: there is no such table.
        """
        from pliant.schemas import frames

        return frames.frame("schedule", (self.record,), table)

    def write(self, path: AnyPath) -> None:
        """Write the schedule (JSON), which ``pliant run`` executes.

        :raises UsageError: the file cannot be written.
        :raises ServiceMissingError: the disk is full.
        """
        write_schedule(self.record, fspath(path))

    def __repr__(self) -> str:
        return explained(self.record)


def schedule(
    jobs: AnyPath | pd.DataFrame | Iterable[Job | Mapping[str, Any]],
    cluster: AnyPath | Cluster | Mapping[str, Any],
    *,
    policy: str,
    profile: AnyPath | Profile | None = None,
    parameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    now_s: float | None = None,
    demand: Literal["stated", "predicted"] = "stated",
    predictor: AnyPath | Predictor | None = None,
) -> ScheduleResult:
    """Decide which job gets which GPUs on an idle cluster, as ``pliant schedule`` does.

    A job that the cluster or the policy cannot serve is rejected, with the reason in the table ``rejected``.

    :param jobs: as :func:`replay` takes them.
    :param cluster: as :func:`replay` takes it.
    :param policy: a name of ``pliant policies``.
    :param profile: measured speeds. Default: speed grows in proportion to the GPUs.
    :param parameters: of the policy, by name.
    :param seed: of policies that decide at random.
    :param now_s: decide at this time, seconds on the clock of the jobs. Default: the first submission.
    :param demand: what the policy sees of jobs that state no work: nothing, or predictions.
    :param predictor: what predictions begin from, a file or a record.
    :raises BadInputError: an input is wrong, with every problem in a line.
    :raises InfeasibleError: every job is rejected.
    :raises UsageError: the policy or a parameter is unknown, or the policy needs a profile.
    """
    _one_of("demand", demand, ("stated", "predicted"))
    _options({"seed": seed})
    at_s = None if now_s is None else _number("now_s", now_s)
    start = read_predictor(fspath(predictor)) if isinstance(predictor, str | PathLike) else predictor
    question = Question(
        policy, parameters or {}, seed, explain=True, timing=False, demand=demand, predictor=start
    )
    jobs_read, source = jobs_of(jobs)
    return ScheduleResult(
        decide(jobs_read, _cluster(cluster), _profile(profile), question, now_s=at_s, source=source)
    )


def _inputs(
    jobs: object,
    cluster: object,
    profile: object,
    convergence: AnyPath | Iterable[ConvergenceRow] | None,
    limit: int | None,
) -> Inputs:
    jobs_read, source = jobs_of(jobs)
    ordered = sorted(jobs_read, key=lambda job: (job.submit_time, job.id))[:limit]
    rows: Iterable[ConvergenceRow] = ()
    if isinstance(convergence, str | PathLike):
        rows = read_convergence(fspath(convergence))
    elif convergence is not None:
        rows = convergence
    name = trace_name(fspath(jobs)) if isinstance(jobs, str | PathLike) else None
    made = inputs(ordered, _cluster(cluster), _profile(profile), source, validations(tuple(rows)))
    return replace(made, name=name)


def jobs_of(jobs: object) -> tuple[tuple[Job, ...], str]:
    """Jobs from a file, a DataFrame or rows, and what messages call them."""
    if isinstance(jobs, str | PathLike):
        return read_jobs(fspath(jobs)), source_name(fspath(jobs))
    rows: Iterable[object]
    if hasattr(jobs, "columns"):
        from pliant.schemas import frames

        rows = frames.fields_of(jobs)
    elif isinstance(jobs, Iterable) and not isinstance(jobs, Mapping):
        rows = jobs
    else:
        raise UsageError(f"jobs: expected a file, a DataFrame, or jobs, got {type(jobs).__name__}")
    lines = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Job | Mapping):
            raise UsageError(f"jobs:{number}: expected a job or its fields, got {type(row).__name__}")
        lines.append(_json(job_fields(row) if isinstance(row, Job) else row, f"jobs:{number}"))
    return parse_jobs(b"".join(lines), "jobs"), "jobs"


def _cluster(cluster: object) -> Cluster:
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, str | PathLike):
        return read_cluster(fspath(cluster))
    if isinstance(cluster, Mapping):
        return parse_document(_json(cluster, "cluster"), "cluster", "cluster", Cluster, schema_required=False)
    hint = "; pliant.read(path, records=True) reads one" if hasattr(cluster, "columns") else ""
    raise UsageError(f"cluster: expected a file, a Cluster or its fields, got {type(cluster).__name__}{hint}")


def _profile(profile: object) -> Profile | None:
    if profile is None or isinstance(profile, Profile):
        return profile
    if isinstance(profile, str | PathLike):
        return read_profile(fspath(profile))
    hint = "; pliant.read(path, records=True) reads one" if hasattr(profile, "columns") else ""
    raise UsageError(f"profile: expected a file or a Profile, got {type(profile).__name__}{hint}")


def _json(value: Mapping[str, Any], source: str) -> bytes:
    """:raises BadInputError: a value is none that JSON has."""
    try:
        return encode(json.loads(json.dumps(dict(value), default=_plain)))
    except (TypeError, ValueError) as error:
        raise BadInputError.one(source, f"is not JSON: {error}") from None


def _plain(value: object) -> object:
    """The Python number of one of numpy's."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _one_of(name: str, value: object, choices: Sequence[str]) -> None:
    """:raises UsageError: the value is not among the choices."""
    if value not in choices:
        raise UsageError(f"{name}: {value!r} is not one of {', '.join(choices)}")


def _number(name: str, value: object) -> float:
    """:raises UsageError: the value is not a finite number, 0 or more."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number < inf:
        raise UsageError(f"{name}: {value!r} is not a number of 0 or more")
    return number


def _by_policy(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Parameters by policy: of the only policy by their names, of several in a dictionary each."""
    parameters: dict[str, Mapping[str, Any]] = {name: {} for name in names}
    nested = {name: values for name, values in given.items() if isinstance(values, Mapping)}
    if not nested and len(names) == 1:
        return {names[0]: given}
    stray = next((name for name in given if name not in names or name not in nested), None)
    if stray is not None:
        example = f'{{"{names[0]}": {{"{stray}": …}}}}'
        raise UsageError(f'parameters: "{stray}" is not a policy of this replay; say whose it is: {example}')
    return parameters | nested


def _options(given: Mapping[str, Any]) -> ReplayOptions:
    """:raises UsageError: an option is unknown, or its value is not one that it takes."""
    for name in given:
        if name not in (*_OPTIONS, "seed"):
            hint = did_you_mean(name, _OPTIONS, 1) or f"expected {', '.join(_OPTIONS)}"
            raise UsageError(f'replay has no option "{name}"; {hint}')
    values = {name: _as_stated(name, value) for name, value in given.items()}
    try:
        options = TypeAdapter(ReplayOptions).validate_python(values)
    except ValidationError as error:
        problems = problems_of(error, "replay")
        raise UsageError(
            "; ".join(f"{each.pointer.strip('/')}: {each.message}" for each in problems)
        ) from None
    for name, text in options.wrong():
        raise UsageError(f"{name} {text}")
    return options


def _as_stated(name: str, value: object) -> object:
    """A value as the command line would state it: costs and files are text, noise scales go by model."""
    if name == "noise_scale" and isinstance(value, int | float):
        return {"": value}
    if name.endswith("_cost"):
        if isinstance(value, Mapping):
            return ",".join(f"{model}={seconds}" for model, seconds in value.items())
        return str(value) if isinstance(value, int | float) else value
    return fspath(value) if isinstance(value, PathLike) else value
