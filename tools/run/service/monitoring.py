"""``--metrics FILE``: what an operator's monitoring reads, in the OpenMetrics text format.

:func:`metrics_text` is a function of the folded log, the nodes and the time, so the numbers survive restarts
of the run, and a turn from cron writes the same file. docs/monitoring.md says what each name means.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pliant import __version__
from pliant.schemas.cluster import Node
from pliant.schemas.errors import PliantError
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.job import Job
from pliant.tools.run.statedir.log.fold import JobLog, RunLog
from pliant.tools.schedule.session.quarantine import node_of

EVERY_S: Final = 60.0
"""The file is never older than this while a run turns."""
LEAST_S: Final = 1.0
"""Seconds between two writes for decisions."""
STATES: Final = ("held", "free", "drained", "down", "left_out")
"""States of GPUs; each is in one of them."""
TeamOf = Callable[[Job], str | None]
"""The team that a job counts for. Returns None if it is in none."""
Labels = Mapping[str, str]
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Family:
    """One metric, with a value for each set of labels."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    values: Sequence[tuple[Labels, float]]
    unit: str = ""
    """The end of the name, if it states one."""

    def lines(self) -> Iterator[str]:
        yield f"# TYPE {self.name} {self.kind}"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {self.help}"
        ending = "_total" if self.kind == "counter" else ""
        for labels, value in self.values:
            yield f"{self.name}{ending}{_labels(labels)} {_number(value)}"


def metrics_text(
    log: RunLog, nodes: Iterable[Node], now_s: float, team_of: TeamOf = lambda _job: None
) -> str:
    """The whole file; ``now_s`` is the time of this turn (UTC)."""
    families = (
        *_capacity(log, nodes, now_s),
        *_jobs(log, team_of, now_s),
        *_totals(log),
        *_turns(log, now_s),
    )
    return "".join(f"{line}\n" for family in families for line in family.lines()) + "# EOF\n"


def _capacity(log: RunLog, nodes: Iterable[Node], now_s: float) -> Iterator[Family]:
    held = Counter[str]()
    for job in log.active.values():
        if job.beside is None or job.beside > job.job.id:  # shared GPUs are held once
            held.update(dict(job.placement))
    left_out = Counter(node_of(slot) for slot in log.out_of_service(now_s))
    gpus, kinds, states = Counter[tuple[str, str]](), set[str](), Counter[str]()
    for node in nodes:
        kind, closed = node.gpu_type, _closed(log, node.name)
        rest = max(0, node.gpus - held[node.name])
        out = 0 if closed else min(rest, left_out[node.name])
        gpus[kind, "held"] += node.gpus - rest
        gpus[kind, "left_out"] += out
        gpus[kind, closed or "free"] += rest - out
        states[closed or "up"] += 1
        kinds.add(kind)
    values = [
        ({"type": kind, "state": state}, gpus[kind, state]) for kind in sorted(kinds) for state in STATES
    ]
    yield Family("pliant_gpus", "gauge", "GPUs (or CPU slots) of the cluster.", values)
    by_state = [({"state": state}, float(states[state])) for state in ("up", "drained", "down")]
    yield Family("pliant_nodes", "gauge", "Nodes of the cluster.", by_state)


def _closed(log: RunLog, name: str) -> Literal["down", "drained", ""]:
    if name in log.down:
        return "down"
    return "drained" if name in log.drained else ""


def _jobs(log: RunLog, team_of: TeamOf, now_s: float) -> Iterator[Family]:
    states = Counter(map(_state, log.active.values()))
    values = [({"state": state}, float(states[state])) for state in ("waiting", "running", "held")]
    yield Family("pliant_jobs", "gauge", "Jobs that have not ended.", values)
    waits = [now_s - job.submitted_s for job in log.active.values() if _waits_for_a_start(job)]
    text = "Time since the submission of the job that has waited longest for its first start."
    longest_s = max(0.0, *waits, 0.0)
    yield Family("pliant_longest_wait_seconds", "gauge", text, [({}, longest_s)], "seconds")
    owners: tuple[tuple[str, TeamOf], ...] = (("team", team_of), ("user", lambda job: job.user or None))
    for owner, owner_of in owners:
        held = Counter(dict.fromkeys(log.entitled if owner == "team" else (), 0))
        for job in log.active.values():
            if (name := owner_of(job.job)) is not None:
                held[name] += job.counted_gpus  # type: ignore[assignment]
        if held:
            by_owner = [({owner: name}, float(gpus)) for name, gpus in sorted(held.items())]
            text = f"GPUs that the jobs of a {owner} hold."
            yield Family(f"pliant_{owner}_gpus_held", "gauge", text, by_owner)
    if log.entitled:
        by_team = [({"team": team}, float(gpus)) for team, gpus in sorted(log.entitled.items())]
        text = "GPUs that a team was entitled to at the last decision."
        yield Family("pliant_team_gpus_entitled", "gauge", text, by_team)


