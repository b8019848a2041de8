"""Replay a trace under a policy: conditions become speeds, costs, progress and quirks, then it runs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from pliant import __version__
from pliant.schemas.errors import BadInputError, UsageError
from pliant.schemas.file_io.limits import garbage_collection_paused
from pliant.schemas.io import read_predictor
from pliant.schemas.job_table import JobForm, jobs_that, one_of_each, plain_texts
from pliant.schemas.profile import ProfileRow
from pliant.schemas.runinfo import Assumption, RunInfo
from pliant.schemas.text import counted
from pliant.tools.profile.throughput import Throughput
from pliant.tools.profile.throughput_model import ThroughputByPlacement
from pliant.tools.replay.compat import Compat, one_node, preset, settle, simulator_model
from pliant.tools.replay.engine.costs import DEFAULT, FREE, unstated_costs
from pliant.tools.replay.engine.engine import Advance, Engine
from pliant.tools.replay.engine.failures import drawn_failures, failures_end_s, together
from pliant.tools.replay.engine.log import Detail, EventLog, compact_json
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs, assumed
from pliant.tools.replay.options import Conditions, ProgressName
from pliant.tools.replay.output import StoredEvents, Summary, rejections, unfinished
from pliant.tools.replay.progress import (
    EpochProgress,
    GoodputProgress,
    ProgressByJob,
    ProgressModel,
    ReportingSamples,
)
from pliant.tools.replay.recorded import check_recorded, follow, is_recorded
from pliant.tools.schedule.assumptions import refuse
from pliant.tools.schedule.demand import check_demand, demand_gpu_s, demand_rate, submit_detail
from pliant.tools.schedule.forecast import WorkForecast
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.learned_speeds import LearnedSpeeds
from pliant.tools.schedule.policy import Policy
from pliant.tools.schedule.rates import Speeds, throughput_for
from pliant.tools.schedule.registry import make_policy, policy_class
from pliant.tools.schedule.session.book import DepartedJobs
from pliant.tools.schedule.session.session import Session
from pliant.tools.schedule.snapshot import Oracle

_JOBS_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Run:
    """One replay: which policy, with what parameters and seed, asked how often, in what world."""

    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Values, or the text of ``--param KEY=VALUE``."""
    seed: int = 0
    conditions: Conditions = field(default_factory=Conditions)
    simulated: SimulatedCluster = field(default_factory=SimulatedCluster)
    """The costs and failures that the conditions name, read from their files."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay and its outcome."""

    run: Run
    log: EventLog
    summary: Summary
    session: Session


