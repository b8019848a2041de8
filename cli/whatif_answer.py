"""What is to come in a live state, asked by ``pliant whatif`` and ``pliant submit --dry-run``.

As a program it answers what other accounts ask through the gateway of a shared run, about the jobs that they
may see: the question is on stdin, and the answer on stdout behind a line of how it ended.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter

from pliant.schemas.cluster import Cluster, Node
from pliant.schemas.errors import InfeasibleError, PliantError, UsageError
from pliant.schemas.io import cluster_of
from pliant.schemas.job import Job
from pliant.schemas.text import Column, counted, in_gpu_hours, iso_time, span_text, text_table
from pliant.tools.replay.whatif import (
    ActualTimes,
    JobChange,
    JobPrediction,
    JobPredictions,
    PredictionErrors,
    WhatIfComparison,
    predict_jobs,
    prediction_errors,
    world_of,
)
from pliant.tools.run.gateway.client import Client
from pliant.tools.run.gateway.handlers import CPU_LIMIT_S, MEMORY_LIMIT_BYTES
from pliant.tools.run.gateway.protocol import WhatIfQuestion, as_line, error_document
from pliant.tools.run.service.reload import ClusterFile, reload_plan
from pliant.tools.run.service.submit import check_new
from pliant.tools.run.statedir.requests import submitted_jobs
from pliant.tools.run.watch.status import LiveState
from pliant.tools.schedule.decide import Question
from pliant.tools.schedule.predict_start import copy_of
from pliant.tools.schedule.session.session import Session

PREDICTION_CPU_S: Final = 1.4
"""Seconds of the processor for each of the two looks."""
PAST_PREDICTION_CPU_S: Final = 0.25
"""The same for each look from a moment of the past."""
MOMENTS: Final = 3
SHOWN: Final = 20
"""Jobs that the table names; of more it gives the number."""
NAMED: Final = 5
COLUMNS: Final = (
    Column("job"),
    Column("GPUs", 4),
    Column("starts", 2),
    Column("then", 2),
    Column("ends", 1),
    Column("then", 1),
    Column("later by", 3),
    Column("ends between", 5),
)


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """Two looks at a live state, and how wrong such looks were."""

    now_s: float
    looks: WhatIfComparison
    starts: PredictionErrors
    ends: PredictionErrors

    def seen_by(self, seen: Collection[str], own: Collection[str]) -> WhatIfAnswer:
        """What an account may see of it: the jobs that it sees, and reasons of its own ones.

        How far the cluster is in use is the work of all, and so is known to those who see all jobs.
        """
        every = {*self.looks.now.jobs, *self.looks.then.jobs} <= {*seen}

        def part(found: JobPredictions) -> JobPredictions:
            jobs = {
                job_id: job if job_id in own else replace(job, why="")
                for job_id, job in found.jobs.items()
                if job_id in seen
            }
            return replace(found, jobs=jobs, gpu_use=found.gpu_use if every else None)

        return replace(self, looks=WhatIfComparison(part(self.looks.now), part(self.looks.then)))


WHATIF_ANSWER: Final = TypeAdapter(tuple[WhatIfAnswer], config=ConfigDict(ser_json_inf_nan="constants"))


def answer_whatif(client: Client, question: WhatIfQuestion) -> WhatIfAnswer:
    """What is to come as things are, and otherwise, as far as this account may see it.

    :raises PliantError: the question makes no sense there, or nothing can be predicted.
    """
    answer = client.whatif(question)
    if answer is not None:
        return WHATIF_ANSWER.validate_json(answer)[0]
    return whatif_on_own_files(client.state, question)


def whatif_on_own_files(state: Path, question: WhatIfQuestion) -> WhatIfAnswer:
    """The same, with all jobs; the state directory is this account's."""
    live = LiveState(state)
    if question.jobs:
        given = submitted_jobs(question.jobs, question.source)
        jobs = check_new(state, given, question.source, live.now_s)
        answer = ask(live, with_jobs(jobs))
        names = {job.id: each.id for job, each in zip(jobs, given, strict=True)}
        then = {names.get(job_id, job_id): job for job_id, job in answer.looks.then.jobs.items()}
        return replace(answer, looks=replace(answer.looks, then=replace(answer.looks.then, jobs=then)))
    cluster, leaving = changed_cluster(live, question)
    if question.add_nodes is not None:
        cluster = enlarged(cluster or live.cluster, question.add_nodes)
    asked = None
    if question.policy is not None:
        asked = Question(question.policy, question.parameters, live.policy.seed)
    return ask(live, otherwise(live, cluster, (*question.remove, *leaving), question.cancel, asked))