def _waits_for_a_start(job: JobLog) -> bool:
    return job.started_s is None and job.held is None


def _state(job: JobLog) -> str:
    if job.held is not None:
        return "held"
    return "running" if job.gpus else "waiting"


def _totals(log: RunLog) -> Iterator[Family]:
    counts = log.counts

    def counter(name: str, text: str, value: float, unit: str = "") -> Family:
        return Family(f"pliant_{name}", "counter", text, [({}, value)], unit)

    yield counter("jobs_submitted", "Jobs that were submitted.", counts.submitted)
    ends = [({"end": end}, log.ends.get(end, 0)) for end in ("finished", "failed", "cancelled", "rejected")]
    yield Family("pliant_jobs_ended", "counter", "Jobs that have ended.", ends)
    yield counter("job_starts", "Starts of jobs, resumes included.", counts.starts)
    yield counter("job_first_starts", "Jobs that have started.", counts.first_starts)
    text = "Time from submission to first start, summed over the jobs that have started."
    yield counter("job_wait_seconds", text, counts.wait_seconds, "seconds")
    yield counter("job_changes", "Changes of the GPUs or the batch of a running job.", counts.rescales)
    yield counter("preemptions", "Jobs that lost all GPUs by a decision.", counts.preemptions)
    yield counter("failures", "Attempts of jobs that failed.", counts.failures)
    lost = [
        ({"cause": cause}, counts.lost_gpu_seconds.get(cause, 0.0))
        for cause in ("changes", "checkpoints", "repeats", "stops")
    ]
    text = "GPU seconds that jobs held without getting further."
    yield Family("pliant_lost_gpu_seconds", "counter", text, lost, "seconds")
    yield counter("decisions", "Decisions of the policy, and schedules that were read.", counts.decisions)
    yield counter("policy_errors", "Decisions that an error of the policy prevented.", counts.policy_errors)
    text = "Time that the policy took to decide."
    yield counter("decision_seconds", text, counts.decision_seconds, "seconds")


def _turns(log: RunLog, now_s: float) -> Iterator[Family]:
    def seconds(name: str, text: str, value: float | None) -> Iterator[Family]:
        if value is not None:
            yield Family(f"pliant_{name}_seconds", "gauge", text, [({}, value)], "seconds")

    counts = log.counts
    yield from seconds("last_decision", "Time of the last decision.", counts.last_decision_seconds)
    yield from seconds("last_decision_timestamp", "When the policy decided last (UTC).", counts.decided_s)
    yield from seconds("last_turn_timestamp", "When the run last looked (UTC).", now_s)
    policy = "" if log.info is None else log.info.policy
    about = {"version": __version__, "policy": policy}
    yield Family("pliant_run_info", "gauge", "Which pliant and which policy.", [(about, 1)])


def _labels(labels: Labels) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{text}}}" if text else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


class MetricsFile:
    """Writes the file when it is due. A file that cannot be written stops nothing."""

    def __init__(
        self,
        path: Path,
        nodes: Sequence[Node],
        team_of: TeamOf = lambda _job: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """:param clock: a clock that cannot be set."""
        self._path = path
        self._nodes = nodes
        self._team_of = team_of
        self._clock = clock
        self._written_s = float("-inf")
        self._decisions = -1
        self._failed = False

    def look(self, log: RunLog, now_s: float) -> None:
        """After a turn: write the file if the policy has decided, or the file is old."""
        age_s = self._clock() - self._written_s
        if age_s >= (EVERY_S if log.counts.decisions == self._decisions else LEAST_S):
            self.write(log, now_s)

    def write(self, log: RunLog, now_s: float) -> None:
        self._written_s, self._decisions = self._clock(), log.counts.decisions
        if log.reloads and log.info is not None:
            cluster = log.info.cluster
            self._nodes = cluster.expanded()
            self._team_of = (lambda _job: None) if cluster.shares is None else cluster.shares.team_of
        try:
            atomic_write(
                self._path, metrics_text(log, self._nodes, now_s, self._team_of).encode(), mode=0o644
            )
        except PliantError as error:
            if not self._failed:
                _log.warning("%s; the metrics are written again once they can be", error)
            self._failed = True
        else:
            self._failed = False
