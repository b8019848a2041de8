"""Why each job got what it got, and until when it holds it or waits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from math import inf
from typing import Final

from pliant.schemas.checks import Constraint, amount_text, fitting
from pliant.schemas.schedule import Schedule
from pliant.schemas.text import Column, counted, fitted, in_gpus, listed, span_text, text_table, when_text
from pliant.tools.schedule.jobs import JobState, Phase
from pliant.tools.schedule.policy import Explanation
from pliant.tools.schedule.session.session import Session

Row = tuple[str, ...]
COLUMNS: Final = (
    Column("job"),
    Column("action", 1),
    Column("GPUs", 2),
    Column("when", 3),
    Column("where", 6),
    Column("batch", 5),
    Column("why", 4, least=20),
)
ARRIVALS_NAMED: Final = 5
"""Jobs that arrive after the decision; of more the table gives the number."""


def explanations(session: Session, time_s: float) -> dict[str, Explanation]:
    """Why every active job holds what it holds: in the policy's words, else in plain ones."""
    said, seen = session.explain(time_s), session.in_play
    reasons = plain_explanations(session) | {job_id: why for job_id, why in said.items() if job_id in seen}
    for job_id, until_s in session.decided.kept_until_s.items():
        if job_id not in reasons:
            continue  # it has ended since
        if until_s == inf:
            kept = "kept until it ends, as it cannot save"
        else:
            kept = f"kept for {span_text(until_s - time_s)} more, as the cluster rules"
        reasons[job_id] = Explanation(f"{reasons[job_id].reason}; {kept}", reasons[job_id].needs_gpus)
    lost = [node for node in session.cluster.nodes if not node.up and node.made_gpus]
    for job in seen.values():
        if not job.gpus and (where := session.cluster.capacities.constraint_of(job.spec)) is not None:
            down = [node.name for node in lost if where.allows(node)]
            reasons[job.id] = _constrained(job, where, reasons[job.id], down)
        if not job.gpus and job.id in session.cluster.confined:
            why = reasons[job.id]
            reasons[job.id] = Explanation(f"{why.reason}; {session.windows.words(job)}", why.needs_gpus)
    return reasons


def _constrained(
    job: JobState, where: Constraint, explanation: Explanation, down: Sequence[str]
) -> Explanation:
    """Why a job waits that may run on some GPUs only.

    :param down: nodes on which it may run.
    """
    if max((job.room_now or {}).values(), default=0) < job.min_gpus:
        which = f": {listed(down)} {'is' if len(down) == 1 else 'are'} down" if down else ""
        words = f"waits for nodes with GPUs {where.words}, too few of which are up{which}"
        return Explanation(words, job.min_gpus)
    return Explanation(
        f"{explanation.reason}; it may run on GPUs {where.words} alone", explanation.needs_gpus
    )


def plain_explanations(session: Session) -> dict[str, Explanation]:
    rigid = session.policy.traits.elasticity == "none"
    plain = {job.id: _plain(job, rigid=rigid) for job in session.jobs.values()}
    hidden = session.hidden
    alike: dict[Hashable, Explanation] = {}
    for job in map(session.jobs.__getitem__, hidden.on_cpus):
        where, demand = session.cluster.capacities.constraint_of(job.spec), job.spec.resources.worker
        kind = (job.gpus, where, tuple(demand.items()))
        if kind not in alike:
            alike[kind] = _on_cpus(job, where, session)
        plain[job.id] = alike[kind]
    bound = {
        job_id: Explanation(f"goes on until it ends on {name}, which is drained")
        for job_id, name in hidden.bound.items()
    }
    kept = {**hidden.reserved, **hidden.limited, **hidden.in_line, **hidden.awaiting}
    waiting = {job_id: Explanation(words) for job_id, words in kept.items()}
    held = {job_id: Explanation(f"held by {by}") for job_id, by in hidden.held.items()}
    return plain | bound | waiting | held


def _on_cpus(job: JobState, where: Constraint | None, session: Session) -> Explanation:
    """What is said of a job that needs no GPU: that it runs, or what it waits for."""
    if job.gpus:
        return Explanation("runs without a GPU")
    demand = job.spec.resources.worker
    nodes = [node for node in session.cluster.nodes if where is None or where.allows(node)]
    able = [node for node in nodes if fitting(node.capacities, demand, 1)]
    needs = " and ".join(amount_text(*each) for each in sorted(demand.items()))
    if able and not any(node.up for node in able):
        names = listed([node.name for node in able])
        return Explanation(f"waits for a node with {needs}, those that have as much are down: {names}")
    return Explanation(f"waits for a node with {needs} to spare")


def _plain(job: JobState, *, rigid: bool) -> Explanation:
    if job.gpus:
        return Explanation(f"runs on {in_gpus(job.gpus)}")
    again = "again " if job.phase is Phase.PREEMPTED else ""
    if rigid:
        return Explanation(f"waits {again}for {in_gpus(job.requested)}", job.requested)
    return Explanation(f"waits {again}for at least {in_gpus(job.min_gpus)}", job.min_gpus)


def table(schedule: Schedule, width: int | None = None) -> str:
    """The schedule as a table, one job a line.

    :param width: of the terminal, in columns; None: nothing is left out or cut.
    """
    arrivals = {job.id: job.submit_time for job in schedule.jobs if job.submit_time > schedule.time}
    later = sorted((arrivals[each.job], each.job) for each in schedule.waiting if each.job in arrivals)
    rows = [*_held(schedule), *_waiting(schedule, later), *_rejected(schedule)]
    shown = text_table(COLUMNS, rows, width) if rows else "no job\n"
    more = len(later) - ARRIVALS_NAMED
    lines = fitted([f"and {counted(more, 'job')} that {'arrives' if more == 1 else 'arrive'} later"], width)
    return "\n".join([shown.rstrip("\n"), *lines, ""]) if more > 0 else shown


def _held(schedule: Schedule) -> Iterator[Row]:
    on_cpus = {job.id for job in schedule.jobs if job.on_cpus}
    for given in schedule.allocations:
        where = " ".join(f"{node}:{count}" for node, count in given.placement)
        batch = str(given.batch.global_) if given.batch is not None else ""
        ends = _when("ends", given.predicted_end, schedule.time)
        gpus = "0" if given.job in on_cpus else str(given.gpus)
        yield (given.job, given.action, gpus, ends, where, batch, given.reason)


def _waiting(schedule: Schedule, later: Sequence[tuple[float, str]]) -> Iterator[Row]:
    """:param later: arrivals after the decision, the first first."""
    arrivals = {job_id: at_s for at_s, job_id in later}
    unnamed = {job_id for _, job_id in later[ARRIVALS_NAMED:]}
    for verdict in schedule.waiting:
        if verdict.job in unnamed:
            continue
        needs = "" if verdict.needs_gpus is None else f"needs {verdict.needs_gpus}"
        arrives = _when("arrives", arrivals.get(verdict.job), schedule.time)
        starts = _when("starts", verdict.predicted_start, schedule.time)
        yield (verdict.job, "wait", needs, arrives or starts, "", "", "" if arrives else verdict.reason)


def _rejected(schedule: Schedule) -> Iterator[Row]:
    for verdict in schedule.rejected:
        yield (verdict.job, "reject", "", "", "", "", verdict.reason)


def _when(word: str, at_s: float | None, now_s: float) -> str:
    return "" if at_s is None else f"{word} {when_text(at_s, now_s)}"