def changed_cluster(live: LiveState, question: WhatIfQuestion) -> tuple[Cluster | None, tuple[str, ...]]:
    """The cluster of the file that a question has, with the nodes in use, and those of them to be left.

    :raises PliantError: it is none, or changes what cannot change.
    """
    if not question.cluster:
        return None, ()
    file = ClusterFile(cluster_of(question.cluster.encode(), question.source), question.source)
    plan = reload_plan(file, live.log, lambda _cluster, _job: None)
    return plan.cluster, plan.leaving


def ask(live: LiveState, otherwise: Callable[[Session], tuple[Session, Sequence[Job]]]) -> WhatIfAnswer:
    """What is to come as things are, and otherwise.

    :param otherwise: makes the other session from a copy of the present one, and says which further jobs
        arrive later.
    """
    session, coming = live.session(), live.coming()
    world = world_of(live.events(), live.profile)
    other, more = otherwise(copy_of(session))
    past = live.past(MOMENTS, session)
    errors = prediction_errors(past, _came(live), live.now_s, world, each_s=PAST_PREDICTION_CPU_S)
    about = (live.now_s, world, live.measured)
    now = predict_jobs(session, *about, coming=coming, within_s=PREDICTION_CPU_S)
    then = predict_jobs(other, *about, coming=[*coming, *more], within_s=PREDICTION_CPU_S)
    return WhatIfAnswer(live.now_s, WhatIfComparison(now, then), *errors)


def _came(live: LiveState) -> dict[str, ActualTimes]:
    times = {}
    for job_id, job in live.log.jobs.items():
        if job.phase in ("waiting", "running", "preempted", "finished") and job.held is None:
            times[job_id] = ActualTimes(job.started_s, job.ended_s)
    return times


def with_jobs(jobs: Sequence[Job]) -> Callable[[Session], tuple[Session, Sequence[Job]]]:
    """As if these jobs were submitted; their submit_time is UTC."""

    def submitted(session: Session) -> tuple[Session, Sequence[Job]]:
        for job in jobs:
            if job.submit_time <= session.changes.now_s:
                session.submit(job, session.changes.now_s)
        return session, [job for job in jobs if job.submit_time > session.changes.now_s]

    return submitted


def otherwise(
    live: LiveState,
    cluster: Cluster | None,
    remove: Sequence[str],
    cancel: Sequence[str],
    question: Question | None,
) -> Callable[[Session], tuple[Session, Sequence[Job]]]:
    """As if the cluster, the policy or the jobs were others.

    :param cluster: with further nodes; None: as it is.
    :raises UsageError: when it is called, for a node or a job that is not there.
    """

    def changed(session: Session) -> tuple[Session, Sequence[Job]]:
        known = [node.name for node in session.cluster.nodes]
        _check(live, "node", [name for name in remove if name not in known])
        _check(live, "active job", [job_id for job_id in cancel if job_id not in session.jobs])
        if cluster is not None or question is not None:
            session = copy_of(live.session(question, cluster))
        for job_id in dict.fromkeys(cancel):
            session.end(job_id, live.now_s, "cancelled")
        for name in remove:
            session.maintenance.drain(name, live.now_s, now=True)
        return session, ()

    return changed


def _check(live: LiveState, what: str, unknown: Sequence[str]) -> None:
    if unknown:
        raise UsageError(f"{live.path} has no {what} {', '.join(unknown)}")


def enlarged(cluster: Cluster, text: str) -> Cluster:
    """A cluster with further nodes: ``2``, like its last one, or ``2:TYPE``, like its last one of a type.

    :raises UsageError: it is something else, or no node is of that type.
    """
    number, _, kind = text.partition(":")
    alike = [node for node in cluster.expanded() if node.gpus and (not kind or node.gpu_type == kind)]
    if not (number.isascii() and number.isdigit() and len(number) <= 5 and 0 < int(number) <= 10_000):
        raise UsageError(f"--add-nodes {text}: expected a number of nodes, as 2 or 2:TYPE")
    if not alike:
        types = ", ".join(sorted({node.gpu_type for node in cluster.nodes if node.gpus}))
        raise UsageError(f"--add-nodes {text}: no node is of type {kind}, the cluster has {types}")
    names = {node.name for node in cluster.expanded()}
    free = [name for index in range(int(number) + len(names)) if (name := f"new-{index + 1}") not in names]
    last: Node = alike[-1]
    update = {"count": None, "address": None, "devices": ()}
    new = tuple(last.model_copy(update={**update, "name": name}) for name in free[: int(number)])
    return cluster.model_copy(update={"nodes": (*cluster.nodes, *new)})