def replay(
    inputs: Inputs,
    run: Run,
    *,
    timing: bool = False,
    advance: Advance | None = None,
    stored: StoredEvents | None = None,
) -> Replayed:
    """Replay the trace of ``inputs``; equal inputs give equal logs.

    :param timing: write decision times of this machine into the log, too.
    :param stored: where its events go; jobs that have ended are forgotten then. None: into memory.
    :raises UsageError: the policy or a parameter is unknown.
    :raises BadInputError: GPU-seconds at a size without a speed, an event of an unknown node, or a strict
        replay that would assume something.
    """
    assumptions = assumed(inputs, run.conditions, run.simulated, policy_class(run.policy), run.parameters)
    if run.conditions.strict:
        refuse(assumptions)
    compat = preset(run.conditions.compat)
    policy = make_policy(run.policy, {**compat.parameters.get(run.policy, {}), **run.parameters})
    follows = policy.traits.follows_recording and is_recorded(inputs.jobs)
    if follows:
        check_recorded(inputs.jobs)
    stated = run.conditions.demand == "stated"
    check_demand(
        jobs_that(lambda job: job.work_gap is not None, inputs.jobs),
        policy,
        inputs.name or "jobs",
        "stated" if stated else "predicted",
    )
    jobs = settle(compat, inputs.jobs, policy)
    trained = prepared(run, compat, policy, replace(inputs, jobs=jobs))
    known, physics = trained.throughput, None
    if run.conditions.speeds == "learned":
        known, physics = LearnedSpeeds(known, inputs.cluster.speeds, "learned"), known
    session = Session(
        policy,
        inputs.cluster,
        known,
        seed=run.seed,
        oracle=trained.oracle,
        forecast=_forecast(run),
        demand="predicted" if run.conditions.demand == "predicted" else "stated",
        preemptible=run.conditions.preemptible,
        trace=jobs,
        physics=physics,
    )
    if stored is not None:
        session.book.ended = DepartedJobs({other for job in one_of_each(jobs) for other in job.after})
    simulated = _with_failures(run, trained.simulated, inputs, session)
    sizes = measured_sizes(inputs.profile.rows if inputs.profile is not None else ())
    submissions = Submissions(session.cluster.training_speeds, sizes, policy, at_once=stored is not None)
    first_s = min(
        [job.submit_time for job in inputs.jobs[:1]] + [event.time_s for event in simulated.node_events],
        default=0.0,
    )
    engine = Engine(
        session,
        jobs,
        simulated,
        interval_s=trained.interval_s,
        describe=submissions.describe,
        advance=advance,
        reveals_work=run.conditions.demand == "oracle",
        log=None if stored is None else stored.log,
    )
    _ = session.policy_host.rng  # made before the clock starts
    info_row = engine.log.add(first_s, "decision")
    started, cpu_started = time.perf_counter(), time.process_time()
    if follows:
        follow(engine, jobs, submissions.describe)
    else:
        engine.run()
    summary = replace(
        _summary(inputs, engine, run, assumptions),
        wall_seconds=time.perf_counter() - started - (0.0 if stored is None else stored.wall_s),
        cpu_seconds=time.process_time() - cpu_started - (0.0 if stored is None else stored.cpu_s),
    )
    done = Replayed(run, engine.log, summary, session)
    shown = done if timing else replace(done, summary=summary.without_timing())
    engine.log.set_detail(info_row, partial(_info, inputs, trained, assumptions, shown))
    return done


class PreparedReplay(NamedTuple):
    """What the conditions of a replay come to for one trace, cluster and policy."""

    throughput: Throughput
    simulated: SimulatedCluster
    interval_s: float | None
    oracle: Oracle | None
    progress: str
    """Name of the progress model; "epochs" where some jobs have a table and others advance by samples."""


@garbage_collection_paused()
def prepared(run: Run, compat: Compat, policy: Policy, inputs: Inputs) -> PreparedReplay:
    """All that follows from the conditions of a run."""
    conditions = run.conditions
    _check(conditions, compat, inputs)
    asked_s = _interval(conditions.interval, compat, policy)
    throughput = inputs.throughput
    times = None
    if compat.one_node and inputs.profile is not None:
        throughput = throughput_for(one_node(inputs.profile), inputs.cluster, simulated=True)
    if inputs.profile is not None and (conditions.speeds == "placement" or compat.epochs):
        throughput = times = ThroughputByPlacement(
            inputs.profile, inputs.cluster.speeds, compat.most_local, compat.believed_cost_s
        )
        times.load(inputs.models, dict.fromkeys(n.gpu_type for n in inputs.cluster.nodes))
    name = conditions.progress or ("epochs" if compat.epochs else None)
    moves_batches = policy.traits.elasticity == "size+batch"
    reports = policy.traits.uses_forecast or conditions.demand == "predicted"
    stepwise = moves_batches or reports
    model: ProgressModel | None
    oracle: Oracle | None = None
    if compat.epochs and times is not None:
        model, oracle = simulator_model(compat, inputs, times, asked_s, stepwise=stepwise)
    else:
        model = _model(name, conditions, inputs, stepwise=stepwise, reports=reports)
    setup = replace(
        _with_costs(run.simulated, compat, inputs),
        progress=run.simulated.progress if model is None else lambda: model,
        measured=moves_batches or conditions.speeds == "learned",
        quirks=compat.quirks if compat.name else run.simulated.quirks,
    )
    by_table = bool(inputs.tables) and any(
        job.convergence in inputs.tables for job in one_of_each(inputs.jobs)
    )
    return PreparedReplay(throughput, setup, asked_s, oracle, name or ("epochs" if by_table else "samples"))


