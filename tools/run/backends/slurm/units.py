"""One unit on a node: wanted, started by srun, taken over by its keeper, ended.

Its files say all that counts, so any later process of the launcher takes it up where it stands. It is
started again as often as need be until a keeper has taken it over, and never after.

The lease jobs of one state directory: one on each of its nodes, found again by their names.

A lease is a job of one node, because a failed node shrinks a job of several nodes for good.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pliant.schemas.cluster import Cluster
from pliant.schemas.file_io.files import atomic_write
from pliant.schemas.text import counted
from pliant.tools.profile.torchrun.start import child_environment
from pliant.tools.run.backends.local import LaunchRecord, StartedUnit, read_record, write_record
from pliant.tools.run.backends.protocol import Handle, StopLevel, UnitStatus
from pliant.tools.run.backends.slurm import commands as command_lines
from pliant.tools.run.backends.slurm import parsing
from pliant.tools.run.backends.slurm.commands import CONF, Lease, ask, of_slurm
from pliant.tools.run.backends.slurm.controller import Later, View
from pliant.tools.run.backends.slurm.parsing import SlurmJob, SlurmStep
from pliant.tools.run.statedir.contract.folders import (
    PRIVATE,
    DamagedError,
    ask_server,
    look_again,
    open_log,
    read_file,
)
from pliant.tools.run.statedir.contract.presence import Heartbeats

KEEPER: Final = str(Path(__file__).with_name("step.py"))
START_S: Final = 60.0
"""For a keeper to take its unit over, after srun was started."""
SHOWS_S: Final = 10.0
"""For a file that was written on another host to be seen here."""
TRIES: Final = 5
AGAIN_S: Final = 2.0
"""Between two tries to start it."""
DEAD_S: Final = 12.0
"""A keeper that has not shown for so long that it runs is lost, and so is its node."""
GONE_S: Final = 5.0
"""Likewise, where Slurm says that the step has ended."""
_OF_NODES: Final = ("connection failure", "Node failure", "Socket timed out", "Zero Bytes were transmitted")
"""In what srun says where a node, or its daemon, does not answer."""
_UNKNOWN: Final = StartedUnit(node="", argv=(), cwd="", env={})
_RUNNING: Final = UnitStatus("running")
_STARTING: Final = UnitStatus("running", starting=True)
_WAITS: Final = UnitStatus("running", queued=True)
_ASKED: Final = UnitStatus("running", queued=True, starting=True)
_CODES: Final = {"term": -signal.SIGTERM, "kill": -signal.SIGKILL}
_log = logging.getLogger("pliant")


@dataclass(frozen=True, slots=True)
class Seen:
    """What Slurm said of a unit last."""

    asked_s: float
    """When; long ago where it did not answer."""
    step: SlurmStep | None
    """The one that it runs in."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a unit may be started now."""

    lease_id: str
    gres: str
    gpus: str
    """As ``step.py`` takes them."""
    cpus: int | None = None