# In words.


def table(answer: WhatIfAnswer, width: int | None, *, every: bool) -> str:
    """The jobs for which something changes, the largest changes first, and the sums.

    :param every: also those for which nothing changes, and without a limit.
    """
    changes = [each for each in answer.looks.changes if every or each.is_one]
    changes.sort(key=lambda each: (-abs(each.delay_s or 0.0), each.job))
    shown = changes if every else changes[:SHOWN]
    known = len(COLUMNS) if answer.ends.low is not None else len(COLUMNS) - 1
    rows = [_row(each, answer)[:known] for each in shown]
    lines = [text_table(COLUMNS[:known], rows, width)] if shown else []
    left = len(answer.looks.changes) - len(shown)
    if left and not every:
        more = len(changes) - len(shown)
        rest = [f"{counted(more, 'more job')} that it changes" if more else ""]
        same = left - more
        rest += [f"{counted(same, 'job')} that it does not change" if same else ""]
        lines.append(f"and {' and '.join(filter(None, rest))} (--all shows them)\n")
    return "".join([*lines, *(f"{line}\n" for line in sums(answer))])


def _row(change: JobChange, answer: WhatIfAnswer) -> tuple[str, ...]:
    now_s, (now, then) = answer.now_s, (change.now, change.then)
    gpus = "-" if then is None else str(then.gpus)
    late_s = change.delay_s
    between = None if then is None else answer.ends.between_s(then.end_s, now_s)
    return (
        change.job,
        gpus,
        _start(now, now_s),
        _start(then, now_s),
        _end(now, now_s),
        _end(then, now_s),
        "-" if late_s is None else _signed(late_s),
        "-" if between is None else " to ".join(span_text(at_s - now_s) for at_s in between),
    )


def _start(job: JobPrediction | None, now_s: float) -> str:
    if job is None or (job.start_s is None and not job.runs):
        return "-"
    return "runs" if job.start_s is None else _in(job.start_s, now_s)


def _end(job: JobPrediction | None, now_s: float) -> str:
    if job is None or job.end_s is None:
        return "-"
    return _in(job.end_s, now_s) if job.end == "finished" else str(job.end)


def _in(at_s: float, now_s: float) -> str:
    return "now" if at_s - now_s < 1 else f"in {span_text(at_s - now_s)}"


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else ''}{span_text(abs(seconds))}"


def sums(answer: WhatIfAnswer) -> list[str]:
    """Mean JCT and the use of GPUs, now and then."""
    looks = answer.looks
    jct = looks.mean_jct_s
    both = sum(
        each.now is not None and each.then is not None and None not in (each.now.jct_s, each.then.jct_s)
        for each in looks.changes
    )
    lines = ["mean JCT: - (no job is known to finish in both cases)"]
    if jct is not None:
        lines = [f"mean JCT: now {span_text(jct[0])}, then {span_text(jct[1])} ({counted(both, 'job')})"]
    use = ["-" if each.gpu_use is None else f"{each.gpu_use:.0%}" for each in (looks.now, looks.then)]
    lines.append(f"GPUs in use until the last end: now {use[0]}, then {use[1]}")
    return [*lines, *losses(answer)]


def losses(answer: WhatIfAnswer) -> list[str]:
    """What jobs that cannot save would lose to stops, more than as things are; the largest losses first."""
    lost = {
        each.job: each.then.lost_gpu_s - (0.0 if each.now is None else each.now.lost_gpu_s)
        for each in answer.looks.changes
        if each.then is not None
    }
    ordered = sorted((-gpu_s, job_id) for job_id, gpu_s in lost.items() if gpu_s > 0)
    if not ordered:
        return []
    named = ", ".join(f"{job_id} {in_gpu_hours(-gpu_s)}" for gpu_s, job_id in ordered[:NAMED])
    more = f" and {counted(len(ordered) - NAMED, 'more job')}" if len(ordered) > NAMED else ""
    return [f"lost by stops of jobs that do not say that they can save: {named}{more}"]


def remarks(answer: WhatIfAnswer) -> list[str]:
    """How far the answer can be trusted."""
    looks, now_s = answer.looks, answer.now_s
    exact = [each.exact_until_s for each in (looks.now, looks.then) if each.exact_until_s is not None]
    lines = [answer.starts.words("starts"), answer.ends.words("ends")]
    if exact:
        far = span_text(min(exact) - now_s)
        lines.append(f"beyond {far} from now the policy was asked more rarely than it will be")
    whys = {each.then.why for each in looks.changes if each.then is not None and each.then.why}
    lines += [f"some ends are not known: {why}" for why in sorted(whys)[:NAMED]]
    return lines