def _interval(stated_s: float | None, compat: Compat, policy: Policy) -> float | None:
    if stated_s is not None:
        return stated_s or None
    return policy.traits.default_interval_s if compat.interval_s is None else compat.interval_s


def _with_costs(simulated: SimulatedCluster, compat: Compat, inputs: Inputs) -> SimulatedCluster:
    """Every cost that is not stated comes from the simulator to be compatible with, else from the profile."""
    start, rescale, resume = simulated.start_cost, simulated.rescale_cost, simulated.resume_cost
    measured = None if compat.name else unstated_costs(inputs.profile)
    if measured is None:
        other = compat.cost if compat.name else DEFAULT
        if compat.change_cost is not None:
            resume, rescale = resume or rescale or other, rescale or compat.change_cost
        return replace(
            simulated, start_cost=start or other, rescale_cost=rescale or other, resume_cost=resume
        )
    return replace(
        simulated,
        start_cost=start or measured.start,
        rescale_cost=rescale or measured.rescale,
        resume_cost=resume if rescale is not None else resume or measured.resume,
    )


def _check(conditions: Conditions, compat: Compat, inputs: Inputs) -> None:
    wanted = f"--compat {compat.name}" if compat.name else f"--progress {conditions.progress}"
    if compat.epochs and conditions.progress not in (None, "epochs"):
        raise UsageError(f"{wanted} simulates epochs, not --progress {conditions.progress}")
    if (compat.name or conditions.speeds != "additive") and inputs.profile is None:
        raise UsageError(f"{wanted if compat.name else f'--speeds {conditions.speeds}'} needs a --profile")
    if compat.epochs or conditions.progress == "epochs":
        if not inputs.tables:
            raise UsageError(f"{wanted} needs a --convergence table")
        _check_tables(inputs)
    elif conditions.progress is not None:
        _check_work(conditions.progress, inputs)
    if conditions.progress == "goodput":
        _check_noise(conditions, inputs)


def _check_work(progress: ProgressName, inputs: Inputs) -> None:
    silent = next((job.id for job in inputs.jobs if job.work_gap is not None), None)
    if silent is not None:
        raise UsageError(
            f'--progress {progress}: job "{silent}" states no work, and only epochs take it from the '
            "--convergence table"
        )


def _check_tables(inputs: Inputs) -> None:
    missing = [job for job in inputs.jobs if job.convergence not in inputs.tables]
    if missing:
        names = ", ".join(f'"{job.id}"' for job in missing[:_JOBS_NAMED]) + (
            ", …" if len(missing) > _JOBS_NAMED else ""
        )
        raise BadInputError(f"{counted(len(missing), 'job')} without a run in the convergence table: {names}")


def _check_noise(conditions: Conditions, inputs: Inputs) -> None:
    known = conditions.noise_scale or {}
    for job in inputs.jobs:
        if job.convergence not in inputs.tables and job.model not in known and "" not in known:
            raise UsageError(
                f'--progress goodput: no noise scale is known for model "{job.model}": name a --convergence '
                "table that has it, or a --noise-scale"
            )


def _model(
    name: ProgressName | None, conditions: Conditions, inputs: Inputs, *, stepwise: bool, reports: bool
) -> ProgressModel | None:
    """Returns None for the progress model of the simulated cluster.

    :param stepwise: what a job shows at the ends of its epochs matters.
    :param reports: so do its losses and metrics.
    """
    tables = inputs.tables
    if name == "samples" and tables and reports:
        return ReportingSamples(tables)
    if name == "samples" or (name is None and not tables):
        return None
    if name == "goodput":
        return GoodputProgress(tables, conditions.noise_scale, stepwise=stepwise)
    epochs = EpochProgress(tables, stepwise=stepwise)
    return epochs if name else ProgressByJob(tables, epochs)