class SlurmUnit:
    """One unit of an attempt, and what is known of it."""

    def __init__(self, handle: Handle, number: int, started: StartedUnit) -> None:
        self.number = number
        self.node = started.node
        self.name = command_lines.step_name(handle.job, handle.attempt, number)
        self.order = _read_order(handle.files.orders(number))
        self.srun: int | None = None
        """Its process, while it runs."""
        self._files, self._started = handle.files, started
        self._job_dir = str(handle.job_files.path)
        self._tries = 0
        self._since_s = self._ended_s = float("-inf")
        """When srun was started last, and when it ended."""
        self._code = 0
        self._taken = False
        """Whether Slurm had ended it before the order was given."""
        self._ordered_s = time.monotonic() if self.order == "kill" else float("inf")

    @property
    def wanted(self) -> bool:
        """Whether it may still be started."""
        return not self.order and bool(self._started.argv)

    @property
    def beat_file(self) -> str:
        """What its keeper shows that it runs with."""
        return str(self._files.keeper(self.number))

    @property
    def slots(self) -> tuple[str, ...]:
        """Places of its GPUs in what its lease has; none on CPU slots."""
        return tuple(filter(None, self._started.env.get("CUDA_VISIBLE_DEVICES", "").split(",")))

    # What became of it.

    def ended(self) -> UnitStatus | None:
        """How it ended, by its own file; None: it does not say."""
        text = read_file(self._files.exit_code(self.number))
        if text is None:
            return None
        try:
            return UnitStatus("exited", int(text), displaced=self._displaced())
        except ValueError:
            return UnitStatus("lost")

    def _displaced(self) -> str:
        """Why it was ended before anybody here asked for that; empty: it was not."""
        if not self.order:
            self._taken = look_again(self._files.displaced(self.number)) is not None
        return f"Slurm has ended what ran on node {self.node}" if self._taken else ""

    def is_taken_over(self) -> bool:
        """Whether a keeper has it."""
        return look_again(self.beat_file) is not None

    def kept(self, beats: Heartbeats, seen: Seen, now_s: float) -> UnitStatus:
        """Of a unit that a keeper has: whether that one still lives."""
        silence_s = beats.silence_s(self.beat_file, DEAD_S)
        gone = seen.step is None and seen.asked_s > now_s - GONE_S / 2
        if silence_s < (GONE_S if gone else DEAD_S):
            return _RUNNING
        ask_server(self._files.path)  # it may have ended well without this host knowing it
        if (ended := self.ended()) is not None:
            return ended
        displaced = self._displaced()
        self.give_order("kill")  # should it come back, it finds that others went on without it
        return UnitStatus("lost", displaced=displaced)

    # Its start.

    def starting(
        self,
        place: Place | None,
        seen: Seen,
        env: Mapping[str, str],
        now_s: float,
        *,
        asking: bool = False,
    ) -> UnitStatus:
        """Of a unit that no keeper seems to have: the next step to its start.

        :param place: None: it cannot be started now.
        :param asking: a place is being asked for; else it waits for others.
        """
        if not self.wanted:
            return self._unwanted()
        waits_s = now_s - max(self._since_s, self._ended_s)
        if self.srun is not None:
            return self._give_up() if waits_s >= START_S else _STARTING
        if seen.step is not None and seen.asked_s > self._ended_s:
            return _RUNNING
        if self._tries and waits_s < (SHOWS_S if self._code == 0 else AGAIN_S):
            return _STARTING
        if (self._tries and self._code == 0) or self._tries >= TRIES:
            return self._give_up()
        if place is None:
            waits = _ASKED if asking else _WAITS
            return replace(waits, queued=False) if self._tries else waits
        if self._shows():  # another launcher has started it
            return _RUNNING
        self._start(place, env, now_s)
        return _STARTING

    def _unwanted(self) -> UnitStatus:
        """Looked at after the order was given: a keeper that takes it over from now on finds the order."""
        if self.is_taken_over():
            return _RUNNING
        return UnitStatus("exited", _CODES[self.order]) if self.order else UnitStatus("lost")

    def argv(self, place: Place) -> tuple[str, ...]:
        """What starts it."""
        log = self._files.launcher_log(self.number)
        step = command_lines.Step(place.lease_id, self.name, log, place.gres, place.cpus)
        return command_lines.srun_step(
            step, keeper_argv(self._files.path, self.number, place.gpus, self._started)
        )

    def _start(self, place: Place, env: Mapping[str, str], now_s: float) -> None:
        argv = self.argv(place)
        own = {**child_environment(env, self._started.env), **of_slurm(env, CONF)}
        own.pop("CUDA_VISIBLE_DEVICES", None)
        with open_log(self._srun_log) as log, open(os.devnull, "rb") as nothing:
            descriptors = ((nothing.fileno(), 0), (log.fileno(), 1), (log.fileno(), 2))
            self.srun = os.posix_spawnp(
                argv[0],
                argv,
                own,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, to) for source, to in descriptors],
                setsid=True,
                setsigmask=(),
                setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD),
            )
        self._tries, self._since_s = self._tries + 1, now_s

    def reap(self, now_s: float) -> None:
        """Take note of the end of srun."""
        if self.srun is None:
            return
        try:
            pid, status = os.waitpid(self.srun, os.WNOHANG)
        except ChildProcessError:  # the system takes note of ends by itself
            pid, status = self.srun, 0
        if pid:
            self.srun, self._ended_s = None, now_s
            self._code = os.waitstatus_to_exitcode(status)
            if self._code and "contact slurm controller" in self._said():
                self._tries -= 1

    def _shows(self) -> bool:
        """Whether files of its node are there that this host did not know of."""
        ask_server(self._files.path)
        return self.is_taken_over() or self.ended() is not None

    def _give_up(self) -> UnitStatus:
        """It does not start; the reason goes where its own last words would be.

        Where the node does not answer, or srun hangs, the unit is not at fault.
        """
        if self._shows():
            return _RUNNING
        self.give_order("kill")
        if self.is_taken_over():  # in the very last moment
            return _RUNNING
        said, folder = self._said(), self._files.path
        if self.srun is not None or any(words in said for words in _OF_NODES):
            why = said or f"srun has not ended after {START_S:.0f} s"
            return UnitStatus("lost", displaced=f"nothing starts on node {self.node}: {why}", began=False)
        if self._code == 0 or "No such file" in said or not said:
            said = ": ".join(
                filter(None, [f"node {self.node} does not see {folder}: it must be shared", said])
            )
        with suppress(OSError), open_log(self._files.launcher_log(self.number)) as log:
            log.write(f"pliant: no step on node {self.node}: {said}\n".encode())
        atomic_write(self._files.exit_code(self.number), b"1\n", mode=PRIVATE)
        return UnitStatus("exited", 1)

    @property
    def _srun_log(self) -> Path:
        return self._files.logs / f"srun-{self.number}.log"

    def _said(self) -> str:
        """The last error of srun; it also says what is no error."""
        try:
            lines = self._srun_log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        errors = [line.partition("error: ")[2].strip() for line in lines]
        return next(filter(None, reversed(errors)), "")

    # Its end.

    def give_order(self, level: StopLevel) -> bool:
        """Ask for its end; whether it was killed a while ago, and something harder is needed."""
        if self.order == "kill":
            return time.monotonic() - self._ordered_s >= AGAIN_S
        if level != self.order:
            self._displaced()  # or the end of another unit, which brings the order, would be its reason
            atomic_write(self._files.orders(self.number), level.encode() + b"\n", mode=PRIVATE)
            self.order, self._ordered_s = level, time.monotonic()
        return False


