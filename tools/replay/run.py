"""Replay a trace under policies: every one gives an event log and a summary."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from pliant.schemas.errors import BadInputError
from pliant.schemas.io import read_predictor
from pliant.schemas.profile import ProfileRow
from pliant.schemas.runinfo import Assumption, RunInfo
from pliant.tools.replay.compat import preset, settle
from pliant.tools.replay.engine.costs import FREE
from pliant.tools.replay.engine.engine import Advance, Engine
from pliant.tools.replay.engine.failures import drawn_failures, failures_end_s, together
from pliant.tools.replay.engine.log import Detail, EventLog, compact_json
from pliant.tools.replay.engine.simulated_cluster import SimulatedCluster
from pliant.tools.replay.inputs import Inputs, assumed
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.output import Summary, rejections, unfinished
from pliant.tools.replay.prepare import PreparedReplay, prepared
from pliant.tools.schedule.assumptions import refuse
from pliant.tools.schedule.demand import check_demand, demand_gpu_s, submit_detail
from pliant.tools.schedule.forecast import WorkForecast
from pliant.tools.schedule.jobs import JobState
from pliant.tools.schedule.rates import Speeds
from pliant.tools.schedule.registry import make_policy, policy_class
from pliant.tools.schedule.session.session import Session


@dataclass(frozen=True, slots=True)
class Run:
    """One replay: which policy, with what parameters and seed, asked how often, in what world."""

    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Values, or the text of ``--param KEY=VALUE``."""
    seed: int = 0
    conditions: Conditions = field(default_factory=Conditions)
    """As they were stated."""
    simulated: SimulatedCluster = field(default_factory=SimulatedCluster)
    """The costs and failures that the conditions name, read from their files."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay and its outcome."""

    run: Run
    log: EventLog
    summary: Summary
    session: Session
    """Where it ended."""


def replay(inputs: Inputs, run: Run, *, timing: bool = False, advance: Advance | None = None) -> Replayed:
    """Replay the trace of ``inputs``; equal inputs give equal logs.

    :param timing: say in the log, too, how long decisions took on this machine.
    :raises UsageError: the policy or a parameter is unknown.
    :raises BadInputError: work is stated in GPU-seconds at a size that has no speed, or an event of a node
        that the cluster does not have; or a strict replay takes something for granted.
    """
    assumptions = assumed(inputs, run.conditions, run.simulated, policy_class(run.policy))
    if run.conditions.strict:
        refuse(assumptions)
    compat = preset(run.conditions.compat)
    policy = make_policy(run.policy, {**compat.parameters.get(run.policy, {}), **run.parameters})
    stated = run.conditions.demand == "stated"
    check_demand(inputs.jobs, policy, inputs.name or "jobs", "stated" if stated else "predicted")
    jobs = settle(compat, inputs.jobs, policy)
    trained = prepared(run.conditions, compat, replace(inputs, jobs=tuple(jobs)), policy, run.simulated)
    session = Session(
        policy,
        inputs.cluster,
        trained.throughput,
        seed=run.seed,
        oracle=trained.oracle,
        forecast=_forecast(run),
        demand="predicted" if run.conditions.demand == "predicted" else "stated",
        trace=jobs,
    )
    simulated = _with_failures(run, trained.simulated, inputs, session)
    sizes = measured_sizes(inputs.profile.rows if inputs.profile is not None else ())
    submissions = Submissions(session.speeds, sizes)
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
    )
    _ = session.rng  # made before the clock starts
    info_row = engine.log.add(first_s, "decision")
    started, cpu_started = time.perf_counter(), time.process_time()
    engine.run()
    summary = replace(
        _summary(inputs, engine, run, assumptions),
        wall_seconds=time.perf_counter() - started,
        cpu_seconds=time.process_time() - cpu_started,
    )
    done = Replayed(run, engine.log, summary, session)
    shown = done if timing else replace(done, summary=summary.without_timing())
    engine.log.details[info_row] = partial(_info, inputs, trained, assumptions, shown)
    return done


def _forecast(run: Run) -> WorkForecast:
    path = run.conditions.predictor
    return WorkForecast(None if path is None else read_predictor(path), seed=run.seed)


def _with_failures(
    run: Run, simulated: SimulatedCluster, inputs: Inputs, session: Session
) -> SimulatedCluster:
    """The simulated cluster of a run with all its node events, drawn ones included."""
    _check_nodes(inputs, simulated)
    if simulated.mtbf is None or not inputs.jobs:
        return replace(simulated, node_events=together(simulated.node_events))
    nodes = [node.name for node in session.nodes]
    end_s = failures_end_s(inputs.jobs, session.speeds, simulated.progress())
    drawn = drawn_failures(nodes, simulated.mtbf, run.seed, inputs.jobs[0].submit_time, end_s)
    return replace(simulated, node_events=together(simulated.node_events, drawn))


