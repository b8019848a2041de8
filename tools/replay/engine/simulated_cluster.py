"""What a replay assumes about the world: costs, progress, node failures, interference between jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pliant.schemas.job import Job
from pliant.tools.replay.engine.costs import Cost, parse_costs
from pliant.tools.replay.engine.failures import Mtbf, NodeEvent, read_failures
from pliant.tools.replay.options import Conditions
from pliant.tools.replay.progress import ProgressModel, SampleProgress
from pliant.tools.schedule.jobs import NodeGpus


def exact_end(from_s: float, lasts_s: float, interval_s: float | None) -> tuple[float, bool]:
    """When a segment ends, and whether a decision at that moment still sees the job as before."""
    del interval_s
    return from_s + lasts_s, False


@dataclass(frozen=True, slots=True)
class Quirks:
    """Where a published simulator differs. The defaults are our own rules; presets are in ``compat``."""

    free_rebatch: bool = False
    """Whether a job that keeps its GPUs takes up another batch at no cost."""
    free_moves: bool = False
    """Whether a job that moves to as many GPUs of the same type on as many nodes goes on at no cost."""
    stop_all_s: float = 0.0
    """How long all running jobs stand still where a decision changes the GPUs of any: they are restarted
    together. The changed ones pay their own cost."""
    first_round: int = 0
    """Number of the first round, in intervals from time 0."""
    order: Callable[[Job], tuple[float, str]] | None = None
    """Sort key of jobs; None: (submit_time, id)."""
    segment_end: Callable[[float, float, float | None], tuple[float, bool]] = exact_end
    """As :func:`exact_end`, from the segment's start, its length and the interval between rounds."""


@dataclass(frozen=True, slots=True)
class SimulatedCluster:
    """The world of one replay."""

    start_cost: Cost | None = None
    """Cost of a start; None: not stated, then a replay takes what the profile measured, or 30 s. It is due
    until the job has trained once: an earlier change restarts it, and so does the resume after a
    preemption."""
    rescale_cost: Cost | None = None
    """Cost of every later change of its GPUs or batch; None: as for a start. A change before it is paid
    restarts it."""
    resume_cost: Cost | None = None
    """Cost of a start after a preemption or a failure; None: that of every other change."""
    progress: Callable[[], ProgressModel] = SampleProgress
    """Makes the progress model; a new one for every replay."""
    measured: bool = False
    """Whether jobs measure their own speed and the noise of their gradients, for policies to learn from."""
    interference: float = 0.0
    """Part of their speed that jobs lose to each other where they span several nodes and share one."""
    quirks: Quirks = field(default_factory=Quirks)
    node_events: tuple[NodeEvent, ...] = ()
    """A job whose node goes down falls back to its last checkpoint and waits again."""
    mtbf: Mtbf | None = None
    """More node events, drawn with the seed of the replay: every policy meets the same ones."""


def simulated_cluster(conditions: Conditions, profile: str | None) -> SimulatedCluster:
    """The cluster that behaves as the options say; costs of ``profile`` are in the file ``profile``."""
    return SimulatedCluster(
        *parse_costs(conditions.start_cost, conditions.rescale_cost, conditions.resume_cost, profile),
        node_events=() if conditions.failures is None else read_failures(conditions.failures),
        mtbf=None if conditions.mtbf is None else Mtbf(conditions.mtbf, conditions.repair),
        interference=conditions.interference,
    )


class Interference:
    """Which jobs slow each other down, as in the simulator of Pollux (OSDI '21).

    A node is contended while two or more jobs hold GPUs on it that each hold GPUs on other nodes, too: they
    share its link to the network. Such a job loses a fixed part of its speed while any of its nodes is
    contended, however many neighbours it has.
    """

    def __init__(self, part: float) -> None:
        self._slowed = 1.0 - part
        # Nodes of each job that spans several.
        self._nodes: dict[str, tuple[str, ...]] = {}
        # The same by node.
        self._beside: dict[str, set[str]] = {}
        self._last: dict[str, float] = {}
        self._stale: set[str] = set()

    def place(self, job_id: str, placement: NodeGpus) -> None:
        """The job now holds these GPUs, or none."""
        for node in self._nodes.pop(job_id, ()):
            self._beside[node].remove(job_id)
            self._stale |= self._beside[node]
        self._last.pop(job_id, None)
        if len(placement) > 1:
            self._nodes[job_id] = tuple(node for node, _ in placement)
            for node in self._nodes[job_id]:
                others = self._beside.setdefault(node, set())
                self._stale |= others
                others.add(job_id)

    def speed_factor(self, job_id: str) -> float:
        nodes = self._nodes.get(job_id, ())
        factor = self._slowed if any(len(self._beside[node]) > 1 for node in nodes) else 1.0
        self._last[job_id] = factor
        return factor

    def changed(self) -> list[str]:
        """Jobs whose speed factor is not what :meth:`speed_factor` returned last, by id."""
        stale, self._stale = self._stale, set()
        known = {job_id: self._last[job_id] for job_id in stale if job_id in self._last}
        return sorted(job_id for job_id, before in known.items() if self.speed_factor(job_id) != before)