def record_of(handle: Handle, backend: str) -> LaunchRecord | None:
    """The record of an attempt; of one that is damaged, its units are those that have left files."""
    try:
        return read_record(handle)
    except DamagedError as error:
        numbers = [
            int(path.name.removeprefix("orders-"))
            for path in handle.folder.glob("orders-*")
            if path.name.removeprefix("orders-").isdecimal()
        ]
        units = (_UNKNOWN,) * (max(numbers, default=-1) + 1)
        _log.warning("%s; it is made again from %s", error, counted(len(units), "unit"))
        record = LaunchRecord(job=handle.job, attempt=handle.attempt, backend=backend, units=units)
        write_record(handle, record)
        return record


def keeper_argv(attempt: Path, number: int, gpus: str, started: StartedUnit) -> tuple[str, ...]:
    """What a step runs."""
    own = (sys.executable, "-I", "-S", KEEPER, str(attempt), str(number), gpus, started.cwd)
    return (*own, *started.argv)


def no_orders(handle: Handle, numbers: Sequence[int]) -> None:
    """Make the files of orders before units are started: one that is there is opened again each time."""
    for number in numbers:
        atomic_write(handle.files.orders(number), b"", mode=PRIVATE)


def _read_order(path: Path) -> str:
    text = (read_file(path) or b"").decode(errors="replace").strip()
    return text if text in _CODES else ""


LEASE_AGAIN_S: Final = 3.0
"""Between two submissions of a lease that ends at once."""
LONGEST_S: Final = 300.0
"""Likewise, of one that does so again and again: each time it takes twice as long, up to this."""
STEADY_S: Final = 60.0
"""A lease that has run for so long has not ended at once."""
REFUSED_S: Final = 15.0
"""Likewise, of one that Slurm refuses."""
WAIT_S: Final = 30.0
"""A node serves as if its lease ran, until it has waited for so long."""
_NOT_LOOKED_AT: Final = ("", "None")
"""Reasons of a job that waits since a moment ago."""


@dataclass(slots=True)
class _Asked:
    """One node's lease, as far as this process has asked for it."""

    lease: Lease
    since_s: float
    """When it began to wait for its lease; while it has one, now."""
    submission: Later | None = None
    next_s: float = float("-inf")
    seen_from_s: float = float("-inf")
    """Only a view that was asked for later knows what was submitted."""
    refused: str = ""
    tries: int = 0
    """Submissions since a lease ran for long."""
    runs_from_s: float = float("inf")
    id: str | None = None
    job: SlurmJob | None = field(default=None)