def _check_nodes(inputs: Inputs, simulated: SimulatedCluster) -> None:
    known = {node.name for node in inputs.cluster.expanded()}
    for event in simulated.node_events:
        if event.node not in known:
            text = f'at {event.time_s:g} s: the cluster has no node "{event.node}"'
            raise BadInputError(f"{event.origin}: {text}")


def _summary(inputs: Inputs, engine: Engine, run: Run, assumptions: tuple[Assumption, ...]) -> Summary:
    counters = engine.counters
    return Summary(
        policy=engine.session.policy.name,
        trace_hash=inputs.trace_hash,
        seed=run.seed,
        jobs=len(inputs.jobs),
        finished=counters.finished,
        rejected=counters.rejected,
        unfinished=tuple(unfinished(engine.session, stands_still=engine.stands_still)),
        rejections=tuple(rejections(engine.log)) if counters.rejected else (),
        end_s=engine.log.time[-1],
        events=len(engine.log),
        decisions=counters.decisions,
        decision_seconds=counters.decision_seconds,
        mean_decision_seconds=counters.decision_seconds / max(1, counters.decisions),
        wall_seconds=None,
        moves=sum(job.moves for job in (*engine.session.jobs.values(), *engine.session.ended.values())),
        assumptions=tuple(assumption.text for assumption in assumptions),
    )


def _info(
    inputs: Inputs, trained: PreparedReplay, assumptions: tuple[Assumption, ...], done: Replayed
) -> str:
    """The detail of the first event, made when it is written: to digest the profile takes a moment."""
    run, summary, policy, simulated = done.run, done.summary, done.session.policy, trained.simulated
    models = [job.model for job in inputs.jobs]
    counters = {"events": float(summary.events), "decisions": float(summary.decisions)}
    if summary.decision_seconds is not None:
        counters["decision_seconds"] = summary.decision_seconds
    info = RunInfo(
        policy=policy.name,
        parameters=dict(policy.parameters),
        seed=run.seed,
        simulated=True,
        oracle=done.session.oracle is not None or policy.knows_future or run.conditions.demand == "oracle",
        demand=run.conditions.demand,
        progress=trained.progress,
        compat=run.conditions.compat,
        trace_hash=inputs.trace_hash,
        trace=inputs.name,
        cluster=inputs.cluster,
        profile_hash=inputs.profile_hash,
        pliant_version=version("pliant"),
        start_cost_s=(simulated.start_cost or FREE).for_models(models),
        rescale_cost_s=(simulated.rescale_cost or FREE).for_models(models),
        resume_cost_s=None if simulated.resume_cost is None else simulated.resume_cost.for_models(models),
        interference=simulated.interference,
        interval_s=trained.interval_s,
        bounds=policy.bounds,
        assumptions=assumptions,
        counters=counters,
    )
    return info.model_dump_json(by_alias=True, exclude_defaults=True)


class Submissions:
    """Describes the jobs of one trace. The text is made when it is written and not kept."""

    def __init__(self, speeds: Speeds, measured_sizes: Mapping[str, Collection[int]]) -> None:
        self._speeds = speeds
        self._measured_sizes = measured_sizes
        self._cluster_gpus = sum(speeds.gpu_types.values())

    def describe(self, job: JobState) -> Detail:
        return partial(self._text, job)

    def _text(self, job: JobState) -> str:
        spec = job.spec.model_dump_json(by_alias=True, exclude_defaults=True)
        work = f',"samples":{compact_json(job.work_samples)}' if job.work_samples else ""
        if demand := demand_gpu_s(job, self._speeds, of_simulation=True):
            work += f',"demand_gpu_s":{compact_json(demand)}'
        return f'{{"job":{spec},"curve":{self._curve(job)}{work}}}'

    def _curve(self, job: JobState) -> str:
        spec = job.spec
        what = ("submit", spec.gpus.requested, spec.max_gpus(self._cluster_gpus))
        return self._speeds.of_kind(job, what, lambda: self._made(job))

    def _made(self, job: JobState) -> str:
        sizes = self._measured_sizes.get(job.spec.model, ())
        return compact_json(submit_detail(job, self._speeds, sizes)["curve"])


def measured_sizes(rows: Iterable[ProfileRow]) -> Mapping[str, Collection[int]]:
    """GPU counts that a profile measured training at, by model."""
    found: dict[str, set[int]] = {}
    for row in rows:
        if row.kind == "train":
            found.setdefault(row.model, set()).add(row.gpus)
    return found