def _forecast(run: Run) -> WorkForecast:
    path = run.conditions.predictor
    return WorkForecast(None if path is None else read_predictor(path), seed=run.seed)


def _with_failures(
    run: Run, simulated: SimulatedCluster, inputs: Inputs, session: Session
) -> SimulatedCluster:
    """The simulated cluster with all node events of the run, drawn ones included."""
    _check_nodes(inputs, simulated)
    if simulated.mtbf is None or not inputs.jobs:
        return replace(simulated, node_events=together(simulated.node_events))
    nodes = [node.name for node in session.cluster.nodes]
    end_s = failures_end_s(inputs.jobs, session.cluster.training_speeds, simulated.progress(), len(nodes))
    drawn = drawn_failures(nodes, simulated.mtbf, run.seed, inputs.jobs[0].submit_time, end_s)
    return replace(simulated, node_events=together(simulated.node_events, drawn))


def _check_nodes(inputs: Inputs, simulated: SimulatedCluster) -> None:
    known = {node.name for node in inputs.cluster.expanded()}
    for event in simulated.node_events:
        if event.node not in known:
            text = f'at {event.time_s:g} s: the cluster has no node "{event.node}"'
            raise BadInputError(f"{event.origin}: {text}")


def _summary(inputs: Inputs, engine: Engine, run: Run, assumptions: tuple[Assumption, ...]) -> Summary:
    counters, ended = engine.counters, engine.session.book.ended
    moves = ended.moves if isinstance(ended, DepartedJobs) else sum(job.moves for job in ended.values())
    return Summary(
        policy=engine.session.policy.name,
        trace_hash=inputs.trace_hash,
        seed=run.seed,
        jobs=len(inputs.jobs),
        finished=counters.finished,
        rejected=counters.rejected,
        cancelled=counters.cancelled or None,
        unfinished=tuple(unfinished(engine.session, stands_still=engine.stands_still)),
        rejections=tuple(rejections(engine.log)) if counters.rejected else (),
        end_s=engine.log.last_s,
        events=len(engine.log),
        decisions=counters.decisions,
        decision_seconds=counters.decision_seconds,
        mean_decision_seconds=counters.decision_seconds / max(1, counters.decisions - counters.unasked),
        wall_seconds=None,
        moves=moves + sum(job.moves for job in engine.session.jobs.values()),
        assumptions=tuple(assumption.text for assumption in assumptions),
    )


def _info(
    inputs: Inputs, trained: PreparedReplay, assumptions: tuple[Assumption, ...], done: Replayed
) -> str:
    """The detail of the first event, made when it is written: to digest the profile takes a moment."""
    run, summary, policy, simulated = done.run, done.summary, done.session.policy, trained.simulated
    models = inputs.models
    counters = {"events": float(summary.events), "decisions": float(summary.decisions)}
    if summary.decision_seconds is not None:
        counters["decision_seconds"] = summary.decision_seconds
    info = RunInfo(
        policy=policy.name,
        parameters=dict(policy.parameters),
        seed=run.seed,
        simulated=True,
        oracle=done.session.policy_host.oracle is not None
        or policy.traits.needs_future
        or run.conditions.demand == "oracle",
        demand=run.conditions.demand,
        knew_work=run.conditions.demand == "stated" and policy.counts_on_work(one_of_each(inputs.jobs)),
        preemptible=run.conditions.preemptible,
        progress=trained.progress,
        compat=run.conditions.compat,
        trace_hash=inputs.trace_hash,
        trace=inputs.name,
        cluster=inputs.cluster,
        profile_hash=inputs.profile_hash,
        pliant_version=__version__,
        start_cost_s=(simulated.start_cost or FREE).for_models(models),
        rescale_cost_s=(simulated.rescale_cost or FREE).for_models(models),
        resume_cost_s=None if simulated.resume_cost is None else simulated.resume_cost.for_models(models),
        interference=simulated.interference,
        interval_s=trained.interval_s,
        bounds=policy.bounds_on(inputs.cluster),
        assumptions=assumptions,
        counters=counters,
    )
    return info.model_dump_json(by_alias=True, exclude_defaults=True)