class Leases:
    """The leases of a state directory.

    :param clock: seconds that never run backwards.
    """

    def __init__(
        self,
        cluster: Cluster,
        state: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._state = cluster.slurm, state.resolve()
        self._clock = clock
        self._asked = {
            node.name: _Asked(command_lines.lease_of(cluster, node, state), clock())
            for node in cluster.expanded()
            if node.gpus
        }

    def id_of(self, node: str) -> str | None:
        """The job id of a node's lease, if it runs."""
        return self._asked[node].id if node in self._asked else None

    @property
    def held(self) -> int:
        """Leases that run or wait."""
        return sum(asked.job is not None for asked in self._asked.values())

    def size_of(self, node: str) -> int:
        """GPUs in a node's lease; 0: its slots are CPUs."""
        return self._asked[node].lease.gpus

    def cpus_of(self, node: str) -> int | None:
        """CPUs in a node's lease; None: all of the node."""
        return self._asked[node].lease.cpus

    def serves(self, node: str) -> bool:
        """Whether a node's lease runs, or has not been waited for long."""
        asked = self._asked.get(node)
        return asked is not None and (asked.id is not None or self._clock() - asked.since_s < WAIT_S)

    def asks_for(self, node: str) -> bool:
        """Whether a node's lease is still to come into Slurm's queue, or Slurm has not looked at it there."""
        asked = self._asked.get(node)
        if asked is None or asked.id is not None or asked.refused:
            return False
        return asked.job is None or asked.job.reason in _NOT_LOOKED_AT

    def why_not(self, node: str) -> str:
        """Why a node's lease does not run."""
        asked = self._asked.get(node)
        if asked is None or asked.refused:
            return "it has no GPUs" if asked is None else f"Slurm refuses its lease: {asked.refused}"
        if asked.job is None and asked.tries > 2:
            return "its lease ends at once, or is not called in Slurm's queue as it was asked to be"
        waits = f" ({asked.job.reason})" if asked.job is not None and asked.job.reason else ""
        return f"its lease waits in Slurm's queue{waits}"

    def look(self, view: View, *, renew: bool = True) -> None:
        """Learn from a view which leases run; where a node has none, ask for one.

        :param renew: ask for those that are missing.
        """
        by_name = self._by_name(view)
        for node, asked in self._asked.items():
            self._hear(asked)
            jobs = by_name.get(asked.lease.name, [])
            running = [job for job in jobs if job.state == "RUNNING"]
            now_s = self._clock()
            asked.id, before = running[0].id if running else None, asked.id
            asked.job = next(iter([*running, *jobs]), None)
            if asked.id != before:
                asked.runs_from_s = now_s if running else float("inf")
            if now_s - asked.runs_from_s >= STEADY_S:
                asked.tries = 0
            asked.since_s = now_s if running or not renew else asked.since_s
            if renew:
                self._drop_second(running or jobs, jobs)
            found = view.nodes.get(node)
            wanted = renew and not jobs and found is not None and found.serves is not False
            if (
                wanted
                and asked.submission is None
                and now_s >= asked.next_s
                and view.asked_s >= asked.seen_from_s
            ):
                self._submit(asked)

    def give_back(self, busy: Iterable[str] = ()) -> int:
        """End the leases of all nodes but the ``busy`` ones, and returns how many these are. Waits for Slurm.

        :raises ServiceMissingError: Slurm does not answer.
        """
        for asked in self._asked.values():
            if asked.submission is not None:  # or it would come into the queue after this
                asked.submission.wait()
        kept = {self._asked[node].lease.name for node in busy if node in self._asked}
        prefix = command_lines.lease_prefix(self._state)
        text = ask(command_lines.squeue_jobs(os.getuid()))
        own = [job for job in parsing.jobs(text) if job.name.startswith(prefix) and job.name not in kept]
        if own:
            ask(command_lines.scancel_jobs(job.id for job in own))
        return len(own)

    def drop(self, node: str) -> None:
        """End the lease of a node that is to serve no more."""
        asked = self._asked.get(node)
        if asked is not None and asked.id is not None and self._clock() >= asked.next_s:
            asked.next_s = self._clock() + LEASE_AGAIN_S
            Later(command_lines.scancel_jobs([asked.id]))

    def _by_name(self, view: View) -> Mapping[str, list[SlurmJob]]:
        """The jobs that wait or run, the oldest first, by name."""
        found: dict[str, list[SlurmJob]] = {}
        for job in sorted(view.jobs, key=_age):
            if job.state in ("PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"):
                found.setdefault(job.name, []).append(job)
        return found

    def _drop_second(self, kept: list[SlurmJob], jobs: list[SlurmJob]) -> None:
        """A node may get two where a controller answered late: all steps are in the first that runs."""
        surplus = [job.id for job in jobs if job.id != kept[0].id] if kept else []
        if surplus:
            Later(command_lines.scancel_jobs(surplus))

    def _submit(self, asked: _Asked) -> None:
        argv = command_lines.sbatch_lease(asked.lease, self._options, self._state)
        asked.submission = Later(argv)

    def _hear(self, asked: _Asked) -> None:
        """What became of a submission that is under way."""
        if asked.submission is None or not asked.submission.done:
            return
        refused, asked.submission = asked.submission.failure, None
        asked.seen_from_s = self._clock()
        asked.next_s = asked.seen_from_s + (REFUSED_S if refused else _pause_s(asked.tries))
        asked.tries += not refused
        if refused and refused != asked.refused:
            _log.warning("node %s: no lease: %s; it is asked for again", asked.lease.node, refused)
        asked.refused = refused


def _pause_s(tries: int) -> float:
    """How long to wait after another submission: a controller keeps each job that has ended for minutes."""
    return min(LEASE_AGAIN_S * 2.0 ** min(max(0, tries - 1), 20), LONGEST_S)


def _age(job: SlurmJob) -> tuple[int, str]:
    return (int(job.id) if job.id.isdecimal() else 0, job.id)