def of_new_jobs(answer: WhatIfAnswer, new: Sequence[str]) -> list[str]:
    """When new jobs start and end, and which others end later for them."""
    then = answer.looks.then
    lines = [f"{job_id}: {_would(then.jobs[job_id], answer)}" for job_id in new[:SHOWN]]
    if len(new) > SHOWN:
        lines.append(f"and {counted(len(new) - SHOWN, 'more job')}")
    late = [each for each in answer.looks.changes if each.is_one and (each.delay_s or 0.0) > 0]
    late.sort(key=lambda each: (-(each.delay_s or 0.0), each.job))
    named = ", ".join(f"{each.job} by {span_text(each.delay_s or 0.0)}" for each in late[:NAMED])
    more = f" and {len(late) - NAMED} more" if len(late) > NAMED else ""
    verb = "job would be" if len(late) == 1 else "jobs would be"
    lines.append(f"{len(late)} {verb} delayed: {named}{more}" if late else "no job would be delayed")
    return [*lines, *losses(answer)]


def _would(job: JobPrediction, answer: WhatIfAnswer) -> str:
    now_s = answer.now_s
    if job.end in ("rejected", "cancelled"):
        return f"would be {job.end}"
    if job.start_s is None:
        return f"no start is predicted: {job.why or 'it gets no GPUs'}"
    when = _in(job.start_s, now_s)
    between = None if when == "now" else answer.starts.between_s(job.start_s, now_s)
    if between is not None:
        when += f" ({' to '.join(span_text(at_s - now_s) for at_s in between)})"
    on = f"would start {when} on {counted(job.gpus, 'GPU')}"
    if job.end_s is None:
        return f"{on}; its end is not known: {job.why}"
    return f"{on}, and end {_in(job.end_s, now_s)}"


# For programs.


def document(answer: WhatIfAnswer) -> dict[str, Any]:
    looks, jct = answer.looks, answer.looks.mean_jct_s
    return {
        "schema": "pliant.whatif/1",
        "time": iso_time(answer.now_s),
        "mean_jct_seconds": None if jct is None else {"now": jct[0], "then": jct[1]},
        "gpu_use": {"now": looks.now.gpu_use, "then": looks.then.gpu_use},
        "exact_until": {"now": iso_time(looks.now.exact_until_s), "then": iso_time(looks.then.exact_until_s)},
        "errors": {"starts": _errors(answer.starts, "starts"), "ends": _errors(answer.ends, "ends")},
        "jobs": [
            {
                "job": each.job,
                "now": _fields(each.now, answer),
                "then": _fields(each.then, answer),
                "delay_seconds": each.delay_s,
            }
            for each in looks.changes
        ],
    }


def _errors(errors: PredictionErrors, what: str) -> dict[str, Any]:
    fields = {"comparisons": errors.comparisons, "low": errors.low, "high": errors.high}
    return fields if errors.low is not None else {**fields, "reason": errors.words(what)}


def _fields(job: JobPrediction | None, answer: WhatIfAnswer) -> dict[str, Any] | None:
    if job is None:
        return None
    starts = answer.starts.between_s(job.start_s, answer.now_s)
    ends = answer.ends.between_s(job.end_s, answer.now_s)
    return {
        "gpus": job.gpus,
        "starts": iso_time(job.start_s),
        "starts_between": None if starts is None else [*map(iso_time, starts)],
        "ends": iso_time(job.end_s),
        "ends_between": None if ends is None else [*map(iso_time, ends)],
        "end": job.end,
        "why": job.why or None,
        "lost_gpu_hours": job.lost_gpu_s / 3600,
    }


# For other accounts.


def main(state: str) -> int:
    """Answer one question (:mod:`pliant.tools.run.gateway.handlers`)."""
    resource.setrlimit(
        resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 1)
    )  # at both at once the kernel kills, and says not why
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    os.nice(5)
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # policies and solvers may print
        asked: Mapping[str, Any] = json.load(sys.stdin)
        answer = b""
        head: dict[str, Any] = {"ok": True}
        try:
            foreseen = whatif_on_own_files(
                Path(state), WhatIfQuestion.model_validate(asked["question"], strict=False)
            )
            answer = WHATIF_ANSWER.dump_json((foreseen.seen_by({*asked["seen"]}, {*asked["own"]}),))
        except PliantError as error:
            head = error_document(error)
        except MemoryError:
            head = error_document(
                InfeasibleError(f"more than {MEMORY_LIMIT_BYTES >> 30} GiB of memory would be needed")
            )
        out.write(as_line({**head, "cpu_s": time.process_time()}) + answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
