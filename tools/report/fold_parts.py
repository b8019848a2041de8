"""What a run's events come to besides its jobs: what is wrong with them, its nodes, its decisions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from pliant.schemas.cluster import Cluster
from pliant.schemas.errors import BadInputError, Problem
from pliant.schemas.events import NodeDown, NodeUp
from pliant.schemas.file_io.events import Detail
from pliant.schemas.file_io.record import Record, problems_of
from pliant.schemas.schedule import TeamStanding
from pliant.tools.report.submissions import SubmittedJobs

R = TypeVar("R", bound=Record)


class EventProblems:
    """What is wrong with the events of a file, with their numbers."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._noted: list[tuple[int, Problem]] = []

    def add(self, number: int, text: str, pointer: str = "") -> None:
        where = f"event {number}: {pointer}" if pointer else f"event {number}"
        self._noted.append((number, Problem(self.source, None, where, text)))

    def refuse(self, error: ValidationError, number: int) -> None:
        problems = problems_of(error, self.source, where=f"event {number}: /detail")
        self._noted += [(number, problem) for problem in problems]

    def parse(self, record: type[R], detail: Detail, number: int) -> R | None:
        """The record in a detail. Returns None, and notes why, if it is not one."""
        try:
            if isinstance(detail, str):
                return record.model_validate_json(detail, strict=False)
            return record.model_validate(detail, strict=False)
        except ValidationError as error:
            self.refuse(error, number)
            return None

    def check(self) -> None:
        """:raises BadInputError: with every problem, in order."""
        if self._noted:
            raise BadInputError([problem for _, problem in sorted(self._noted, key=lambda pair: pair[0])])


class ClusterCapacity:
    """GPUs of the nodes that are up, over time.

    Slots out of service and drained nodes, of which other events tell, count.
    """

    def __init__(self) -> None:
        self.node_gpus: dict[str, int] = {}
        self.down: set[str] = set()
        # (time, GPUs) whenever that changed.
        self.steps: list[tuple[float, int]] = []

    def have(self, cluster: Cluster, time_s: float) -> None:
        """The nodes are those of this cluster from now on."""
        self.node_gpus = {node.name: node.gpus for node in cluster.expanded()}
        self.down &= self.node_gpus.keys()
        self._note(time_s)

    def take(self, event: NodeDown | NodeUp, time_s: float) -> None:
        (self.down.add if isinstance(event, NodeDown) else self.down.discard)(event.node)
        self._note(time_s)

    def _note(self, time_s: float) -> None:
        gpus = sum(count for node, count in self.node_gpus.items() if node not in self.down)
        self.steps.append((time_s, gpus))


@dataclass(slots=True)
class DecisionsMade:
    """What the decisions of a run say of themselves."""

    count: int = 0
    seconds: float = 0.0
    policies: dict[str, None] = field(default_factory=dict)
    teams: list[tuple[float, tuple[TeamStanding, ...]]] = field(default_factory=list)


class LivingJobs:
    """Rows of the jobs that live, by id."""

    def __init__(self, submitted: SubmittedJobs) -> None:
        self.rows: dict[str, int] = {}
        # Whether of those that ended, too.
        self.knows_all = False
        self._submitted = submitted

    def know_all(self) -> None:
        """Keep the ids of all jobs from now on: the log tells more of one that has ended."""
        self.rows = {job_id: row for row, job_id in enumerate(self._submitted.table.ids())}
        self.knows_all = True

    def row(self, job_id: str, number: int) -> int:
        """-1: there is no such job before the event of this number."""
        if job_id not in self.rows and not self.knows_all:
            self.know_all()
        row = self.rows.get(job_id, -1)
        return row if row >= 0 and self._submitted.event[row] < number else -1

    def drop(self, job_ids: Iterable[str]) -> None:
        """These have ended."""
        for job_id in () if self.knows_all else job_ids:
            self.rows.pop(job_id, None)