class Submissions:
    """Describes the jobs of one trace.

    The text is made when it is written and not kept; or at once, where it is written soon and a job that has
    ended can be forgotten meanwhile.
    """

    def __init__(
        self,
        speeds: Speeds,
        measured_sizes: Mapping[str, Collection[int]],
        policy: Policy,
        *,
        at_once: bool = False,
    ) -> None:
        self._speeds = speeds
        self._policy = policy
        self._measured_sizes = measured_sizes
        self._cluster_gpus = sum(speeds.gpu_types.values())
        self._promises = type(policy).promised_rates is not Policy.promised_rates
        self._at_once = at_once and not self._promises
        # Of jobs that never change their batch, by the GPU types that they may run on.
        self._by_form: dict[tuple[JobForm, tuple[str, ...] | None], _OfForm] = {}

    def describe(self, job: JobState) -> Detail:
        if self._at_once and not job.spec.batch.regimes:
            return self._text(job)
        return partial(self._text, job)

    def _text(self, job: JobState) -> str:
        spec, samples = job.spec, job.work_samples or 0.0
        form: JobForm | None = spec.__dict__.get("form")
        if form is None or spec.batch.regimes:
            text = spec.model_dump_json(by_alias=True, exclude_defaults=True)
            curve, demand = self._curve(job), demand_gpu_s(job, self._speeds, of_simulation=True)
        else:
            if (known := self._by_form.get((form, job.types))) is None:
                known = self._by_form[form, job.types] = self._of_form(form, job)
            curve, gpus, rate, template = known
            demand = gpus * samples / rate if gpus else 0.0
            if template is not None:
                numbers = (spec.submit_time, form.amount(spec), samples, demand)
                if (texts := plain_texts(numbers)) is not None:
                    return template % (spec.id, *texts)
            text = form.json(spec)
        work = f',"samples":{compact_json(samples)}' if samples else ""
        if demand:
            work += f',"demand_gpu_s":{compact_json(demand)}'
        if self._promises and (rates := self._policy.promised_rates(job, self._speeds)):
            work += f',"rates":{compact_json(rates)}'
        return f'{{"job":{text},"curve":{curve}{work}}}'

    def _of_form(self, form: JobForm, job: JobState) -> _OfForm:
        curve, template = self._curve(job), None
        if job.spec.work is not None and not (form.labels or self._promises):
            template = f'{{"job":{form.template_json},"curve":{curve},"samples":%s,"demand_gpu_s":%s}}'
        return _OfForm(curve, *demand_rate(job, self._speeds), template)

    def _curve(self, job: JobState) -> str:
        spec = job.spec
        what = ("submit", spec.gpus.requested, spec.max_gpus(self._cluster_gpus), spec.batch.regimes)
        return self._speeds.of_kind(job, what, lambda: self._made(job))

    def _made(self, job: JobState) -> str:
        sizes = self._measured_sizes.get(job.spec.model, ())
        return compact_json(submit_detail(job, self._speeds, sizes)["curve"])


class _OfForm(NamedTuple):
    """What the texts of all jobs of one form have in common."""

    curve: str
    gpus: int
    """As :func:`demand_rate` says, and the rate."""
    rate: float
    template: str | None
    """The text with ``%s`` for the id, the submission time, the amount of work, the samples and the demand.
    None: jobs of the form differ in more, or state no work."""


def measured_sizes(rows: Iterable[ProfileRow]) -> Mapping[str, Collection[int]]:
    """GPU counts that a profile measured training at, by model."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        if row.kind == "train":
            sizes.setdefault(row.model, set()).add(row.gpus)
    return sizes
